"""Lists with the pattern in which the spec wrote them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from archdsl.diagnostics import error
from archdsl.diagnostics.source import Span
from archdsl.ir.dims import Num
from archdsl.ir.graph import Value
from archdsl.ir.ranges import whole_size
from archdsl.ir.static import ElementRef, JoinedPattern, ListValue, Pattern, RepeatedPattern, spelling, static_key
from archdsl.ir.wording import format_number
from archdsl.syntax.limits import MAX_LIST, raising


def as_list(value: Any) -> ListValue:
    """A list as it is, anything else as a list of one."""
    return value if isinstance(value, ListValue) else ListValue((value,), ElementRef(0))


def value_key(value: Any) -> Hashable:
    """Equal for static values that mean the same and are spelled the same, and for one tensor: `4` and `width // 2` may
    be equal here and differ for another width."""
    return ("value", id(value)) if isinstance(value, Value) else (static_key(value), spelling(value))


def distinct(items: Sequence[Any]) -> dict[Hashable, int]:
    """The distinct elements by key, numbered in the order in which they first come."""
    keys: dict[Hashable, int] = {}
    for item in items:
        keys.setdefault(value_key(item), len(keys))
    return keys


def concat(parts: Sequence[ListValue], span: Span) -> ListValue:
    """`a + b`, and `[a, b]` for lists of one. Raises E0404 where the list becomes too long."""
    items: list[Any] = []
    patterns: list[Pattern] = []
    keys: dict[Hashable, int] = {}
    for part in parts:
        own = distinct(part.items)
        for key in own:
            keys.setdefault(key, len(keys))
        pattern = _renumber(part.pattern, {index: keys[key] for key, index in own.items()})
        patterns.extend(pattern.parts if isinstance(pattern, JoinedPattern) else (pattern,))
        items.extend(part.items)
    if len(items) > MAX_LIST:
        raise error("E0404", f"a list has at most {MAX_LIST:,} elements", span, help=raising("list"))
    return ListValue(tuple(items), patterns[0] if len(patterns) == 1 else JoinedPattern(tuple(patterns)))


def _renumber(pattern: Pattern, back: Mapping[int, int]) -> Pattern:
    if isinstance(pattern, ElementRef):
        return ElementRef(back[pattern.index])
    if isinstance(pattern, RepeatedPattern):
        return replace(pattern, part=_renumber(pattern.part, back))
    return JoinedPattern(tuple(_renumber(p, back) for p in pattern.parts))


def repeat(count: Num, part: ListValue, span: Span) -> ListValue:
    """`count * part`. Raises E0401, E0402 or E0404 for a count that is not whole, not known or too large."""
    n = _whole(count, span)
    length = n * len(part.items)
    if n < 0 or length > MAX_LIST:
        text = f"a list has at most {MAX_LIST:,} elements, and this would have {length:,}"
        raise error("E0404", text, span, help=raising("list"))
    if n == 0:
        return ListValue((), JoinedPattern(()))
    return ListValue(part.items * n, RepeatedPattern(count.expr, part.pattern, n))


def repetitions(count: Num, span: Span) -> int:
    """How often a loop runs. Raises E0401, E0402 or E0404 for a count that is not whole, not known or too large."""
    n = _whole(count, span, help="a recurrence over time is a `scan`")
    if n < 0 or n > MAX_LIST:
        text = f"{n:,} repetitions: a list has at most {MAX_LIST:,} elements"
        raise error("E0404", text, span, help=raising("list"))
    return n


def _whole(count: Num, span: Span, help: str = "") -> int:
    if not count.static:
        text = f"`{format_number(count)}` is known only when the model runs, so nothing can be repeated that often"
        raise error("E0402", text, span, help=help)
    return int(whole_size(count, "int", "a number of repetitions", span))
