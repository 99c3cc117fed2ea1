"""Numbers and their spellings: whatever the names stand for, no form that the compiler gives a number changes it."""

import contextlib
import math
import os
from collections.abc import Callable, Mapping
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from archdsl.diagnostics.source import Source
from archdsl.ir import dims
from archdsl.ir.dims import Bin, Expr, Fn, Lit, Num, Poly, Value, Var
from archdsl.ops._common import surely_at_most
from archdsl.syntax import ast
from archdsl.syntax.parse import parse_expression

Number = int | Fraction | float
NAMES = ("width", "heads", "side", "min", "floor_", "e5")
LOCAL = ("head_dim", "half")
LITERALS = ("0", "1", "2", "3", "7", "16", "0.5", "1.5", "2.667", "1e-5", "1_000", "-1", "-8", "-0.3")
BINARY = ("+", "-", "*", "/", "//", "%", "**")
UNARY = ("floor", "ceil", "abs", "sign", "sqrt", "exp", "log", "cos")


# --- what an expression is worth, computed without the compiler -------------------------------------------------------


class UndefinedError(Exception):
    """The expression has no value there, or floats cannot tell which."""


def worth(expr: Expr, names: Mapping[str, Number]) -> Number:
    """Exact as long as all is rational."""
    if isinstance(expr, Lit):
        return Fraction(expr.text.replace("_", ""))
    if isinstance(expr, Var):
        return names[expr.name]
    if isinstance(expr, Fn):
        return _called(expr.name, [worth(a, names) for a in expr.args])
    return _called(expr.op, [worth(expr.left, names), worth(expr.right, names)])


def _called(name: str, args: list[Number]) -> Number:
    try:
        found = FUNCTIONS[name](*args)
    except (ArithmeticError, ValueError, TypeError):
        raise UndefinedError from None
    if isinstance(found, complex) or abs(found) > 1e15 or (found != 0 and abs(found) < 1e-12):
        raise UndefinedError
    return found


def _floor(a: Number) -> int:
    if isinstance(a, float) and abs(a - round(a)) < 1e-6:
        raise UndefinedError  # on which side of it the float lies says nothing
    return math.floor(a)


def _power(a: Number, b: Number) -> Number:
    if b == int(b) and not isinstance(a, float):
        if abs(b) > 40:
            raise UndefinedError
        return Fraction(a) ** int(b)
    return float(a) ** float(b)


def _sign(a: Number) -> int:
    if isinstance(a, float) and abs(a) < 1e-6:
        raise UndefinedError
    return (a > 0) - (a < 0)


FUNCTIONS: Mapping[str, Callable[..., Number]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / (Fraction(b) if isinstance(b, int) else b),
    "//": lambda a, b: _floor(a / (Fraction(b) if isinstance(b, int) else b)),
    "%": lambda a, b: a - b * _floor(a / (Fraction(b) if isinstance(b, int) else b)),
    "**": _power,
    "floor": _floor,
    "ceil": lambda a: -_floor(-a),
    "abs": abs,
    "sign": _sign,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "cos": math.cos,
    "minimum": min,
    "maximum": max,
}


def alike(a: Number, b: Number) -> bool:
    if isinstance(a, float) or isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-6)
    return a == b


# --- expressions ------------------------------------------------------------------------------------------------------


@st.composite
def expressions(draw: st.DrawFn, names: tuple[str, ...] = NAMES, depth: int = 4) -> Expr:
    """Trees as the spec writes them: products and rounded quotients of names come up often."""
    how = draw(st.integers(0, 9)) if depth else 0

    def part() -> Expr:
        return draw(expressions(names, depth - 1))

    if how < 3:
        return draw(st.sampled_from([*map(Var, names), *map(Var, names), *map(Lit, LITERALS)]))
    if how < 6:
        return Bin(draw(st.sampled_from((*BINARY, "+", "-", "*", "/"))), part(), part())
    if how < 7:
        return Fn(draw(st.sampled_from(UNARY)), (part(),))
    if how < 8:
        return Fn(draw(st.sampled_from(("minimum", "maximum"))), (part(), part()))
    a, b = part(), part()  # `ceil(a / b) * b`, `b * floor(c * a / b)`, `a // b * b`
    top = Bin("*", part(), a) if draw(st.booleans()) else a
    rounded = draw(
        st.sampled_from((Fn("ceil", (Bin("/", top, b),)), Fn("floor", (Bin("/", top, b),)), Bin("//", a, b)))
    )
    return Bin("*", rounded, b) if draw(st.booleans()) else Bin("*", b, rounded)


SIZES = st.integers(1, 64)
ANY = st.one_of(SIZES, SIZES, st.sampled_from([0, -3, Fraction(1, 2), Fraction(5, 4), Fraction(-7, 3), 1000]))


def assignments(
    values: st.SearchStrategy[Number], names: tuple[str, ...] = NAMES
) -> st.SearchStrategy[list[dict[str, Number]]]:
    return st.lists(st.fixed_dictionaries(dict.fromkeys(names, values)), min_size=4, max_size=4)


def built(expr: Expr, leaves: Mapping[str, Value]) -> Num:
    """The number as elaboration makes it, each name being worth a value."""
    if isinstance(expr, Lit):
        return Num(dims.whole(Fraction(expr.text.replace("_", ""))), expr)
    if isinstance(expr, Var):
        return Num(leaves[expr.name], expr)
    try:
        if isinstance(expr, Fn):
            return dims.function(expr.name, [built(a, leaves) for a in expr.args])
        return dims.binary(expr.op, built(expr.left, leaves), built(expr.right, leaves))
    except (ArithmeticError, ValueError):
        raise UndefinedError from None


def agree(expr: Expr, names: Mapping[str, Number], said: Callable[[], Number | None], what: str) -> None:
    """Both have the same value, where both have one."""
    try:
        expected, found = worth(expr, names), said()
    except (UndefinedError, ArithmeticError, ValueError):
        return
    if found is not None:
        assert alike(expected, found), f"{what}: {dims.expr_text(expr)} is {expected}, not {found}, for {dict(names)}"


EXAMPLES = int(os.environ.get("ARCHDSL_EXAMPLES", "150"))
"""Of each property: with more, `ARCHDSL_EXAMPLES=20000 pytest tests/test_dims.py`."""
MANY = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


@MANY
@given(expressions(), assignments(ANY))
def test_what_elaboration_makes_of_an_expression(expr: Expr, cases: list[dict[str, Number]]) -> None:
    for names in cases:
        leaves = {k: dims.whole(Fraction(v)) for k, v in names.items()}
        try:
            made = built(expr, leaves)
        except UndefinedError:
            continue
        assert not isinstance(made.value, Poly)
        agree(expr, names, lambda made=made: made.value, "its value")
        for other in cases:
            agree(expr, other, lambda made=made, other=other: worth(made.expr, other), "its spelling")


@MANY
@given(expressions(), assignments(ANY))
def test_shortest_and_value_over_names(expr: Expr, cases: list[dict[str, Number]]) -> None:
    short = dims.shortest(expr, {})
    try:
        value = dims.expr_value(expr)
    except (ArithmeticError, ValueError):
        value = None
    note(f"{short} {value}")
    for names in cases:
        agree(expr, names, lambda names=names: worth(short, names), "shortest")
        if value is not None:
            agree(expr, names, lambda names=names: _evaluated(value, names), "value")


def _evaluated(value: Value, names: Mapping[str, Number]) -> Number:
    return dims.evaluate(value, names)  # type: ignore[arg-type]


@pytest.mark.slow
@MANY
@given(expressions((*NAMES, *LOCAL)), expressions(), expressions(), assignments(ANY))
def test_names_that_stand_for_expressions(
    expr: Expr, first: Expr, second: Expr, cases: list[dict[str, Number]]
) -> None:
    """`head_dim` is `width / heads` inside a block; outside, `heads` is `2 * layers`."""
    local = {"head_dim": first, "half": Bin("/", second, Lit("2"))}
    try:
        short, put = dims.shortest(expr, local), dims.substitute(expr, local)
        outward = Num(0, expr).outward(local).expr
    except dims.TooLargeError:
        return
    for names in cases:
        try:
            known = {**names, **{k: worth(e, names) for k, e in local.items()}}
        except UndefinedError:
            continue
        agree(expr, known, lambda known=known: worth(short, known), "shortest")
        agree(expr, known, lambda names=names: worth(put, names), "substitute")
        agree(expr, known, lambda names=names: worth(outward, names), "outward")


@pytest.mark.slow
@MANY
@given(expressions(), assignments(SIZES), st.sampled_from(NAMES), expressions())
def test_sizes_that_only_the_running_model_knows(
    expr: Expr, cases: list[dict[str, int]], replaced: str, other: Expr
) -> None:
    """Some names are sizes of inputs, the others numbers of the spec: the value knows the first as symbols."""
    numbers = {"heads": 4, "e5": Fraction(5, 2)}
    leaves: dict[str, Value] = {n: dims.symbol(n) for n in NAMES} | numbers
    try:
        made = built(expr, leaves)
    except UndefinedError:
        assume(False)
    value = made.value
    try:
        put = dims.with_symbol(value, replaced, built(other, leaves).value)
    except (UndefinedError, ArithmeticError, ValueError):
        put = None
    for names in cases:
        known: dict[str, Number] = {**names, **numbers}
        agree(expr, known, lambda names=names: dims.evaluate(value, names), "the value")
        if dims.is_size_like(value):
            with contextlib.suppress(ArithmeticError, ValueError):
                assert isinstance(dims.evaluate(value, names), int), f"{value} is no whole number"
        if put is None:
            continue
        try:
            further: dict[str, Number] = {**known, replaced: worth(other, known)} if replaced in names else known
        except UndefinedError:
            continue
        if replaced not in numbers and further[replaced] == int(further[replaced]) >= 1:
            agree(expr, further, lambda names=names: dims.evaluate(put, names), "with a symbol replaced")


@MANY
@given(expressions(), expressions(), assignments(SIZES))
def test_what_always_holds_of_sizes(a: Expr, b: Expr, cases: list[dict[str, int]]) -> None:
    leaves: dict[str, Value] = {n: dims.symbol(n) for n in NAMES}
    try:
        x, y = built(a, leaves), built(b, leaves)
        at_most = surely_at_most(x, y)
        divides = dims.mod(x.value, y.value) == 0
    except (UndefinedError, ArithmeticError, ValueError):
        return
    for names in cases:
        try:
            left, right = worth(a, names), worth(b, names)
            ratio = left / (Fraction(right) if not isinstance(right, float) else right)
        except (UndefinedError, ArithmeticError):
            continue
        assert not at_most or left <= right or alike(left, right), f"{x.value} <= {y.value} for {names}"
        assert not divides or alike(ratio, round(ratio)), f"{y.value} divides {x.value} for {names}"


@MANY
@given(expressions(), assignments(ANY))
def test_text_is_read_back(expr: Expr, cases: list[dict[str, Number]]) -> None:
    """As the language reads it, whose operators bind as Python's do."""
    again = _read_text(dims.expr_text(expr))
    for names in cases:
        agree(expr, names, lambda names=names: worth(again, names), dims.expr_text(expr))


def _read_text(text: str) -> Expr:
    return _read(parse_expression(Source("text", text)))


def _read(e: ast.Expr) -> Expr:
    match e:
        case ast.Number():
            return Lit(e.text)
        case ast.Name():
            return Var(e.id)
        case ast.Unary():
            return dims.negated(_read(e.operand))
        case ast.Binary():
            return Bin(e.op, _read(e.left), _read(e.right))
        case ast.Call(function=ast.Name()):
            return Fn(e.function.id, tuple(_read(a.value) for a in e.args))
        case _:
            raise TypeError(type(e).__name__)


@given(st.one_of(st.integers(), st.fractions(), st.floats(allow_nan=False, allow_infinity=False)))
def test_literals_are_exact(value: Number) -> None:
    """A float is read back as the same float."""
    again = dims.expr_value(dims.literal(value))
    assert not isinstance(again, Poly)
    assert (float(again) if isinstance(value, float) else again) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ceil(side / window) * window", "12"),
        ("window * ceil(side / window)", "12"),
        ("side // window * window", "8"),
        ("floor(side / window) * window", "8"),
        ("ceil(2.667 * side / 16) * 16", "32"),
        ("ceil(factor)", "3"),
        ("ceil(factor * window) / window", "5 / 2"),
        ("floor(ceil(factor) / window)", "0"),
        ("side * window // window", "10"),
        ("side % window", "2"),
    ],
)
def test_rounding_of_names_stays(text: str, value: str) -> None:
    """Neither the value nor the shortest spelling loses it."""
    expr = _read_text(text)
    names = {"side": 10, "window": 4, "factor": Fraction(5, 2)}
    assert worth(dims.shortest(expr, {}), names) == Fraction(value.replace(" ", ""))
    assert dims.evaluate(dims.expr_value(expr), names) == Fraction(value.replace(" ", ""))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "shortest"),
    [
        ("heads * (width / heads)", "width"),
        ("heads * (2 * width / heads)", "2 * width"),
        ("kv_heads * width / heads / kv_heads", "head_dim"),
        ("2 * inner / 2", "inner"),
        ("2 * (heads * head_dim)", "2 * width"),
        ("kv_heads * head_dim", "kv_heads * head_dim"),
        ("2 * width / heads", "2 * width / heads"),
        ("floor(width / heads)", "floor(width / heads)"),
    ],
)
def test_products_of_sizes_are_cancelled(text: str, shortest: str) -> None:
    local = {name: _read_text(e) for name, e in (("head_dim", "width / heads"), ("inner", "width + heads"))}
    assert dims.expr_text(dims.shortest(_read_text(text), local)) == shortest
