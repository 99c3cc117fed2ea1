"""Finds primitives by name: the classes with a signature, and the rows of tables, of the modules below."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from types import ModuleType

from archdsl.ir.op import Primitive

VOCABULARIES = (
    "elementwise",
    "reduce",
    "shape",
    "index",
    "linear",
    "conv",
    "norm",
    "position",
    "recurrent",
    "moe",
    "random",
    "attention.mask",
    "attention.bias",
    "attention.sdpa",
    "attention.linear_attention",
    "attention.delta_rule",
)


@cache
def primitives() -> dict[str, Primitive]:
    """Return every primitive by its name."""
    modules = [import_module(f"archdsl.ops.{name}") for name in VOCABULARIES]
    return {op.name: op for module in modules for op in _declared(module)}


def _declared(module: ModuleType) -> Iterator[Primitive]:
    for value in vars(module).values():
        if isinstance(value, type) and value.__module__ == module.__name__ and "signature" in vars(value):
            yield value()
        elif isinstance(value, tuple):
            yield from (row for row in value if isinstance(row, Primitive))


def names() -> frozenset[str]:
    """Return the name of every primitive."""
    return frozenset(primitives())


def find(name: str) -> Primitive | None:
    """Return the primitive of that name, or None."""
    return primitives().get(name)


def get(name: str) -> Primitive:
    """Return the primitive of that name, which must exist."""
    return primitives()[name]
