"""Lists of a loop as the spec writes them: `3 * dense + 58 * sparse` over indices of bodies."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from archdsl.ir import dims
from archdsl.ir.dims import Bin, Expr, Lit
from archdsl.ir.op import TIMES
from archdsl.ir.static import Pattern, Plus, Ref, Times

ONE, ZERO = Lit("1"), Lit("0")

Count = Callable[[Expr, int], str]
"""A static number as text that may stand beside operators of a strength."""


def length(pattern: Pattern) -> Expr:
    """How many entries the list has."""
    if isinstance(pattern, Ref):
        return ONE
    if isinstance(pattern, Times):
        inner = length(pattern.part)
        return pattern.count if inner == ONE else _computed(Bin("*", pattern.count, inner))
    total: Expr = ZERO
    for part in pattern.parts:
        total = length(part) if total == ZERO else _computed(Bin("+", total, length(part)))
    return total


def _computed(expr: Expr) -> Expr:
    """A number if no name is in it."""
    if not dims.free_names(expr):
        value = dims.expr_value(expr)
        if isinstance(value, int):
            return dims.literal(value)
    return expr


def counts(pattern: Pattern) -> list[Expr]:
    """Every count in it."""
    if isinstance(pattern, Times):
        return [pattern.count, *counts(pattern.part)]
    if isinstance(pattern, Plus):
        return [c for p in pattern.parts for c in counts(p)]
    return []


def _refs(pattern: Pattern) -> set[int]:
    """Every index in it."""
    if isinstance(pattern, Ref):
        return {pattern.index}
    if isinstance(pattern, Times):
        return _refs(pattern.part)
    return {i for p in pattern.parts for i in _refs(p)}


def _flat(pattern: Pattern) -> list[int] | None:
    """The indices of a list that repeats nothing, else None."""
    if isinstance(pattern, Ref):
        return [pattern.index]
    if isinstance(pattern, Plus) and all(isinstance(p, Ref) for p in pattern.parts):
        return [p.index for p in pattern.parts if isinstance(p, Ref)]
    return None


def list_text(pattern: Pattern, items: Sequence[str], count: Count) -> str:
    """The list with these texts for its entries: `layers * [mask]`, `[a, b] + 2 * [c]`."""
    if isinstance(pattern, Ref):
        return f"[{items[pattern.index]}]"
    if isinstance(pattern, Times):
        part = list_text(pattern.part, items, count)
        return f"{count(pattern.count, TIMES + 1)} * {part if part.startswith('[') else f'({part})'}"
    parts = [list_text(p, items, count) for p in pattern.parts]
    if all(re.fullmatch(r"\[[^\[\]]*\]", p) for p in parts):
        return f"[{', '.join(p[1:-1] for p in parts)}]"
    return " + ".join(parts)


def modules_text(pattern: Pattern, makers: Sequence[str], count: Count) -> str:
    """The argument of `nn.ModuleList`, an entry's text being the constructor that makes its module anew."""
    return _generated(pattern, makers, count) or f"[{', '.join(_entries(pattern, makers, count))}]"


def _generated(pattern: Pattern, makers: Sequence[str], count: Count) -> str:
    """What goes between the brackets of a generator; '' where the list is better spelled out."""
    made = {makers[i] for i in _refs(pattern)}
    if len(made) == 1 and not isinstance(pattern, Ref):
        return f"{made.pop()} for _ in range({count(length(pattern), 0)})"
    if not isinstance(pattern, Times):
        return ""
    repeats = count(pattern.count, 0)
    flat = _flat(pattern.part)
    if flat is not None:
        group = f"({', '.join(makers[i] for i in flat)})"
    elif isinstance(pattern.part, Plus):
        group = f"[{', '.join(_entries(pattern.part, makers, count))}]"
    else:
        group = f"({_entries(pattern.part, makers, count)[0]},)"
    return f"layer for _ in range({repeats}) for layer in {group}"


def _entries(pattern: Pattern, makers: Sequence[str], count: Count) -> list[str]:
    """What stands in a list display."""
    generated = _generated(pattern, makers, count)
    if generated:
        return [f"*({generated})"]
    if isinstance(pattern, Ref):
        return [makers[pattern.index]]
    assert isinstance(pattern, Plus)
    return [e for p in pattern.parts for e in _entries(p, makers, count)]
