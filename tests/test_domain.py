"""The algebra of the proof of causality (archdsl/dependence/domain.py) against every position of small tensors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction
from random import Random

import pytest

from archdsl.dependence import domain
from archdsl.dependence.domain import Bound, Fact, Form, Known, Layout
from archdsl.dependence.solve import claimed, meets
from archdsl.ir.dims import num
from archdsl.ir.graph import Value
from archdsl.ir.op import At, Joint, Reads, Regrouping, same, up_to

TRIES = 150
Index = tuple[int, ...]


def positions(shape: Sequence[int]) -> Iterator[Index]:
    return itertools.product(*map(range, shape))


def sizes(layout: Layout) -> list[int]:
    found = []
    for parts in layout:
        size = domain.whole(parts)
        assert isinstance(size, int)
        found.append(size)
    return found


def value(form: Form, layout: Layout, index: Index, steps: Sequence[int] = ()) -> Fraction:
    """The value of a form at a position of a tensor."""
    total = form.offset + sum((a * b for a, b in zip(form.steps, steps, strict=False)), Fraction(0))
    for scales, parts, position in zip(form.scales, layout, index, strict=True):
        rest = position
        for scale, size in zip(reversed(scales), reversed(parts), strict=True):
            assert isinstance(size, int)
            total += scale * (rest % size)
            rest //= size
    return total


def latest(bound: Bound, layout: Layout, index: Index) -> Fraction:
    """The latest position that a bound allows; infinity stands for none."""
    if bound is None:
        return Fraction(10**6)
    return max((value(form, layout, index) for form in bound), default=Fraction(-(10**6)))


def known(fact: Fact, index: Index) -> float | None:
    return next((v for form, v in fact.known if value(form, fact.layout, index) > 0), None)


# --- random ones ------------------------------------------------------------------------------------------------------


def a_layout(random: Random, axes: int) -> Layout:
    return tuple(
        random.choice([(2,), (3,), (4,), (2, 2), (3, 2), (2, 3), (6,), (1, 3), (2, 1, 2)]) for _ in range(axes)
    )


def a_form(random: Random, layout: Layout, low: int = 0) -> Form:
    """A form, of a bound unless scales may be below 0."""
    rows = tuple(tuple(Fraction(random.choice((low, 0, 0, 1, 1, 2))) for _ in parts) for parts in layout)
    return Form(rows, Fraction(random.randint(-3, 2)))


def a_bound(random: Random, layout: Layout) -> Bound:
    return tuple(a_form(random, layout) for _ in range(random.randint(1, 2)))


def a_known(random: Random, layout: Layout, number: float) -> Known:
    return tuple((a_form(random, layout, -1), number) for _ in range(random.randint(0, 2)))


def tried(seed: int) -> Iterator[Random]:
    return (Random(1000 * seed + n) for n in range(TRIES))


# --- forms and bounds -------------------------------------------------------------------------------------------------


def test_a_form_that_covers_another_is_never_less() -> None:
    covering = 0
    for random in tried(1):
        layout = a_layout(random, 2)
        a, b = (a_form(random, layout, -1) for _ in range(2))
        if domain.covers(a, b):
            covering += 1
            assert all(value(a, layout, i) >= value(b, layout, i) for i in positions(sizes(layout)))
        if domain.is_positive(a):
            assert all(value(a, layout, i) > 0 for i in positions(sizes(layout)))
        assert domain.covers(a, a)
    assert covering > TRIES / 20


def test_a_joined_bound_is_as_large_as_both() -> None:
    for random in tried(2):
        layout = a_layout(random, 2)
        bounds = [a_bound(random, layout) for _ in range(5)]
        joined: Bound = ()
        for bound in bounds:
            joined = domain.join(joined, bound)
        exact = joined is not None and len({f for b in bounds for f in b or ()}) <= domain.MAX_FORMS
        for index in positions(sizes(layout)):
            most = max(latest(b, layout, index) for b in bounds)
            assert latest(joined, layout, index) >= most
            assert latest(joined, layout, index) == most or not exact


def test_scales_over_parts_are_covered_by_one_over_the_axis() -> None:
    for random in tried(3):
        layout = a_layout(random, 1)
        form = a_form(random, layout)
        scale, extra = domain.flat(form.scales[0], layout[0])
        own = [value(form, layout, (i,)) - form.offset for i in range(sizes(layout)[0])]
        assert all(scale * i + extra >= x for i, x in enumerate(own))
        assert domain.extent(form.scales[0], layout[0]) == max(own)
        assert domain._ordered(form.scales[0], layout[0]) == (own == sorted(own))


def test_outside_of_what_is_known_a_bound_may_be_another() -> None:
    changed = 0
    for random in tried(4):
        layout = a_layout(random, 3)
        form, regions = a_form(random, layout), [a_form(random, layout, -2) for _ in range(2)]
        axis = random.randrange(3)
        found = domain.without(form, axis, regions)
        changed += found != form
        for index in positions(sizes(layout)):
            if all(value(r, layout, index) <= 0 for r in regions):
                assert value(found, layout, index) >= value(form, layout, index)
    assert changed > TRIES / 10


def test_a_tightened_fact_bounds_the_same() -> None:
    for random in tried(5):
        layout = a_layout(random, 2)
        fact = Fact(layout, (a_bound(random, layout),), a_known(random, layout, 0.0))
        found = domain.tightened(fact)
        for index in positions(sizes(layout)):
            if known(fact, index) is None:
                assert latest(found.bounds[0], layout, index) == latest(fact.bounds[0], layout, index)


def test_what_is_known_of_one_of_two() -> None:
    for random in tried(6):
        layout = a_layout(random, 2)
        a, b = (Fact(layout, (), a_known(random, layout, float(random.randint(0, 1)))) for _ in range(2))
        one = Fact(layout, (), domain.both(a.known, b.known))
        for index in positions(sizes(layout)):
            found = known(one, index)
            assert found is None or found == known(a, index) == known(b, index)


def test_a_region_that_starts_at_a_position_has_none_before() -> None:
    random, starting = Random(9), 0
    for _ in range(2_000):
        rows = [[random.randint(-2, 2) for _ in range(random.randint(1, 2))] for _ in range(2)]
        form = Form(tuple(tuple(map(Fraction, row)) for row in rows), Fraction(random.randint(-3, 4)))
        if not domain.starts_at(form, 1):
            continue
        starting += 1
        ((own,), others) = rows[1], rows[0]
        before = [
            own * i + sum(x * j for x, j in zip(others, at, strict=True)) + form.offset
            for i in (-3, -2, -1)
            for at in itertools.product(range(4), repeat=len(others))
        ]
        assert max(before) <= 0, form
    assert starting > 50


@pytest.mark.parametrize("relation", ["<", "<=", ">", ">=", "==", "!="])
def test_a_relation_holds_where_it_is_said_to_hold(relation: str) -> None:
    regions = 0
    for random in tried(7):
        layout = a_layout(random, 2)
        a, b = (a_form(random, layout, -1) for _ in range(2))
        if random.random() < 0.5:
            a = Form(a.scales, a.offset / 2)
        for form, number in domain.related(relation, a, b, layout):
            for index in positions(sizes(layout)):
                if value(form, layout, index) > 0:
                    regions += 1
                    x, y = value(a, layout, index), value(b, layout, index)
                    assert eval(f"x {relation} y", {"x": x, "y": y}) == number
    assert regions > TRIES


# --- ops --------------------------------------------------------------------------------------------------------------


def a_read(random: Random, axes: int, also: bool = True) -> At | None:
    axis = random.randrange(axes)
    return random.choice(
        [
            None,
            same(axis),
            same(axis),
            same(axis, random.randint(-2, 2)),
            up_to(axis, random.randint(-1, 1)),
            up_to(axis),
            At((), Fraction(random.randint(0, 2))),
            At(((axis, Fraction(2)),), Fraction(random.randint(0, 1))),
            At(((axis, Fraction(1, 2)),)),
            At(((axis, Fraction(1)),), also=(same(random.randrange(axes)),)) if also else same(axis),
        ]
    )


def read_at(read: At | None, index: Index, size: int) -> set[int]:
    """Which positions of an axis are read for a position of the result."""
    if read is None:
        return {*range(size)}
    found = set()
    for at in (read, *read.also):
        last = int((at.offset + sum(scale * index[axis] for axis, scale in at.axes)) // 1)
        found |= {*range(last + 1)} if read.earlier else {last}
    return {i for i in found if 0 <= i < size}


def test_a_result_depends_on_what_is_read() -> None:
    bounded = 0
    for random in tried(8):
        layout = a_layout(random, 2)
        shape = sizes(layout)
        reads: Reads = tuple(a_read(random, 2) for _ in layout)
        fact = Fact(layout, (a_bound(random, layout),), a_known(random, layout, 0.0))
        output = Value(tuple(num(n) for n in (shape[0], random.choice((shape[1], 5)))))
        result = domain.result_layout(output, [(fact, reads)])
        (bound,) = domain.mapped([(fact, reads)], result)
        bounded += bound is not None
        moved, _ = domain.moved(Fact(layout, (), fact.known), reads, result)
        for index in positions(sizes(result)):
            read = [read_at(at, index, n) for at, n in zip(reads, shape, strict=True)]
            for source in itertools.product(*read):
                if known(fact, source) is None:
                    assert latest(bound, result, index) >= latest(fact.bounds[0], layout, source)
                    assert known(Fact(result, (), moved), index) is None
    assert bounded > TRIES / 2


def test_regrouped_axes_keep_what_is_known() -> None:
    followed = 0
    for random in tried(9):
        ways = [(12,), (2, 6), (6, 2), (3, 4), (2, 3, 2), (1, 12), (4, 1, 3)]
        layout = tuple(random.choice(ways) for _ in range(2))
        cuts = tuple(random.choice(ways) for _ in layout)
        parts = [(axis, k) for axis, cut in enumerate(cuts) for k in range(len(cut))]
        random.shuffle(parts)
        edge = random.randint(1, len(parts) - 1)
        axes = tuple(tuple(part) for part in (parts[:edge], parts[edge:]))
        how = Regrouping(tuple(tuple(num(n) for n in cut) for cut in cuts), axes)
        fact = Fact(layout, (a_bound(random, layout),), a_known(random, layout, 1.0), a_form(random, layout))
        found = domain.regrouped(fact, how)
        if found is None:
            continue
        followed += 1
        shape = [[cuts[axis][k] for axis, k in group] for group in axes]
        for index in positions(sizes(found.layout)):
            place: dict[tuple[int, int], int] = {}
            for group, own, position in zip(axes, shape, index, strict=True):
                rest = position
                for part, size in zip(reversed(group), reversed(own), strict=True):
                    place[part] = rest % size
                    rest //= size
            source = []
            for axis, cut in enumerate(cuts):
                total = 0
                for k, size in enumerate(cut):
                    total = total * size + place[axis, k]
                source.append(total)
            assert latest(found.bounds[0], found.layout, index) >= latest(fact.bounds[0], layout, tuple(source))
            if known(found, index) is not None:
                assert known(fact, tuple(source)) == 1.0
            if found.positions is not None and fact.positions is not None:
                assert value(found.positions, found.layout, index) == value(fact.positions, layout, tuple(source))
    assert followed > TRIES / 10


def test_a_sum_of_products_depends_on_what_no_factor_hides() -> None:
    """`b q k, b k d -> b q d`, factors of 0 known anywhere."""
    names, result = {"q": 4, "k": 5, "d": 2}, ("q", "d")
    helped = 0
    for random in tried(10):
        terms = (("q", "k"), ("k", "d"))
        facts, values = [], []
        for term in terms:
            layout: Layout = tuple((names[n],) for n in term)
            facts.append(Fact(layout, (a_bound(random, layout),), a_known(random, layout, 0.0)))
            values.append(Value(tuple(num(names[n]) for n in term)))
        joint = Joint(terms, result, (0.0, 0.0))
        found = domain.joined(facts, values, joint)
        if found is None:
            continue
        helped += 1
        layout, (bound,), zeros = found
        for q, d in positions([names[n] for n in result]):
            seen = False
            for k in range(names["k"]):
                elements = ((q, k), (k, d))
                numbers = [known(f, i) for f, i in zip(facts, elements, strict=True)]
                if 0.0 not in numbers:
                    seen = True
                    for fact, index in zip(facts, elements, strict=True):
                        assert latest(bound, layout, (q, d)) >= latest(fact.bounds[0], fact.layout, index)
            assert not seen or known(Fact(layout, (), zeros), (q, d)) is None
    assert helped > TRIES / 2


def test_a_claim_is_met_where_no_later_position_is_read() -> None:
    met = 0
    for random in tried(11):
        layout = a_layout(random, 2)
        ratio, ahead, axis = Fraction(random.choice((1, 1, 2))), random.randint(1, 2), random.randrange(2)
        bound = a_bound(random, layout)
        allowed = {i: ratio * i[axis] + max(ratio - 1, 0) + ahead - 1 for i in positions(sizes(layout))}
        if meets(bound, layout, axis, ratio, ahead, ()):
            met += 1
            assert all(latest(bound, layout, i) <= most for i, most in allowed.items())
        own, whole = claimed(2, axis, ratio, ahead), tuple((n,) for n in sizes(layout))
        assert meets(own, whole, axis, ratio, ahead, ())
        assert all(latest(own, whole, i) == most for i, most in allowed.items())
    assert met > TRIES / 20
