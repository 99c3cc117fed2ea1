"""Finds primitives by name: `linear` is the subclass of Primitive in `archdsl/ops/linear.py`."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path

from archdsl.ir.op import Primitive


@cache
def names() -> frozenset[str]:
    """Every primitive's name. Looks at file names only."""
    return frozenset(
        p.stem.rstrip("_")
        for p in Path(__file__).parent.glob("*.py")
        if not p.stem.startswith("_") and p.stem != "registry"
    )


@cache
def find(name: str) -> Primitive | None:
    """The primitive of that name, or None."""
    if name not in names():
        return None
    module = importlib.import_module(f"archdsl.ops.{name}")
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Primitive) and value.__module__ == module.__name__:
            return value()
    raise TypeError(f"archdsl/ops/{name}.py holds no primitive")


def get(name: str) -> Primitive:
    """The primitive of that name; it must exist."""
    op = find(name)
    assert op is not None, name
    return op
