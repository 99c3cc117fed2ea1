"""Kinds of numbers that only some numbers are: `eps: positive`, `dropout: rate`."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from archdsl.diagnostics import error
from archdsl.diagnostics.source import Span
from archdsl.ir.dims import Num, Value, expr_text
from archdsl.ir.wording import format_number, origins

TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
"""Comparisons of numbers."""


class Range(NamedTuple):
    """`words` complete the sentence "it must be …"."""

    words: str
    bounds: tuple[tuple[str, int], ...]
    """Comparisons that hold of each of them: `> 0`."""
    static: bool = False
    """Whether the number must be known before the model runs."""

    def holds(self, value: float) -> bool:
        return all(TESTS[op](value, bound) for op, bound in self.bounds)


RANGES = {
    "positive": Range("above 0", ((">", 0),)),
    "nonnegative": Range("0 or more", ((">=", 0),)),
    "nonzero": Range("other than 0", (("!=", 0),)),
    "rate": Range("at least 0 and less than 1", ((">=", 0), ("<", 1)), static=True),
    "share": Range("from 0 to 1", ((">=", 0), ("<=", 1))),
}
NUMBERS = ("number", *RANGES)
"""Every kind of hyper-parameter that is a real number."""


def demand_range(value: Num, kind: str, what: str, span: Span) -> None:
    """Raise E0204 where a number is not one of that kind. One that only the running model knows may be."""
    wanted = RANGES[kind]
    if (not value.static and wanted.static) or (value.static and not wanted.holds(float(value))):
        known = ", and known before the model runs" if not value.static else ""
        text = f"{what} must be {wanted.words}{known}, and {format_number(value)} was given"
        raise error("E0204", text, span, labels=origins([value], span))


ROUND = "use `//` or `ceil(…)` where rounding is meant"


def whole_size(value: Num, kind: str, what: str, span: Span) -> Num:
    """A number as a whole one. Raises E0401 where it is not."""
    v: Value = value.value
    if isinstance(v, Fraction | float):
        written, number = expr_text(value.expr), str(value)
        is_ = f"{number} was given" if written == number else f"{written} = {number}"
        help_ = f"write `{int(v)}` or `{int(v) + 1}`" if written == number else ROUND
        if isinstance(v, float) and v.is_integer():
            help_ = "it is whole by rounding: of functions only `sqrt` and `**` are exact; write `floor(… + 0.5)`"
        joined = "and" if written == number else "but"
        raise error("E0401", f"{what} must be a whole number, {joined} {is_}", span, help=help_)
    if isinstance(v, int) and abs(v) >= 2**63:
        raise error("E0404", f"{what} must be below 2 ** 63, and {expr_text(value.expr)} is not", span)
    if kind == "size" and isinstance(v, int) and v < 1:
        raise error("E0203", f"{what} must be at least 1, and {v} was given", span)
    return value
