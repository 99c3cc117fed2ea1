"""What belongs to a width and follows it: heads, so that the size of a head and of a group stays what the spec says,
and hidden sizes in the spec's proportion. Names are all that tells these."""

from __future__ import annotations

from collections.abc import Container, Mapping

MULTIPLE = 128
"""What widths and hidden sizes are multiples of: a tile of a matrix unit is filled."""


def step_of(name: str, multiple: Mapping[str, int]) -> int:
    """Return what a size is a multiple of, where `multiple` does not say."""
    return multiple.get(name, MULTIPLE if name in ("width", "hidden") or name.endswith("_hidden") else 1)


def follows(name: str, config: Container[str]) -> bool:
    """Return whether a number is one of heads, which follow the width so that the size of a head, and of a group, stays
    the same."""
    return name == "heads" or (name.endswith("_heads") and "heads" in config)


def followers(config: Mapping[str, int | float], kept: Container[str]) -> dict[str, int]:
    """Return the whole numbers of a Config that follow the width, as the spec has them; not those that are `kept`."""
    free = {name: n for name, n in config.items() if isinstance(n, int) and name not in kept}
    return {k: n for k, n in free.items() if follows(k, free) or k == "hidden" or k.endswith("_hidden")}


def followed(own: Mapping[str, int], scale: float, multiple: Mapping[str, int]) -> dict[str, int]:
    """Return what these numbers are where the width is so much larger."""
    found: dict[str, int] = {}
    for name, was in own.items():
        if name == "heads" or name.endswith("_heads"):
            found[name] = 1 if name != "heads" and was == 1 else max(1, round(was * scale))
        else:
            step = step_of(name, multiple)
            found[name] = max(1, round(was * scale / step)) * step
    return found
