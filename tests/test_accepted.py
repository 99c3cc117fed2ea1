"""What a Config and `--set` accept, against the definition.

A spec is made of statements; of each is written down here when it has a meaning: sizes are whole numbers of at least 1,
heads divide a width, two sizes are one. For its numbers and their neighbours, most of which break one statement alone,
the compiler accepts exactly those for which all of them hold; the emitted Config those that also leave the graph as it
is."""

from __future__ import annotations

import itertools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from random import Random
from typing import Any, NamedTuple

import pytest
from test_dims import Number, UndefinedError, _read_text, worth

import archdsl
from archdsl.backends.torch import emit
from archdsl.diagnostics import ArchError
from archdsl.ir.conditions import SIZES, conditions
from archdsl.ir.dims import Bin, Expr, Fn, Lit, Var, expr_text, free_names
from archdsl.ir.graph import Condition
from archdsl.ir.ranges import TESTS
from archdsl.run.load import load_source

LOADED = 0.05
"""The share of settings with which the compiler loads a spec, too."""
SPECS = int(os.environ.get("ARCHDSL_EXAMPLES", "150"))
FIELDS = ("n", "k", "h")
Names = dict[str, Number]
Test = Callable[..., bool]


class Statement(NamedTuple):
    """A statement of a spec about expressions."""

    text: str
    count: int
    holds: Test
    """Whether it has a meaning, given what its expressions are worth."""
    same: Test = lambda *_: True
    """Whether the graph is then the one that was compiled."""


def is_size(a: Number) -> bool:
    return a == int(a) and a >= 1


def are_sizes(*given: Number) -> bool:
    return all(map(is_size, given))


def divided(a: Number, b: Number) -> bool:
    return are_sizes(a, b) and a % b == 0


def equal_sizes(a: Number, b: Number) -> bool:
    return are_sizes(a, b) and a == b


STATEMENTS = {
    "a size": Statement("x = x -> linear({0}) -> linear(8)", 1, is_size),
    "a size by a name": Statement(
        "let t{i} = {0}\n x = x -> linear(t{i}) -> linear(ceil(t{i} / 2)) -> linear(8)", 1, is_size
    ),
    "half of what is given": Statement("x = x -> halved({0})", 1, lambda a: is_size(a / Fraction(2))),
    "a weight": Statement("param w{i}: [{0}, 8] = zeros\n x = x + sum(w{i}, axis: 0)", 1, is_size),
    "iterations": Statement(
        "for i in {0} {{ x = x -> linear(8) }}", 1, lambda a: a == int(a) and a >= 0, lambda a: a >= 1
    ),
    "heads": Statement("x = x -> linear({0}) -> split_heads({1}) -> merge_heads -> linear(8)", 2, divided),
    "heads in a block": Statement("x = x -> cut({0}, {1})", 2, divided),
    "heads in blocks": Statement("x = x -> outer({0}, {1})", 2, lambda a, b: divided(2 * a, b) and is_size(a)),
    "heads of a group": Statement(
        "x = x -> gqa(heads: {0}, kv_heads: {1})", 2, lambda a, b: divided(8, a) and divided(a, b)
    ),
    "a cut axis": Statement(
        'x = x -> linear({0}) -> rearrange("b t (c d) -> b t d c", c: {1}) -> rearrange("b t d c -> b t (d c)")'
        " -> linear(8)",
        2,
        divided,
    ),
    "groups": Statement("x = x -> conv1d(8, kernel: 3, groups: {0})", 1, lambda a: divided(8, a)),
    "a product of matrices": Statement(
        "x = matmul(matmul(x -> linear({0}), transpose(x -> linear({1}), 1, 2)), x)", 2, equal_sizes
    ),
    "a row of tensors": Statement(
        "x = x + mean(concat(x -> linear({0}), x -> linear({1}), axis: 1) -> linear(8), axis: 1, keep: true)",
        2,
        equal_sizes,
    ),
    "a declared shape": Statement(
        "y{i} = x -> linear({0}) : [batch, time, {1}]\n x = y{i} -> linear(8)", 2, equal_sizes
    ),
    "a position": Statement(
        "x = x + unsqueeze(x[..., {0}], axis: -1)", 1, lambda a: a == int(a) and -8 <= a < 8, lambda a: a >= 0
    ),
    "the largest": Statement(
        "v{i}, j{i} = x -> topk({0})\n x = x + sum(v{i}, axis: -1, keep: true)", 1, lambda a: is_size(a) and a <= 8
    ),
    "rotated channels": Statement(
        "x = sdpa(x, x, x, position: rope(dims: {0}))", 1, lambda a: is_size(a) and a % 2 == 0 and a <= 8
    ),
    "a window": Statement("x = x -> mha(heads: 1, mask: causal & window({0}))", 1, is_size),
    "a branch": Statement("if {0} > {1} {{ x = -x }}", 2, lambda a, b: True, lambda a, b: a > b),
    "the other branch": Statement("x = if {0} >= {1} then x -> gelu else -x", 2, lambda a, b: True, lambda a, b: a < b),
    "less": Statement('assert {0} < {1}, "less"', 2, lambda a, b: a < b),
    "at least": Statement('assert {0} >= {1}, "at least"', 2, lambda a, b: a >= b),
    "equal": Statement('assert {0} == {1}, "equal"', 2, lambda a, b: a == b),
    "other": Statement('assert {0} != {1}, "other"', 2, lambda a, b: a != b),
    "no remainder": Statement(
        'x = x -> linear({0}) -> linear(8)\n assert {0} % {1} == 0, "no remainder"',
        2,
        lambda a, b: is_size(a) and b != 0 and a % b == 0,
    ),
}
BLOCKS = """
block halved(a)(x: [batch, time, 8]) -> [batch, time, 8] {
  let u = a / 2
  return x -> linear(u) -> linear(8)
}
block cut(a, b)(x: [batch, time, 8]) -> [batch, time, 8] {
  return x -> linear(a) -> split_heads(b) -> merge_heads -> linear(8)
}
block outer(wide, parts)(x: [batch, time, 8]) -> [batch, time, 8] {
  return x -> linear(wide) -> linear(8) -> cut(2 * wide, parts)
}
"""


class Used(NamedTuple):
    """A statement about certain expressions."""

    name: str
    exprs: tuple[Expr, ...]

    def judged(self, by: str, names: Names) -> bool:
        """Whether it `holds`, or leaves the graph the `same`; a number that is none does neither."""
        try:
            return bool(getattr(STATEMENTS[self.name], by)(*(worth(e, names) for e in self.exprs)))
        except UndefinedError:
            return False


def number(draw: Random, depth: int = 2) -> Expr:
    """An expression of the fields as specs write their sizes."""

    def part() -> Expr:
        return number(draw, depth - 1)

    how = draw.randrange(12) if depth else 0
    if how < 4:
        return Lit(str(draw.randint(1, 4))) if draw.random() < 0.2 else Var(draw.choice(FIELDS))
    if how < 9:
        return Bin(draw.choice("**+-/%"), part(), part())
    if how < 10:
        return Fn(draw.choice(("minimum", "maximum")), (part(), part()))
    if how < 11:
        return Bin("//", part(), part())
    return Fn(draw.choice(("ceil", "floor")), (Bin("/", part(), part()),))


def drawn(seed: int) -> tuple[str, Names, list[Used]]:
    """A spec, its numbers and its statements."""
    draw = Random(seed)
    own: Names = {name: draw.choice((1, 2, 2, 3, 4, 4, 6, 8, 12)) for name in FIELDS}
    used: list[Used] = []
    while len(used) < 3:
        name = draw.choice(list(STATEMENTS))
        exprs = tuple(number(draw, draw.choice((0, 1, 2))) for _ in range(STATEMENTS[name].count))
        made = Used(name, exprs)
        named = any(isinstance(e, Var | Bin | Fn) for e in exprs)
        if named and made.judged("holds", own) and made.judged("same", own) and max(worth(e, own) for e in exprs) < 200:
            used.append(made)
    lines = [
        STATEMENTS[u.name].text.format(
            *(f"({expr_text(e)})" if isinstance(e, Bin) else expr_text(e) for e in u.exprs), i=i
        )
        for i, u in enumerate(used)
    ]
    hypers = ", ".join(f"{k} = {v}" for k, v in own.items())
    return (
        f"{BLOCKS}\nmodel m({hypers})(x: [batch, time, 8]) {{\n " + "\n ".join([*lines, "return x"]) + "\n}\n",
        own,
        used,
    )


def neighbours(own: Names, draw: Random) -> Iterator[Names]:
    """The numbers with one or two changed."""
    for name, value in own.items():
        for other in dict.fromkeys((value + 1, value - 1, 2 * value, value + 0.5, 3 * value, 0, -value)):
            yield {**own, name: Fraction(other)}
    for _ in range(10):
        yield {**own, **{name: draw.randint(1, 12) for name in draw.sample(FIELDS, 2)}}


def accepted(found: Sequence[Condition], names: Names) -> bool:
    """Whether these conditions hold."""
    try:
        return all(
            TESTS[c.op](worth(c.left, names), worth(c.right, names))
            and (c.message != SIZES or all(names[n] == int(names[n]) for n in free_names(c.left)))
            for c in found
        )
    except UndefinedError:
        return False


PINS = ("compile again with --set", "needs these sizes to be equal")
"""Of refusals that say that others would do, too: what is written for a number, or for two that are equal."""


def is_needless(found: Sequence[Condition], names: Names) -> bool:
    """Whether a refusal is one that may be: a number is pinned, or a field is whole although what is made of it need
    not be."""
    broken = [c for c in found if not accepted([c], names)]
    return all(
        any(pin in c.message for pin in PINS)
        or (any(names[n] != int(names[n]) for n in free_names(c.left)) and "whole number" in c.message)
        for c in broken
    )


def settings(names: Names) -> dict[str, Any]:
    return {k: int(v) if v == int(v) else float(v) for k, v in names.items()}


def test_conditions_hold_exactly_where_the_definition_does() -> None:
    """What breaks one statement alone is refused, whichever it is; what breaks none is accepted, but for pinned
    numbers."""
    alone, accepted_ones, needless = Counter[str](), Counter[str](), 0
    for seed in range(SPECS):
        text, own, used = drawn(seed)
        found, draw = conditions(archdsl.load(text=text, allow_noncausal=True)), Random(seed)
        assert accepted(found, own), text
        for names in neighbours(own, draw):
            broken = [u for u in used if not (u.judged("holds", names) and u.judged("same", names))]
            taken = accepted(found, names)
            assert not (taken and broken), f"{names} is accepted, and breaks {broken}: {text}"
            if len(broken) == 1:
                alone[broken[0].name] += 1
            elif taken:
                accepted_ones.update(u.name for u in used)
            elif not broken:
                needless += 1
                assert is_needless(found, names), f"{names} is refused: {text}"
            if draw.random() < LOADED:
                loads = loaded(text, settings(names))
                assert loads == all(u.judged("holds", names) for u in used), f"{names}: {loads}: {text}"
    assert {name for name in STATEMENTS if not (alone[name] and accepted_ones[name])} == set()
    assert needless < accepted_ones.total() / len(STATEMENTS)


@pytest.mark.parametrize("top", ["n", "n + k", "3 * n", "n * k"])
def test_of_two_divisors_none_is_lost(top: str) -> None:
    """One of them may follow from the other: 4 from 8, and not 3 from 8."""
    parsed, own = _read_text(top), {"n": 24, "k": 48}
    for a, b in itertools.permutations((2, 3, 4, 8, 12), 2):
        checks = f'assert ({top}) % {a} == 0, "a"\n assert ({top}) % {b} == 0, "b"\n x = x -> linear(n) -> linear(8)'
        text = f"model m(n = 24, k = 48)(x: [batch, time, 8]) {{ {checks}\n return x }}"
        found = conditions(archdsl.load(text=text, allow_noncausal=True))
        for n in range(1, 27):
            names: Names = {**own, "n": n}
            value = worth(parsed, names)
            assert accepted(found, names) == (value % a == 0 and value % b == 0), (a, b, n)


def loaded(text: str, given: Mapping[str, Any]) -> bool:
    """Whether the compiler accepts a spec with these settings."""
    try:
        archdsl.load(text=text, set=given, allow_noncausal=True)
    except ArchError:
        return False
    return True


@pytest.mark.slow
def test_the_emitted_config_accepts_what_its_conditions_say() -> None:
    """The text of the checks, as Python evaluates it."""
    counts = Counter[bool]()
    for seed in range(SPECS, SPECS + SPECS // 8):
        text, own, _ = drawn(seed)
        model = archdsl.load(text=text, allow_noncausal=True)
        made, found = load_source(emit(model)), conditions(model)
        config = vars(sys.modules[made.__module__])["Config"]
        for names in neighbours(own, Random(seed)):
            refusal = refused(config, settings(names))
            taken = refusal is None
            assert taken or any(name in str(refusal).partition(": Config")[0] for name in FIELDS)
            counts[taken] += 1
            assert taken == accepted(found, names), f"{names}: {taken}: {text}"
    assert min(counts.values()) > SPECS // 2


def refused(config: Callable[..., Any], given: Mapping[str, Any]) -> AssertionError | None:
    """What a Config says against its numbers."""
    try:
        config(**given)
    except AssertionError as problem:
        return problem
    return None
