"""What is known of a tensor: which positions of the inputs it may depend on, and where it is a known number.

Everything is said by *forms*, affine functions of the position in the tensor: `sum(scale * position) + offset`. Axes
can be thought of as made of parts (`(n p)` of `n` and `p`), so that cutting and merging axes loses nothing. A `Fact`
holds

1. for each source (an axis of an input of the model) a *bound*: the latest position of the source that an element may
   depend on is at most the largest of a few forms. All of them hold for positions from 0 on, so that a join may take
   what is larger in each scale; () where nothing is read, ANYWHERE where there is no bound;
2. what is *known*: forms, and the number that every element is at whose position the form is larger than 0. Truth
   values are the numbers 0 and 1. `key - query > 0 ↦ -inf` is a causal mask on scores, `key - query > 0 ↦ 0` what
   softmax makes of it;
3. the *positions* that it consists of, where it is a tensor of whole numbers that a form gives exactly (`indices`).
   Comparing two of these is how what is known begins.

An element that is known depends on nothing. So where several positions along an axis are read, those within a known
region need not be bounded: outside of `c * key + rest > 0`, a form that grows with `key` is at most the one in which
`-rest / c` stands for it (`without`). In a product, the same holds of every factor where one of them is 0 (`joined`).

Numbers that a model computes are taken to be finite: 0 times one of them is 0. Weights are taken to be any numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from math import floor

from archdsl.frozen import Frozen
from archdsl.ir.dims import Poly, div, mul
from archdsl.ir.dims import Value as DimValue
from archdsl.ir.graph import Value
from archdsl.ir.op import At, Joint, Reads, Regrouping, same

MAX_FORMS = 6
"""Forms that a bound keeps apart; more are merged into one that covers them."""

Parts = tuple[DimValue, ...]
"""The sizes that an axis is thought of as made of, the last running fastest."""

Layout = tuple[Parts, ...]


class Form(Frozen):
    """`sum(scales * positions) + sum(steps * numbers of steps) + offset`: a scale for each part of each axis, a step
    for each scan around."""

    scales: tuple[tuple[Fraction, ...], ...]
    offset: Fraction
    steps: tuple[Fraction, ...] = ()


ANYWHERE = None
Bound = tuple[Form, ...] | None
"""The largest of some forms; () where nothing is read at all, ANYWHERE where there is no bound."""


Known = tuple[tuple[Form, float], ...]

MAX_KNOWN = 6
"""Regions that are kept apart; more are forgotten."""


class Fact(Frozen):
    """What is known of one tensor, over axes laid out as `layout` says."""

    layout: Layout
    bounds: tuple[Bound, ...]
    """The latest position of each source."""
    known: Known = ()
    """Forms, and the number that the tensor is wherever the form is larger than 0."""
    positions: Form | None = None
    """What the tensor is, exactly."""

    @property
    def depends(self) -> bool:
        """Whether any source is read."""
        return any(b != () for b in self.bounds)


ZERO, ONE = Fraction(0), Fraction(1)


def covers(a: Form, b: Form) -> bool:
    """Whether a is at least b at every position."""
    return (
        a.offset >= b.offset
        and all(x >= y for p, q in zip(a.scales, b.scales, strict=True) for x, y in zip(p, q, strict=True))
        and all(x >= y for x, y in _zip_steps(a.steps, b.steps))
    )


def _zip_steps(a: tuple[Fraction, ...], b: tuple[Fraction, ...]) -> Iterator[tuple[Fraction, Fraction]]:
    for i in range(max(len(a), len(b))):
        yield (a[i] if i < len(a) else ZERO), (b[i] if i < len(b) else ZERO)


def join(a: Bound, b: Bound) -> Bound:
    if a is ANYWHERE or b is ANYWHERE:
        return ANYWHERE
    kept: list[Form] = []
    for form in (*a, *b):
        if not any(covers(k, form) for k in kept):
            kept = [k for k in kept if not covers(form, k)] + [form]
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
        offset = Fraction(floor(offset))  # a position is a whole number
    return Form(rows, offset, steps)


def flat_layout(value: Value) -> Layout:
    return tuple((d.value,) for d in value.shape)


def whole(parts: Parts) -> DimValue:
    total: DimValue = 1
    for n in parts:
        total = mul(total, n)
    return total


def extent(scales: tuple[Fraction, ...], parts: Parts) -> Fraction | None:
    """The most that an axis adds to a form; None where its length is not known."""
    total = ZERO
    for scale, size in zip(scales, parts, strict=True):
        if scale:
            if not isinstance(size, int):
                return None
            total += scale * (size - 1)
    return total


def flat(scales: tuple[Fraction, ...], parts: Parts) -> tuple[Fraction, Fraction]:
    """A scale over the whole axis, and an offset, that together cover scales over its parts."""
    scale, extra = scales[0], ZERO
    for own, size in zip(scales[1:], parts[1:], strict=True):
        if isinstance(size, int):
            scale = scale / size
            if own > scale:
                extra, scale = (extra + (own - scale) * (size - 1), scale) if scale else (extra, own)
        else:
            scale = max(scale, own)  # position = size * outer + inner >= outer + inner
    return scale, extra


def _ordered(scales: tuple[Fraction, ...], parts: Parts) -> bool:
    """Whether no position has more than a later one: the step of a part makes up for all that runs faster."""
    faster: Fraction | None = ZERO
    for scale, size in reversed(list(zip(scales, parts, strict=True))):
        if size == 1:
            continue
        if faster is None or scale < faster:
            return False
        if scale:
            faster = faster + scale * (size - 1) if isinstance(size, int) else None
    return True


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


def apart(fact: Fact) -> Fact:
    """The same with each part as an axis of its own."""
    bounds = (
        b if b is ANYWHERE else tuple(Form(tuple((s,) for r in f.scales for s in r), f.offset, f.steps) for f in b)
        for b in fact.bounds
    )
    return Fact(tuple((n,) for parts in fact.layout for n in parts), tuple(bounds))


# --- what is known ----------------------------------------------------------------------------------------------------


def linear(at: At, layout: Layout) -> Form:
    """A form of positions as an op says it, over axes of one part each."""
    scales = [ZERO] * len(layout)
    for axis, scale in at.axes:
        scales[axis] += scale
    return Form(tuple((x,) for x in scales), at.offset)


def total(forms: Iterable[tuple[Form, Fraction]], layout: Layout, offset: Fraction) -> Form:
    """A sum of forms over one layout, each times a number, and an offset."""
    rows = [[ZERO] * len(parts) for parts in layout]
    for form, factor in forms:
        offset += factor * form.offset
        rows = [[a + factor * b for a, b in zip(r, s, strict=True)] for r, s in zip(rows, form.scales, strict=True)]
    return Form(tuple(map(tuple, rows)), offset)


def is_whole(form: Form) -> bool:
    """Whether its values are whole numbers."""
    return form.offset.denominator == 1 and all(x.denominator == 1 for row in form.scales for x in row)


def exact(form: Form, parts_of: Layout, reads: Reads, layout: Layout) -> Form | None:
    """A form of the positions of an input as one of the result's, where each element of the result reads exactly one of
    the input; None where that is not so."""
    rows = [[ZERO] * len(parts) for parts in layout]
    offset = form.offset
    for scales, parts, read in zip(form.scales, parts_of, reads, strict=True):
        if not any(scales):
            continue
        if read is None or read.earlier or read.also:
            return None
        if len(read.axes) == 1 and read.offset == 0 and read.axes[0][1] == 1 and layout[read.axes[0][0]] == parts:
            axis = read.axes[0][0]
            rows[axis] = [a + b for a, b in zip(rows[axis], scales, strict=True)]
            continue
        if len(parts) > 1 or any(len(layout[axis]) > 1 or scale.denominator > 1 for axis, scale in read.axes):
            return None
        for axis, scale in read.axes:
            rows[axis][0] += scales[0] * scale
        offset += scales[0] * read.offset
    return Form(tuple(map(tuple, rows)), offset, form.steps)


def moved(fact: Fact, reads: Reads, layout: Layout) -> tuple[Known, Form | None]:
    """What is known of a result whose elements are those of the input that `reads` says."""
    found = ((exact(form, fact.layout, reads, layout), value) for form, value in fact.known)
    known = tuple((form, value) for form, value in found if form is not None)
    return known, None if fact.positions is None else exact(fact.positions, fact.layout, reads, layout)


def starts_at(form: Form, axis: int) -> bool:
    """Whether the region of a form begins at no position before 0 along an axis."""
    own, others = form.scales[axis], [x for i, row in enumerate(form.scales) for x in row if i != axis]
    first = len(own) == 1 and own[0] > 0 and form.offset <= own[0]
    return first and all(x <= 0 for x in others) and not any(form.steps)


def at(known: Known, region: Form) -> float | None:
    """The number that a tensor is in all of a region; None where that is not known."""
    return next((value for form, value in known if is_positive(form) or covers(form, region)), None)


def is_positive(form: Form) -> bool:
    """Whether it is larger than 0 at every position."""
    return form.offset > 0 and not any(x < 0 for row in form.scales for x in row)


def both(a: Known, b: Known) -> Known:
    """What is known of a tensor that is one of two."""
    found = [(f, v) for f, v in a if at(b, f) == v] + [(f, v) for f, v in b if at(a, f) == v]
    return tuple(dict.fromkeys(found))


def related(relation: str, a: Form, b: Form, layout: Layout) -> Known:
    """Where one tensor of positions stands in a relation to another, and where not."""
    above, below = total([(a, ONE), (b, -ONE)], layout, ZERO), total([(b, ONE), (a, -ONE)], layout, ZERO)
    step = ONE if is_whole(above) else ZERO  # of whole numbers, `a >= b` is `a + 1 > b`
    above_or_equal, below_or_equal = (total([(f, ONE)], layout, step) for f in (above, below))
    regions: dict[str, tuple[tuple[Form, float], ...]] = {
        "<": ((above_or_equal, 0.0), (below, 1.0)),
        "<=": ((above, 0.0), (below_or_equal, 1.0)),
        ">": ((below_or_equal, 0.0), (above, 1.0)),
        ">=": ((below, 0.0), (above_or_equal, 1.0)),
        "==": ((above, 0.0), (below, 0.0)),
        "!=": ((above, 1.0), (below, 1.0)),
    }
    return regions[relation]


def without(form: Form, axis: int, regions: Sequence[Form]) -> Form:
    """A form that bounds the same outside of the regions, if there is one that does not grow along an axis."""
    for part in range(len(form.scales[axis])):
        grows = form.scales[axis][part]
        if grows <= 0:
            continue
        found: Form | None = None
        for region in regions:
            own = region.scales[axis][part]
            if own <= 0:
                continue
            other = _instead(form, region, grows / own)
            if found is None or covers(found, other):
                found = other
        form = form if found is None else found
    return form


def _instead(form: Form, region: Form, factor: Fraction) -> Form:
    # From `region <= 0` follows `form <= form - factor * region`; and no position is below 0.
    rows = (
        tuple(max(a - factor * b, ZERO) for a, b in zip(p, q, strict=True))
        for p, q in zip(form.scales, region.scales, strict=True)
    )
    return Form(tuple(rows), form.offset - factor * region.offset, form.steps)


def tightened(fact: Fact) -> Fact:
    """The same without forms that outside of what is known others are at least as large as."""
    regions = [form for form, _ in fact.known]
    if not regions or not fact.depends:
        return fact
    bounds: list[Bound] = []
    for bound in fact.bounds:
        kept = list(bound or ())
        for form in bound or ():
            others = [f for f in kept if f is not form]
            forms = (without(form, axis, regions) for axis in range(len(fact.layout)))
            if any(covers(other, f) for f in forms for other in others):
                kept = others
        bounds.append(bound if bound is ANYWHERE else tuple(kept))
    return Fact(fact.layout, tuple(bounds), fact.known, fact.positions)


# --- ops --------------------------------------------------------------------------------------------------------------


def result_layout(output: Value, inputs: Sequence[tuple[Fact, Reads]]) -> Layout:
    """An axis read at its own position keeps the parts that it is made of."""
    layout = list(flat_layout(output))
    for fact, reads in inputs:
        for parts, read in zip(fact.layout, reads, strict=True):
            if read is not None and len(parts) > 1 and read.offset == 0 and len(read.axes) == 1 and not read.also:
                axis, scale = read.axes[0]
                if scale == 1 and len(layout[axis]) == 1 and whole(parts) == layout[axis][0]:
                    layout[axis] = parts
    return tuple(layout)


def _read(form: Form, fact: Fact, reads: Reads, layout: Layout) -> list[Form] | None:
    """A form of an input as forms of the result; None for no bound."""
    regions = [region for region, _ in fact.known]
    for axis, read in enumerate(reads if regions else ()):
        if read is None or read.earlier or read.also:
            form = without(form, axis, regions)
    found: list[tuple[Rows, Fraction]] = [([None] * len(layout), form.offset)]
    for scales, parts, read in zip(form.scales, fact.layout, reads, strict=True):
        if not any(scales):
            continue
        if read is None:
            added = extent(scales, parts)
            if added is None:
                return None
            found = [(rows, offset + added) for rows, offset in found]
            continue
        grown = []
        for choice in (read, *read.also):
            for rows, offset in found:
                one = _add(rows, offset, scales, parts, choice, layout)
                if one is None:
                    return None
                grown.append(one)
        found = grown
    zeros = [(ZERO,) * len(parts) for parts in layout]
    return [
        _tidy([z if row is None else row for row, z in zip(rows, zeros, strict=True)], offset, form.steps)
        for rows, offset in found
    ]


Rows = list[tuple[Fraction, ...] | None]
"""The scales of a form that is being added up; None where all are 0."""


def _add(
    rows: Rows, offset: Fraction, scales: tuple[Fraction, ...], parts: Parts, read: At, layout: Layout
) -> tuple[Rows, Fraction] | None:
    rows = list(rows)
    own = len(read.axes) == 1 and read.offset == 0 and read.axes[0][1] == 1 and layout[read.axes[0][0]] == parts
    if own and (not read.earlier or _ordered(scales, parts)):
        axis = read.axes[0][0]
        rows[axis] = _sum(rows[axis], scales)
        return rows, offset
    scale, extra = flat(scales, parts)
    for axis, factor in read.axes:
        spread = _in_parts(scale * factor, layout[axis])
        if spread is None:
            return None
        rows[axis] = _sum(rows[axis], spread)
    return rows, offset + scale * read.offset + extra


def _sum(a: tuple[Fraction, ...] | None, b: tuple[Fraction, ...]) -> tuple[Fraction, ...]:
    return b if a is None else tuple(x + y for x, y in zip(a, b, strict=True))


def mapped(inputs: Sequence[tuple[Fact, Reads]], layout: Layout) -> tuple[Bound, ...]:
    """The bounds of a result from those of the inputs."""
    joined: list[Bound] = [() for _ in inputs[0][0].bounds]
    for fact, reads in inputs:
        for i, bound in enumerate(fact.bounds):
            if bound is ANYWHERE:
                joined[i] = ANYWHERE
                continue
            for form in bound:
                forms = _read(form, fact, reads, layout)
                joined[i] = join(joined[i], None if forms is None else tuple(forms))
    return tuple(joined)


def joined(
    facts: Sequence[Fact | None], values: Sequence[object], joint: Joint
) -> tuple[Layout, tuple[Bound, ...], Known] | None:
    """The bounds of a sum of what several inputs make together, and where it is 0; None where no factor is known to
    count for nothing anywhere."""
    if not any(f is not None and any(v == n for _, v in f.known) for f, n in zip(facts, joint.nothing, strict=True)):
        return None
    names = list(dict.fromkeys((*joint.result, *(n for term in joint.terms for n in term))))
    layout, reads = _space(facts, values, joint, names)
    lifted: list[Fact | None] = []
    regions: list[Form] = []
    for fact, read, nothing in zip(facts, reads, joint.nothing, strict=True):
        if fact is None:
            continue
        known, _ = moved(fact, read, layout)
        lifted.append(Fact(layout, mapped([(Fact(fact.layout, fact.bounds), read)], layout), known))
        regions += [form for form, value in known if value == nothing]
    summed = range(len(joint.result), len(names))
    for axis in summed:
        regions += _combined(regions, axis)
    bounds: list[Bound] = []
    for i in range(len(next(f for f in facts if f is not None).bounds)):
        found: Bound = ()
        for fact in lifted:
            assert fact is not None
            bound = fact.bounds[i]
            own = [*regions, *(form for form, _ in fact.known)]
            for form in bound or ():
                for axis in summed:
                    form = without(form, axis, own)
                found = join(found, (form,))
            found = ANYWHERE if bound is ANYWHERE else found
        bounds.append(found)
    rank = len(joint.result)
    whole_space = Fact(layout, tuple(bounds))
    to_result: Reads = (*(same(i) for i in range(rank)), *(None for _ in summed))
    known = tuple((Form(f.scales[:rank], f.offset), 0.0) for f in regions if not any(map(any, f.scales[rank:])))
    return layout[:rank], mapped([(whole_space, to_result)], layout[:rank]), known


def _space(
    facts: Sequence[Fact | None], values: Sequence[object], joint: Joint, names: Sequence[str]
) -> tuple[Layout, list[Reads]]:
    """The axes of all inputs together, as their facts have them, and where each input is read."""
    sizes: dict[str, DimValue] = {}
    parts: dict[str, Parts] = {}
    for fact, value, term in zip(facts, values, joint.terms, strict=True):
        for axis, name in enumerate(term):
            assert isinstance(value, Value)
            size = value.shape[axis].value
            if sizes.get(name, 1) == 1:
                sizes[name] = size
            if fact is not None and size != 1 and len(fact.layout[axis]) > len(parts.get(name, ())):
                parts[name] = fact.layout[axis]
    reads: list[Reads] = []
    for value, term in zip(values, joint.terms, strict=True):
        shape = value.shape if isinstance(value, Value) else ()
        positions = [names.index(n) for n in term]
        alone = [d.value == 1 != sizes[n] for n, d in zip(term, shape, strict=True)]
        reads.append(tuple(At() if one else same(i) for i, one in zip(positions, alone, strict=True)))
    return tuple(parts.get(n, (sizes[n],)) for n in names), reads


def _combined(regions: Sequence[Form], axis: int) -> list[Form]:
    """Regions that say nothing of an axis that is summed over: where each position along it is in one of two."""
    found: list[Form] = []
    for a in regions:
        for b in regions:
            rising, falling = a.scales[axis], b.scales[axis]
            if len(rising) == 1 and rising[0] > 0 > falling[0]:
                scales = [
                    [-falling[0] * x + rising[0] * y for x, y in zip(p, q, strict=True)]
                    for p, q in zip(a.scales, b.scales, strict=True)
                ]
                offset = -falling[0] * a.offset + rising[0] * b.offset
                found.append(Form(tuple(map(tuple, scales)), offset))
    return found[:MAX_KNOWN]


def regrouped(fact: Fact, how: Regrouping) -> Fact | None:
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
            cut_form = _regrouped(form, fact, fresh, how)
            if cut_form is None:
                break
            forms.append(cut_form)
        bounds.append(join(tuple(forms), ()) if len(forms) == len(bound) else ANYWHERE)
    known = ((_regrouped(form, fact, fresh, how), value) for form, value in fact.known)
    positions = None if fact.positions is None else _regrouped(fact.positions, fact, fresh, how)
    return Fact(layout, tuple(bounds), tuple((f, v) for f, v in known if f is not None), positions)


def _regrouped(form: Form, fact: Fact, fresh: Sequence[list[Parts]], how: Regrouping) -> Form | None:
    """A form over axes that are cut and merged; None where it cannot be said over the parts."""
    cut = [_recut(s, p, f) for s, p, f in zip(form.scales, fact.layout, fresh, strict=True)]
    known = [c for c in cut if c is not None]
    if len(known) < len(cut):
        return None
    rows = tuple(tuple(x for axis, k in group for x in known[axis][k]) or (ZERO,) for group in how.axes)
    return Form(rows, form.offset, form.steps)


def _aligned(parts: Parts, cuts: Parts) -> list[Parts] | None:
    """The parts that each cut is made of; where a cut goes through a part, that is cut too. None where they cannot be
    matched."""
    result: list[Parts] = []
    left, right = list(parts), list(cuts)
    while right:
        cut = right.pop()
        taken: list[DimValue] = []
        while whole(tuple(taken)) != cut:
            if not left:
                return None
            part = left.pop()
            rest = _quotient(cut, whole(tuple(taken)))
            if rest is not None and _quotient(rest, part) is not None:
                taken.insert(0, part)
                continue
            inner = None if rest is None else _quotient(part, rest)
            if inner is None or rest is None:
                return None
            left.append(inner)
            taken.insert(0, rest)
        result.insert(0, tuple(taken) or (1,))
    return result if whole(tuple(left)) == 1 else None


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
    """Scales over the parts of an axis as scales over those of its cuts, as `_aligned` finds them; None where a size
    that would be a scale is not known."""
    target = [n for cut in fresh for n in cut]
    source = [(n, s) for n, s in zip(parts, scales, strict=True) if n != 1]
    flat: list[Fraction] = []
    for size in reversed(target):
        if size == 1:
            flat.insert(0, ZERO)
            continue
        part, scale = source.pop()
        flat.insert(0, scale)
        if part == size:
            continue
        outer = _quotient(part, size)
        assert outer is not None, "parts are cut where cuts are"
        if scale and not isinstance(size, int):
            return None
        source.append((outer, scale * size if isinstance(size, int) else ZERO))
    result, at = [], 0
    for cut in fresh:
        result.append(tuple(flat[at : at + len(cut)]))
        at += len(cut)
    return result
