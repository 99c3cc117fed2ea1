"""The work of a model: the FLOPs of every op, forwards and backwards, as functions of batch and time.

Forwards every contraction is done once. Backwards it is done again for each side that a gradient is wanted of: for a
side made of trained weights, or of tensors that depend on some, and only where the result is of use to the objective
(the model's real outputs, and its losses). So the first layer of a model whose input is given costs two thirds of what
another does, and the first state of a recurrence, zeros, costs no gradient.

The walk is memoized by block, and by which of its tensors want a gradient and which have one, and what masks hide of
them (`archdsl.estimates.hidden`): a model of a thousand layers costs what its distinct blocks do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from archdsl.estimates.hidden import NOWHERE, Known, Places, costing, known, unneeded
from archdsl.frozen import Frozen
from archdsl.ir.cost import Amount, Pairs, times
from archdsl.ir.dims import Value as Size
from archdsl.ir.dims import add, mul, sub, with_symbol
from archdsl.ir.graph import (
    Block,
    CallNode,
    CondNode,
    Graph,
    LoopNode,
    LossNode,
    Model,
    Node,
    OpNode,
    ParamNode,
    ScanNode,
    Value,
    WeightNode,
)
from archdsl.ir.interpreter import Interpreter, Run
from archdsl.passes.dce import live_nodes

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
        return self.where("rows", rows)

    def where(self, symbol: str, size: Size) -> Total:
        """The same where a symbol stands for that size."""
        found = Total()
        for pairs, flops in self.parts.values():
            if pairs is not None:
                pairs = Pairs(pairs.mask, pairs.queries.where(symbol, size), pairs.keys.where(symbol, size))
            found._put(pairs, with_symbol(flops, symbol, size))
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

    alias: str
    """What it is first called by."""
    work: OpWork = field(default_factory=OpWork)


@dataclass
class Work:
    """What a piece of the model does."""

    ops: dict[Step, OpWork] = field(default_factory=dict)
    blocks: dict[Block, BlockWork] = field(default_factory=dict)
    nodes: dict[OpNode, OpWork] = field(default_factory=dict)
    """What each op does, all uses of the blocks that it stands in together."""
    layers: Total = field(default_factory=Total)
    """Forwards, within the stacks of layers alone."""

    def join(self, other: Work, times: Size, prefix: str = "") -> None:
        """Add another piece's work so many times, under a step of the path."""
        for (path, op), work in other.ops.items():
            self.ops.setdefault((prefix + path, op), OpWork()).join(work, times)
        for block, found in other.blocks.items():
            self.blocks.setdefault(block, BlockWork(found.alias)).work.join(found.work, times)
        for node, work in other.nodes.items():
            self.nodes.setdefault(node, OpWork()).join(work, times)
        self.layers.join(other.layers, times)

    def with_rows(self, rows: Size) -> Work:
        """The same where the rows of an expert are that many."""
        return Work(
            {step: work.with_rows(rows) for step, work in self.ops.items()},
            {block: BlockWork(b.alias, b.work.with_rows(rows)) for block, b in self.blocks.items()},
            {node: work.with_rows(rows) for node, work in self.nodes.items()},
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
    gradients = _Gradients(training)
    graph = model.block.graph
    back = _Back(gradients.run(graph, [None] * len(graph.inputs)))
    back.need(graph.outputs, [NOWHERE] * len(graph.outputs))
    if training:
        back.reach(*graph.outputs)
    return _of_block(model.block, "", _Backwards(gradients).graph(back, ""))


def _of_block(block: Block, alias: str, work: Work) -> Work:
    """What a block does, itself among its blocks."""
    own = BlockWork(alias, work.total)
    own.work.uses = 1
    return Work(work.ops, {block: own, **work.blocks}, work.nodes, work.layers)


# --- forwards: which tensors want a gradient --------------------------------------------------------------------------


ROUNDS = 8
"""Steps of a scan after which what still changes from one to the next is taken for the union of both."""


class _Fact(Frozen):
    """What is found of a tensor forwards."""

    wanted: bool
    """Whether it depends on trained weights: a gradient is wanted of it."""
    known: Known = ()
    """What it is where a mask hides it."""


WANTED = _Fact(True)


class _Gradients(Interpreter[_Fact]):
    """Finds the tensors that depend on trained weights, and what masks make of tensors. Of all others the fact is
    None."""

    def __init__(self, training: bool) -> None:
        super().__init__()
        self.training = training
        self.live: dict[Graph, Sequence[Node]] = {}

    def nodes(self, graph: Graph) -> Sequence[Node]:
        """Return the nodes that results, losses or weights depend on: emitted code has no others."""
        if graph not in self.live:
            self.live[graph] = live_nodes(graph)
        return self.live[graph]

    def branches(self, node: CondNode) -> Sequence[Graph]:
        return (node.then if self.training else node.otherwise,)

    def either(self, facts: Sequence[_Fact | None]) -> _Fact | None:
        return WANTED if any(map(is_wanted, facts)) else None

    def op(self, node: OpNode, run: Run[_Fact]) -> None:
        facts = [run.fact(v) for v in node.inputs]
        wanted = any(w.trained for w in node.weights) or any(
            is_wanted(fact) and node.op.differentiates(node, i) for i, fact in enumerate(facts)
        )
        wanted = wanted or any(any(map(is_wanted, self.called(c, [None], run).ends)) for c in node.blocks.values())
        hides = known(node, [() if f is None else f.known for f in facts])
        for output in node.outputs:
            found = _Fact(wanted and output.is_float, hides)
            run.facts[output] = found if found.wanted or hides else None

    def leaf(self, node: Node, run: Run[_Fact]) -> None:
        if isinstance(node, ParamNode):
            run.facts[node.output] = WANTED if node.weight.trained else None
        elif isinstance(node, WeightNode):
            found = (w for w in node.instance.node.weights if w.name == node.weight)
            run.facts[node.output] = WANTED if any(w.trained for w in found) else None

    def scan(self, node: ScanNode, run: Run[_Fact]) -> None:
        """The first steps one by one, until what is carried wants no more than before."""
        carried = [self.either([run.fact(v)]) for v in node.starts]
        slices = [self.either([run.fact(v)]) for v in node.sequences]
        steps = run.inner[node] = []
        stacked: list[_Fact | None] = [None] * len(node.stacked)
        while True:
            steps.append(self.within(node.body, [*carried, *slices], run, node))
            ends = [self.either([fact]) for fact in steps[-1].ends]
            stacked = self.both(stacked, ends[len(carried) :])
            after = ends[: len(carried)]
            if after == carried:
                break
            carried = after if len(steps) < ROUNDS else self.both(carried, after)
        run.facts.update(zip(node.stacked, stacked, strict=True))
        run.facts.update(zip(node.finals, carried, strict=True))

    def both(self, a: Sequence[_Fact | None], b: Sequence[_Fact | None]) -> list[_Fact | None]:
        return [self.either(pair) for pair in zip(a, b, strict=True)]


def is_wanted(fact: _Fact | None) -> bool:
    """Whether a gradient is wanted of a tensor."""
    return fact is not None and fact.wanted


# --- backwards: what each op costs ------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Back:
    """A run of a graph on the way back: the tensors that have a gradient."""

    run: Run[_Fact]
    around: _Back | None = None
    reached: set[object] = field(default_factory=set)
    hidden: dict[object, Places] = field(default_factory=dict)
    """Of the tensors that something reads, the elements that nothing needs."""

    def reach(self, *values: object) -> None:
        """A gradient arrives at tensors; those have it that want one."""
        for value in values:
            back = self.owner(value)
            if back is not None and is_wanted(back.run.facts[value]):
                back.reached.add(value)

    def owner(self, value: object) -> _Back | None:
        """The run that a tensor is of."""
        back: _Back | None = self
        while back is not None and value not in back.run.facts:
            back = back.around
        return back

    def need(self, values: Sequence[object], unneeded: Sequence[Places]) -> None:
        """Something reads tensors, but for some of their elements."""
        for value, places in zip(values, unneeded, strict=True):
            back = self.owner(value)
            if back is not None and value is not None:
                back.hidden[value] = back.hidden.get(value, places) & places

    def which(self, values: Sequence[Value | None]) -> list[bool]:
        """Whether each of some tensors has a gradient."""
        return [v in self.reached for v in values]

    def unneeded(self, values: Sequence[object]) -> list[Places]:
        """For each of these tensors of this run the elements that nothing needs."""
        return [self.hidden.get(v, NOWHERE) for v in values]

    def known(self, node: OpNode) -> list[Known]:
        """What the inputs of an op are where masks hide them."""
        facts = map(self.run.fact, node.inputs)
        return [() if fact is None else fact.known for fact in facts]


Iterations = dict[Hashable, tuple[Work, list[bool], list[Places]]]
"""Iterations that are alike: the work of one, which of its inputs have a gradient, and what it needs none of."""


class _Backwards:
    """Adds up the work of the runs of graphs, from their results to their inputs."""

    def __init__(self, gradients: _Gradients) -> None:
        self.gradients = gradients
        self.done: dict[Hashable, tuple[Work, list[bool], list[Places]]] = {}
        """Of the run of a block and the results that have a gradient or are needed: the work, which inputs and contexts
        then have one, and what is needed none of."""

    def graph(self, back: _Back, index: str) -> Work:
        """The work of one run; `index` stands behind the steps of the path in a loop."""
        into = Work()
        for node in reversed(self.gradients.nodes(back.run.graph)):
            if isinstance(node, OpNode):
                self.op(node, back, into, index)
            elif isinstance(node, CallNode):
                (inner,) = back.run.inner[node]
                reached, hidden = back.which(node.outputs), back.unneeded(node.outputs)
                work = self.called(node, inner, reached, hidden, node.inputs, back)
                into.join(work, 1, f"{_step(node)}{index}.")
            elif isinstance(node, LoopNode):
                self.loop(node, back, into)
            elif isinstance(node, ScanNode):
                self.scan(node, back, into, index)
            elif isinstance(node, CondNode):
                branch = _Back(back.run.inner[node][0], back)
                branch.reach(*_chosen(branch.run.graph.outputs, back.which(node.outputs)))
                branch.need(branch.run.graph.outputs, back.unneeded(node.outputs))
                into.join(self.graph(branch, index), 1)
            elif isinstance(node, LossNode) and self.gradients.training:
                back.reach(node.value)
                back.need([node.value], [NOWHERE])
        return into

    def op(self, node: OpNode, back: _Back, into: Work, index: str) -> None:
        cost = node.op.flops(node)
        work = OpWork(1)
        given = back.known(node)
        (hidden,) = back.unneeded(node.outputs) if len(node.outputs) == 1 else (NOWHERE,)
        trained = {w.name for w in node.weights if w.trained}
        reached = any(back.which(node.outputs))
        for amount in cost.elementwise:
            work.elementwise.add(amount)
        for part in cost.contractions:
            amount = costing(node, part.amount, given, hidden)
            work.forward.add(amount)
            sides = sum(
                any(s in trained if isinstance(s, str) else is_wanted(back.run.fact(node.inputs[s])) for s in side)
                for side in (part.left, part.right)
            )
            if reached and sides:
                work.backward.add(amount, sides)
        own = bool(node.weights or node.blocks) and (node.name or node.instance is not None)
        path = f"{_step(node)}{index}" if own else ""
        into.ops.setdefault((path, node.op.name), OpWork()).join(work, 1)
        into.nodes.setdefault(node, OpWork()).join(work, 1)
        for call in node.blocks.values():
            self.experts(node, call, reached, back, into, path)
        if reached:
            back.reach(*(v for i, v in enumerate(node.inputs) if node.op.differentiates(node, i)))
        back.need(node.inputs, [*unneeded(node, given, hidden)])

    def experts(self, node: OpNode, call: CallNode, reached: bool, back: _Back, into: Work, path: str) -> None:
        """A block of the primitive's own, which every row of its input goes through `active` times."""
        x = node.tensor(0)
        assert node.active is not None
        inner = self.gradients.called(call, [back.run.fact(x)], back.run)
        count = len(call.outputs)
        work = self.called(call, inner, [reached] * count, [NOWHERE] * count, (None,), back)
        into.join(work.with_rows(times((node.active, *x.shape[:-1]))), 1, f"{path}.")

    def called(
        self,
        call: CallNode,
        inner: Run[_Fact],
        reached: Sequence[bool],
        hidden: Sequence[Places],
        inputs: Sequence[Value | None],
        back: _Back,
    ) -> Work:
        """The work of a block of which some results have a gradient; some of its inputs and contexts have one then."""
        block = call.block
        key = (inner, *reached, *hidden)
        if key not in self.done:
            own = _Back(inner)
            outputs = [v for v in block.graph.outputs if v is not None]
            own.reach(*_chosen(outputs, reached))
            own.need(outputs, hidden)
            work = _of_block(block, call.alias, self.graph(own, ""))
            tensors = (*block.graph.inputs, *(c.value for c in block.contexts))
            self.done[key] = work, [v in own.reached for v in tensors], own.unneeded(tensors)
        work, arrives, unread = self.done[key]
        given = (*inputs, *call.contexts)
        back.reach(*_chosen(given, arrives))
        back.need(given, unread)
        return work

    def repeated(
        self,
        run: Run[_Fact],
        reached: Sequence[bool],
        hidden: Sequence[Places],
        back: _Back,
        memo: Iterations,
        index: str,
    ) -> Hashable:
        """Walk one iteration backwards, or find that one like it was; its key in the memo."""
        key = (run, *reached, *hidden)
        inner = _Back(run, back)
        outputs = [v for v in run.graph.outputs if v is not None]
        inner.reach(*_chosen(outputs, reached))
        inner.need(outputs, hidden)
        if key not in memo:
            work = self.graph(inner, index)
            memo[key] = work, inner.which(run.graph.inputs), inner.unneeded(run.graph.inputs)
        return key

    def loop(self, node: LoopNode, back: _Back, into: Work) -> None:
        carried, hidden = back.which(node.outputs), back.unneeded(node.outputs)
        memo: Iterations = {}
        uses: Counter[Hashable] = Counter()
        for i, run in reversed([*enumerate(back.run.inner[node])]):
            emitted = back.which(node.emitted[i]) if node.emitted else []
            places = [*hidden, *(back.unneeded(node.emitted[i]) if node.emitted else ())]
            key = self.repeated(run, [*carried, *emitted], places, back, memo, ".*")
            uses[key] += 1
            carried, hidden = memo[key][1:]
        back.reach(*_chosen(node.starts, carried))
        back.need(node.starts, hidden)
        layers = Total()
        for key, count in uses.items():
            work = Work(memo[key][0].ops, memo[key][0].blocks, memo[key][0].nodes)
            into.join(work, count)
            layers.join(work.total.forward, count)
        into.layers.join(layers)

    def scan(self, node: ScanNode, back: _Back, into: Work, index: str) -> None:
        """The first steps, whose starts want less, and the last, whose results have less, one by one; all between are
        alike."""
        *starting, last = back.run.inner[node]
        count, length = len(node.starts), node.length.value
        everything = [NOWHERE] * (count + len(node.stacked))
        back.need((*node.starts, *node.sequences), [NOWHERE] * (count + len(node.sequences)))
        stacked, carried = back.which(node.stacked), back.which(node.finals)
        memo: Iterations = {}
        uses: dict[Hashable, Size] = {}

        def step(like: Run[_Fact], often: Size) -> list[bool]:
            key = self.repeated(like, [*carried, *stacked], everything, back, memo, index)
            uses[key] = add(uses.get(key, 0), often)
            back.reach(*_chosen(node.sequences, memo[key][1][count:]))
            return memo[key][1][:count]

        ending = 0
        while not isinstance(length, int) or ending + len(starting) < length:
            before, after = carried, step(last, 1)
            ending += 1
            carried = after if ending < ROUNDS else [x or y for x, y in zip(carried, after, strict=True)]
            if carried == before:
                step(last, sub(length, ending + len(starting)))
                break
        for like in reversed(starting[:length] if isinstance(length, int) else starting):
            carried = step(like, 1)
        back.reach(*_chosen(node.starts, carried))
        for key, often in uses.items():
            into.join(memo[key][0], often)


def _chosen(values: Sequence[Any], which: Sequence[bool]) -> Iterator[Any]:
    """Yield the values at which a gradient arrives."""
    return (v for v, arrives in zip(values, which, strict=True) if arrives)


def _step(node: OpNode | CallNode) -> str:
    """The node's own step in the path of names."""
    owner = node.instance if node.instance is not None else node.handle.instance if node.handle is not None else None
    if owner is not None:
        return owner.path or owner.label
    return node.name
