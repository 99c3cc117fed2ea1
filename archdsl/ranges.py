"""Which numbers are taken: one range for a name, of an option of commands and of an argument of functions."""

from __future__ import annotations

import sys
from math import inf
from typing import Any, NamedTuple

from archdsl.diagnostics import error


class Range(NamedTuple):
    """Numbers from `least` to `most`, both included; `whole` ones alone unless it is False."""

    least: float
    most: float = inf
    whole: bool = True

    def holds(self, value: object) -> bool:
        """Return whether it is such a number; booleans are none, and neither are infinity and NaN."""
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return False
        return self.least <= value <= (self.most if self.whole else min(self.most, sys.float_info.max))

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        low, high = f"{self.least:,}", f"{self.most:,}"
        return f"{kind} of at least {low}" if self.most == inf else f"{kind} from {low} to {high}"


MOST = 10**9
"""The largest batch, and the longest sequence: published ones have some 10^7 tokens."""
HUGE = 10**40
"""Whole numbers above are not written out in a message."""
LAYERS, DEVICES = 1 << 20, 1 << 30
TOKEN = Range(0)
RANGES = {
    "batch": Range(1, MOST),
    "bos_token_id": TOKEN,
    "checkpoint_every": Range(1, LAYERS),
    "depth": Range(0, 20),
    "devices": Range(1, DEVICES),
    "interleave": Range(1, 1 << 10),
    "machine": Range(1, DEVICES),
    "max_new_tokens": Range(1, MOST),
    "mfu": Range(1e-3, 1, whole=False),
    "micro_batches": Range(1, 1 << 20),
    "network": Range(1, whole=False),
    "opset": Range(21, 24),
    "pad_token_id": TOKEN,
    "peak": Range(1, whole=False),
    "price": Range(0, whole=False),
    "seed": Range(0, 2**63 - 1),
    "seq": Range(1, MOST),
    "slack": Range(0, 0.5, whole=False),
    "step_time": Range(1e-9, whole=False),
    "temperature": Range(0, whole=False),
    "tokens": Range(1),
    "tokens_per_second": Range(1e-9, whole=False),
    "tolerance": Range(0, whole=False),
    "top_k": Range(1),
    "top_p": Range(0, 1, whole=False),
    "zero": Range(0, 3),
}


def demand(name: str, value: object, within: Range | None = None) -> None:
    """Raise ArchError E0509 for an argument that is no number of its range, by default the one that its name has."""
    wanted = RANGES[name] if within is None else within
    if not wanted.holds(value):
        short = isinstance(value, int | float) and not isinstance(value, bool) and not HUGE < abs(value) < inf
        said = str(value) if short else f"a value of type `{type(value).__name__}`"
        raise error("E0509", f"`{name}` is {wanted}, not {said}")


def bounds(name: str) -> dict[str, Any]:
    """Return the range of an option as typer takes it."""
    least, most, _ = RANGES[name]
    return {"min": least} if most == inf else {"min": least, "max": most}
