"""Bounds of places: which place of an input a place of a tensor may depend on at most.

A bound is the largest of a few affine forms over the places in a tensor.  All of them hold for places from 0 on, so
that a join may take what is larger in each scale; axes can be thought of as made of parts (`(n p)` of `n` and `p`), so
that cutting and merging axes loses nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor

from archdsl.ir.dims import Poly, div, mul
from archdsl.ir.dims import Value as DimValue
from archdsl.ir.graph import Value
from archdsl.ir.op import At, Reads, Regrouping

MAX_FORMS = 6
"""Forms that a bound keeps apart; more are merged into one that covers them."""

Parts = tuple[DimValue, ...]
"""The sizes that an axis is thought of as made of, the last running fastest."""

Layout = tuple[Parts, ...]


@dataclass(frozen=True)
class Form:
    """`sum(scales * places) + sum(steps * numbers of steps) + offset`: a scale for each part of each axis, a step for
    each scan around."""

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


def join(a: Bound, b: Bound) -> Bound:
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
            scale = max(scale, own)  # place = size * outer + inner >= outer + inner
    return scale, extra


def _ordered(scales: tuple[Fraction, ...], parts: Parts) -> bool:
    """Whether no place has more than a later one: the step of a part makes up for all that runs faster."""
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


# --- ops --------------------------------------------------------------------------------------------------------------


def result_layout(output: Value, inputs: Sequence[tuple[Fact, Reads]]) -> Layout:
    """An axis read at its own place keeps the parts that it is made of."""
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
    found = [([[ZERO] * len(parts) for parts in layout], form.offset)]
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
    return [_tidy(rows, offset, form.steps) for rows, offset in found]


def _add(
    rows: list[list[Fraction]], offset: Fraction, scales: tuple[Fraction, ...], parts: Parts, read: At, layout: Layout
) -> tuple[list[list[Fraction]], Fraction] | None:
    rows = [list(r) for r in rows]
    own = len(read.axes) == 1 and read.offset == 0 and read.axes[0][1] == 1 and layout[read.axes[0][0]] == parts
    if own and (not read.earlier or _ordered(scales, parts)):
        axis = read.axes[0][0]
        rows[axis] = [a + b for a, b in zip(rows[axis], scales, strict=True)]
        return rows, offset
    scale, extra = flat(scales, parts)
    for axis, factor in read.axes:
        spread = _in_parts(scale * factor, layout[axis])
        if spread is None:
            return None
        rows[axis] = [a + b for a, b in zip(rows[axis], spread, strict=True)]
    return rows, offset + scale * read.offset + extra


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


def far(reads: Reads, first: Value) -> Reads:
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
            cut_scales = [_recut(s, p, f) for s, p, f in zip(form.scales, fact.layout, fresh, strict=True)]
            if any(c is None for c in cut_scales):
                break
            known = [c for c in cut_scales if c is not None]
            rows = tuple(tuple(x for axis, cut in group for x in known[axis][cut]) or (ZERO,) for group in how.axes)
            forms.append(Form(rows, form.offset, form.steps))
        bounds.append(join(tuple(forms), ()) if len(forms) == len(bound) else ANYWHERE)
    return Fact(layout, tuple(bounds))


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
                if cut == 1:
                    taken = [1]
                    break
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
