"""Which linear layers end a residual branch, and which make queries and keys: what schemes that know the depth ask.

Both are found by structure, not by name. A sum is residual if one of its sides was computed from the other; what leads
to that side through ops that only scale, drop, cast or move numbers ends the branch, wherever in the hierarchy it
stands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from archdsl.ir.graph import Block, CallNode, OpNode, Value, node_outputs, reads
from archdsl.ir.walk import calls_of, every_node, nodes_below

MAPS = frozenset({"linear", "convolution"})
"""The families of ops that end branches and make queries and keys."""


@dataclass
class Trace:
    """What a value comes from: the maps that end it (ids of their nodes), the values passed on the way."""

    maps: set[int] = field(default_factory=set)
    values: set[int] = field(default_factory=set)


@dataclass
class Join:
    """A sum of two of a block's inputs: whether it is residual, only the callers know."""

    sides: tuple[frozenset[int], frozenset[int]]
    maps: tuple[frozenset[int], frozenset[int]]


class _Body:
    """One block's values, those of the graphs inside it included."""

    def __init__(self, block: Block, finder: _Finder) -> None:
        self.block = block
        self.finder = finder
        self.nodes = list(every_node(block.graph))
        self.made = {id(v): (node, k) for node in self.nodes for k, v in enumerate(node_outputs(node))}
        self.inputs = {id(v): i for i, v in enumerate(block.graph.inputs)}
        self.joins: list[Join] = []
        self.outputs = [self.trace(v) for v in block.graph.outputs if v is not None]

    def trace(self, value: Value) -> Trace:
        found = Trace()
        stack = [value]
        while stack:
            value = stack.pop()
            if id(value) in found.values:
                continue
            found.values.add(id(value))
            node, k = self.made.get(id(value), (None, 0))
            if isinstance(node, OpNode):
                if node.op.family in MAPS:
                    found.maps.add(id(node))
                elif node.op.keeps_branch:
                    stack += [v for v in node.inputs if isinstance(v, Value)]
                for call in node.blocks.values():
                    found.maps |= self.finder.body(call.block).outputs[0].maps
            elif isinstance(node, CallNode):
                body = self.finder.body(node.block)
                end = body.outputs[k]
                found.maps |= end.maps
                stack += [v for v in self.given(node, body.entries(end.values)) if v is not None]
        return found

    def entries(self, values: set[int]) -> frozenset[int]:
        """Which of the block's inputs are among some values."""
        return frozenset(i for key, i in self.inputs.items() if key in values)

    def given(self, node: CallNode, entries: frozenset[int]) -> Iterator[Value | None]:
        return (node.inputs[i] for i in entries)

    def above(self, value: Value) -> set[int]:
        """Every value that a value was computed from."""
        found: set[int] = set()
        stack = [value]
        while stack:
            node, _ = self.made.get(id(stack.pop()), (None, 0))
            for v in reads(node) if node is not None else ():
                if id(v) not in found:
                    found.add(id(v))
                    stack.append(v)
        return found

    def sums(self) -> None:
        """Look at every sum, and at those of called blocks that add two of their inputs."""
        for node in self.nodes:
            if isinstance(node, OpNode) and _adds(node):
                sides = [v for v in node.inputs if isinstance(v, Value)]
                if len(sides) == 2:
                    self.add([sides[0]], [sides[1]], (frozenset(), frozenset()))
            elif isinstance(node, CallNode):
                for join in self.finder.body(node.block).joins:
                    a, b = ([v for v in self.given(node, side) if v is not None] for side in join.sides)
                    self.add(a, b, join.maps)

    def add(self, a: list[Value], b: list[Value], inner: tuple[frozenset[int], frozenset[int]]) -> None:
        traces = [self.together(side) for side in (a, b)]
        maps = [traces[i].maps | inner[i] for i in range(2)]
        for branch, skip, side in ((1, 0, b), (0, 1, a)):
            computed = set().union(*(self.above(v) for v in side)) if side else set()
            if computed & traces[skip].values:
                self.finder.found |= maps[branch] - maps[skip]
                return
        entries = self.entries(traces[0].values), self.entries(traces[1].values)
        if entries[0] and entries[1]:
            self.joins.append(Join(entries, (frozenset(maps[0]), frozenset(maps[1]))))

    def together(self, values: list[Value]) -> Trace:
        found = Trace()
        for value in values:
            one = self.trace(value)
            found.maps |= one.maps
            found.values |= one.values
        return found


class _Finder:
    def __init__(self) -> None:
        self.bodies: dict[int, _Body] = {}
        self.found: set[int] = set()

    def body(self, block: Block) -> _Body:
        found = self.bodies.get(id(block))
        if found is None:
            found = self.bodies[id(block)] = _Body(block, self)
            found.sums()
        return found


def _adds(node: OpNode) -> bool:
    """Whether the result is a sum or a difference."""
    factors = node.op.combines(node) or ()
    return len(factors) == 2 and all(factors)


def branch_ends(root: Block) -> frozenset[int]:
    """The last linear layers (and convolutions) of residual branches in a block and all that it applies: ids of their
    nodes."""
    finder = _Finder()
    finder.body(root)
    for call in (call for node in nodes_below(root.graph) for call in calls_of(node)):
        finder.body(call.block)
    return frozenset(finder.found)


def query_key_maps(block: Block) -> frozenset[int]:
    """The linear layers of a block that make queries and keys of attention and no values: ids of their nodes."""
    scores: set[int] = set()
    values: set[int] = set()
    body = _Body(block, _Finder())
    for node in body.nodes:
        if isinstance(node, OpNode) and node.op.family == "attention":
            for i, value in enumerate(node.inputs[:3]):
                if isinstance(value, Value):
                    (values if i == 2 else scores).update(_projections(body, value))
    return frozenset(scores - values)


def _projections(body: _Body, value: Value) -> Iterator[int]:
    seen: set[int] = set()
    stack = [value]
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        node, _ = body.made.get(id(value), (None, 0))
        if not isinstance(node, OpNode):
            continue
        if node.op.family in MAPS:
            yield id(node)
        elif node.op.keeps_projection:
            stack += [v for v in node.inputs if isinstance(v, Value)]
