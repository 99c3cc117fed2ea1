"""What is said about a wrong spec: a code, the place, the origin of everything involved, and a hint."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from archdsl.source import Span


@dataclass(frozen=True)
class Label:
    """A second place that explains the first."""

    span: Span
    text: str


@dataclass(frozen=True)
class Diagnostic:
    """One finding. `code` is E…(an error) or W… (a lint)."""

    code: str
    message: str
    span: Span | None = None
    label: str = ""
    labels: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    help: str = ""

    @property
    def is_error(self) -> bool:
        return self.code.startswith("E")


class ArchError(Exception):
    """Raised when a spec is wrong; carries every diagnostic that was found."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__(
            "\n".join(
                f"{d.span}: {d.code} {d.message}" if d.span else f"{d.code} {d.message}" for d in self.diagnostics
            )
        )


def error(
    code: str,
    message: str,
    span: Span | None = None,
    *,
    label: str = "",
    labels: Iterable[Label] = (),
    notes: Iterable[str] = (),
    help: str = "",
) -> ArchError:
    """An exception with one diagnostic, ready to be raised."""
    return ArchError([Diagnostic(code, message, span, label, tuple(labels), tuple(notes), help)])


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """A help line that offers the nearest of the candidates, or nothing."""
    close = difflib.get_close_matches(name, sorted(set(candidates)), n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`?" if close else ""
