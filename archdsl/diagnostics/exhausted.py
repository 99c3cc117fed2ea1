"""Diagnostics for memory that ran out and for nesting that is too deep."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from archdsl.diagnostics import ArchError, error

SMALLER = "a smaller `--batch` or `--seq`, or `--dtype bfloat16`; `archdsl estimate` says what a model needs"
OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|not enough memory|bad_?alloc|failed to allocate"
    r"|storage size calculation overflowed|integer multiplication overflow|array is too big",
    re.IGNORECASE,
)
"""How PyTorch, onnxruntime, NumPy and the system report an allocation that failed or a size that overflowed."""
ASKED = re.compile(r"(?:allocate|buffer of size|requires) ([\d.]+ ?(?:[KMGTPE]i?B|bytes)|\d+)", re.IGNORECASE)


def exhausted(problem: BaseException) -> ArchError | None:
    """Return E0503 for an allocation that failed, E0107 for a RecursionError, None for any other exception."""
    if isinstance(problem, RecursionError):
        return error("E0107", "this is nested too deep to be read", help="give its parts names, or write it flat")
    text = str(problem)
    if not isinstance(problem, MemoryError) and not OUT_OF_MEMORY.search(text):
        return None
    asked = ASKED.search(text)
    size = f": {asked[1]}{' bytes' * asked[1].isdigit()} were asked for at once" if asked else ""
    return error("E0503", f"memory ran out{size}", help=SMALLER)


@contextmanager
def exhaustion_told() -> Iterator[None]:
    """Raise the diagnostic of `exhausted` in place of the exceptions that it knows."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as problem:
        told = exhausted(problem)
        if told is None:
            raise
        raise told from None
