"""Causality, proved from what each op reads along time.

For every tensor and every input of the model that carries tokens or other data along an axis, the analysis keeps an upper bound of
the latest place of that axis that a place of the tensor may depend on: the largest of a few affine forms
`sum(scale * place) + offset` over the places in the tensor, or nothing where it does not depend on that input at all.
An op says what it reads (`Primitive.reads`), so the bound of its result follows from those of its inputs by substitution:

1. an axis read at `place + n` hands the form on; one read whole adds `scale * (length - 1)`, which has no bound for a length that only
   the running model knows;
2. axes that are cut and merged (`b (n p) d -> (b n) p d`) are followed in parts, so that moving places about and back loses nothing;
3. a block is walked once for each set of bounds that arrives; so is a turn of a loop, whose bounds soon stop changing;
4. in a scan the number of the step is one more place: a slice stands at it, a carried tensor is its start or came from a step before.

What is not known is taken for the worst, so a claim always holds; `assert causal(y, ahead: n)` then asks for
`latest place <= own place + n - 1`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor
from typing import TYPE_CHECKING

from archdsl.diagnostics import Diagnostic, Label
from archdsl.ir.dims import Lit, Num, Poly, div, mul
from archdsl.ir.dims import Value as DimValue
from archdsl.ir.frame import whole_axis
from archdsl.ir.graph import (
    CallNode,
    CausalNode,
    CondNode,
    Graph,
    LoopNode,
    Model,
    Node,
    OpNode,
    ScanNode,
    Value,
    node_outputs,
    subgraphs,
)
from archdsl.ir.op import At, Reads
from archdsl.source import Span

if TYPE_CHECKING:
    from archdsl.ir.graph import Block
    from archdsl.ir.op import Regrouping

MAX_FORMS = 6
"""Forms that a bound keeps apart; more are merged into one that covers them."""

MAX_ROUNDS = 4
"""Rounds of a scan after which what still grows is taken for unbounded."""

# --- bounds -----------------------------------------------------------------------------------------------------------------

Parts = tuple[DimValue, ...]
"""The sizes that an axis is thought of as made of, the last running fastest."""

Layout = tuple[Parts, ...]


@dataclass(frozen=True)
class Form:
    """`sum(scales * places) + sum(steps * numbers of steps) + offset`: a scale for each part of each axis, a step for each scan around."""

    scales: tuple[tuple[Fraction, ...], ...]
    offset: Fraction
    steps: tuple[Fraction, ...] = ()


ANYWHERE = None
Bound = tuple[Form, ...] | None
"""The largest of some forms; () where nothing is read at all, ANYWHERE where there is no bound."""


@dataclass(frozen=True)
class Fact:
    """What is known of one tensor: a bound for each source, over axes laid out as `layout` says."""

    layout: Layout
    bounds: tuple[Bound, ...]


ZERO, ONE = Fraction(0), Fraction(1)


def _covers(a: Form, b: Form) -> bool:
    """Whether a is at least b at every place."""
    return (
        a.offset >= b.offset
        and all(x >= y for p, q in zip(a.scales, b.scales, strict=True) for x, y in zip(p, q, strict=True))
        and all(x >= y for x, y in _zip_steps(a.steps, b.steps))
    )


def _zip_steps(a: tuple[Fraction, ...], b: tuple[Fraction, ...]) -> Iterator[tuple[Fraction, Fraction]]:
    for i in range(max(len(a), len(b))):
        yield (a[i] if i < len(a) else ZERO), (b[i] if i < len(b) else ZERO)


def _join(a: Bound, b: Bound) -> Bound:
    if a is ANYWHERE or b is ANYWHERE:
        return ANYWHERE
    kept: list[Form] = []
    for form in (*a, *b):
        if not any(_covers(k, form) for k in kept):
            kept = [k for k in kept if not _covers(form, k)] + [form]
    if len(kept) > MAX_FORMS:
        axes = zip(*(k.scales for k in kept), strict=True)
        scales = tuple(tuple(max(column) for column in zip(*axis, strict=True)) for axis in axes)
        steps: tuple[Fraction, ...] = ()
        for k in kept:
            steps = tuple(max(pair) for pair in _zip_steps(steps, k.steps))
        kept = [Form(scales, max(k.offset for k in kept), steps)]
    return tuple(kept)


def _tidy(scales: Iterable[Iterable[Fraction]], offset: Fraction, steps: tuple[Fraction, ...]) -> Form:
    rows = tuple(tuple(r) for r in scales)
    if offset.denominator != 1 and all(x.denominator == 1 for row in (*rows, steps) for x in row):
        offset = Fraction(floor(offset))  # a place is a whole number
    return Form(rows, offset, steps)


def _flat_layout(value: Value) -> Layout:
    return tuple((d.value,) for d in value.shape)


def _whole(parts: Parts) -> DimValue:
    total: DimValue = 1
    for n in parts:
        total = mul(total, n)
    return total


def _extent(scales: tuple[Fraction, ...], parts: Parts) -> Fraction | None:
    """The most that an axis adds to a form; None where its length is not known."""
    total = ZERO
    for scale, size in zip(scales, parts, strict=True):
        if scale:
            if not isinstance(size, int):
                return None
            total += scale * (size - 1)
    return total


def _flat(scales: tuple[Fraction, ...], parts: Parts) -> tuple[Fraction, Fraction]:
    """A scale over the whole axis, and an offset, that together cover scales over its parts."""
    scale, extra = scales[0], ZERO
    for own, size in zip(scales[1:], parts[1:], strict=True):
        if isinstance(size, int):
            scale = scale / size
            if own > scale:
                extra, scale = (extra + (own - scale) * (size - 1), scale) if scale else (extra, own)
        else:
            scale = max(scale, own)  # place = size * outer + inner >= outer + inner
    return scale, extra


def _in_parts(scale: Fraction, parts: Parts) -> tuple[Fraction, ...] | None:
    """A scale over the whole axis as scales over its parts; None where a size is not known."""
    result: list[Fraction] = []
    step: DimValue = 1
    for size in reversed(parts):
        if scale and not isinstance(step, int):
            return None
        result.insert(0, scale * step if isinstance(step, int) else ZERO)
        step = mul(step, size)
    return tuple(result)


# --- ops --------------------------------------------------------------------------------------------------------------------


def _result_layout(output: Value, inputs: Sequence[tuple[Fact, Reads]]) -> Layout:
    """An axis read at its own place keeps the parts that it is made of."""
    layout = list(_flat_layout(output))
    for fact, reads in inputs:
        for parts, read in zip(fact.layout, reads, strict=True):
            if read is not None and len(parts) > 1 and read.offset == 0 and len(read.axes) == 1 and not read.also:
                axis, scale = read.axes[0]
                if scale == 1 and len(layout[axis]) == 1 and _whole(parts) == layout[axis][0]:
                    layout[axis] = parts
    return tuple(layout)


def _read(form: Form, fact: Fact, reads: Reads, layout: Layout) -> list[Form] | None:
    """A form of an input as forms of the result; None for no bound."""
    found = [([[ZERO] * len(parts) for parts in layout], form.offset)]
    for scales, parts, read in zip(form.scales, fact.layout, reads, strict=True):
        if not any(scales):
            continue
        if read is None:
            extent = _extent(scales, parts)
            if extent is None:
                return None
            found = [(rows, offset + extent) for rows, offset in found]
            continue
        grown = []
        for choice in (read, *read.also):
            for rows, offset in found:
                added = _add(rows, offset, scales, parts, choice, layout)
                if added is None:
                    return None
                grown.append(added)
        found = grown
    return [_tidy(rows, offset, form.steps) for rows, offset in found]


def _add(
    rows: list[list[Fraction]], offset: Fraction, scales: tuple[Fraction, ...], parts: Parts, read: At, layout: Layout
) -> tuple[list[list[Fraction]], Fraction] | None:
    rows = [list(r) for r in rows]
    if len(read.axes) == 1 and read.offset == 0 and read.axes[0][1] == 1 and layout[read.axes[0][0]] == parts:
        axis = read.axes[0][0]
        rows[axis] = [a + b for a, b in zip(rows[axis], scales, strict=True)]
        return rows, offset
    scale, extra = _flat(scales, parts)
    for axis, factor in read.axes:
        spread = _in_parts(scale * factor, layout[axis])
        if spread is None:
            return None
        rows[axis] = [a + b for a, b in zip(rows[axis], spread, strict=True)]
    return rows, offset + scale * read.offset + extra


def _mapped(inputs: Sequence[tuple[Fact, Reads]], layout: Layout) -> tuple[Bound, ...]:
    """The bounds of a result from those of the inputs."""
    joined: list[Bound] = [() for _ in inputs[0][0].bounds]
    for fact, reads in inputs:
        for i, bound in enumerate(fact.bounds):
            if bound is ANYWHERE:
                joined[i] = ANYWHERE
                continue
            for form in bound:
                forms = _read(form, fact, reads, layout)
                joined[i] = _join(joined[i], None if forms is None else tuple(forms))
    return tuple(joined)


def _far(reads: Reads, first: Value) -> Reads:
    """What a result with other axes than the first may read: whatever any place of the first reads."""
    found: list[At | None] = []
    for read in reads:
        if read is None or read.also:
            found.append(None)
            continue
        offset: Fraction | None = read.offset
        for axis, scale in read.axes:
            size = first.shape[axis].value
            offset = (
                offset + scale * (size - 1)
                if offset is not None and isinstance(size, int)
                else None
                if scale
                else offset
            )
        found.append(None if offset is None else At((), offset))
    return tuple(found)


def _regrouped(fact: Fact, how: Regrouping) -> Fact | None:
    """The fact of a result whose axes are those of the input, cut and merged."""
    fresh: list[list[Parts]] = []
    for parts, cuts in zip(fact.layout, how.cuts, strict=True):
        aligned = _aligned(parts, tuple(n.value for n in cuts))
        if aligned is None:
            return None
        fresh.append(aligned)
    layout = tuple(tuple(n for axis, cut in group for n in fresh[axis][cut]) or (1,) for group in how.axes)
    bounds: list[Bound] = []
    for bound in fact.bounds:
        if bound is ANYWHERE:
            bounds.append(ANYWHERE)
            continue
        forms: list[Form] = []
        for form in bound:
            cut_scales = [_recut(s, p, f) for s, p, f in zip(form.scales, fact.layout, fresh, strict=True)]
            if any(c is None for c in cut_scales):
                break
            known = [c for c in cut_scales if c is not None]
            rows = tuple(tuple(x for axis, cut in group for x in known[axis][cut]) or (ZERO,) for group in how.axes)
            forms.append(Form(rows, form.offset, form.steps))
        bounds.append(_join(tuple(forms), ()) if len(forms) == len(bound) else ANYWHERE)
    return Fact(layout, tuple(bounds))


def _aligned(parts: Parts, cuts: Parts) -> list[Parts] | None:
    """The parts that each cut is made of; where a cut goes through a part, that is cut too. None where they cannot be matched."""
    result: list[Parts] = []
    left, right = list(parts), list(cuts)
    while right:
        cut = right.pop()
        taken: list[DimValue] = []
        while _whole(tuple(taken)) != cut:
            if not left:
                if cut == 1:
                    taken = [1]
                    break
                return None
            part = left.pop()
            rest = _quotient(cut, _whole(tuple(taken)))
            if rest is not None and _quotient(rest, part) is not None:
                taken.insert(0, part)
                continue
            inner = None if rest is None else _quotient(part, rest)
            if inner is None or rest is None:
                return None
            left.append(inner)
            taken.insert(0, rest)
        result.insert(0, tuple(taken) or (1,))
    return result if _whole(tuple(left)) == 1 else None


def _quotient(a: DimValue, b: DimValue) -> DimValue | None:
    """a / b where that is a whole number."""
    ratio = div(a, b)
    if isinstance(ratio, Poly):
        return (
            ratio
            if all(power > 0 for monomial, _ in ratio.terms for _, power in monomial) and _is_multiple(a, b, ratio)
            else None
        )
    return ratio if isinstance(ratio, int) else None


def _is_multiple(a: DimValue, b: DimValue, ratio: Poly) -> bool:
    # `time / 4` is whole where the model demands that 4 divide time, which it does wherever such a size exists.
    return ratio.denominator == 1 or (isinstance(a, Poly) and a.denominator > 1) or isinstance(b, int)


def _recut(scales: tuple[Fraction, ...], parts: Parts, fresh: list[Parts]) -> list[tuple[Fraction, ...]] | None:
    """Scales over the parts of an axis as scales over the parts of its cuts."""
    target = [n for cut in fresh for n in cut]
    source = [(n, s) for n, s in zip(parts, scales, strict=True) if n != 1]
    flat: list[Fraction] = []
    for size in reversed(target):
        if size == 1:
            flat.insert(0, ZERO)
            continue
        if not source:
            return None
        part, scale = source.pop()
        if part == size:
            flat.insert(0, scale)
            continue
        outer = _quotient(part, size)
        if outer is None or (scale and not isinstance(size, int)):
            if outer is None or scale:
                return None
            source.append((outer, ZERO))
            flat.insert(0, ZERO)
            continue
        flat.insert(0, scale)
        source.append((outer, scale * size if isinstance(size, int) else ZERO))
    result, at = [], 0
    for cut in fresh:
        result.append(tuple(flat[at : at + len(cut)]))
        at += len(cut)
    return result


# --- the walk ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """One axis of one of the model's inputs."""

    name: str
    value: Value
    axis: int


@dataclass(eq=False)
class Run:
    """One graph under given bounds. `inner` holds the runs of what its nodes contain: a call's one, a loop's turns, …"""

    graph: Graph
    parent: Run | None = None
    block: Block | None = None
    facts: dict[int, Fact | None] = field(default_factory=dict)
    inner: dict[int, list[Run]] = field(default_factory=dict)

    def fact(self, value: Value) -> Fact | None:
        run: Run | None = self
        while run is not None:
            if id(value) in run.facts:
                return run.facts[id(value)]
            run = run.parent
        return None


@dataclass(frozen=True, eq=False)
class Frame:
    """One level that the walk is in: the run and the node of it that holds the next."""

    run: Run
    node: Node
    turn: int = 0


@dataclass(frozen=True, eq=False)
class Leak:
    """A demand that is not met: where it stands, and the source that reaches it from too far ahead."""

    frames: tuple[Frame, ...]
    run: Run
    node: CausalNode
    source: int
    axis: int


class _Walk:
    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources
        self.memo: dict[object, Run] = {}
        self.frames: list[Frame] = []
        self.leaks: list[Leak] = []
        self.depth = 0

    # --- facts ---

    def run(self, graph: Graph, inputs: Sequence[Fact | None], parent: Run | None, block: Block | None = None) -> Run:
        run = Run(graph, parent, block)
        for value, fact in zip(graph.inputs, inputs, strict=True):
            run.facts[id(value)] = fact
        self.nodes(run)
        return run

    def nodes(self, run: Run) -> None:
        for node in run.graph.nodes:
            if isinstance(node, OpNode):
                self.op(node, run)
            elif isinstance(node, CallNode):
                self.call(node, run)
            elif isinstance(node, LoopNode):
                self.loop(node, run)
            elif isinstance(node, ScanNode):
                self.scan(node, run)
            elif isinstance(node, CondNode):
                self.condition(node, run)
            elif isinstance(node, CausalNode):
                self.demand(node, run)
            else:
                for value in node_outputs(node):
                    run.facts[id(value)] = None

    def op(self, node: OpNode, run: Run) -> None:
        facts = [run.fact(v) if isinstance(v, Value) else None for v in node.inputs]
        how = node.op.regroups(node) if facts and facts[0] is not None else None
        for k, output in enumerate(node.outputs):
            run.facts[id(output)] = None
            if all(f is None for f in facts):
                continue
            if how is not None and facts[0] is not None:
                found = _regrouped(facts[0], how)
                if found is not None:
                    run.facts[id(output)] = found
                    continue
            reads = node.op.reads_of(node, k)
            if output.rank != node.outputs[0].rank:
                reads = [_far(r, node.outputs[0]) for r in reads]
            inputs = [(f, r) for f, r in zip(facts, reads, strict=True) if f is not None]
            layout = _result_layout(output, inputs)
            run.facts[id(output)] = Fact(layout, _mapped(inputs, layout))

    def call(self, node: CallNode, run: Run) -> None:
        block = node.block
        inputs = [run.fact(v) if v is not None else None for v in node.inputs]
        contexts = [run.fact(c) if isinstance(c, Value) else None for c in node.contexts]
        key = (id(block), tuple(inputs), tuple(contexts), self.depth)
        inner = self.memo.get(key)
        if inner is None:
            inner = Run(block.graph, None, block)
            for value, fact in zip(block.graph.inputs, inputs, strict=True):
                inner.facts[id(value)] = fact
            for context, fact in zip(block.contexts, contexts, strict=True):
                if isinstance(context.value, Value):
                    inner.facts[id(context.value)] = fact
            self.frames.append(Frame(run, node))
            self.nodes(inner)
            self.frames.pop()
            self.memo[key] = inner
        run.inner[id(node)] = [inner]
        self.hand_back(node.outputs, inner, run)

    def hand_back(self, outputs: Sequence[Value], inner: Run, run: Run) -> None:
        ends = [v for v in inner.graph.outputs if v is not None]
        for mine, theirs in zip(outputs, ends, strict=False):
            run.facts[id(mine)] = inner.fact(theirs)

    def loop(self, node: LoopNode, run: Run) -> None:
        state = [run.fact(v) for v in node.starts]
        runs: list[Run] = []
        memo: dict[object, Run] = {}
        for turn, index in enumerate(node.turns):
            body = node.bodies[index]
            key = (index, tuple(state))
            inner = memo.get(key)
            if inner is None:
                self.frames.append(Frame(run, node, turn))
                inner = memo[key] = self.run(body, state, run)
                self.frames.pop()
            runs.append(inner)
            ends = [inner.fact(v) if v is not None else None for v in body.outputs]
            state = ends[: len(node.starts)]
            for value, fact in zip(node.emitted[turn] if node.emitted else (), ends[len(node.starts) :], strict=False):
                run.facts[id(value)] = fact
        run.inner[id(node)] = runs
        for value, fact in zip(node.outputs, state, strict=True):
            run.facts[id(value)] = fact

    def condition(self, node: CondNode, run: Run) -> None:
        runs = []
        for i, graph in enumerate((node.then, node.otherwise)):
            self.frames.append(Frame(run, node, i))
            runs.append(self.run(graph, (), run))
            self.frames.pop()
        run.inner[id(node)] = runs
        for k, value in enumerate(node.outputs):
            ends = [r.graph.outputs[k] for r in runs]
            run.facts[id(value)] = self.either(
                [r.fact(v) if v is not None else None for r, v in zip(runs, ends, strict=True)]
            )

    def either(self, facts: Sequence[Fact | None]) -> Fact | None:
        """What holds whichever of several tensors of one shape it is."""
        known = [f for f in facts if f is not None]
        if len(known) < 2:
            return known[0] if known else None
        layout = known[0].layout
        own = tuple(At(((i, ONE),)) for i in range(len(layout)))
        return Fact(layout, _mapped([(f, own) for f in known], layout))

    def scan(self, node: ScanNode, run: Run) -> None:
        depth, self.depth = self.depth, self.depth + 1
        starts = [run.fact(v) if isinstance(v, Value) else None for v in node.starts]
        slices = [self.slice(run.fact(v), depth) for v in node.sequences]
        carries = list(starts)
        leaks = len(self.leaks)
        for turn in range(2 * MAX_ROUNDS):
            del self.leaks[leaks:]
            self.frames.append(Frame(run, node))
            inner = self.run(node.body, [*carries, *slices], run)
            self.frames.pop()
            ends = [inner.fact(v) if v is not None else None for v in node.body.outputs]
            grown = [self.either([c, self.step_before(e, depth)]) for c, e in zip(carries, ends, strict=False)]
            if grown == carries:
                break
            if turn >= MAX_ROUNDS:
                grown = [c if g == c else self.unbounded(g) for c, g in zip(carries, grown, strict=True)]
            carries = grown
        self.depth = depth
        run.inner[id(node)] = [inner]
        for value, fact in zip(node.stacked, ends[len(node.starts) :], strict=True):
            run.facts[id(value)] = self.stack(fact, node.length, depth)
        for value, start, fact in zip(node.finals, starts, ends, strict=False):
            run.facts[id(value)] = self.either([start, self.last(fact, node.length, depth)])

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
                joined = ANYWHERE if f is None else _join(joined, (f,))
            bounds.append(ANYWHERE if forms is None else joined)
        return Fact(layout(fact.layout), tuple(bounds))

    def slice(self, fact: Fact | None, depth: int) -> Fact | None:
        """A sequence's slice: its axis 1 stands at the number of the step."""

        def form(f: Form, own: Fact) -> Form:
            scale, extra = _flat(f.scales[1], own.layout[1])
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

    def unbounded(self, fact: Fact | None) -> Fact | None:
        return self.changed(fact, lambda layout: layout, lambda f, own: None)

    # --- demands ---

    def demand(self, node: CausalNode, run: Run) -> None:
        fact = run.fact(node.value)
        if fact is None:
            return
        axis = time_axis(node.value, self.sources)
        if axis is None:
            return
        for i, source in own_sources(node.value, axis, self.sources):
            if not _meets(
                fact.bounds[i], fact.layout, axis, ratio_of(source, node.value.shape[axis].value), node.ahead, ()
            ):
                self.leaks.append(Leak(tuple(self.frames), run, node, i, axis))
                return


def _padded(steps: tuple[Fraction, ...], depth: int) -> tuple[Fraction, ...]:
    return steps[:depth] + (ZERO,) * (depth - len(steps))


def _meets(bound: Bound, layout: Layout, axis: int | None, ratio: Fraction, ahead: int, steps: tuple[int, ...]) -> bool:
    """Whether every form stays at or before the own place (and `ahead - 1` more); `steps` are scans that count as the own place."""
    if bound is ANYWHERE:
        return False
    for form in bound:
        offset = form.offset
        scale = ZERO
        for i, (scales, parts) in enumerate(zip(form.scales, layout, strict=True)):
            if i == axis:
                scale, extra = _flat(scales, parts)
                offset += extra
                continue
            extent = _extent(scales, parts)
            if extent is None:
                return False
            offset += extent
        for i, own in enumerate(form.steps):
            if own and i not in steps:
                return False
            scale = max(scale, own)
        if scale > ratio or offset > max(ratio - 1, ZERO) + ahead - 1:
            return False
    return True


def related(a: DimValue, b: DimValue) -> bool:
    """Whether two sizes are the same axis, or a fixed part or multiple of it."""
    if a == b:
        return True
    if not isinstance(a, Poly) or not isinstance(b, Poly):
        return False
    return bool(a.symbols & b.symbols)


def time_axis(value: Value, sources: Sequence[Source]) -> int | None:
    """The axis of a tensor, from the second on, that runs along one of the model's inputs."""
    for exact in (True, False):
        for axis in range(1, value.rank):
            size = value.shape[axis].value
            if any(
                s.value.shape[s.axis].value == size or (not exact and related(s.value.shape[s.axis].value, size))
                for s in sources
            ):
                return axis
    return None


def own_sources(value: Value, axis: int, sources: Sequence[Source]) -> list[tuple[int, Source]]:
    """The sources that an axis of a tensor runs along, one axis for each input."""
    size = value.shape[axis].value
    found: dict[str, tuple[int, Source]] = {}
    for exact in (True, False):
        for i, source in enumerate(sources):
            own = source.value.shape[source.axis].value
            if own == size or (not exact and related(own, size)):
                found.setdefault(source.name, (i, source))
    return list(found.values())


def ratio_of(source: Source, size: DimValue) -> Fraction:
    """How many places of a source go to one place of an axis of that size."""
    own = source.value.shape[source.axis].value
    ratio = div(own, size)
    if isinstance(ratio, int | Fraction):
        return Fraction(ratio)
    if isinstance(size, Poly):
        axis, step = whole_axis(Num(size, Lit(str(size))))
        if axis == own:
            return Fraction(step)
    return ONE


# --- the model --------------------------------------------------------------------------------------------------------------

DATA = ("token", "int", "float", "float32", "bfloat16")


def prove(model: Model) -> list[Diagnostic]:
    """What is wrong with the causality that the model claims: an error E0406 for each `assert causal` that cannot be proved, among
    them that of the head `lm`. Empty if every claim holds."""
    if not _claims(model.block.graph, set()):
        return []
    sources = [
        Source(name, value, axis)
        for name, value in model.inputs
        if value.dtype in DATA
        for axis in range(1, value.rank)
    ]
    walk = _Walk(sources)
    inputs: list[Fact | None] = []
    for name, value in model.inputs:
        bounds: list[Bound] = []
        for source in sources:
            rows = tuple((ONE if source.axis == axis else ZERO,) for axis in range(value.rank))
            bounds.append((Form(rows, ZERO),) if source.name == name else ())
        inputs.append(Fact(_flat_layout(value), tuple(bounds)) if any(bounds) else None)
    walk.run(model.block.graph, inputs, None, model.block)
    found: dict[tuple[str, Span | None], Diagnostic] = {}
    for leak in walk.leaks:
        diagnostic = _Explainer(walk).explain(leak)
        found.setdefault((diagnostic.message, diagnostic.span), diagnostic)
    return list(found.values())


def _claims(graph: Graph, seen: set[int]) -> bool:
    """Whether anything is claimed at all."""
    for node in graph.nodes:
        if isinstance(node, CausalNode):
            return True
        if isinstance(node, CallNode) and id(node.block) not in seen:
            seen.add(id(node.block))
            if _claims(node.block.graph, seen):
                return True
        if any(_claims(inner, seen) for inner in subgraphs(node)):
            return True
    return False


# --- the explanation --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Spot:
    """A value where the walk back has come to."""

    frames: tuple[Frame, ...]
    run: Run
    value: Value

    @property
    def key(self) -> tuple[object, ...]:
        return id(self.run), id(self.value), tuple(f.turn for f in self.frames)


class _Explainer:
    """Walks back from a claim to the op that lets a later place in, and on to the input."""

    def __init__(self, walk: _Walk) -> None:
        self.walk = walk
        self.made: dict[int, dict[int, tuple[Node, int]]] = {}

    def explain(self, leak: Leak) -> Diagnostic:
        source = self.walk.sources[leak.source]
        behind, spot = self.behind(leak)
        node, leaking = self.producer(spot), behind[0]
        nearer = next((s for s in self.inputs(spot) if self.depends(s, leak.source)), None)
        before = self.before(nearer, leak) if nearer is not None else []
        notes = [f"the path: {_joined(source.name, before, leaking, behind[1:])}"]
        mask = node.options.get("mask") if isinstance(node, OpNode) else None
        if mask is not None:
            notes.append(f"mask: {mask}")
        elif isinstance(node, OpNode):
            notes.append(f"`{node.op.name}` reads places after its own")
        elif isinstance(node, ScanNode):
            notes.append("what a scan carries at its end has read every place")
        span = _user_span(node, spot.frames)
        if mask is not None and span is not None:
            span = _mask_slot(span) or span
        span = span or leak.node.span
        labels = []
        for place in (leak.node.span, *(f.node.span for f in reversed(leak.frames) if isinstance(f.node, CallNode))):
            if place is not None and not place.source.library and place != span:
                labels.append(Label(place, "causality is demanded here"))
                break
        allowed = "" if leak.node.ahead == 1 else f" by more than {leak.node.ahead - 1}"
        return Diagnostic(
            "E0406",
            f"a later token can reach an earlier logit: `{leaking}` reads places of `{source.name}` that come later{allowed}",
            span,
            labels=tuple(labels),
            notes=tuple(notes),
            help=f"{'use `mask: causal`' if mask is not None else 'read only earlier places'}; "
            "`--allow-noncausal` for a model that is meant to look ahead",
        )

    def behind(self, leak: Leak) -> tuple[list[str], Spot]:
        """From the claim back to the value that leaks first; what lies on the way, in the order of the data."""
        spot = Spot(leak.frames, leak.run, leak.node.value)
        path = ["head"]
        seen: set[tuple[object, ...]] = set()
        while True:
            seen.add(spot.key)
            path.insert(0, self.label(spot, self.producer(spot)))
            worse = [s for s in self.inputs(spot) if s.key not in seen and self.leaks(s, leak)]
            if not worse:
                return path, spot
            spot = worse[0]

    def before(self, spot: Spot, leak: Leak) -> list[str]:
        """From the input to a value, in the order of the data."""
        path: list[str] = []
        seen: set[tuple[object, ...]] = set()
        while True:
            seen.add(spot.key)
            path.insert(0, self.label(spot, self.producer(spot)))
            nearer = [s for s in self.inputs(spot) if s.key not in seen and self.depends(s, leak.source)]
            if not nearer:
                return path
            spot = nearer[0]

    def depends(self, spot: Spot, source: int) -> bool:
        fact = spot.run.fact(spot.value)
        return fact is not None and fact.bounds[source] != ()

    def leaks(self, spot: Spot, leak: Leak) -> bool:
        """Whether the value reads more than a value at its place should."""
        fact = spot.run.fact(spot.value)
        if fact is None:
            return False
        source = self.walk.sources[leak.source]
        own = source.value.shape[source.axis].value
        axes = (a for a in range(1, spot.value.rank) if related(own, spot.value.shape[a].value))
        axis = next(axes, None)
        scans = tuple(range(sum(isinstance(f.node, ScanNode) for f in spot.frames)))
        ratio = ONE if axis is None else ratio_of(source, spot.value.shape[axis].value)
        return not _meets(fact.bounds[leak.source], fact.layout, axis, ratio, leak.node.ahead, scans)

    # --- one step back ---

    def producers(self, graph: Graph) -> dict[int, tuple[Node, int]]:
        found = self.made.get(id(graph))
        if found is None:
            found = self.made[id(graph)] = {id(v): (n, k) for n in graph.nodes for k, v in enumerate(node_outputs(n))}
        return found

    def home(self, spot: Spot) -> Spot:
        """The same value in the graph that makes it, if that is one around."""
        while spot.run.parent is not None and id(spot.value) not in self.producers(spot.run.graph):
            if any(v is spot.value for v in spot.run.graph.inputs):
                break
            spot = Spot(spot.frames[:-1], spot.run.parent, spot.value)
        return spot

    def producer(self, spot: Spot) -> Node | None:
        home = self.home(spot)
        found = self.producers(home.run.graph).get(id(home.value))
        return found[0] if found else None

    def inputs(self, spot: Spot) -> list[Spot]:
        spot = self.home(spot)
        frames, run = spot.frames, spot.run
        found = self.producers(run.graph).get(id(spot.value))
        if found is None:
            return self.from_outside(spot)
        node, k = found
        if isinstance(node, OpNode):
            return [Spot(frames, run, v) for v in node.inputs if isinstance(v, Value)]
        inner = run.inner.get(id(node), [])
        if isinstance(node, CallNode):
            ends = [v for v in node.block.graph.outputs if v is not None]
            return [Spot((*frames, Frame(run, node)), inner[0], ends[k])]
        if isinstance(node, LoopNode):
            turn, index = len(node.turns) - 1, k
            if k >= len(node.outputs):
                index = k - len(node.outputs)
                turn = 0
                while index >= len(node.emitted[turn]):
                    index -= len(node.emitted[turn])
                    turn += 1
                index += len(node.starts)
            return self.end_of(frames, run, node, turn, index)
        if isinstance(node, ScanNode):
            index = len(node.starts) + k if k < len(node.stacked) else k - len(node.stacked)
            return self.end_of(frames, run, node, 0, index)
        if isinstance(node, CondNode):
            return [s for turn in range(2) for s in self.end_of(frames, run, node, turn, k)]
        return []

    def end_of(self, frames: tuple[Frame, ...], run: Run, node: Node, turn: int, index: int) -> list[Spot]:
        inner = run.inner[id(node)][turn]
        end = inner.graph.outputs[index]
        return [Spot((*frames, Frame(run, node, turn)), inner, end)] if end is not None else []

    def from_outside(self, spot: Spot) -> list[Spot]:
        """What the graphs around put in."""
        if not spot.frames:
            return []
        *outer, frame = spot.frames
        frames, node = tuple(outer), frame.node
        index = next((i for i, v in enumerate(spot.run.graph.inputs) if v is spot.value), None)
        given: Sequence[object] = ()
        if isinstance(node, CallNode):
            if index is None:
                at = next((i for i, c in enumerate(node.block.contexts) if c.value is spot.value), None)
                given = () if at is None else (node.contexts[at],)
            else:
                given = (node.inputs[index],)
        elif isinstance(node, LoopNode) and index is not None:
            if frame.turn > 0:
                return self.end_of(frames, frame.run, node, frame.turn - 1, index)
            given = (node.starts[index],)
        elif isinstance(node, ScanNode) and index is not None:
            if index < len(node.starts):
                starts = [Spot(frames, frame.run, v) for v in (node.starts[index],) if isinstance(v, Value)]
                return self.end_of(frames, frame.run, node, 0, index) + starts
            given = (node.sequences[index - len(node.starts)],)
        return [Spot(frames, frame.run, v) for v in given if isinstance(v, Value)]

    # --- names ---

    def label(self, spot: Spot, node: Node | None) -> str:
        """The path of names that leads to a value: `blocks.0.attention`."""
        home = self.home(spot)
        steps: list[str] = []
        loops: list[Frame] = []
        for frame in home.frames:
            if isinstance(frame.node, LoopNode):
                loops.append(frame)
            elif isinstance(frame.node, CallNode):
                steps.append(_step(frame.node, loops))
                loops = []
        if isinstance(node, CallNode) or (isinstance(node, OpNode) and (node.name or not steps)):
            steps.append(_step(node, loops))
        elif isinstance(node, ScanNode):
            steps.append("scan")
        return ".".join(steps)


def _step(node: CallNode | OpNode, loops: Sequence[Frame]) -> str:
    if not node.name:
        shared = node.instance.path or node.instance.label if node.instance is not None else ""
        return shared or (node.block.name if isinstance(node, CallNode) else node.op.name)
    if not loops or node.instance is not None:
        return node.name
    before = 0
    for frame in loops:
        assert isinstance(frame.node, LoopNode)
        before += sum(_count(frame.node.bodies[i], node.name) for i in frame.node.turns[: frame.turn])
    return f"{node.name}.{before}"


def _count(graph: Graph, name: str) -> int:
    """How often a graph applies what is called so: a step in a loop is numbered by that."""
    total = 0
    for node in graph.nodes:
        if isinstance(node, LoopNode):
            total += sum(_count(node.bodies[i], name) for i in node.turns)
        elif isinstance(node, CallNode | OpNode):
            total += node.name == name
        else:
            total += sum(_count(inner, name) for inner in subgraphs(node))
    return total


def _joined(source: str, before: Sequence[str], leaking: str, behind: Sequence[str]) -> str:
    """`tokens -> embedding -> blocks.0.attention -> … -> head`"""
    steps = [source, *_short(before, source, leaking, 1), leaking]
    steps += [*_short(behind[:-1], leaking, behind[-1], 2), behind[-1]]
    return " -> ".join(steps)


def _short(names: Sequence[str], first: str, last: str, count: int) -> list[str]:
    """Names between two others, each once and no more than so many."""
    kept = [n for n in dict.fromkeys(names) if n and n not in (first, last)]
    return kept if len(kept) <= count else ["…"]


def _mask_slot(span: Span) -> Span | None:
    """Where the block that begins there says its mask, if it does so once."""
    text = span.source.text
    depth, end = 0, len(text)
    for i in range(span.start, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if text[i] == "}" and depth <= 0:
            end = i
            break
    found = list(re.finditer(r"\bmask:", text[span.start : end]))
    if len(found) != 1:
        return None
    start = span.start + found[0].start()
    depth, stop = 0, start
    for stop in range(start, end):
        depth += (text[stop] == "(") - (text[stop] == ")")
        if text[stop] in "\n#}" or depth < 0 or (text[stop] == "," and depth == 0):
            break
    return Span(span.source, start, start + len(text[start:stop].rstrip()))


def _user_span(node: Node | None, frames: Sequence[Frame]) -> Span | None:
    """The nearest place outside the library: the op itself, else the block that holds it."""
    spans: list[Span | None] = [node.span if node is not None else None]
    for frame in reversed(frames):
        if isinstance(frame.node, CallNode):
            spans.append(frame.node.block.span)
        spans.append(frame.node.span)
    return next((s for s in spans if s is not None and not s.source.library), None)
