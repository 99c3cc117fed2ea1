"""Python expressions as trees. Leaves are no names yet: tensors of the IR, numbers with their meaning, submodules.

A `Node` is a node of Python's own grammar: the name of its class in `ast`, and its fields in order.  Trees are equal if
they are built alike, so loops and equal classes are found by comparing them.  Templates are parsed once and filled at
their holes by trees and leaves, never by text; `unparse` is the only way back to text.
"""

from __future__ import annotations

import ast
import operator
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from typing import Any

from archdsl.frozen import Entity
from archdsl.ir.dims import Expr, Num, binary
from archdsl.ir.dims import Value as Size
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Tree
from archdsl.ir.ranges import NUMBERS
from archdsl.ir.static import ListValue, numbers_of

SKIPPED = ("ctx", "kind", "type_comment", "returns", "decorator_list", "type_params")
"""Fields of `ast` nodes that say nothing here."""

# --- leaves and nodes -------------------------------------------------------------------------------------------------


class Variable(Entity):
    """A local of emitted code that is no value of the IR: what an op binds, what a loop carries or runs over.

    `hint` is the name it would like to have. With `state` it is what steps of decoding keep: calls that are handed it,
    or are its methods, stay in order."""

    hint: str
    state: bool = False


class Read(Tree):
    """A read of a value of the IR, or of a `Variable`: equal if it is the same one."""

    value: Any


class NumberLeaf(Tree):
    """A number of a block: `expr` in the block's names is how it would be spelled, `value` what it is in this block.
    With `real` it meets tensors, and a quotient of run-time sizes is no size that must be whole."""

    expr: Expr
    value: Size = field(compare=False)
    real: bool = False


class HyperLeaf(Tree):
    """A static name of a block: a field of the Config, an argument, a setting `self.width`."""

    name: str


class Axis(Tree):
    """A size that only the running model knows, by the block's name for it: `time`, or `table.0`."""

    name: str


class Part(Tree):
    """A submodule or raw weight of the block: `self.name`, or the item `index` of the list `self.name`, or, where
    `index` is a pair, the slice of that list from the first to before the second."""

    name: str
    index: int | tuple[int, int] | None = None


class Made(Tree):
    """The instance of a class that a block makes of another: see `lower.ClassUse`."""

    site: Any


class PyNode(Tree):
    """A node of Python's grammar: its class in `ast` and that one's fields in order; constants as their text."""

    kind: str
    fields: tuple[Any, ...]

    def get(self, name: str) -> Any:
        return self.fields[fields_of(self.kind).index(name)]


class Code(Entity):
    """A statement, or statements within one: a dataclass whose fields hold expressions and further code, in order."""


LEAVES = (Read, NumberLeaf, HyperLeaf, Axis, Part, Made)


@cache
def fields_of(kind: str) -> tuple[str, ...]:
    """The fields of a node of that class, those left out that say nothing here."""
    return tuple(f for f in getattr(ast, kind)._fields if f not in SKIPPED)


# --- templates --------------------------------------------------------------------------------------------------------


def frozen(x: Any, holes: Mapping[str, Any]) -> Any:
    """A tree of `ast` as one of ours, its holes filled in."""
    if isinstance(x, ast.Name) and x.id in holes:
        return holes[x.id]
    if isinstance(x, ast.Constant):
        return PyNode("Constant", ("..." if x.value is ... else repr(x.value),))
    if isinstance(x, ast.AST):
        return PyNode(type(x).__name__, tuple(frozen(getattr(x, f), holes) for f in fields_of(type(x).__name__)))
    if isinstance(x, list):
        return tuple(item for i in x for item in _spliced(i, holes))
    return x


def _spliced(x: Any, holes: Mapping[str, Any]) -> tuple[Any, ...]:
    """An item of a list of arguments, elements or keywords; a hole with a star is as many of them as it holds."""
    if isinstance(x, ast.Starred) and isinstance(x.value, ast.Name) and x.value.id in holes:
        return tuple(holes[x.value.id])
    if isinstance(x, ast.keyword) and x.arg is None and isinstance(x.value, ast.Name) and x.value.id in holes:
        return tuple(PyNode("keyword", (name, value)) for name, value in holes[x.value.id].items())
    made = frozen(x, holes)
    return () if isinstance(made, PyNode) and made.kind == "keyword" and made.fields[1] is None else (made,)


def lift(x: Any) -> Any:
    """What stands in a hole, as a tree: a leaf or tree as it is, a number, string or None as a constant, several as a
    tuple. Text of Python cannot stand there."""
    if isinstance(x, Tree):
        return x
    if isinstance(x, list | tuple):
        return PyNode("Tuple", (tuple(map(lift, x)),))
    if isinstance(x, bool) or x is None:
        return PyNode("Constant", (repr(x),))
    if isinstance(x, int | float) and x < 0:
        return PyNode("UnaryOp", (PyNode("USub", ()), PyNode("Constant", (repr(-x),))))
    if isinstance(x, int | float | str):
        return PyNode("Constant", (repr(x),))
    if isinstance(x, Num):
        return NumberLeaf(x.expr, x.value)
    raise TypeError(f"{type(x).__name__} in a hole of a template")


def is_real(node: OpNode, n: Num) -> bool:
    """Whether a number of an op meets tensors and may be a fraction: an operand, or an option that is no size."""
    if all(v.is_int for v in node.outputs):  # a real number would make them floats
        return False
    operands = node.inputs if node.op.elementwise else ()
    options = ((h.kind, node.options.get(h.name)) for h in node.op.header.hypers or ())
    real = (v for kind, v in options if kind in NUMBERS or (kind == "list" and isinstance(v, ListValue)))
    return any(n is found for found in (*operands, *(n for v in real for n in numbers_of(v))))


@cache
def _parsed(text: str) -> tuple[ast.expr, tuple[str, ...]]:
    """A template as a tree with names for its holes; the holes."""
    joined, holes = "", []
    for literal, name, _, _ in string.Formatter().parse(text):
        joined += literal
        if name is not None:
            stars = len(name) - len(name.lstrip("*"))
            joined += f"{'*' * stars}_hole_{name[stars:]}"
            holes.append(name)
    return ast.parse(joined, mode="eval").body, tuple(dict.fromkeys(holes))


def py(text: str, fill: Callable[[str], Any] | None = None, /, **given: Any) -> Tree:
    """An expression of Python with typed holes: `py("F.pad({x}, {widths})", x=…, widths=…)`.

    `{*xs}` takes several arguments, `{**options}` a mapping of keyword arguments; braces of Python itself are doubled.
    `fill` gives what stands in a hole that is not among the keywords. A keyword argument whose hole holds None (no
    tree) is left out: see `OMITTED`."""
    tree, holes = _parsed(text)
    filled: dict[str, Any] = {}
    for hole in holes:
        name = hole.lstrip("*")
        x = given[name] if name in given or fill is None else fill(name)
        if hole.startswith("**"):
            filled[f"_hole_{name}"] = {k: lift(v) for k, v in x.items()}
        elif hole.startswith("*"):
            filled[f"_hole_{name}"] = tuple(map(lift, x))
        else:
            filled[f"_hole_{name}"] = None if x is OMITTED else lift(x)
    made: Tree = frozen(tree, filled)
    return made


class _Omitted:
    """See OMITTED."""


OMITTED = _Omitted()
"""In the hole of a keyword argument: the argument is left out."""


def word(name: str) -> PyNode:
    """A name as it is: of a global, or of a parameter of a function that is written whole."""
    return PyNode("Name", (name,))


def constant(text: str) -> Tree:
    """A number as the spec spells it: `10_000`, `1e-5`, `torch.inf`; negative ones as an operator and a number."""
    if text.startswith("-"):
        return PyNode("UnaryOp", (PyNode("USub", ()), constant(text[1:])))
    return py("torch.inf") if text == "inf" else PyNode("Constant", (text,))


def call_tree(function: Any, arguments: Sequence[Any], keywords: Mapping[Any, Any] | None = None) -> PyNode:
    """A call of a tree. A keyword None is what holds further ones: `**kwargs`."""
    named = tuple(PyNode("keyword", (k, v)) for k, v in (keywords or {}).items())
    return PyNode("Call", (function, tuple(arguments), named))


def zipped(sources: Sequence[Tree]) -> Tree:
    """Lists side by side."""
    return sources[0] if len(sources) == 1 else py("zip({*xs})", xs=sources)


# --- walking ----------------------------------------------------------------------------------------------------------


def inside(x: Any) -> Iterable[Any]:
    """What a tree, code, or several of them are made of."""
    if isinstance(x, PyNode):
        return x.fields
    if isinstance(x, tuple | list):
        return x
    return vars(x).values() if isinstance(x, Code) else ()


def walked(x: Any) -> Iterator[Any]:
    """Whatever a tree, code, or several of them consist of, outer parts first, in the order of the text."""
    waiting = [x]
    while waiting:
        x = waiting.pop()
        yield x
        waiting += reversed([*inside(x)])


def leaves(x: Any) -> Iterator[Any]:
    """Every leaf of a tree or of code, or of several, in the order of the text."""
    return (i for i in walked(x) if isinstance(i, LEAVES))


def nodes(x: Any) -> Iterator[PyNode]:
    """Every node of a tree or of code, outer ones first."""
    return (i for i in walked(x) if isinstance(i, PyNode))


def trees(x: Any) -> Iterator[Tree]:
    """Every expression of code, or of several pieces of it."""
    if isinstance(x, Tree):
        yield x
    else:
        for i in inside(x):
            yield from trees(i)


def own_trees(code: Code) -> tuple[Tree, ...]:
    """The expressions of code, those of what is within left out."""
    found = (v if isinstance(v, tuple) else (v,) for v in vars(code).values())
    return tuple(x for v in found for x in v if isinstance(x, Tree))


PYTHON: dict[str, Callable[..., Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mult": operator.mul,
    "Div": operator.truediv,
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "Pow": operator.pow,
    "USub": operator.neg,
    "Not": operator.not_,
    "Eq": operator.eq,
    "NotEq": operator.ne,
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
}
"""Python's operators on numbers, by their classes in `ast`."""
TIMES, OVER, ONE = PyNode("Mult", ()), PyNode("Div", ()), PyNode("Constant", ("1",))


def mapped(x: Any, change: Callable[[Any], Any]) -> Any:
    """The tree, or the code, with every leaf changed. A number times a leaf that has become 1 is that number, and what
    is times a leaf that has become `1 / n` is over n; `4 - 1` is worked out."""
    if isinstance(x, PyNode):
        fields = tuple(mapped(i, change) for i in x.fields)
        if all(a is b for a, b in zip(fields, x.fields, strict=True)):
            return x
        if x.kind == "BinOp" and fields[1] == TIMES and ONE in fields:
            other = fields[2] if fields[0] == ONE else fields[0]
            if isinstance(other, PyNode) and other.kind == "Constant":
                return other
        if x.kind == "BinOp" and fields[1] == TIMES and isinstance(x.fields[2], NumberLeaf):
            factor = fields[2]
            if isinstance(factor, PyNode) and factor.kind == "BinOp" and factor.fields[:2] == (ONE, OVER):
                return PyNode("BinOp", (fields[0], OVER, factor.fields[2]))
        if x.kind == "BinOp" and (number := _worked_out(*fields)) is not None:
            return constant(str(number))
        return PyNode(x.kind, fields)
    if isinstance(x, tuple):
        return tuple(mapped(i, change) for i in x)
    if isinstance(x, Code):
        return replace(x, **{name: mapped(i, change) for name, i in vars(x).items()})
    return change(x) if isinstance(x, LEAVES) else x


def _worked_out(left: Any, op: PyNode, right: Any) -> int | None:
    """A sum, a difference or a quotient of two whole numbers; None for anything else."""
    if op.kind not in ("Add", "Sub", "FloorDiv") or not all(
        isinstance(x, PyNode) and x.kind == "Constant" and x.fields[0].replace("_", "").isdecimal()
        for x in (left, right)
    ):
        return None
    one, other = (int(x.fields[0]) for x in (left, right))
    return None if op.kind == "FloorDiv" and other == 0 else PYTHON[op.kind](one, other)


def substituted(x: Any, known: Mapping[Any, Any]) -> Any:
    """The tree with other nodes in place of some."""
    if isinstance(x, PyNode):
        return known[x] if x in known else PyNode(x.kind, tuple(substituted(i, known) for i in x.fields))
    return tuple(substituted(i, known) for i in x) if isinstance(x, tuple) else x


def words(x: Any) -> Iterator[str]:
    """Every global name that a tree reads."""
    return (str(n.fields[0]) for n in nodes(x) if n.kind == "Name")


# --- text -------------------------------------------------------------------------------------------------------------


def unparse(x: Any, leaf: Callable[[Any], str]) -> str:
    """The text of a tree; several are separated by commas. `leaf` gives the text of a leaf, which must be an atom."""
    if isinstance(x, tuple):
        return ", ".join(unparse(i, leaf) for i in x)
    return ast.unparse(_thawed(x, leaf))


def _thawed(x: Any, leaf: Callable[[Any], str]) -> Any:
    if isinstance(x, LEAVES):
        return ast.Name(leaf(x))
    if isinstance(x, tuple):
        return [_thawed(i, leaf) for i in x]
    if not isinstance(x, PyNode):
        return x
    if x.kind == "Constant":
        return ast.Name(literal(x.fields[0]))  # an atom, whatever it reads like
    if x.kind == "BinOp" and x.fields[1].kind == "Pow" and getattr(x.fields[2], "kind", "") == "UnaryOp":
        # `x ** -0.5`, around which `ast.unparse` writes parentheses
        return ast.BinOp(_thawed(x.fields[0], leaf), ast.Pow(), ast.Name(unparse(x.fields[2], leaf)))
    if x.kind == "UnaryOp" and getattr(x.fields[1], "kind", "") == "BinOp" and x.fields[1].fields[1].kind == "Pow":
        # `-(x**2)`: formatters want the parentheses that `ast.unparse` leaves out
        return ast.UnaryOp(_thawed(x.fields[0], leaf), ast.Name(f"({unparse(x.fields[1], leaf)})"))
    alone = x.kind == "Call" and len(x.fields[1]) == 1 and not x.fields[2]
    if alone and getattr(x.fields[1][0], "kind", "") == "GeneratorExp":
        return ast.Name(unparse(x.fields[0], leaf) + unparse(x.fields[1][0], leaf))  # its own parentheses are enough
    return getattr(ast, x.kind)(**dict(zip(fields_of(x.kind), (_thawed(i, leaf) for i in x.fields), strict=True)))


def literal(text: str) -> str:
    """A constant in the style of emitted code: `14_336`, `1e-5`; strings in double quotes."""
    if text.isdigit() and len(text) > 4:
        return f"{int(text):_}"
    if text[:1].isdigit() and "e" in text and "x" not in text:
        mantissa, _, exponent = text.partition("e")
        return f"{mantissa}e{int(exponent)}"
    if text.startswith("'") and '"' not in text:
        return f'"{text[1:-1]}"'
    return text


def counted(e: Any, length: Num, offset: Num | None) -> Tree:
    """The positions 0 to length - 1, counted from `offset`, through a scope."""
    bounds = (length,) if offset is None else (offset, binary("+", length, offset))
    made: Tree = e.py("torch.arange({*bounds}, device={device})", bounds=bounds, device=e.device())
    return made
