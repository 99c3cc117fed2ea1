"""The syntax tree: frozen nodes named as the rules of `grammars/arch.lark`, each with its span.

Nodes compare by content and not by position, so that `parse(format(tree)) == tree` can be asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from archdsl.diagnostics.source import Span


@dataclass(frozen=True, kw_only=True)
class Node:
    span: Span = field(compare=False, repr=False)


# --- expressions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Number(Node):
    """`text` is the literal as written: `50_257`, `1e-5`."""

    text: str


@dataclass(frozen=True)
class String(Node):
    value: str


@dataclass(frozen=True)
class Name(Node):
    """A plain name, or a dotted one: `c.decoder`, `patches.image`."""

    id: str


@dataclass(frozen=True)
class Ellipsis(Node):
    """`...`, in a shape or an index."""


@dataclass(frozen=True)
class Unary(Node):
    """op is one of `-` `~` `not`."""

    op: str
    operand: Expr


@dataclass(frozen=True)
class Binary(Node):
    """op is one of `+ - * / // % ** & | == != < <= > >= and or`."""

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True)
class IfElse(Node):
    """`if condition then a else b`."""

    condition: Expr
    then: Expr
    otherwise: Expr


@dataclass(frozen=True)
class List(Node):
    items: tuple[Expr, ...]


@dataclass(frozen=True)
class Comprehension(Node):
    """`[element for name in iterable]`."""

    element: Expr
    name: str
    iterable: Expr


@dataclass(frozen=True)
class Arg(Node):
    """An argument of a call; `name` is None for one given in order."""

    name: str | None
    value: Expr


@dataclass(frozen=True)
class Call(Node):
    function: Expr
    args: tuple[Arg, ...]


@dataclass(frozen=True)
class Slice(Node):
    low: Expr | None
    high: Expr | None


@dataclass(frozen=True)
class Index(Node):
    """`value[item, …]`; an item is an expression, a Slice or an Ellipsis."""

    value: Expr
    items: tuple[Expr, ...]


@dataclass(frozen=True)
class As(Node):
    """`f(x) as name`: an application with a name of its own (also a stage of a pipeline)."""

    value: Expr
    name: str
    name_span: Span = field(compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class Pipeline(Node):
    """`head -> stage -> stage`; a stage is a Name, a Call or an As around one of them."""

    head: Expr
    stages: tuple[Expr, ...]


Expr = (
    Number
    | String
    | Name
    | Ellipsis
    | Unary
    | Binary
    | IfElse
    | List
    | Comprehension
    | Call
    | Slice
    | Index
    | As
    | Pipeline
)


# --- shapes and headers ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorType(Node):
    """`token[batch, time]`; `kind` is None where only a shape is written. A dim is an expression or an Ellipsis."""

    kind: str | None
    dims: tuple[Expr, ...]


@dataclass(frozen=True)
class Hyper(Node):
    """A hyper-parameter: `name: kind = default`."""

    name: str
    kind: str | None
    default: Expr | None


@dataclass(frozen=True)
class TensorParam(Node):
    """A tensor of a signature: `x: [batch, time, width] = default`."""

    name: str
    type: TensorType
    default: Expr | None


@dataclass(frozen=True)
class Result(Node):
    """One result of a signature; `name` is None where there is only one and it is not named."""

    name: str | None
    type: TensorType


@dataclass(frozen=True)
class Header(Node):
    """The two lists and the results. `hypers` or `tensors` is None where that list is not written."""

    hypers: tuple[Hyper, ...] | None
    tensors: tuple[TensorParam, ...] | None
    results: tuple[Result, ...] | None


# --- statements ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slot(Node):
    """`key: expr` in a body of slots."""

    key: str
    value: Expr
    key_span: Span = field(compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class Let(Node):
    """`let name = expr`, in a file or in a body."""

    name: str
    value: Expr


@dataclass(frozen=True)
class Assign(Node):
    """`a, b = value : type`; value may be a Scan or a For."""

    names: tuple[str, ...]
    value: Expr | Scan | For
    type: TensorType | None


@dataclass(frozen=True)
class Update(Node):
    """`x += value : type`."""

    name: str
    value: Expr
    type: TensorType | None


@dataclass(frozen=True)
class Param(Node):
    """`param w: type = value`, or with `buffer`."""

    kind: str
    name: str
    type: TensorType
    value: Expr


@dataclass(frozen=True)
class Carry(Node):
    """A carried tensor of a scan: `h: type = start`."""

    name: str
    type: TensorType
    start: Expr


@dataclass(frozen=True)
class Scan(Node):
    """`scan carries for names in sequences { body }`."""

    carries: tuple[Carry, ...]
    names: tuple[str, ...]
    sequences: tuple[Expr, ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class For(Node):
    """`for name in iterable { body }`, a statement or the value of an Assign."""

    name: str
    iterable: Expr
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class If(Node):
    """`otherwise` is empty where there is no else; `else if` is one If inside it."""

    condition: Expr
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]


@dataclass(frozen=True)
class Assert(Node):
    condition: Expr
    message: str | None


@dataclass(frozen=True)
class Assume(Node):
    condition: Expr


@dataclass(frozen=True)
class Return(Node):
    values: tuple[Expr, ...]


@dataclass(frozen=True)
class Emit(Node):
    value: Expr


@dataclass(frozen=True)
class Loss(Node):
    name: str
    value: Expr


Statement = Let | Assign | Update | Param | For | If | Assert | Assume | Return | Emit | Loss


# --- declarations -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Import(Node):
    """`import "path" as name`."""

    path: str
    name: str | None


@dataclass(frozen=True)
class Body(Node):
    """What stands between the braces of a block or model, in order."""

    items: tuple[Slot | Statement, ...]

    @property
    def slots(self) -> tuple[Slot, ...]:
        return tuple(i for i in self.items if isinstance(i, Slot))


@dataclass(frozen=True)
class BlockDecl(Node):
    """A `block` (or `inline block`); `body` is an expression for `block name(…) = call`."""

    name: str
    inline: bool
    header: Header
    body: Body | Expr
    name_span: Span = field(compare=False, repr=False, kw_only=True)
    doc: str = field(default="", compare=False, kw_only=True)
    """The comment lines right above the declaration."""


@dataclass(frozen=True)
class ModelDecl(Node):
    name: str
    header: Header
    body: Body
    name_span: Span = field(compare=False, repr=False, kw_only=True)
    doc: str = field(default="", compare=False, kw_only=True)


@dataclass(frozen=True)
class Variant(Node):
    """`variant name = model(hyper: value, …)`."""

    name: str
    value: Expr
    name_span: Span = field(compare=False, repr=False, kw_only=True)


Declaration = Import | Let | BlockDecl | ModelDecl | Variant


@dataclass(frozen=True)
class File(Node):
    declarations: tuple[Declaration, ...]
    doc: str = field(default="", compare=False, kw_only=True)
    """The comment lines at the top of the file."""


# --- visits -------------------------------------------------------------------------------------------------------


def parts(tree: Any) -> Iterator[Node]:
    """Yield the nodes right inside a node, or those of a tuple, in the order of the text."""
    for part in tree if isinstance(tree, tuple | list) else (getattr(tree, name) for name in tree.__dataclass_fields__):
        if isinstance(part, Node):
            yield part
        elif isinstance(part, tuple | list):
            yield from parts(part)


def walk(tree: Any) -> Iterator[Node]:
    """Yield a node, or those of a tuple, and every node inside."""
    if isinstance(tree, Node):
        yield tree
    for part in parts(tree):
        yield from walk(part)


def mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """A node with `change` applied to what its fields hold; of a tuple, to its items. Anything else as it is."""
    if isinstance(tree, tuple):
        return tuple(map(change, tree))
    if not isinstance(tree, Node):
        return tree
    names = (n for n in tree.__dataclass_fields__ if not n.endswith("span"))
    return replace(tree, **{n: change(v) for n in names if isinstance(v := getattr(tree, n), Node | tuple)})


def names_in(tree: Any) -> set[str]:
    """Every name that is read in a piece of syntax: `c.decoder` reads `c` too."""
    names = [x.id for x in walk(tree) if isinstance(x, Name)]
    return {*names, *(name.partition(".")[0] for name in names)}
