"""Kinds of numbers that only some numbers are: `eps: positive`, `dropout: rate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from archdsl.diagnostics import error
from archdsl.diagnostics.source import Span
from archdsl.ir.dims import Num
from archdsl.ir.wording import origins, spelled

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
        text = f"{what} must be {wanted.words}{known}, and {spelled(value)} was given"
        raise error("E0204", text, span, labels=origins([value], span))
