"""One finding about a spec: its code, its message, the spans that it is about, and help."""

from __future__ import annotations

from archdsl.diagnostics.source import Span
from archdsl.frozen import Frozen

LONGEST = 1_000
"""Characters of a message."""


def shortened(text: str, most: int = 120) -> str:
    """A text of a spec as a message quotes it: what is too long is cut."""
    return text if len(text) <= most else f"{text[: most - 2]} …"


class Label(Frozen):
    """A second span that explains the first."""

    span: Span
    text: str


class Proposal(Frozen):
    """Other values for a number of a spec or of `--set`, which may be right or not: they have to be tried."""

    name: str
    span: Span
    """Where the number is written."""
    values: tuple[int, ...]


class Diagnostic(Frozen):
    """One finding. `code` is E…(an error) or W… (a lint)."""

    code: str
    message: str
    span: Span | None = None
    label: str = ""
    labels: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    help: str = ""
    proposals: tuple[Proposal, ...] = ()

    def __post_init__(self) -> None:
        if len(self.message) > LONGEST:
            object.__setattr__(self, "message", shortened(self.message, LONGEST))

    @property
    def is_error(self) -> bool:
        return self.code.startswith("E")
