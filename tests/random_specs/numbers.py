"""Static numbers of a spec: expressions of hyper-parameters, each with the values that they take."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

T = TypeVar("T")
One = Callable[[Sequence[T]], T]
Values = Mapping[str, float]

DEPTHS = 4
"""Layers are told which they are, from 0 to less than this."""
LARGEST = 6.0


@dataclass(frozen=True)
class Number:
    """An expression and what it is, for values of its names."""

    text: str
    value: Callable[[Values], float]


def _constant(text: str) -> Number:
    return Number(text, lambda _: Fraction(text))  # `3 % 0.02` is 0, as for the compiler


BINARY: tuple[tuple[str, Callable[[float, float], float]], ...] = (
    ("{a} * {b}", lambda a, b: a * b),
    ("{a} / {b}", lambda a, b: a / b),
    ("{a} ** {b}", lambda a, b: a**b),
    ("{a} + {b}", lambda a, b: a + b),
    ("{a} - {b}", lambda a, b: a - b),
    ("{a} % {b}", lambda a, b: a % b),
    ("{a} // {b}", lambda a, b: a // b),
    ("minimum({a}, {b})", min),
    ("maximum({a}, {b})", max),
    ("(if {a} > {b} then {a} else {b} + 1)", lambda a, b: a if a > b else b + 1),
)
UNARY: tuple[tuple[str, Callable[[float], float]], ...] = (
    ("exp(-{a})", lambda a: math.exp(-a)),
    ("log({a})", math.log),
    ("log(1 + {a})", lambda a: math.log(1 + a)),
    ("sqrt({a})", math.sqrt),
    ("-{a}", lambda a: -a),
    ("abs({a})", abs),
    ("floor({a})", math.floor),
    ("ceil({a})", math.ceil),
    ("floor({a} + 0.5)", lambda a: math.floor(a + 0.5)),
    ("sin({a})", math.sin),
)
CONSTANTS = ("0.3", "2", "0.5", "1", "3", "1.5", "0.125", "0.6", "0.02", "8")


def number(one: One[object], names: Mapping[str, Sequence[float]], depth: int = 3) -> Number:
    """An expression of these names, a number of moderate size for all of their values."""
    made = _tree(one, list(names), depth)
    cases = _cases(names)
    return made if all(_is_moderate(made, case) for case in cases) else _fallback(one, list(names), cases)


def _tree(one: One[object], names: list[str], depth: int) -> Number:
    kind = one(["name", "constant", "binary", "unary"] if depth else ["name", "constant"])
    if kind == "name":
        name = str(one(names))
        return Number(name, lambda values: values[name])
    if kind == "constant":
        return _constant(str(one(CONSTANTS)))
    a = _tree(one, names, depth - 1)
    if kind == "unary":
        shape, of_one = one(UNARY)  # type: ignore[misc]
        return Number(str(shape).format(a=_operand(a.text)), lambda values: of_one(a.value(values)))
    b = _tree(one, names, depth - 1)
    shape, of_two = one(BINARY)  # type: ignore[misc]
    text = str(shape).format(a=_operand(a.text), b=_operand(b.text))
    return Number(text, lambda values: of_two(a.value(values), b.value(values)))


def _operand(text: str) -> str:
    return text if text.replace(".", "").replace("_", "").isalnum() else f"({text})"


def _fallback(one: One[object], names: list[str], cases: list[Values]) -> Number:
    name = str(one(names))
    shapes: list[tuple[str, Callable[[float], float]]] = [
        (f"0.3 * {name}", lambda a: 0.3 * a),
        (f"0.8 - 0.6 * exp(-0.3 * {name})", lambda a: 0.8 - 0.6 * math.exp(-0.3 * a)),
        (f"1.5 - {name} / 4", lambda a: 1.5 - a / 4),
        (f"2 ** -{name}", lambda a: 2**-a),
        (f"1 / ({name} + 1)", lambda a: 1 / (a + 1)),
        (f"log({name} + 1) / 2", lambda a: math.log(a + 1) / 2),
    ]
    for shape, of_one in (one(shapes), *shapes):  # type: ignore[misc]
        made = Number(str(shape), lambda values, f=of_one: f(values[name]))
        if all(_is_moderate(made, case) for case in cases):
            return made
    return Number(f"sin({name})", lambda values: math.sin(values[name]))


def _cases(names: Mapping[str, Sequence[float]]) -> list[Values]:
    cases: list[dict[str, float]] = [{}]
    for name, values in names.items():
        cases = [{**case, name: v} for case in cases for v in values]
    return [*cases]


def _is_moderate(made: Number, case: Values) -> bool:
    try:
        value = made.value(case)
    except (ArithmeticError, ValueError):
        return False
    return isinstance(value, int | float) and math.isfinite(value) and abs(value) <= LARGEST


def rounded(one: One[object], x: str, multiple: str) -> str:
    """A size about as large as `x`, a whole number, rounded as models round theirs."""
    return str(
        one(
            [
                f"{multiple} * ceil({x} / {multiple})",
                f"ceil({x} / {multiple}) * {multiple}",
                f"{multiple} * ceil(8 * {x} / 3 / {multiple})",
                f"ceil(2.667 * {x} / {multiple}) * {multiple}",
                f"floor(1.3 * {x})",
                f"floor(0.6 * {x} + 0.5)",
                f"(5 * {x} + 2) // 3",
                f"maximum({x} // {multiple}, 1) * {multiple}",
                f"{x} + ({x} % 3)",
                f"{x} + {multiple} - {x} % {multiple}",
                f"ceil(sqrt({x})) + {multiple}",
                f"({x} * {multiple} + 1) // 2",
                f"4 * {multiple} // 2",
            ]
        )
    )
