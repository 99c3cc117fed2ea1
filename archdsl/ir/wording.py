"""Words of diagnostics: numbers, shapes and lists of names as a spec would say them."""

from __future__ import annotations

from collections.abc import Iterable

from archdsl.diagnostics import Label, did_you_mean
from archdsl.diagnostics.source import Span
from archdsl.ir.dims import Lit, Num, expr_text, is_sayable
from archdsl.ir.graph import Value

WRITTEN_OUT = "`forward` is written for this number: compile again with --set"
"""What the emitted code says of a count that its text depends on."""
FIXED_NUMBER = "the graph depends on this number: compile again with --set"
MERGED = "what is equal for these numbers is computed once: compile again with --set"
SIZE = "a size must be at least 1"
WHOLE = "a size must be a whole number"


def format_number(n: Num) -> str:
    """A number as it was written, with what it is: `4 * width = 3072`."""
    number = str(n)
    text = expr_text(n.expr) if is_sayable(n.expr) else number
    written = isinstance(n.expr, Lit) or text.replace("_", "") == number
    return text if written or not n.static else f"{text} = {number}"


def dim_words(text: str, n: Num) -> str:
    """A size as a shape asks for it, with what it is."""
    return f"{text} = {n}" if text != str(n) and n.static else str(n)


def written_shape(value: Value) -> str:
    """A shape as a signature would write it."""
    texts = [(expr_text(d.expr), str(d)) for d in value.shape]
    return f"[{', '.join(number if '.' in text else text for text, number in texts)}]"


def format_name(value: Value) -> str:
    """A tensor by its name, if it has one."""
    return f"`{value.name}`" if value.name else "the tensor"


def holds(value: Value, exact: bool = False) -> str:
    """What a tensor holds; `exact` tells types of real numbers apart."""
    if not value.is_float:
        return "whole numbers" if value.is_int else "true and false"
    if not exact:
        return "real numbers"
    return "real numbers of the model's own type" if value.dtype == "float" else f"real numbers of type {value.dtype}"


def listed(names: Iterable[str]) -> str:
    """`a`, `b`, `c`."""
    return ", ".join(f"`{n}`" for n in names)


def one_of(name: str, names: Iterable[str], otherwise: str) -> str:
    """Help for an unknown name: the nearest of those there are, else all of them behind `otherwise`, in their order."""
    names = list(names)
    return did_you_mean(name, names) or f"{otherwise} {listed(names)}"


def origins(numbers: Iterable[Num], span: Span) -> list[Label]:
    """Where each number was written, if that is known and not the place of the error itself."""
    found = [n for n in numbers if n.origin is not None and n.origin != span]
    return [Label(n.origin, f"{format_number(n)} comes from here") for n in found if n.origin is not None]
