"""The work of a model: the FLOPs of every op, forwards and backwards, as functions of batch and time.

Forwards every contraction is done once. Backwards it is done again for each side that a gradient is wanted of: for a
side made of trained weights, or of tensors that depend on some, and only where the result is of use to the objective
(the model's real outputs, and its losses). So the first layer of a model whose input is given costs two thirds of what
another does, and the first state of a recurrence, zeros, costs no gradient.

The walk is memoized by block, and by which of its tensors want a gradient and which have one: a model of a thousand
layers costs what its distinct blocks do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from archdsl.ir.cost import Amount, Pairs
from archdsl.ir.dims import Value as Size
from archdsl.ir.dims import add, mul, sub, with_symbol
from archdsl.ir.graph import (
    Block,
    CallNode,
    CondNode,
    Graph,
    Handle,
    LoopNode,
    LossNode,
    Model,
    Node,
    OpNode,
    ParamNode,
    ScanNode,
    Value,
    WeightNode,
    reads,
)

Step = tuple[str, str]
"""An op's path, `*` for every index of a loop, and its primitive."""


class Total:
    """A sum of FLOPs, those for each pair apart until the pairs are counted."""

    def __init__(self) -> None:
        self.parts: dict[Hashable, tuple[Pairs | None, Size]] = {}

    def add(self, amount: Amount, times: Size = 1) -> None:
        """Add an amount so many times."""
        self._put(amount.pairs, mul(amount.flops, times))

    def join(self, other: Total, times: Size = 1) -> None:
        """Add another sum so many times."""
        for pairs, flops in other.parts.values():
            self._put(pairs, flops if times == 1 else mul(flops, times))

    def _put(self, pairs: Pairs | None, flops: Size) -> None:
        key = None if pairs is None else pairs.key
        before = self.parts.get(key)
        self.parts[key] = (pairs, flops) if before is None else (before[0], add(before[1], flops))

    def with_rows(self, rows: Size) -> Total:
        """The same where the rows of an expert are that many."""
        found = Total()
        for pairs, flops in self.parts.values():
            found._put(pairs, with_symbol(flops, "rows", rows))
        return found

    @property
    def amounts(self) -> Iterable[tuple[Pairs | None, Size]]:
        """FLOPs that no pair multiplies (None), and FLOPs for each pair."""
        return self.parts.values()


@dataclass
class OpWork:
    """What one op does, all its uses together."""

    uses: Size = 0
    forward: Total = field(default_factory=Total)
    backward: Total = field(default_factory=Total)
    elementwise: Total = field(default_factory=Total)
    """Forwards, beside the contractions."""

    def join(self, other: OpWork, times: Size) -> None:
        """Add another's work so many times."""
        self.uses = add(self.uses, mul(other.uses, times))
        self.forward.join(other.forward, times)
        self.backward.join(other.backward, times)
        self.elementwise.join(other.elementwise, times)

    def with_rows(self, rows: Size) -> OpWork:
        """The same where the rows of an expert are that many."""
        parts = (self.forward.with_rows(rows), self.backward.with_rows(rows), self.elementwise.with_rows(rows))
        return OpWork(self.uses, *parts)


@dataclass
class BlockWork:
    """What all uses of one distinct block do, those of the blocks inside it included."""

    block: Block
    alias: str
    work: OpWork = field(default_factory=OpWork)


@dataclass
class Work:
    """What a piece of the model does."""

    ops: dict[Step, OpWork] = field(default_factory=dict)
    blocks: dict[int, BlockWork] = field(default_factory=dict)
    layers: Total = field(default_factory=Total)
    """Forwards, within the stacks of layers alone."""

    def join(self, other: Work, times: Size, prefix: str = "") -> None:
        """Add another piece's work so many times, under a step of the path."""
        for (path, op), work in other.ops.items():
            self.ops.setdefault((prefix + path, op), OpWork()).join(work, times)
        for key, found in other.blocks.items():
            self.blocks.setdefault(key, BlockWork(found.block, found.alias)).work.join(found.work, times)
        self.layers.join(other.layers, times)

    def with_rows(self, rows: Size) -> Work:
        """The same where the rows of an expert are that many."""
        return Work(
            {step: work.with_rows(rows) for step, work in self.ops.items()},
            {key: BlockWork(b.block, b.alias, b.work.with_rows(rows)) for key, b in self.blocks.items()},
            self.layers.with_rows(rows),
        )

    @property
    def total(self) -> OpWork:
        """All ops together."""
        found = OpWork()
        for work in self.ops.values():
            found.join(work, 1)
        return found


@lru_cache(maxsize=4)
def work_of(model: Model, *, training: bool) -> Work:
    """What a model does: in training with its losses, forwards and backwards; else forwards alone."""
    walk = _CostWalk(training)
    block = model.block
    frame = _Frame(None)
    for value in block.graph.inputs:
        frame.wants[value] = False
    walk.forwards(block.graph, frame, walk.live(block.graph))
    if training:
        for output in block.graph.outputs:
            if output is not None:
                frame.reach(output)
    found = Work()
    walk.backwards(block.graph, frame, walk.live(block.graph), found, "")
    root = BlockWork(block, "")
    root.work.join(found.total, 1)
    root.work.uses = 1
    return Work(found.ops, {id(block): root, **found.blocks}, found.layers)


# --- the walk ---------------------------------------------------------------------------------------------------------


ROUNDS = 8
"""Steps of a scan after which what still changes from one to the next is taken for the union of both."""


class _Frame:
    """One run of a graph: which tensors want a gradient, and which of them have one."""

    def __init__(self, around: _Frame | None) -> None:
        self.around = around
        self.wants: dict[Value, bool] = {}
        self.reached: set[Value] = set()
        self.inner: dict[int, list[_Frame]] = {}
        """The runs inside a node, iteration by iteration."""

    def wanting(self, value: object) -> bool:
        frame: _Frame | None = self
        while frame is not None:
            if value in frame.wants:
                return frame.wants[value]
            frame = frame.around
        return False

    def reach(self, value: object) -> None:
        """A gradient arrives at a tensor, if it wants one."""
        frame: _Frame | None = self
        while frame is not None:
            if value in frame.wants:
                if frame.wants[value]:
                    frame.reached.add(value)
                return
            frame = frame.around

    def is_reached(self, value: Value) -> bool:
        return value in self.reached


Iterations = dict[Hashable, tuple[Work, frozenset[Value]]]
"""Iterations that are alike: the work of one, and which of its inputs have a gradient."""


class _CostWalk:
    def __init__(self, training: bool) -> None:
        self.training = training
        self.made: dict[Hashable, tuple[bool, ...]] = {}
        """Of a block and what wants gradients: which results do."""
        self.done: dict[Hashable, tuple[Work, tuple[bool, ...]]] = {}
        """Of these and the results that have a gradient: the work, and which tensors then have one."""
        self.lives: dict[int, set[int]] = {}

    # --- what is computed at all ---

    def live(self, graph: Graph) -> set[int]:
        """Nodes that results, losses or weights depend on: emitted code has no others."""
        if id(graph) not in self.lives:
            needed = {id(v) for v in graph.outputs if v is not None}
            kept: set[int] = set()
            for node in reversed(graph.nodes):
                own = isinstance(node, OpNode) and bool(node.weights or node.blocks) and node.instance is None
                if own or not isinstance(node, OpNode) or any(id(v) in needed for v in node.outputs):
                    kept.add(id(node))
                    needed |= {id(v) for v in reads(node)}
            self.lives[id(graph)] = kept
        return self.lives[id(graph)]

    def branch(self, node: CondNode) -> Graph:
        return node.then if self.training else node.otherwise

    # --- forwards: which tensors want a gradient ---

    def forwards(self, graph: Graph, frame: _Frame, live: set[int]) -> None:
        for node in graph.nodes:
            if id(node) in live:
                self.wants(node, frame)

    def wants(self, node: Node, frame: _Frame) -> None:
        if isinstance(node, OpNode):
            wanted = any(w.trained for w in node.weights) or any(
                frame.wanting(v) and node.op.differentiates(node, i) for i, v in enumerate(node.inputs)
            )
            wanted = wanted or any(any(self.called(c, (False,), frame)) for c in node.blocks.values())
            for output in node.outputs:
                frame.wants[output] = wanted and output.is_float
        elif isinstance(node, CallNode):
            flags = tuple(v is not None and frame.wanting(v) for v in node.inputs)
            for output, wanted in zip(node.outputs, self.called(node, flags, frame), strict=True):
                frame.wants[output] = wanted
        elif isinstance(node, LoopNode):
            self.loop_wants(node, frame)
        elif isinstance(node, ScanNode):
            self.scan_wants(node, frame)
        elif isinstance(node, CondNode):
            inner = _Frame(frame)
            graph = self.branch(node)
            self.forwards(graph, inner, self.live(graph))
            frame.inner[id(node)] = [inner]
            for output, value in zip(node.outputs, graph.outputs, strict=True):
                frame.wants[output] = inner.wanting(value)
        elif isinstance(node, ParamNode):
            frame.wants[node.output] = node.weight.trained
        elif isinstance(node, WeightNode):
            found = (w for w in node.instance.node.weights if w.name == node.weight)
            frame.wants[node.output] = any(w.trained for w in found)

    def contexts(self, call: CallNode, frame: _Frame) -> tuple[bool, ...]:
        return tuple(not isinstance(c, Handle) and frame.wanting(c) for c in call.contexts)

    def called(self, call: CallNode, flags: tuple[bool, ...], frame: _Frame) -> tuple[bool, ...]:
        given = self.contexts(call, frame)
        key = (id(call.block), flags, given)
        if key not in self.made:
            inner = self.entered(call.block, flags, given)
            self.made[key] = tuple(inner.wanting(v) for v in call.block.graph.outputs if v is not None)
        return self.made[key]

    def entered(self, block: Block, flags: tuple[bool, ...], given: tuple[bool, ...]) -> _Frame:
        inner = _Frame(None)
        inner.wants.update(zip(block.graph.inputs, flags, strict=True))
        for context, wanted in zip(block.contexts, given, strict=True):
            if isinstance(context.value, Value):
                inner.wants[context.value] = wanted
        self.forwards(block.graph, inner, self.live(block.graph))
        return inner

    def iteration(self, body: Graph, flags: Sequence[bool], frame: _Frame) -> _Frame:
        inner = _Frame(frame)
        inner.wants.update(zip(body.inputs, flags, strict=True))
        self.forwards(body, inner, self.live(body))
        return inner

    def loop_wants(self, node: LoopNode, frame: _Frame) -> None:
        carried = [frame.wanting(v) for v in node.starts]
        iterations: list[_Frame] = []
        for i, which in enumerate(node.iterations):
            body = node.bodies[which]
            inner = self.iteration(body, carried, frame)
            iterations.append(inner)
            results = [inner.wanting(v) for v in body.outputs if v is not None]
            carried = results[: len(carried)]
            if node.emitted:
                frame.wants.update(zip(node.emitted[i], results[len(carried) :], strict=True))
        frame.wants.update(zip(node.outputs, carried, strict=True))
        frame.inner[id(node)] = iterations

    def scan_wants(self, node: ScanNode, frame: _Frame) -> None:
        """The first steps one by one, until what is carried wants no more than before."""
        carried = [frame.wanting(v) for v in node.starts]
        slices = [frame.wanting(v) for v in node.sequences]
        iterations: list[_Frame] = []
        stacked = [False] * len(node.stacked)
        while True:
            inner = self.iteration(node.body, [*carried, *slices], frame)
            iterations.append(inner)
            results = [inner.wanting(v) for v in node.body.outputs if v is not None]
            stacked = _either(stacked, results[len(carried) :])
            after = results[: len(carried)]
            if after == carried:
                break
            carried = after if len(iterations) < ROUNDS else _either(carried, after)
        frame.wants.update(zip(node.stacked, stacked, strict=True))
        frame.wants.update(zip(node.finals, carried, strict=True))
        frame.inner[id(node)] = iterations

    # --- backwards: what each op costs ---

    def backwards(self, graph: Graph, frame: _Frame, live: set[int], into: Work, index: str) -> None:
        for node in reversed(graph.nodes):
            if id(node) in live:
                self.cost(node, frame, into, index)

    def cost(self, node: Node, frame: _Frame, into: Work, index: str) -> None:
        if isinstance(node, OpNode):
            self.op(node, frame, into, index)
        elif isinstance(node, CallNode):
            flags = tuple(v is not None and frame.wanting(v) for v in node.inputs)
            reached = tuple(frame.is_reached(v) for v in node.outputs)
            work, back = self.entered_back(node, flags, reached, frame)
            into.join(work, 1, f"{_step(node)}{index}.")
            for value, arrives in zip((*node.inputs, *node.contexts), back, strict=True):
                if arrives:
                    frame.reach(value)
        elif isinstance(node, LoopNode):
            self.loop(node, frame, into, index)
        elif isinstance(node, ScanNode):
            self.scan(node, frame, into, index)
        elif isinstance(node, CondNode):
            graph, (inner,) = self.branch(node), frame.inner[id(node)]
            for output, value in zip(node.outputs, graph.outputs, strict=True):
                if frame.is_reached(output):
                    inner.reach(value)
            self.backwards(graph, inner, self.live(graph), into, index)
        elif isinstance(node, LossNode) and self.training:
            frame.reach(node.value)

    def op(self, node: OpNode, frame: _Frame, into: Work, index: str) -> None:
        cost = node.op.flops(node)
        work = OpWork(1)
        trained = {w.name for w in node.weights if w.trained}
        reached = any(frame.is_reached(v) for v in node.outputs)
        for amount in cost.elementwise:
            work.elementwise.add(amount)
        for part in cost.contractions:
            work.forward.add(part.amount)
            sides = sum(
                any(s in trained if isinstance(s, str) else frame.wanting(node.inputs[s]) for s in side)
                for side in (part.left, part.right)
            )
            if reached and sides:
                work.backward.add(part.amount, sides)
        own = bool(node.weights or node.blocks) and (node.name or node.instance is not None)
        path = f"{_step(node)}{index}" if own else ""
        into.ops.setdefault((path, node.op.name), OpWork()).join(work, 1)
        for call in node.blocks.values():
            self.experts(node, call, reached, frame, into, path)
        if reached:
            for i, value in enumerate(node.inputs):
                if node.op.differentiates(node, i):
                    frame.reach(value)

    def experts(self, node: OpNode, call: CallNode, reached: bool, frame: _Frame, into: Work, path: str) -> None:
        """A block of the primitive's own, which every row of its input goes through `active` times."""
        x = node.inputs[0]
        assert isinstance(x, Value)
        assert node.active is not None
        rows: Size = node.active.value
        for size in x.shape[:-1]:
            rows = mul(rows, size.value)
        work, back = self.entered_back(call, (frame.wanting(x),), (reached,) * len(call.outputs), frame)
        into.join(work.with_rows(rows), 1, f"{path}.")
        for value, arrives in zip(call.contexts, back[1:], strict=True):
            if arrives:
                frame.reach(value)

    def entered_back(
        self, call: CallNode, flags: tuple[bool, ...], reached: tuple[bool, ...], frame: _Frame
    ) -> tuple[Work, tuple[bool, ...]]:
        """The work of a block, and which of its inputs and contexts have a gradient then."""
        block, given = call.block, self.contexts(call, frame)
        key = (id(block), flags, given, reached)
        if key not in self.done:
            inner = self.entered(block, flags, given)
            for value, arrives in zip((v for v in block.graph.outputs if v is not None), reached, strict=True):
                if arrives:
                    inner.reach(value)
            found = Work()
            self.backwards(block.graph, inner, self.live(block.graph), found, "")
            own = BlockWork(block, call.alias)
            own.work.join(found.total, 1)
            own.work.uses = 1
            found = Work(found.ops, {id(block): own, **found.blocks}, found.layers)
            tensors = (*block.graph.inputs, *(c.value for c in block.contexts))
            self.done[key] = found, tuple(isinstance(v, Value) and inner.is_reached(v) for v in tensors)
        return self.done[key]

    def repeated(self, body: Graph, inner: _Frame, arriving: Iterable[Value], memo: Iterations, index: str) -> Hashable:
        """Walk one iteration backwards, or find that one like it was; its key in the memo."""
        for value in arriving:
            inner.reach(value)
        key = (
            id(body),
            tuple(inner.wanting(v) for v in body.inputs),
            tuple(v is not None and inner.is_reached(v) for v in body.outputs),
        )
        if key not in memo:
            found = Work()
            self.backwards(body, inner, self.live(body), found, index)
            memo[key] = found, frozenset(v for v in body.inputs if inner.is_reached(v))
        return key

    def loop(self, node: LoopNode, frame: _Frame, into: Work, index: str) -> None:
        iterations = frame.inner[id(node)]
        carried = [frame.is_reached(v) for v in node.outputs]
        memo: Iterations = {}
        uses: Counter[Hashable] = Counter()
        for i in range(len(iterations) - 1, -1, -1):
            body, inner = node.bodies[node.iterations[i]], iterations[i]
            results = [v for v in body.outputs if v is not None]
            emitted = [frame.is_reached(v) for v in node.emitted[i]] if node.emitted else []
            arriving = [v for v, arrives in zip(results, (*carried, *emitted), strict=True) if arrives]
            key = self.repeated(body, inner, arriving, memo, ".*")
            uses[key] += 1
            reached = memo[key][1]
            carried = [v in reached for v in body.inputs]
        for value, arrives in zip(node.starts, carried, strict=True):
            if arrives:
                frame.reach(value)
        layers = Total()
        for key, count in uses.items():
            work = Work(memo[key][0].ops, memo[key][0].blocks)
            into.join(work, count)
            layers.join(work.total.forward, count)
        into.layers.join(layers)

    def scan(self, node: ScanNode, frame: _Frame, into: Work, index: str) -> None:
        """The first steps, whose starts want less, and the last, whose results have less, one by one; all between are
        alike."""
        first = frame.inner[id(node)]
        body = node.body
        results = [v for v in body.outputs if v is not None]
        stacked = [frame.is_reached(v) for v in node.stacked]
        carried = [frame.is_reached(v) for v in node.finals]
        memo: Iterations = {}
        uses: dict[Hashable, Size] = {}

        def step(like: _Frame, times: Size) -> list[bool]:
            inner = self.iteration(body, [like.wanting(v) for v in body.inputs], frame)
            arriving = [v for v, arrives in zip(results, (*carried, *stacked), strict=True) if arrives]
            key = self.repeated(body, inner, arriving, memo, index)
            uses[key] = add(uses.get(key, 0), times)
            return [v in memo[key][1] for v in body.inputs]

        starting, length = first[:-1], node.length.value
        ending = 0
        while not isinstance(length, int) or ending + len(starting) < length:
            before = carried
            back = step(first[-1], 1)
            ending += 1
            after = back[: len(carried)]
            carried = after if ending < ROUNDS else _either(carried, after)
            self.slices(node, back, frame)
            if carried == before:
                step(first[-1], sub(length, ending + len(starting)))
                break
        for like in reversed(starting[:length] if isinstance(length, int) else starting):
            back = step(like, 1)
            carried = back[: len(carried)]
            self.slices(node, back, frame)
        for value, arrives in zip(node.starts, carried, strict=True):
            if arrives:
                frame.reach(value)
        for key, times in uses.items():
            into.join(memo[key][0], times)

    def slices(self, node: ScanNode, back: Sequence[bool], frame: _Frame) -> None:
        for value, arrives in zip(node.sequences, back[len(node.starts) :], strict=True):
            if arrives:
                frame.reach(value)


def _either(a: Sequence[bool], b: Sequence[bool]) -> list[bool]:
    return [x or y for x, y in zip(a, b, strict=True)]


def _step(node: OpNode | CallNode) -> str:
    """The node's own step in the path of names."""
    owner = node.instance if node.instance is not None else node.handle.instance if node.handle is not None else None
    if owner is not None:
        return owner.path or owner.label
    return node.name
