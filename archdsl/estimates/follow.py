"""What belongs to a width and follows it: heads, so that the size of a head and of a group stays what the spec says,
and hidden sizes in the spec's proportion. They are recognized by their names."""

from __future__ import annotations

from collections.abc import Container, Mapping

MULTIPLE = 128
"""What widths and hidden sizes are multiples of: a tile of a matrix unit is filled."""


def step_of(name: str, multiple: Mapping[str, int]) -> int:
    """Return the multiple to which a size is rounded: `multiple`'s, else 128 for widths and hidden sizes, else 1."""
    return multiple.get(name, MULTIPLE if name in ("width", "hidden") or name.endswith("_hidden") else 1)


def follows(name: str, config: Container[str]) -> bool:
    """Return whether a hyper-parameter counts heads, and so follows the width: the size of a head stays."""
    return name == "heads" or (name.endswith("_heads") and "heads" in config)


def followers(config: Mapping[str, int | float], kept: Container[str]) -> dict[str, int]:
    """Return the hyper-parameters that follow the width, with the spec's values, without those of `kept`."""
    free = {name: n for name, n in config.items() if isinstance(n, int) and name not in kept}
    return {k: n for k, n in free.items() if follows(k, free) or k == "hidden" or k.endswith("_hidden")}


def followed(own: Mapping[str, int], scale: float, multiple: Mapping[str, int]) -> dict[str, int]:
    """Return the values of these hyper-parameters for a width that is `scale` times as large."""
    found: dict[str, int] = {}
    for name, was in own.items():
        if name == "heads" or name.endswith("_heads"):
            found[name] = 1 if name != "heads" and was == 1 else max(1, round(was * scale))
        else:
            step = step_of(name, multiple)
            found[name] = max(1, round(was * scale / step)) * step
    return found
