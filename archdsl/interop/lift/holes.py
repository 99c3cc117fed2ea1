"""Syntax with holes: what the blocks of a lifted model are until their numbers have names.

Two instances of a class are the same block exactly when their trees are equal, whatever stands in the holes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import field, replace
from functools import partial, reduce
from typing import Any

import sympy

from archdsl.diagnostics import error, shortened
from archdsl.frozen import Frozen
from archdsl.interop.lift.export import Size
from archdsl.syntax import ast
from archdsl.syntax.ast import NOWHERE


class Hole(ast.Node):
    """Where a number, true or false, or an expression with holes of its own stands."""

    value: Any = field(compare=False)
    hint: str = field(default="", compare=False)
    """What a hyper-parameter for it would be called."""


class Invoke(ast.Node):
    """A call of a block, which has yet to be given its hyper-parameters."""

    block: str
    args: tuple[ast.Expr, ...]
    """Tensors beside the one that is piped in."""
    instances: tuple[int | None, ...] = field(compare=False)
    """Which instance of the block each turn of the loop around calls; None of a turn that calls another block."""


class Scheme(ast.Node):
    """How a weight seems to have been drawn. Instances of a block may differ in it: that of the first is written."""

    value: ast.Expr = field(compare=False)


class Turns(Frozen):
    """What a hole holds in each turn of the loop around it; None where a turn does not come by."""

    values: tuple[Any, ...]


def name(text: str) -> ast.Name:
    return ast.Name(text, span=NOWHERE)


def hole(value: Any, hint: str = "") -> Any:
    return Hole(value, hint, span=NOWHERE)


def binary(op: str, left: Any, right: Any) -> ast.Binary:
    return ast.Binary(op, written(left), written(right), span=NOWHERE)


def call(function: str, *args: ast.Arg | Any) -> ast.Call:
    given = tuple(a if isinstance(a, ast.Arg) else ast.Arg(None, written(a), span=NOWHERE) for a in args)
    return ast.Call(name(function), given, span=NOWHERE)


def piped(head: Any, stage: Any) -> ast.Pipeline:
    if isinstance(head, ast.Pipeline):
        return ast.Pipeline(head.head, (*head.stages, stage), span=NOWHERE)
    return ast.Pipeline(head, (stage,), span=NOWHERE)


def number(value: float) -> Any:
    """A number as the language writes it, exactly; true and false are names."""
    if isinstance(value, bool):
        return name("true" if value else "false")
    if value < 0:
        return ast.Unary("-", number(-value), span=NOWHERE)
    if value < 1e15 and value == int(value):
        value = int(value)
    return ast.Number(re.sub(r"e([-+]?)0+(?=\d)|e\+", r"e\1", repr(value)), span=NOWHERE)


def written(value: Any) -> Any:
    """A number, or what is one already, as an expression."""
    return value if isinstance(value, ast.Node) else number(value)


def opened(tree: Any) -> Any:
    """An expression with its numbers as holes."""
    if isinstance(tree, ast.Number):
        value = float(tree.text)
        return hole(int(value) if value.is_integer() else value)
    return ast.mapped(tree, opened)


SIGNS = {
    "FloorDiv": "//", "CleanDiv": "/", "IntTrueDiv": "/", "FloatTrueDiv": "/", "Mod": "%", "PythonMod": "%",
    "Pow": "**", "FloatPow": "**", "PowByNatural": "**",
}  # fmt: skip
"""Functions of two sizes, as sympy and PyTorch call them, by the operator that each is."""
FUNCTIONS = {
    "floor": "floor", "FloorToInt": "floor", "ceiling": "ceil", "CeilToInt": "ceil", "Abs": "abs", "exp": "exp",
    "log": "log", "sin": "sin", "cos": "cos", "OpaqueUnaryFn_sqrt": "sqrt", "OpaqueUnaryFn_exp": "exp",
    "OpaqueUnaryFn_log": "log", "OpaqueUnaryFn_sin": "sin", "OpaqueUnaryFn_cos": "cos",
}  # fmt: skip
"""Functions of one size."""
EXTREMES = {"Max": "maximum", "Min": "minimum"}
"""Functions of several sizes."""


def formula(size: Size | float) -> Any:
    """A size of run-time sizes, or a number that is made of them, as an expression. Raises ArchError E0542 for a
    function that the language does not have."""
    if isinstance(size, int | float):
        return number(size)
    if size.is_Integer or size.is_Float:
        return number(int(size) if size.is_Integer else float(size))
    if size.is_Rational:
        return binary("/", number(int(size.p)), number(int(size.q)))
    if size.is_Symbol:
        return name(str(size))
    if isinstance(size, sympy.Add):
        first, *rest = sorted(size.args, key=lambda a: a.could_extract_minus_sign())
        found = formula(first)
        for a in rest:
            minus = a.could_extract_minus_sign()
            found = binary("-" if minus else "+", found, formula(-a if minus else a))
        return found
    if isinstance(size, sympy.Mul):
        above, below = size.as_numer_denom()
        if below != 1:
            return binary("/", formula(above), formula(below))
        return reduce(partial(binary, "*"), map(formula, size.args))
    kind = type(size).__name__
    if kind == "ToFloat":
        return formula(size.args[0])
    if kind == "TruncToInt" and all(part.is_nonnegative for part in size.args[0].args):
        kind = "floor"
    if kind in EXTREMES:
        return reduce(partial(call, EXTREMES[kind]), map(formula, size.args))
    if kind in SIGNS:
        return binary(SIGNS[kind], *map(formula, size.args))
    if kind in FUNCTIONS:
        return call(FUNCTIONS[kind], *map(formula, size.args))
    raise error("E0542", f"sizes have no function `{kind}`, as in `{shortened(str(size))}`")


def sites(tree: Any) -> list[Hole | Invoke]:
    """The holes and calls of a tree in their order, without those inside of a hole."""
    found: list[Hole | Invoke] = []

    def keep(site: Hole | Invoke) -> Any:
        found.append(site)
        return site

    filled(tree, keep)
    return found


def filled(tree: Any, fill: Callable[[Any], Any]) -> Any:
    """A tree with `fill` applied to each hole and call; the tensors of a call are filled first."""
    if isinstance(tree, Hole):
        return fill(tree)
    if isinstance(tree, Scheme):
        return tree
    if isinstance(tree, Invoke):
        return fill(replace(tree, args=filled(tree.args, fill)))
    return ast.mapped(tree, lambda part: filled(part, fill))


# --- what the turns of a loop are given ---------------------------------------------------------------------------

INDEX = "i"
"""The variable of a loop."""


def chosen(values: tuple[Any, ...]) -> Any:
    """The expression of a loop's index for what each turn is given, the first of: one for all, an arithmetic sequence,
    a first part and the rest, a period, a list."""
    known = [v for v in values if v is not None]
    last = known[0]
    full = [last := last if v is None else v for v in values]
    first = full[0]
    if all(same(v, first) for v in full):
        return first
    if len(full) > 2 and all(type(v) is int for v in full):
        step = full[1] - first
        if all(v == first + step * k for k, v in enumerate(full)):
            turn = name(INDEX) if step == 1 else binary("*", hole(step), name(INDEX))
            return turn if first == 0 else binary("+", turn, hole(first))
    kinds: list[Any] = []
    for v in full:
        if not any(same(v, k) for k in kinds):
            kinds.append(v)
    if len(kinds) > 4 and not all(isinstance(v, int | float) for v in full):
        kinds = []
    at = [next((n for n, k in enumerate(kinds) if same(v, k)), -1) for v in full]
    most = max(range(len(kinds)), key=lambda n: (at.count(n), n), default=-1)
    conditions = {n: condition([a == n for a in at], len(kinds) == 2) for n in range(len(kinds)) if n != most}
    if not kinds or any(c is None for c in conditions.values()):
        items = ast.List(tuple(hole(v) for v in full), span=NOWHERE)
        return ast.Index(items, (name(INDEX),), span=NOWHERE)
    found = hole(kinds[most])
    for n in reversed(conditions):
        found = ast.IfElse(conditions[n], hole(kinds[n]), found, span=NOWHERE)
    return found


def condition(turns: list[bool], single: bool = True) -> Any:
    """An expression of a loop's index that is true in these turns, or None: the first turns, the last ones, every p-th,
    and, unless it should not be a `single` one, one turn."""
    count = sum(turns)
    index = name(INDEX)
    if turns == [k < count for k in range(len(turns))]:
        return binary("==", index, hole(0)) if count == 1 else binary("<", index, hole(count))
    if turns == [k >= len(turns) - count for k in range(len(turns))]:
        return binary(">=", index, hole(len(turns) - count))
    for period in range(2, len(turns) // 2 + 1):
        if all(t == turns[k % period] for k, t in enumerate(turns)) and sum(turns[:period]) == 1:
            return binary("==", binary("%", index, hole(period)), hole(turns.index(True)))
    one = [k for k, t in enumerate(turns) if t]
    if single and len(one) == 1:
        return binary("==", index, hole(one[0]))
    return None


def same(a: Any, b: Any) -> bool:
    """Whether two holes hold the same, and so do the holes inside."""
    if isinstance(a, ast.Node) and isinstance(b, ast.Node):
        if a != b:
            return False
        left, right = sites(a), sites(b)
        return all(
            same(x.value, y.value)
            for x, y in zip(left, right, strict=True)
            if isinstance(x, Hole) and isinstance(y, Hole)
        )
    return type(a) is type(b) and bool(a == b)
