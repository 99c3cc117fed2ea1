"""Numbers of a class as Python, spelled as the spec spells them where Python's rules then give the right value.

A class may serve many instances: blocks of one text whose sizes differ.  The values are the truth, the expression is a
wish: it is written only if Python evaluates it, for every instance, to the right value of the right type.  Else the
number becomes an argument of the class.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

from archdsl.backends.torch.tree import PYTHON, Axis, HyperLeaf, NumberLeaf, PyNode, call_tree, constant, mapped, word
from archdsl.ir import dims
from archdsl.ir.conditions import fraction
from archdsl.ir.dims import Bin, Expr, Fn, Lit, Num, Poly, Var
from archdsl.ir.graph import Block
from archdsl.ir.masks import Mask
from archdsl.ir.op import Tree
from archdsl.ir.static import BlockValue, ListValue, Scheme, numbers_of
from archdsl.ir.walk import block_tensors

OPERATORS = {
    "+": "Add",
    "-": "Sub",
    "*": "Mult",
    "/": "Div",
    "//": "FloorDiv",
    "%": "Mod",
    "**": "Pow",
}
Quotients = Literal["whole", "sizes", "real"]
"""What a quotient is: static, and a size where it is whole; of sizes that only the running model knows; or real."""

INFINITY = constant("inf")
FUNCTIONS = {"minimum": "min", "maximum": "max", "abs": "abs"}
"""What Python calls the functions of numbers that are not in `math`."""

BUILT_IN: dict[str, Callable[..., Any]] = {
    "round": round,
    "min": min,
    "max": max,
    "abs": abs,
    "int": int,
    "float": float,
}


# --- what Python makes of it ------------------------------------------------------------------------------------------


def evaluate(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    """The number that Python makes of an expression of numbers. Raises ArithmeticError, ValueError or TypeError where
    it has none."""
    if not isinstance(tree, PyNode):
        return leaf(tree)
    if tree.kind == "Constant":
        return ast.literal_eval(tree.fields[0])
    if tree == INFINITY:
        return math.inf
    if tree.kind in ("BinOp", "UnaryOp"):
        left, op, *right = tree.fields if tree.kind == "BinOp" else (tree.fields[1], tree.fields[0])
        return PYTHON[op.kind](evaluate(left, leaf), *(evaluate(x, leaf) for x in right))
    if tree.kind == "Compare":
        left, (op,), (right,) = tree.fields
        return PYTHON[op.kind](evaluate(left, leaf), evaluate(right, leaf))
    args = [evaluate(x, leaf) for x in tree.fields[1]]
    return function(tree.fields[0])(*args)


def function(tree: PyNode) -> Callable[..., Any]:
    """A function of Python's that takes numbers, by the tree of its name. Raises TypeError for any other."""
    if tree.kind == "Name" and tree.fields[0] in BUILT_IN:
        return BUILT_IN[tree.fields[0]]
    if tree.kind == "Attribute" and tree.fields[0] == word("math"):
        found: Callable[..., Any] = getattr(math, tree.fields[1])
        return found
    raise TypeError("no function of numbers")


def agree(found: Any, meant: Any, real: bool) -> bool:
    """Whether Python's number is the one that is meant: a size to the letter, any other in its first 12 digits."""
    if isinstance(meant, int) and not real:
        return type(found) is int and found == meant
    return isinstance(found, int | float) and f"{float(found):.12g}" == f"{float(meant):.12g}"


def value_of(value: dims.Value) -> int | float:
    """A static number as Python has it."""
    assert not isinstance(value, Poly)
    return value if isinstance(value, int) else float(value)


# --- in a block's names -----------------------------------------------------------------------------------------------


class Numbers:
    """The numbers of one block, or of the blocks that are one class."""

    def __init__(self, block: Block, exact: Sequence[Mapping[str, Expr]] = ()) -> None:
        self.block = block
        self.exact = list(exact) or [values_of(block)]
        """What each name is in each of the blocks."""

    # --- trees ---

    def short(self, n: Num, real: bool = False) -> NumberLeaf:
        """A number of the block as a leaf, spelled as short as it goes. With `real` it stands where it may be a
        fraction: of sizes that only the running model knows it may be one for another Config."""
        expr = n.expr
        if dims.free_names(expr):
            expr = dims.shortest(expr, self.block.local)
        elif isinstance(n.value, int) and not dims.is_integral(expr, lambda _: True):
            expr = dims.literal(n.value)
        whole = isinstance(n.value, Poly) and dims.is_size_like(n.value) and self._runs_whole(n.expr)
        return NumberLeaf(expr, n.value, real and not whole)

    @cached_property
    def sizes(self) -> Collection[str]:
        """Names that the block computes and demands to be whole."""
        whole = {c.left for c in (*self.block.asserts, *self.block.decisions) if c.op == "==" and c.right == Lit("0")}

        def forms(name: str, e: Expr) -> Iterator[Expr]:
            yield from (Bin("%", Var(name), Lit("1")), Bin("%", e, Lit("1")))
            if isinstance(e, Bin) and e.op == "/":
                yield Bin("%", e.left, e.right)

        return {name for name, e in self.block.local.items() if not whole.isdisjoint(forms(name, e))}

    @cached_property
    def fractions(self) -> Mapping[str, Expr]:
        """What the block has names for that need not be whole, and computes as a size, `width // 8`: where a real
        number is meant it is written out."""
        named = {k: e for k, e in self.block.local.items() if k not in self.sizes and k not in self.floats}
        return {k: e for k, e in named.items() if not self.integral(e)}

    @cached_property
    def floats(self) -> Collection[str]:
        """Names that the block computes as floats."""
        return {n for n, e in self.block.local.items() if n not in self.sizes and not self.is_exact(e)}

    def is_exact(self, expr: Expr) -> bool:
        """Whether an expression, where it is whole, comes out right if its quotients are rounded down: `n / 4 + 1`.
        Of `n / 4 * 2` n / 4 need not be whole."""
        if not self.whole(expr):
            return False
        if self.integral(expr):
            return True
        if isinstance(expr, Var):
            return expr.name in self.block.local and self.is_exact(self.block.local[expr.name])
        if not isinstance(expr, Bin):
            return False
        if expr.op == "/":
            return self.is_exact(expr.left) and self.integral(expr.right)
        if expr.op in "+-":
            exact, others = (expr.right, expr.left) if self.integral(expr.left) else (expr.left, expr.right)
            return self.integral(others) and self.is_exact(exact)
        if expr.op == "**":
            return self.integral(expr.left) and self.integral(expr.right)
        return expr.left == Lit("-1") and self.is_exact(expr.right)

    def exactly(self, expr: Expr) -> Iterator[str]:
        """Names that an expression is computed from, those of floats written out."""
        for name in dims.free_names(expr):
            if name in self.floats:
                yield from self.exactly(self.block.local[name])
            else:
                yield name

    def expression(self, expr: Expr, real: bool = False) -> NumberLeaf:
        """A static expression of the block as a leaf."""
        return NumberLeaf(dims.shortest(expr, self.block.local), self.worth(expr), real)

    def worth(self, expr: Expr) -> dims.Value:
        """What a static expression is in the block."""
        return dims.expr_value(dims.substitute(expr, self.exact[0]))

    def values(self, n: NumberLeaf) -> list[dims.Value]:
        """A number of one of the blocks in each of them, by its expression."""
        if isinstance(n.value, Poly):
            return [n.value] * len(self.exact)
        found = [dims.expr_value(dims.substitute(n.expr, row)) for row in self.exact]
        return found if len(found) > 1 else [n.value]

    def is_dynamic(self, name: str) -> bool:
        """Whether only the running model knows what a name of the block is."""
        return is_dynamic(self.block, name)

    def tree(self, n: NumberLeaf, init: bool) -> Tree:
        """An expression as Python, in `__init__` or in `forward`."""
        quotients: Quotients = "real" if n.real else "sizes" if isinstance(n.value, Poly) else "whole"
        made: Tree = self.spelled_by(self._floored(n.expr), quotients, HyperLeaf if init else self._name)
        return made

    def computed(self, name: str) -> Tree:
        """Return what `__init__` computes a name of the block by."""
        expr = self.block.local[name]
        return self.tree(NumberLeaf(expr, self.worth(expr), real=name in self.floats), True)

    def spelled_by(self, expr: Expr, quotients: Quotients, name: Callable[[str], Any]) -> Any:
        """An expression as Python, each name as `name` gives it; a size rounded where Python makes a float of it:
        `8 / 3 * width`, `sqrt(n * n)`."""
        expr = self._expanded(expr)
        if quotients == "whole" and not self.is_exact(expr):
            quotient = _as_quotient(expr)
            if self.is_exact(quotient):
                return self.spelled_by(quotient, quotients, name)
            made = self.spelled_by(expr, "real", name)
            return call_tree(word("round"), (made,)) if self.whole(expr) else made
        if quotients == "sizes" and not self._falls(expr):
            return self._of_integers(expr, False, name) or self.spelled_by(expr, "real", name)
        if isinstance(expr, Lit):
            return constant(expr.text)
        if isinstance(expr, Var):
            if quotients == "real" and expr.name in self.fractions:
                return self.spelled_by(self.fractions[expr.name], quotients, name)
            return name(expr.name)
        if isinstance(expr, Fn):
            return self._function(expr, quotients, name)
        op = expr.op
        if op == "//" and not self._divides_whole(expr, quotients):
            return self._function(Fn("floor", (Bin("/", expr.left, expr.right),)), quotients, name)
        if op == "/" and quotients != "real":
            op = "//"
        left, right = (self.spelled_by(x, quotients, name) for x in (expr.left, expr.right))
        if op == "*" and expr.left == Lit("-1"):
            return PyNode("UnaryOp", (PyNode("USub", ()), right))
        return PyNode("BinOp", (left, PyNode(OPERATORS[op], ()), right))

    @cached_property
    def _parts(self) -> Mapping[str, Expr]:
        """Names that the block computes of run-time sizes and that need not be whole."""
        return {n: e for n, e in self.block.local.items() if self._runs(n) and not self._is_size(n)}

    def _expanded(self, expr: Expr) -> Expr:
        """Return an expression with every name in `_parts` replaced by what it is computed from, so that the result is
        rounded once, at its end."""
        while self._parts and not self._parts.keys().isdisjoint(dims.free_names(expr)):
            expr = dims.substitute(expr, self._parts)
        return expr

    @cached_property
    def _demanded(self) -> Collection[Expr]:
        """Remainders that the block demands to be 0."""
        zero = (c.left for c in (*self.block.asserts, *self.block.decisions) if c.op == "==" and c.right == Lit("0"))
        return {e for e in zero if isinstance(e, Bin) and e.op == "%"}

    def _floored(self, expr: Expr) -> Expr:
        """Return an expression whose quotients are rounded down where they are demanded to be whole; those in a
        remainder stay, since it may be what demands it."""
        if isinstance(expr, Fn):
            return Fn(expr.name, tuple(map(self._floored, expr.args)))
        if not isinstance(expr, Bin) or expr.op == "%":
            return expr
        op = "//" if expr.op == "/" and Bin("%", expr.left, expr.right) in self._demanded else expr.op
        return Bin(op, self._floored(expr.left), self._floored(expr.right))

    def _runs(self, name: str) -> bool:
        """Whether a name that the block computes is computed from run-time sizes."""
        return any(self.is_dynamic(n) or dims.axis_of(n) is not None for n in self._names(self.block.local[name]))

    def _name(self, name: str) -> Any:
        """A name in `forward`. One that the block computes of run-time sizes is written out."""
        if dims.axis_of(name) is not None or self.is_dynamic(name):
            return Axis(name)
        if name in self.block.local and self._runs(name):
            return self.spelled_by(self.block.local[name], "sizes", self._name)
        return HyperLeaf(name)

    def _names(self, expr: Expr) -> set[str]:
        """Names that an expression is computed from, those within names that the block computes too."""
        found: set[str] = set()
        for name in dims.free_names(expr):
            found.add(name)
            if name in self.block.local:
                found |= self._names(self.block.local[name])
        return found

    def _function(self, expr: Fn, quotients: Quotients, name: Callable[[str], Any]) -> Any:
        above, below = _quotient(expr.args[0])
        exact = self.integral(above) and self.integral(below)
        running = quotients == "sizes" and self._runs_whole(above) and self._runs_whole(below)
        if expr.name in ("ceil", "floor") and below != Lit("1") and (running or exact):
            top, bottom = (self.spelled_by(x, quotients, name) for x in (above, below))
            return _divided(top, bottom, expr.name == "ceil")
        if expr.name in ("ceil", "floor") and quotients != "whole":
            found = self._of_integers(expr.args[0], expr.name == "ceil", name)
            if found is not None:
                return found
        within: Quotients = "real" if expr.name in ("ceil", "floor") else quotients
        args = [self.spelled_by(x, within, name) for x in expr.args]
        if expr.name == "sign":
            above_zero, below_zero = (
                PyNode("Compare", (args[0], (PyNode(k, ()),), (constant("0"),))) for k in ("Gt", "Lt")
            )
            return PyNode("BinOp", (above_zero, PyNode("Sub", ()), below_zero))
        if expr.name in FUNCTIONS:
            return call_tree(word(FUNCTIONS[expr.name]), args)
        return call_tree(PyNode("Attribute", (word("math"), expr.name)), args)

    # --- what only the running model knows ---

    def _runs_whole(self, expr: Expr) -> bool:
        """Whether an expression is an integer by the way it is made, as sizes of tensors are."""
        return dims.is_integral(expr, self._is_size)

    def _is_size(self, name: str) -> bool:
        if name in self.block.local:
            return name in self.sizes or self._runs_whole(self.block.local[name])
        known = self.block.axes.get(name) or self.block.hypers.get(name)
        if isinstance(known, Num):
            return dims.is_size_like(known.value)
        return self.is_dynamic(name) or self.whole(Var(name))

    def _falls(self, expr: Expr) -> bool:
        """Whether a size that is whole comes out right if its quotients are rounded down: of n / 4 * 2 that need not be
        whole."""
        if isinstance(expr, Var) or self._runs_whole(expr):
            return True
        if isinstance(expr, Fn):
            return expr.name not in ("minimum", "maximum", "abs")
        if not isinstance(expr, Bin):
            return False
        if expr.op == "/":
            return self._falls(expr.left) and self._runs_whole(expr.right)
        if expr.op in "+-":
            whole = self._runs_whole(expr.left), self._runs_whole(expr.right)
            return (whole[1] and self._falls(expr.left)) or (whole[0] and expr.op == "+" and self._falls(expr.right))
        return expr.op == "*" and expr.left == Lit("-1") and self._falls(expr.right)

    def _divides_whole(self, expr: Bin, quotients: Quotients) -> bool:
        """Whether both sides of `a // b` are integers in Python, so that it may be written so."""
        if quotients == "whole":
            return self.floors(expr.left) and self.integral(expr.right)
        return self._runs_whole(expr.left) and self._runs_whole(expr.right)

    def _of_integers(self, expr: Expr, up: bool, name: Callable[[str], Any]) -> Any:
        """A number rounded down, or up, as one quotient of integers, without a float; None where it is none."""
        above, below = fraction(expr)
        if not (self._runs_whole(above) and self._runs_whole(below)):
            return None
        top, bottom = (self.spelled_by(x, "sizes", name) for x in (above, below))
        return top if below == Lit("1") else _divided(top, bottom, up)

    def whole(self, expr: Expr) -> bool:
        """Whether an expression is known to be an integer in every one of the blocks."""
        try:
            return all(isinstance(dims.expr_value(dims.substitute(expr, row)), int) for row in self.exact)
        except (ArithmeticError, ValueError):
            return False

    def integral(self, expr: Expr) -> bool:
        """Whether an expression is an integer by the way it is made."""
        return dims.is_integral(expr, self._is_integer)

    def _is_integer(self, name: str) -> bool:
        made = self.block.local.get(name)
        return self.whole(Var(name)) if made is None else name in self.sizes or self.integral(made)

    def floors(self, expr: Expr) -> bool:
        """Whether what is made of an expression by rounding down is the same if its own quotient is rounded down first:
        `width // heads // 2`."""
        made = self.block.local.get(expr.name) if isinstance(expr, Var) else None
        if made is not None:
            return self.integral(expr) or self.floors(made)
        return self.whole(expr) and all(map(self.integral, _quotient(expr)))

    # --- whether it may be written ---

    def holds(self, tree: Tree, values: Sequence[dims.Value], real: bool) -> bool:
        """Whether Python makes of an expression, in each of the blocks, the value that is meant."""
        for row, value in zip(self.exact, values, strict=True):

            def leaf(x: Any, row: Mapping[str, Expr] = row) -> Any:
                if not isinstance(x, HyperLeaf | Axis) or x.name not in row:
                    raise TypeError("only the running model knows it")
                worth = value_of(dims.expr_value(row[x.name]))
                return float(worth) if x.name in self.floats else worth

            try:
                if not agree(evaluate(tree, leaf), value, real):
                    return False
            except (ArithmeticError, ValueError, TypeError):
                return False
        return True

    def spelled(self, n: NumberLeaf, values: Sequence[dims.Value], init: bool) -> Tree | None:
        """A number of the first block, with its values in each of them, as Python; None where no spelling of it is
        right for all."""
        tree = self.tree(n, init)
        if any(isinstance(v, Poly) for v in values) or self.holds(tree, values, n.real):
            return tree
        return None


def _as_quotient(expr: Expr) -> Expr:
    """`n * 0.25` as `n / 4`, and `1.5 * n` as `3 * n / 2`; any other expression as it is."""
    if not isinstance(expr, Bin) or expr.op != "*":
        return expr
    number, other = (expr.left, expr.right) if isinstance(expr.left, Lit) else (expr.right, expr.left)
    if not isinstance(number, Lit):
        return expr
    above, below = fraction(number)
    return Bin("/", other if above == Lit("1") else Bin("*", above, other), below)


def _divided(top: Any, bottom: Any, up: bool) -> PyNode:
    """A quotient of integers rounded down, `a // b`, or up, `-(-a // b)`."""
    if not up:
        return PyNode("BinOp", (top, PyNode("FloorDiv", ()), bottom))
    quotient = PyNode("BinOp", (PyNode("UnaryOp", (PyNode("USub", ()), top)), PyNode("FloorDiv", ()), bottom))
    return PyNode("UnaryOp", (PyNode("USub", ()), quotient))


def _quotient(expr: Expr) -> tuple[Expr, Expr]:
    """What is above and what is below the line: `a / b / c` is a / (b * c), of which one rounding is enough."""
    if not isinstance(expr, Bin) or expr.op != "/":
        return expr, Lit("1")
    above, below = _quotient(expr.left)
    if isinstance(below, Lit) and isinstance(expr.right, Lit):
        return above, dims.literal(dims.whole_number(Fraction(below.text) * Fraction(expr.right.text)))
    return above, expr.right if below == Lit("1") else Bin("*", below, expr.right)


def is_dynamic(block: Block, name: str) -> bool:
    """Whether only the running model knows what a name of the block is."""
    value = block.axes.get(name) or block.hypers.get(name)
    if isinstance(value, Num):
        return not value.static
    # The size of a tensor that the block, or the part of it that prepares, was handed: `time`, `table.0`.
    parts = [block] if block.before is None else [block, block.before]
    sizes = (d for part in parts for v in block_tensors(part) for d in v.shape)
    return not next((d.static for d in sizes if isinstance(d.expr, Var) and d.expr.name == name), True)


def values_of(block: Block) -> Mapping[str, Expr]:
    """What every static name of a block is worth, as literals."""
    found: dict[str, Expr] = {}

    def note(value: Any) -> None:
        if isinstance(value, Num) and isinstance(value.expr, Var) and not isinstance(value.value, Poly):
            found[value.expr.name] = dims.literal(value.value)
        elif isinstance(value, BlockValue):
            for v in value.args.values():
                note(v)
        elif isinstance(value, Scheme):
            for v in numbers_of(value):
                note(v)
        elif isinstance(value, Mask):
            for v in (*value.numbers, *value.parts):
                note(v)
        elif isinstance(value, ListValue):
            for v in value.items:
                note(v)

    for value in [*block.hypers.values(), *block.axes.values()]:
        note(value)
    for part in (block, block.before):
        for tensor in block_tensors(part) if part is not None else ():
            for size in tensor.shape:
                note(size)
    for name, expr in block.local.items():
        worth = dims.expr_value(dims.substitute(expr, found))
        if not isinstance(worth, Poly):
            found[name] = dims.literal(worth)
    return found


__all__ = ["Numbers", "agree", "evaluate", "function", "is_dynamic", "mapped", "value_of", "values_of"]
