"""Choices from what hypothesis draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[T]], T]


class Chooser:
    """Choices for one part of a spec."""

    def __init__(self, draw: Callable[[Any], Any], causal: bool, fixed: bool = False, *, hostile: bool = False) -> None:
        """`fixed`: the number of places is known, and may be odd."""
        self.draw = draw
        self.causal = causal
        self.fixed = fixed
        self.hostile = hostile

    def other(self, causal: bool | None = None, fixed: bool | None = None) -> Chooser:
        """A chooser of the same draws for another part of the spec."""
        causal, fixed = self.causal if causal is None else causal, self.fixed if fixed is None else fixed
        return Chooser(self.draw, causal, fixed, hostile=self.hostile)

    def one(self, options: Sequence[T]) -> T:
        return self.draw(st.sampled_from(list(options)))  # type: ignore[no-any-return]

    def whole(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))  # type: ignore[no-any-return]

    def chance(self, percent: int) -> bool:
        """True in so many of a hundred draws; the simpler answer, no, is what shrinking tries."""
        return self.whole(0, 99) >= 100 - percent

    def odd(self, percent: int) -> bool:
        """True in so many of a hundred hostile draws."""
        return self.hostile and self.chance(percent)

    def some(self, **options: Sequence[Any]) -> str:
        """Named arguments, most of them left out: `, bias: true`."""
        found = ""
        for name, values in options.items():
            if self.chance(25):
                found += f", {name}: {self.one(values)}"
        return found


# --- texts ------------------------------------------------------------------------------------------------------------

PIECES = (
    "each layer halves, see layer.one (layer)",
    "block",
    "h = x",
    "self.layer(x)",
    "{x}",
    "{}",
    "{{",
    "%s %d%%",
    "\\",
    "\\n",
    "\\x41\\N{BULLET}\\u00e9",
    "'",
    "'''",
    "f'{h}'",
    "#",
    "# noqa",
    "é → 日本 𝛼",
    "\u2028",
    "\t",
    "Any | None; math.log, re.sub(r'\\d')",
    "assert False",
    "# [batch, time, width]",
    "lambda: 0",
    "width divides heads",
    "config.width",
)
"""Of messages and comments."""


def wording(c: Chooser) -> str:
    """Any text of one line, as it may stand in a string of the language."""
    return " ".join(c.one(PIECES) for _ in range(c.whole(1, 3)))


def assertion(c: Chooser, conditions: Sequence[str]) -> str:
    """A condition that holds, with any message."""
    return f'assert {c.one(conditions)}, "{wording(c)}"'


AT_RUN = ("time >= 1", "time % 1 == 0", "time + time > 1", "time < 4_096", "2 * time >= time", "time // 2 * 2 <= time")
STATIC = ("width > 0", "width % 2 == 0 or width > 1", "2 * width / 2 == width", "width // 3 < width")
