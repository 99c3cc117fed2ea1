"""Numbers of a block as Python: sizes in `forward` and in `__init__`, in the block's own names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from archdsl.ir import dims
from archdsl.ir.dims import PRECEDENCE, Bin, Expr, Fn, Lit, Num, Poly, Var
from archdsl.ir.graph import Block
from archdsl.ir.masks import Mask
from archdsl.ir.op import TIMES, UNARY
from archdsl.ir.static import ListValue, Scheme, Template
from archdsl.lower.torch.text import in_forward, in_init
from archdsl.lower.torch.written import Resolver

FUNCTIONS = {"minimum": "min", "maximum": "max", "abs": "abs"}
"""What Python calls the functions of numbers that are not in `math`."""


class Numbers:
    """Writes the numbers of one block. Names that `__init__` reads are noted in `names`."""

    def __init__(self, block: Block, names: dict[str, None]) -> None:
        self.block = block
        self.names = names
        self.values = values_of(block)

    # --- in forward ---

    def forward(self, n: Num, strength: int = 0, *, real: bool = False) -> str:
        """A number in `forward`. With `real` it meets tensors, and `time / 3` is no size that must be whole."""
        return self.text(self._short(n), strength, in_forward, n.static or real)

    def forward_expr(self, expr: Expr, strength: int = 0) -> str:
        """A static expression in `forward`."""
        return self.text(dims.shortest(expr, self.block.local), strength, in_forward, True)

    # --- in __init__ ---

    def init(self, n: Num, strength: int = 0) -> str:
        """Text for `__init__`, with tokens for names."""
        expr = self._short(n)
        for name in dims.free_names(expr):
            self.note(name)
        return self.text(expr, strength, in_init, True)

    def init_expr(self, expr: Expr, resolver: Resolver, strength: int = 0) -> str:
        """Text for `__init__`, with names as the resolver has them."""
        expr = dims.shortest(expr, self.block.local)
        for name in dims.free_names(expr):
            self.note(name)
        return self.text(expr, strength, resolver.name, True)

    def note(self, name: str) -> None:
        """Note a name that `__init__` reads, and those that a local one is computed from."""
        if name in self.block.local:
            for inner in dims.free_names(self.block.local[name]):
                self.note(inner)
        self.names.setdefault(name)

    # --- expressions ---

    def _short(self, n: Num) -> Expr:
        return dims.shortest(n.expr, self.block.local) if dims.free_names(n.expr) else n.expr

    def text(self, expr: Expr, above: int, name: Callable[[str], str], static: bool) -> str:
        """An expression as Python where the surroundings bind with `above`: exact division of whole numbers is `//`."""
        if isinstance(expr, Lit):
            return f"({expr.text})" if expr.text.startswith("-") and above > UNARY else expr.text
        if isinstance(expr, Var):
            return name(expr.name)
        if isinstance(expr, Fn):
            return self._function(expr, name, static)
        own, op = PRECEDENCE[expr.op], expr.op
        if op == "/" and ((self._is_whole(expr) and self._is_whole(expr.left)) or not static):
            op = "//"
        left = self.text(expr.left, own + (op == "**"), name, static)
        right = self.text(expr.right, own + (op != "**"), name, static)
        text = f"{left} {op} {right}"
        exact = _is_rational(expr) and self._is_whole(expr)
        if op == "*" and exact and not (self._is_whole(expr.left) and self._is_whole(expr.right)):
            # A size by way of a fraction, `8 / 3 * width`: floats may miss it by their last bit.
            return f"round({text})"
        return f"({text})" if own < above else text

    def _function(self, expr: Fn, name: Callable[[str], str], static: bool) -> str:
        first = expr.args[0]
        args = [self.text(a, 0, name, static) for a in expr.args]
        if expr.name in ("ceil", "floor") and isinstance(first, Bin) and first.op == "/":
            top = self.text(first.left, UNARY, name, static)
            bottom = self.text(first.right, TIMES + 1, name, static)
            return f"(-(-{top} // {bottom}))" if expr.name == "ceil" else f"({top} // {bottom})"
        if expr.name == "sign":
            return f"math.copysign(1, {args[0]})"
        return f"{FUNCTIONS.get(expr.name, f'math.{expr.name}')}({', '.join(args)})"

    def worth(self, expr: Expr) -> str:
        """What a static expression comes to in the spec."""
        value = dims.expr_value(dims.substitute(expr, self.values))
        assert not isinstance(value, Poly)
        return dims.expr_text(dims.literal(value))

    def _is_whole(self, expr: Expr) -> bool:
        """Whether it is known to be an integer, each name being worth what it is in the spec."""
        try:
            return isinstance(dims.expr_value(dims.substitute(expr, self.values)), int)
        except (ArithmeticError, ValueError):
            return False


def _is_rational(expr: Expr) -> bool:
    """Whether it is arithmetic alone: a function's value (`sqrt`) is no size, even where it comes out whole."""
    if isinstance(expr, Bin):
        return expr.op != "**" and _is_rational(expr.left) and _is_rational(expr.right)
    return not isinstance(expr, Fn)


def values_of(block: Block) -> Mapping[str, Expr]:
    """What every name of a block is worth, as literals: for telling whether a division is exact."""
    found: dict[str, Expr] = {}

    def note(value: Any) -> None:
        if isinstance(value, Num) and isinstance(value.expr, Var) and not isinstance(value.value, Poly):
            found[value.expr.name] = dims.literal(value.value)
        elif isinstance(value, Template):
            for v in value.args.values():
                note(v)
        elif isinstance(value, Scheme):
            for v in value.numbers.values():
                note(v)
        elif isinstance(value, Mask):
            for v in (*value.numbers, *value.parts):
                note(v)
        elif isinstance(value, ListValue):
            for v in value.items:
                note(v)

    for value in [*block.hypers.values(), *block.axes.values()]:
        note(value)
    for name, expr in block.local.items():
        worth = dims.expr_value(dims.substitute(expr, found))
        if not isinstance(worth, Poly):
            found[name] = dims.literal(worth)
    return found
