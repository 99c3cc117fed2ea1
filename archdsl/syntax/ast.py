"""The syntax tree: frozen nodes named as the rules of `grammars/arch.lark`, each with its span.

Nodes compare by content and not by position, so that `parse(format(tree)) == tree` can be asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field, replace
from typing import Any

from archdsl.diagnostics.source import Source, Span
from archdsl.frozen import Frozen

NOWHERE = Span(Source("nowhere", ""), 0, 0)
"""The span of a node that no source holds."""


class Node(Frozen, kw_only=True):
    span: Span = field(compare=False, repr=False)


# --- expressions ------------------------------------------------------------------------------------------------


class Number(Node):
    """`text` is the literal as written: `50_257`, `1e-5`; a sign is a Unary around it."""

    text: str


class String(Node):
    value: str


class Name(Node):
    """A plain name, or a dotted one: `c.decoder`, `patches.image`."""

    id: str


class Ellipsis(Node):
    """`...`, in a shape or an index."""


class Unary(Node):
    """op is one of `-` `~` `not`."""

    op: str
    operand: Expr


class Binary(Node):
    """op is one of `+ - * / // % ** & | == != < <= > >= and or`."""

    op: str
    left: Expr
    right: Expr


class IfElse(Node):
    """`if condition then a else b`."""

    condition: Expr
    then: Expr
    otherwise: Expr


class List(Node):
    items: tuple[Expr, ...]


class Comprehension(Node):
    """`[element for name in iterable]`."""

    element: Expr
    name: str
    iterable: Expr


class Rule(Node):
    """`"*.out": zeros`: a first value for the weights whose names match."""

    pattern: str
    value: Expr
    pattern_span: Span = field(compare=False, repr=False, kw_only=True)


class Rules(Node):
    """`["*": normal(0.02), "*.out": zeros]`."""

    items: tuple[Rule, ...]


class Arg(Node):
    """An argument of a call; `name` is None for one given in order."""

    name: str | None
    value: Expr


class Call(Node):
    function: Expr
    args: tuple[Arg, ...]


class Slice(Node):
    low: Expr | None
    high: Expr | None


class Index(Node):
    """`value[item, …]`; an item is an expression, a Slice or an Ellipsis."""

    value: Expr
    items: tuple[Expr, ...]


class As(Node):
    """`f(x) as name`: an application with a name of its own (also a stage of a pipeline)."""

    value: Expr
    name: str
    name_span: Span = field(compare=False, repr=False, kw_only=True)


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
    | Rules
    | Call
    | Slice
    | Index
    | As
    | Pipeline
)


# --- shapes and headers ------------------------------------------------------------------------------------------


class TensorType(Node):
    """`token[batch, time]`; `kind` is None where only a shape is written. A dim is an expression or an Ellipsis."""

    kind: str | None
    dims: tuple[Expr, ...]


class Hyper(Node):
    """A hyper-parameter: `name: kind = default`."""

    name: str
    kind: str | None
    default: Expr | None


class TensorParam(Node):
    """A tensor of a signature: `x: [batch, time, width] = default`."""

    name: str
    type: TensorType
    default: Expr | None


class Result(Node):
    """One result of a signature; `name` is None where there is only one and it is not named."""

    name: str | None
    type: TensorType


class Header(Node):
    """The two lists and the results. `hypers` or `tensors` is None where that list is not written."""

    hypers: tuple[Hyper, ...] | None
    tensors: tuple[TensorParam, ...] | None
    results: tuple[Result, ...] | None


# --- statements ---------------------------------------------------------------------------------------------------


class Slot(Node):
    """`key: expr` in a body of slots."""

    key: str
    value: Expr
    key_span: Span = field(compare=False, repr=False, kw_only=True)


class Let(Node):
    """`let name = expr`, in a file or in a body."""

    name: str
    value: Expr


class Assign(Node):
    """`a, b = value : type`; value may be a Scan or a For."""

    names: tuple[str, ...]
    value: Expr | Scan | For
    type: TensorType | None


class Update(Node):
    """`x += value : type`."""

    name: str
    value: Expr
    type: TensorType | None


class Param(Node):
    """`param w: type = value`, or with `buffer`."""

    kind: str
    name: str
    type: TensorType
    value: Expr


class Carry(Node):
    """A carried tensor of a scan: `h: type = start`."""

    name: str
    type: TensorType
    start: Expr


class Scan(Node):
    """`scan carries for names in sequences { body }`."""

    carries: tuple[Carry, ...]
    names: tuple[str, ...]
    sequences: tuple[Expr, ...]
    body: tuple[Statement, ...]


class For(Node):
    """`for name in iterable { body }`, a statement or the value of an Assign."""

    name: str
    iterable: Expr
    body: tuple[Statement, ...]


class If(Node):
    """`otherwise` is empty where there is no else; `else if` is one If inside it."""

    condition: Expr
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]


class Assert(Node):
    condition: Expr
    message: str | None


class Assume(Node):
    condition: Expr


class Return(Node):
    values: tuple[Expr, ...]


class Emit(Node):
    value: Expr


class Loss(Node):
    name: str
    value: Expr


Statement = Let | Assign | Update | Param | For | If | Assert | Assume | Return | Emit | Loss


# --- declarations -------------------------------------------------------------------------------------------------


class Import(Node):
    """`import "path" as name`."""

    path: str
    name: str | None


class Body(Node):
    """What stands between the braces of a block or model, in order."""

    items: tuple[Slot | Statement, ...]

    @property
    def slots(self) -> tuple[Slot, ...]:
        return tuple(i for i in self.items if isinstance(i, Slot))

    @property
    def is_of_slots(self) -> bool:
        """Whether it is a body of slots. One of equations may have a single slot, `init`."""
        if any(isinstance(i, Slot) and i.key != "init" for i in self.items):
            return True
        equations = any(not isinstance(i, Slot | Let | Assert) for i in self.items)
        return not self.items or (bool(self.slots) and not equations)


class BlockDecl(Node):
    """A `block` (or `inline block`); `body` is an expression for `block name(…) = call`."""

    name: str
    inline: bool
    header: Header
    body: Body | Expr
    name_span: Span = field(compare=False, repr=False, kw_only=True)
    doc: str = field(default="", compare=False, kw_only=True)
    """The comment lines right above the declaration."""


class ModelDecl(Node):
    name: str
    header: Header
    body: Body
    name_span: Span = field(compare=False, repr=False, kw_only=True)
    doc: str = field(default="", compare=False, kw_only=True)


class Variant(Node):
    """`variant name = model(hyper: value, …)`."""

    name: str
    value: Expr
    name_span: Span = field(compare=False, repr=False, kw_only=True)


Declaration = Import | Let | BlockDecl | ModelDecl | Variant


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
