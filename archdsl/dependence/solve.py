"""The walk that finds what every tensor of a model may depend on: graph by graph, in the order of the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import reduce

from archdsl.dependence.domain import (
    ANYWHERE,
    MAX_KNOWN,
    ONE,
    ZERO,
    Bound,
    Fact,
    Form,
    Known,
    Layout,
    at,
    both,
    extent,
    flat,
    flat_layout,
    join,
    joined,
    linear,
    mapped,
    moved,
    regrouped,
    related,
    result_layout,
    starts_at,
    tightened,
    total,
)
from archdsl.frozen import Entity, Frozen
from archdsl.ir.dims import Lit, Num, Poly, div, excess, whole_axis
from archdsl.ir.dims import Value as DimValue
from archdsl.ir.graph import CausalNode, Node, OpNode, ScanNode, Value
from archdsl.ir.interpreter import Interpreter, Level, Run
from archdsl.ir.op import At, Reads, same

LARGE = 256.0
"""Numbers beyond it stand for infinite ones."""

MAX_ROUNDS = 4
"""Rounds of a scan after which what still grows is taken for unbounded."""


class InputAxis(Frozen):
    """One axis of one of the model's inputs."""

    name: str
    value: Value
    axis: int


class Leak(Entity):
    """A demand that is not met: where it stands, and the source that reaches it from too far ahead."""

    levels: tuple[Level[Fact], ...]
    run: Run[Fact]
    node: CausalNode
    source: int
    axis: int


class DependenceWalk(Interpreter[Fact]):
    """Finds what every tensor of a model may depend on."""

    def __init__(self, sources: Sequence[InputAxis]) -> None:
        super().__init__()
        self.sources = sources
        self.leaks: list[Leak] = []
        self.needed: set[CausalNode] = set()
        """Assumptions that say more than is proved."""
        self.finite: dict[OpNode, float] = {}
        """Large numbers that stand where minus infinity would make softmax give 0, each where it does not."""

    # --- facts ---

    def op(self, node: OpNode, run: Run[Fact]) -> None:
        facts = [None if i in node.op.for_type else run.fact(v) for i, v in enumerate(node.inputs)]
        for k, output in enumerate(node.outputs):
            run.facts[output] = self.result(node, k, facts)

    def result(self, node: OpNode, k: int, facts: Sequence[Fact | None]) -> Fact | None:
        """What is known of an op's output, given that of its inputs; None for nothing."""
        output, first = node.outputs[k], facts[0] if facts else None
        read = self.read(node, k, facts)
        if all(f is None for f in read):
            layout = flat_layout(output)
            return self.fact(layout, ((),) * len(self.sources), *self.made(node, k, layout))
        how = node.op.regroups(node) if first is not None else None
        if how is not None and first is not None:
            found = regrouped(first, how)
            if found is not None:
                return found
        assert output.rank == node.outputs[0].rank, node.op.name  # reads are by the axes of all results
        reads = self.reads(node, k)
        inputs = [(f, r) for f, r in zip(read, reads, strict=True) if f is not None]
        layout = result_layout(output, inputs)
        bounds = mapped(inputs, layout)
        joint = node.op.joint(node)
        together = joined(read, node.inputs, joint) if joint is not None and k == 0 else None
        if together is not None:
            other, closer, known = together
            if other == layout:
                bounds = tuple(b if a is ANYWHERE else a for a, b in zip(closer, bounds, strict=True))
                return self.fact(layout, bounds, known, None)
        return self.fact(layout, bounds, *self.known(node, k, facts, reads, layout))

    def read(self, node: OpNode, k: int, facts: Sequence[Fact | None]) -> Sequence[Fact | None]:
        """What bounds the k-th output of an op: the facts of its inputs."""
        return facts

    def reads(self, node: OpNode, k: int) -> Sequence[Reads]:
        """Which positions of its inputs an op reads for its k-th output."""
        return node.op.reads_of(node, k)

    @staticmethod
    def fact(layout: Layout, bounds: tuple[Bound, ...], known: Known, positions: Form | None) -> Fact | None:
        found = Fact(layout, bounds, tuple(dict.fromkeys(known))[:MAX_KNOWN], positions)
        return tightened(found) if found.depends or known or positions is not None else None

    def made(self, node: OpNode, k: int, layout: Layout) -> tuple[Known, Form | None]:
        """What is known of a result whatever the inputs are."""
        if k or any(len(parts) > 1 for parts in layout):
            return (), None
        at = node.op.positions(node)
        known = tuple((linear(form, layout), value) for form, value in node.op.constants(node))
        return known, None if at is None else linear(at, layout)

    def known(
        self, node: OpNode, k: int, facts: Sequence[Fact | None], reads: Sequence[Reads], layout: Layout
    ) -> tuple[Known, Form | None]:
        """What is known of a result from what is known of the inputs."""
        op, output, first = node.op, node.outputs[k], facts[0]
        made, _ = self.made(node, k, layout)
        if op.moves:
            known, positions = moved(first, reads[0], layout) if first is not None else ((), None)
            if output.is_bool:
                return tuple((form, float(value != 0)) for form, value in known), None
            if output.is_int:
                known = tuple((form, value) for form, value in known if value.is_integer())
            return known, positions if keeps_positions(output) else None
        if op.elementwise:
            return self.pointwise(node, facts, reads, layout)
        if op.joins:
            return self.behind(node, facts, reads, layout), None
        if op.fills and first is not None:
            known, _ = moved(first, reads[0], layout)
            filled = ((form, value) for form, value in known if value == op.absent(node))
            return (*filled, *self.behind(node, facts, reads, layout)), None
        if first is None or k or first.layout != layout:
            return made, None
        own = [(form, op.constant(node, (value,))) for form, value in first.known]
        masked = [value for _, value in first.known if -math.inf < value < -LARGE]
        if masked and op.constant(node, (-math.inf,)) is not None:
            self.finite.setdefault(node, masked[0])
        return (*made, *((form, value) for form, value in own if value is not None)), None

    def behind(self, node: OpNode, facts: Sequence[Fact | None], reads: Sequence[Reads], layout: Layout) -> Known:
        """What is known of the last places of a result, which are those of an input behind others: of regions that do
        not reach to these."""
        found: list[tuple[Form, float]] = []
        for i, fact in enumerate(facts):
            value, output = node.inputs[i], node.outputs[0]
            if fact is None or not isinstance(value, Value):
                continue
            for axis, read in enumerate(reads[i]):
                before = excess(output.shape[axis].value, value.shape[axis].value)
                if before and read == same(axis, -before):
                    starting = (k for k in fact.known if starts_at(k[0], axis))
                    found += moved(replace(fact, known=tuple(starting)), reads[i], layout)[0]
        return tuple(found)

    def pointwise(
        self, node: OpNode, facts: Sequence[Fact | None], reads: Sequence[Reads], layout: Layout
    ) -> tuple[Known, Form | None]:
        op, output = node.op, node.outputs[0]
        known: list[Known] = []
        forms: list[Form | None] = []
        for given, fact, read in zip(node.inputs, facts, reads, strict=True):
            own, form = moved(fact, read, layout) if fact is not None else ((), None)
            if isinstance(given, Num) and not isinstance(given.value, Poly):
                own = ((total((), layout, ONE), float(given.value)),)
                if isinstance(given.value, int | Fraction):
                    form = total((), layout, Fraction(given.value))
            known.append(own)
            forms.append(form)
        found: dict[Form, float] = {}
        for own, given in zip(known, node.inputs, strict=True):
            for region, _ in own if isinstance(given, Value) else ():
                value = op.constant(node, [at(other, region) for other in known])
                if value is not None:
                    found.setdefault(region, value)
        known_forms = [p for p in forms if p is not None]
        if len(known_forms) < len(forms):
            return tuple(found.items()), None
        if op.relation:
            return (*found.items(), *related(op.relation, known_forms[0], known_forms[1], layout)), None
        factors = op.combines(node)
        if factors is None or not keeps_positions(output):
            return tuple(found.items()), None
        return tuple(found.items()), total(zip(known_forms, factors, strict=True), layout, ZERO)

    def either(self, facts: Sequence[Fact | None]) -> Fact | None:
        """What holds whichever of several tensors of one shape it is."""
        known = [f for f in facts if f is not None]
        if len(facts) < 2 or not known:
            return known[0] if known else None
        layout = known[0].layout
        own = tuple(At(((i, ONE),)) for i in range(len(layout)))
        certain: Known = ()
        if len(known) == len(facts) and all(f.layout == layout for f in known):
            certain = reduce(both, (f.known for f in known))
        return self.fact(layout, mapped([(f, own) for f in known], layout), certain, None)

    def scan(self, node: ScanNode, run: Run[Fact]) -> None:
        depth, self.depth = self.depth, self.depth + 1
        starts = [run.fact(v) for v in node.starts]
        slices = [self.slice(run.fact(v), depth) for v in node.sequences]
        carries = list(starts)
        leaks = len(self.leaks)
        # From MAX_ROUNDS on each round finds a tensor that is carried to depend on one source more, or takes a bound.
        for iteration in range(2 * MAX_ROUNDS + len(starts) * (2 * len(self.sources) + 1)):
            del self.leaks[leaks:]
            inner = self.within(node.body, [*carries, *slices], run, node)
            grown = [self.either([c, self.step_before(e, depth)]) for c, e in zip(carries, inner.ends, strict=False)]
            if grown == carries:
                break
            if iteration >= MAX_ROUNDS:
                grown = [self.widened(c, g) for c, g in zip(carries, grown, strict=True)]
            carries = grown
        self.depth = depth
        run.inner[node] = [inner]
        for value, fact in zip(node.stacked, inner.ends[len(starts) :], strict=True):
            run.facts[value] = self.stack(fact, node.length, depth)
        for value, start, fact in zip(node.finals, starts, inner.ends, strict=False):
            run.facts[value] = self.either([start, self.last(fact, node.length, depth)])

    def changed(
        self, fact: Fact | None, layout: Callable[[Layout], Layout], form: Callable[[Form, Fact], Form | None]
    ) -> Fact | None:
        """A fact with every form replaced; None for a form stands for no bound."""
        if fact is None:
            return None
        bounds: list[Bound] = []
        for bound in fact.bounds:
            forms = None if bound is ANYWHERE else [form(f, fact) for f in bound]
            joined: Bound = ()
            for f in forms or ():
                joined = ANYWHERE if f is None else join(joined, (f,))
            bounds.append(ANYWHERE if forms is None else joined)
        return Fact(layout(fact.layout), tuple(bounds))

    def slice(self, fact: Fact | None, depth: int) -> Fact | None:
        """A sequence's slice: its axis 1 stands at the number of the step."""

        def form(f: Form, own: Fact) -> Form:
            scale, extra = flat(f.scales[1], own.layout[1])
            return Form((f.scales[0], *f.scales[2:]), f.offset + extra, (*_padded(f.steps, depth), scale))

        return self.changed(fact, lambda layout: (layout[0], *layout[2:]), form)

    def step_before(self, fact: Fact | None, depth: int) -> Fact | None:
        def form(f: Form, own: Fact) -> Form:
            steps = _padded(f.steps, depth + 1)
            return Form(f.scales, f.offset - steps[depth], steps)

        return self.changed(fact, lambda layout: layout, form)

    def stack(self, fact: Fact | None, length: Num, depth: int) -> Fact | None:
        """Emitted tensors side by side: the number of the step is axis 1 again."""

        def form(f: Form, own: Fact) -> Form:
            steps = _padded(f.steps, depth + 1)
            return Form((f.scales[0], (steps[depth],), *f.scales[1:]), f.offset, steps[:depth])

        return self.changed(fact, lambda layout: (layout[0], (length.value,), *layout[1:]), form)

    def last(self, fact: Fact | None, length: Num, depth: int) -> Fact | None:
        def form(f: Form, own: Fact) -> Form | None:
            steps = _padded(f.steps, depth + 1)
            if steps[depth] and not isinstance(length.value, int):
                return None
            more = steps[depth] * (length.value - 1) if isinstance(length.value, int) else ZERO
            return Form(f.scales, f.offset + more, steps[:depth])

        return self.changed(fact, lambda layout: layout, form)

    @staticmethod
    def widened(fact: Fact | None, grown: Fact | None) -> Fact | None:
        """A fact that still grows from step to step: what grows has no bound. A source that has settled keeps its own,
        and so does one that is read for the first time, which came through other tensors that are carried."""
        if fact is None or grown is None:
            return grown
        bounds = zip(fact.bounds, grown.bounds, strict=True)
        return Fact(grown.layout, tuple(b if a in (b, ()) else ANYWHERE for a, b in bounds))

    # --- demands ---

    def leaf(self, node: Node, run: Run[Fact]) -> None:
        fact = run.fact(node.value) if isinstance(node, CausalNode) else None
        axis = time_axis(node.value, self.sources) if isinstance(node, CausalNode) else None
        if not isinstance(node, CausalNode) or fact is None or axis is None:
            return
        claims: dict[int, Bound] = {}
        for i, source in own_sources(node.value, axis, self.sources):
            ratio = ratio_of(source, node.value.shape[axis].value)
            if meets(fact.bounds[i], fact.layout, axis, ratio, node.ahead, ()):
                continue
            if not node.assumed:
                self.leaks.append(Leak(tuple(self.levels), run, node, i, axis))
                return
            self.needed.add(node)
            claims[i] = claimed(node.value.rank, axis, ratio, node.ahead)
        if claims:  # which are about positions, not about parts of an axis
            layout = flat_layout(node.value)
            own: Reads = tuple(same(i) for i in range(len(layout)))
            bounds = tuple(claims.get(i, b) for i, b in enumerate(mapped([(fact, own)], layout)))
            run.facts[node.value] = Fact(layout, bounds, *moved(fact, own, layout))


def keeps_positions(value: Value) -> bool:
    """Whether a tensor of whole numbers is exact in its type."""
    return value.is_int or value.dtype == "float32"


def _padded(steps: tuple[Fraction, ...], depth: int) -> tuple[Fraction, ...]:
    return steps[:depth] + (ZERO,) * (depth - len(steps))


def meets(bound: Bound, layout: Layout, axis: int | None, ratio: Fraction, ahead: int, steps: tuple[int, ...]) -> bool:
    """Whether every form stays at or before the own position (and `ahead - 1` more); `steps` are scans that count as
    the own position."""
    if bound is ANYWHERE:
        return False
    for form in bound:
        offset = form.offset
        scale = ZERO
        for i, (scales, parts) in enumerate(zip(form.scales, layout, strict=True)):
            if i == axis:
                scale, extra = flat(scales, parts)
                offset += extra
                continue
            added = extent(scales, parts)
            if added is None:
                return False
            offset += added
        for i, own in enumerate(form.steps):
            if own and i not in steps:
                return False
            scale = max(scale, own)
        if scale > ratio or offset > max(ratio - 1, ZERO) + ahead - 1:
            return False
    return True


def claimed(rank: int, axis: int, ratio: Fraction, ahead: int) -> Bound:
    """The largest bound that `meets` lets pass, over axes of one part each."""
    rows = ((ratio if i == axis else ZERO,) for i in range(rank))
    return (Form(tuple(rows), max(ratio - 1, ZERO) + ahead - 1),)


def same_axis(a: DimValue, b: DimValue) -> bool:
    """Whether two sizes are the same axis, or a fixed part or multiple of it."""
    if a == b:
        return True
    if not isinstance(a, Poly) or not isinstance(b, Poly):
        return False
    return bool(a.symbols & b.symbols)


def time_axis(value: Value, sources: Sequence[InputAxis]) -> int | None:
    """The axis of a tensor, from the second on, that runs along one of the model's inputs."""
    for exact in (True, False):
        for axis in range(1, value.rank):
            size = value.shape[axis].value
            if any(
                s.value.shape[s.axis].value == size or (not exact and same_axis(s.value.shape[s.axis].value, size))
                for s in sources
            ):
                return axis
    return None


def own_sources(value: Value, axis: int, sources: Sequence[InputAxis]) -> list[tuple[int, InputAxis]]:
    """The sources that an axis of a tensor runs along, one axis for each input."""
    size = value.shape[axis].value
    found: dict[str, tuple[int, InputAxis]] = {}
    for exact in (True, False):
        for i, source in enumerate(sources):
            own = source.value.shape[source.axis].value
            if own == size or (not exact and same_axis(own, size)):
                found.setdefault(source.name, (i, source))
    return list(found.values())


def ratio_of(source: InputAxis, size: DimValue) -> Fraction:
    """How many positions of a source go to one place of an axis of that size."""
    own = source.value.shape[source.axis].value
    ratio = div(own, size)
    if isinstance(ratio, int | Fraction):
        return Fraction(ratio)
    if isinstance(size, Poly):
        axis, step = whole_axis(Num(size, Lit(str(size))))
        if axis == own:
            return Fraction(step)
    return ONE
