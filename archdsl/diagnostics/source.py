"""Source texts and the spans that point into them."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

from archdsl.frozen import Entity


def printable(text: str, keep: str = "") -> str:
    """Return a text from outside as part of one line: line ends, escape sequences and marks that turn the direction of
    writing become U+FFFD, so that neither a file nor a terminal takes the text for more than a name. The characters of
    `keep` stay: line ends, where it may have several lines."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c in keep else "\ufffd" for c in text)


class Source(Entity):
    """One text and the name it is shown under (a path relative to the project root, or `std/attention.arch`)."""

    name: str
    text: str
    library: bool = False
    """Whether this is the standard library: errors inside it are shown where the user called it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", printable(self.name))

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(i + 1 for i, c in enumerate(self.text) if c == "\n")]

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset, both from 1."""
        line = bisect_right(self._line_starts, offset) - 1
        return line + 1, offset - self._line_starts[line] + 1

    def line(self, number: int) -> str:
        """The text of a line (from 1), without its line end."""
        start = self._line_starts[number - 1]
        end = self._line_starts[number] if number < len(self._line_starts) else len(self.text)
        return self.text[start:end].rstrip("\r\n")


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range of characters of a source."""

    source: Source
    start: int
    end: int

    @property
    def line(self) -> int:
        return self.source.position(self.start)[0]

    @property
    def column(self) -> int:
        return self.source.position(self.start)[1]

    @property
    def text(self) -> str:
        return self.source.text[self.start : self.end]

    def __str__(self) -> str:
        return f"{self.source.name}:{self.line}"
