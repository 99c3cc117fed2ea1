"""How many parameters a model has and where: memoized by block, so that a thousand layers cost what their distinct
blocks cost. `archdsl.estimates.params` makes the report of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from archdsl.ir.graph import Block, CallNode, Graph, Model, Node, OpNode, Weight
from archdsl.ir.paths import layer_of
from archdsl.ir.static import SharedModule
from archdsl.ir.walk import calls_of, is_module, modules, runs
from archdsl.ir.weights import shape_of

Key = tuple[str, tuple[int, ...], bool]


def total(model: Model) -> int:
    """How many parameters the model has."""
    return Counts().block(model.block).total


@dataclass
class Count:
    """What a piece of the model holds."""

    total: int = 0
    active: int = 0
    embedding: int = 0
    buffers: int = 0
    weights: dict[Key, tuple[int, Weight]] = field(default_factory=dict)
    """(path with `*` for indices, shape, trained) to how often."""

    def weight(self, path: str, weight: Weight, times: int) -> None:
        shape = shape_of(weight)
        if not weight.trained:
            if not weight.saved:
                return
            self.buffers += times * math.prod(shape)
        else:
            n = times * math.prod(shape)
            self.total += n
            self.active += n
            self.embedding += n if weight.kind == "embedding" else 0
        self._listed((path, shape, weight.trained), times, weight)

    def add(self, other: Count, prefix: str, times: int) -> None:
        """`times` sets of another's weights, under a step of the path."""
        self.total += times * other.total
        self.active += times * other.active
        self.embedding += times * other.embedding
        self.buffers += times * other.buffers
        for (path, shape, trained), (n, weight) in other.weights.items():
            self._listed((prefix + path, shape, trained), times * n, weight)

    def _listed(self, key: Key, times: int, weight: Weight) -> None:
        before, first = self.weights.get(key, (0, weight))
        self.weights[key] = (before + times, first)


class Counts:
    """Memo of counts by block."""

    def __init__(self) -> None:
        self.memo: dict[int, Count] = {}

    def block(self, block: Block) -> Count:
        found = self.memo.get(id(block))
        if found is None:
            found = self.memo[id(block)] = self._count(block, block.instances)
        return found

    def called(self, node: CallNode) -> Count:
        """What a call brings. Of a block split in two by a scan, the part that takes the steps owns what is shared."""
        return self.block(node.block) if node.step is None else self._count(node.block, ())

    def whole(self, block: Block) -> int:
        """The total of a block, both parts of it where a scan has split it."""
        before = self._count(block.before, ()).total if block.before is not None else 0
        return before + self.block(block).total

    def _count(self, block: Block, instances: tuple[SharedModule, ...]) -> Count:
        found = Count()
        for instance in instances:
            if instance.block is not None:
                found.add(self.block(instance.block), f"{instance.path}.", 1)
            elif instance.node is not None:
                self._op(instance.node, found, f"{instance.path}.", 1)
        self._graph(block.graph, found)
        return found

    def _op(self, node: OpNode, into: Count, prefix: str, times: int) -> None:
        for weight in node.weights:
            into.weight(prefix + weight.name, weight, times)
        for call in node.blocks.values():
            inner = self.block(call.block)
            into.add(inner, prefix, times)
            if node.copies is not None and node.active is not None:
                used = Fraction(inner.active) * int(node.active) / int(node.copies)
                into.active += times * (int(used) - inner.active)

    def _graph(self, graph: Graph, into: Count) -> None:
        for node, times, loop in runs(graph):
            if is_module(node):
                path = f"{node.name}.*" if loop is not None else node.name
                if isinstance(node, CallNode):
                    into.add(self.called(node), f"{path}.", times)
                elif isinstance(node, OpNode):
                    self._op(node, into, f"{path}.", times)
                else:
                    into.weight(path, node.weight, times)


class Use(NamedTuple):
    """The sets of weights of a distinct block."""

    times: int
    alias: str
    """What it is first called by."""
    path: str
    """Where it first stands: `blocks.3.attention`."""
    kind: str = ""
    """What the layer that it first stands in is called by."""
    layers: Mapping[str, frozenset[int]] = {}
    """By the list of layers, `blocks`, those that it stands in."""


def calls(block: Block) -> Iterator[tuple[Block, Use]]:
    """Yield the blocks that have modules of their own within this one, with their uses in it."""
    for instance in block.instances:
        if instance.block is not None:
            yield instance.block, Use(1, instance.label, instance.path)
        elif instance.node is not None:
            yield from ((c.block, Use(1, c.alias, instance.path)) for c in calls_of(instance.node))
    for graph in (b.graph for b in (block.before, block) if b is not None):
        steps: dict[Node, list[str]] = {}
        for module, step in modules(graph):
            steps.setdefault(module, []).append(step)
        for node, times, _ in runs(graph):
            if is_module(node):
                path, numbers = steps[node][0], frozenset(layer_of(step)[1] for step in steps[node])
                stack = layer_of(path)[0]
                for c in calls_of(node):
                    if c.step is None:
                        kind, layers = (c.alias, {stack: numbers}) if stack else ("", {})
                        yield c.block, Use(times, c.alias, path, kind, layers)


def uses(root: Block) -> dict[Block, Use]:
    """Return the uses of each distinct block, in order of appearance, breadth first. A block is reached once for each
    distinct caller, not for each layer."""
    found: dict[Block, Use] = {}
    level = {root: Use(1, "", "")}
    while level:
        below: dict[Block, Use] = {}
        for block, outer in level.items():
            _add(found, block, outer)
            for inner, use in calls(block):
                path = f"{outer.path}.{use.path}".strip(".")
                layers = outer.layers or {f"{outer.path}.{s}".strip("."): n for s, n in use.layers.items()}
                kind = outer.kind if outer.layers else use.kind
                _add(below, inner, Use(use.times * outer.times, use.alias, path, kind, layers))
        level = below
    return found


def _add(into: dict[Block, Use], block: Block, use: Use) -> None:
    first = into.get(block, use._replace(times=0, layers={}))
    layers = {
        s: first.layers.get(s, frozenset()) | use.layers.get(s, frozenset()) for s in (*first.layers, *use.layers)
    }
    into[block] = first._replace(times=first.times + use.times, layers=layers)


def sorted_layers(use: Use) -> dict[str, list[int]]:
    """Return the layers that a block stands in, as reports have them."""
    return {stack: sorted(numbers) for stack, numbers in use.layers.items()}


def titles(uses: Mapping[Block, Use]) -> dict[Block, str]:
    """Return what reports call blocks: by their names; of several with one name, by what they are first called by; of
    those that are alike still, by where they stand: within a layer, in which kind of it, at last in the first one."""

    def words(use: Use) -> Iterator[str]:
        stack, _, within = layer_of(use.path)
        yield use.alias
        yield f"{stack}.{within}" if len(stacks) > 1 and len(use.layers) == 1 else within
        yield f"{use.kind}.{within}" if use.kind else ""
        yield use.path

    stacks = {stack for use in uses.values() for stack in use.layers}
    found = {block: block.name for block in uses}
    for refined in zip(*(words(use) for use in uses.values()), strict=True):
        alike = Counter(found.values())
        for block, word in zip(uses, refined, strict=True):
            if alike[found[block]] > 1 and word not in ("", block.name):
                found[block] = f"{block.name} ({word})"
    return found
