"""The kinds of options: what a static value must be to stand for one."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from archdsl.diagnostics import ArchError, error
from archdsl.diagnostics.source import Span
from archdsl.frontend.schemes import SCALINGS, SCHEMES
from archdsl.ir.dims import Num
from archdsl.ir.masks import Mask
from archdsl.ir.ranges import NUMBERS, RANGES, demand_range, whole_size
from archdsl.ir.static import (
    BlockValue,
    ElementRef,
    EnumValue,
    InitRules,
    ListValue,
    Scheme,
    SharedModule,
    as_operand,
    kind_of,
)
from archdsl.ir.wording import one_of

TYPES = ("float", "float32", "bfloat16", "int", "bool")


def coerce(value: Any, kind: str | None, default_none: bool, what: str, span: Span) -> Any:
    """Return a static value as an option of that kind. Raises E0203 for a value of another kind, E0204 or E0401 for a
    number out of its range."""
    if kind is None or (value is None and (default_none or kind in ("block", "position", "scheme"))):
        return value
    words, test = KINDS[kind]
    if kind == "filling":
        value = as_operand(value)
    if kind == "word":
        name = getattr(value, "rule", None) or getattr(value, "name", None)
        if isinstance(name, str) and not isinstance(value, SharedModule):
            return name
        if value is None:
            return "none"
        if isinstance(value, str):
            return value
        if isinstance(value, Num):
            return value
    if kind == "type" and (name := value.name if isinstance(value, EnumValue) else value) in TYPES:
        return name
    if kind == "ints":
        if isinstance(value, Num):
            value = ListValue((value,), ElementRef(0))
        if isinstance(value, ListValue) and all(isinstance(v, Num) and isinstance(v.value, int) for v in value.items):
            return value.items
    if kind in ("size", "int") and isinstance(value, Num):
        return whole_size(value, kind, what, span)
    if kind in RANGES and isinstance(value, Num):
        demand_range(value, kind, what, span)
    if kind == "scheme" and isinstance(value, BlockValue) and value.name in ("zeros", "ones"):
        return Scheme(value.name)
    if test(value):
        return value
    help_ = _instead(value, kind, what)
    raise error("E0203", f"{what} is {words}, and {kind_of(value)} was given", span, help=help_)


def _instead(value: Any, kind: str, what: str) -> str:
    """What was probably meant by a value of the wrong kind."""
    if as_operand(value) is not value:
        return "`inf` stands among tensors: `where(seen, scores, -inf)`"
    if isinstance(value, str) and (value.isidentifier() or value.replace(".", "", 1).replace("_", "").isdecimal()):
        return f"write it without quotes: `{value}`"
    if kind == "bool" and isinstance(value, Num) and value.value in (0, 1):
        return "write `true`" if value.value else "write `false`"
    if kind == "block" and value is True and "norm" in what:
        return "write the norm itself: `rmsnorm` or `layernorm`"
    if kind == "block" and value is False:
        return "write `none`, or leave it out"
    if kind == "added" and isinstance(value, BlockValue | SharedModule):
        return f"`{value.name}` acts inside attention: give it to the layers, in their `position`"
    if what == "the slot `ffn`" and isinstance(value, Num):
        return f"a size belongs to a block: `mlp(hidden: {value})`"
    if kind == "list" and isinstance(value, Num):
        return f"layers are repeated by `*`: `{value} * layer`"
    if kind == "mask" and isinstance(value, ListValue):
        return "masks are joined by `&` (both) and `|` (either): `causal & window(128)`"
    return ""


def _is_added_position(value: Any) -> bool:
    template = value.template if isinstance(value, SharedModule) else value
    return isinstance(template, BlockValue) and not hasattr(template.target, "attend")


def _is_of(family: Collection[str], value: Any) -> bool:
    return isinstance(value, Scheme) and value.name in family


KINDS: dict[str, tuple[str, Any]] = {
    "size": ("a whole number", lambda v: isinstance(v, Num)),
    "int": ("a whole number", lambda v: isinstance(v, Num)),
    **{kind: ("a number", lambda v: isinstance(v, Num)) for kind in NUMBERS},
    "filling": ("a number, `inf` or `-inf`", lambda v: isinstance(v, Num)),
    "bool": ("`true` or `false`", lambda v: isinstance(v, bool)),
    "string": ("a string", lambda v: isinstance(v, str)),
    "word": ("a word", lambda v: isinstance(v, EnumValue)),
    "type": ("a type: float, float32, bfloat16, int or bool", lambda v: False),
    "block": ("a block", lambda v: isinstance(v, BlockValue | SharedModule)),
    "mask": ("a mask", lambda v: isinstance(v, Mask)),
    "position": ("a position", lambda v: isinstance(v, BlockValue | SharedModule)),
    "added": (
        "a position that is added to the embedding: learned or sinusoidal",
        _is_added_position,
    ),
    "scheme": ("a scheme such as normal(0.02)", lambda v: isinstance(v, InitRules) or _is_of(SCHEMES, v)),
    "scaling": ("a scaling of rope: linear, ntk, yarn, llama3 or longrope", lambda v: _is_of(SCALINGS, v)),
    "list": ("a list", lambda v: isinstance(v, ListValue | tuple | BlockValue | SharedModule)),
    "ints": ("a whole number or a list of them", lambda v: False),
}


def takes(kind: str | None, value: Any) -> bool:
    """Whether a static value is of a kind."""
    return kind in KINDS and bool(KINDS[kind][1](value))


def unknown_option(name: str, owner: str, declared: Any, span: Span, help: str = "") -> ArchError:
    names = sorted(declared)
    help_ = help or (one_of(name, names, "it takes") if names else "it takes no options")
    return error("E0201", f"`{owner}` has no option `{name}`", name_place(name, span), help=help_)


def name_place(name: str, value: Span) -> Span:
    """Where the name of an argument stands, in front of its value."""
    before = value.source.text[: value.start]
    found = re.search(rf"\b{re.escape(name)}\s*:\s*\Z", before[-len(name) - 80 :])
    if found is None:
        return value
    start = value.start - len(found[0])
    return Span(value.source, start, start + len(name))
