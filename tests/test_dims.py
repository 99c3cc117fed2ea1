"""Numbers and their spellings: whatever the names stand for, no form that the compiler gives a number changes it."""

import ast as python
import contextlib
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import reduce
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archdsl.diagnostics.source import Source
from archdsl.ir import dims
from archdsl.ir.dims import Bin, Expr, Fn, Lit, Num, Poly, Value, Var
from archdsl.ops._common import surely_at_most, without_floors
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
    # As values are shown to people:
    "min": min,
    "max": max,
    "pow": lambda a, b: _power(a, b),
    "sum": lambda a: a,
}


def alike(a: Number, b: Number) -> bool:
    if isinstance(a, float) or isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-6)
    return a == b


# --- expressions ------------------------------------------------------------------------------------------------------

EXAMPLES = int(os.environ.get("ARCHDSL_EXAMPLES", "900"))
"""Of each property: with more, `ARCHDSL_EXAMPLES=100000 pytest tests/test_dims.py`."""
DEPTH = 4
Names = dict[str, Number]


def draws(count: int = EXAMPLES) -> Iterator[tuple[Random, int]]:
    """Sources of chance, each with the depth of the expressions to make: the short ones come first."""
    for i in range(count):
        yield Random(i), 1 + DEPTH * i // count


def expression(draw: Random, depth: int = DEPTH, names: tuple[str, ...] = NAMES) -> Expr:
    """A tree as the spec writes it: products and rounded quotients of names come up often."""

    def part() -> Expr:
        return expression(draw, depth - 1, names)

    how = draw.randrange(10) if depth else 0
    if how < 2:
        return Lit(draw.choice(LITERALS)) if draw.random() < 0.3 else Var(draw.choice(names))
    if how < 6:
        return Bin(draw.choice((*BINARY, "+", "-", "*", "/")), part(), part())
    if how < 7:
        return Fn(draw.choice(UNARY), (part(),))
    if how < 8:
        return Fn(draw.choice(("minimum", "maximum")), (part(), part()))
    a, b = part(), part()  # `ceil(a / b) * b`, `b * floor(c * a / b)`, `a // b * b`
    top = Bin("*", part(), a) if draw.random() < 0.5 else a
    rounded = draw.choice((Fn("ceil", (Bin("/", top, b),)), Fn("floor", (Bin("/", top, b),)), Bin("//", a, b)))
    return Bin("*", rounded, b) if draw.random() < 0.5 else Bin("*", b, rounded)


def size(draw: Random) -> int:
    return draw.choice((1, 2, 4, 12, draw.randint(1, 64), draw.randint(1, 64), draw.randint(1, 10_000)))


def any_number(draw: Random) -> Number:
    odd = (0, -3, Fraction(1, 2), Fraction(5, 4), Fraction(-7, 3), 1000)
    return size(draw) if draw.random() < 0.7 else draw.choice(odd)


def assignments(draw: Random, value: Callable[[Random], Number] = any_number, count: int = 4) -> list[Names]:
    return [{name: value(draw) for name in NAMES} for _ in range(count)]


def sizes(draw: Random) -> list[Names]:
    return [dict.fromkeys(NAMES, 1), *assignments(draw, size, 3)]


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


def agree(expr: Expr, names: Mapping[str, Number], said: Callable[[], Number | None], what: str) -> bool:
    """Whether both have a value; it is the same then."""
    try:
        expected, found = worth(expr, names), said()
    except (UndefinedError, ArithmeticError, ValueError):
        return False
    assert found is not None
    assert alike(expected, found), f"{what}: {dims.expr_text(expr)} is {expected}, not {found}, for {dict(names)}"
    return True


def weight(value: Value) -> int:
    return value.weight if isinstance(value, Poly) else 1


def _evaluated(value: Value, names: Mapping[str, Number]) -> Number:
    return dims.evaluate(value, names)  # type: ignore[arg-type]


def defined(expr: Expr, names: Mapping[str, Number]) -> Number | None:
    """What it is worth; None where it has no value."""
    try:
        return worth(expr, names)
    except UndefinedError:
        return None


def test_what_elaboration_makes_of_an_expression() -> None:
    compared = 0
    for draw, depth in draws():
        expr, cases = expression(draw, depth), assignments(draw)
        for names in cases:
            leaves = {k: dims.whole(Fraction(v)) for k, v in names.items()}
            try:
                made = built(expr, leaves)
            except UndefinedError:
                assert depth > 1 or defined(expr, names) is None, (expr, names)
                continue
            assert not isinstance(made.value, Poly)
            compared += agree(expr, names, lambda made=made: made.value, "its value")
            for other in cases:
                agree(expr, other, lambda made=made, other=other: worth(made.expr, other), "its spelling")
            assert alike(worth_in(expr, leaves), made.value)
    assert compared > 2 * EXAMPLES


def worth_in(expr: Expr, leaves: Mapping[str, Value]) -> Number:
    """Its value as the compiler finds it from values of its names."""
    value = dims.value_in(expr, leaves, {})
    assert not isinstance(value, Poly)
    return value


def test_shortest_and_value_over_names() -> None:
    """Two expressions of one value are equal wherever both have one; the value has no names but those of the text."""
    compared, alike_ones = 0, 0
    for draw, depth in draws():
        expr, cases = expression(draw, depth), assignments(draw)
        short = dims.shortest(expr, {})
        assert len(list(dims.inner(short))) <= max(len(list(dims.inner(expr))), 3)  # `0.3` may become `3 / 10`
        try:
            value = dims.expr_value(expr)
        except (ArithmeticError, ValueError):
            value = None
        if isinstance(value, Poly):
            assert {s.name for s in value.symbols} <= set(dims.free_names(expr))
            shown = _read_python(str(value))
        for names in cases:
            compared += agree(expr, names, lambda short=short, names=names: worth(short, names), "shortest")
            if value is not None:
                alike_ones += agree(expr, names, lambda value=value, names=names: _evaluated(value, names), "value")
            if isinstance(value, Poly):
                agree(expr, names, lambda shown=shown, names=names: worth(shown, names), "value as text")
    assert compared > 2 * EXAMPLES
    assert alike_ones > 2 * EXAMPLES


def test_names_that_stand_for_expressions() -> None:
    """`head_dim` is `width / heads` inside a block; outside, `heads` is `2 * layers`."""
    compared = 0
    for draw, depth in draws():
        expr, cases = expression(draw, depth, (*NAMES, *LOCAL)), assignments(draw)
        local = {"head_dim": expression(draw, depth), "half": Bin("/", expression(draw, depth - 1), Lit("2"))}
        try:
            short, put = dims.shortest(expr, local), dims.substitute(expr, local)
            outward = Num(0, expr).outward(local).expr
        except dims.TooLargeError:
            continue
        assert outward == put
        assert not set(LOCAL).intersection(dims.free_names(put))
        for names in cases:
            try:
                known = {**names, **{k: worth(e, names) for k, e in local.items()}}
            except UndefinedError:
                continue
            agree(expr, known, lambda short=short, known=known: worth(short, known), "shortest")
            compared += agree(expr, known, lambda put=put, names=names: worth(put, names), "substitute")
    assert compared > EXAMPLES


def test_sizes_that_only_the_running_model_knows() -> None:
    """Some names are sizes of inputs, the others numbers of the spec: the value knows the first as symbols."""
    numbers: Names = {"heads": 4, "e5": Fraction(5, 2)}
    leaves: dict[str, Value] = {n: dims.symbol(n) for n in NAMES} | numbers  # type: ignore[operator]
    compared, replaced_ones, whole_ones = 0, 0, 0
    for draw, depth in draws():
        expr, other, cases = expression(draw, depth), expression(draw, depth // 2), sizes(draw)
        replaced = draw.choice([n for n in NAMES if n not in numbers])
        try:
            value = built(expr, leaves).value
        except UndefinedError:
            continue
        try:
            put = dims.with_symbol(value, replaced, built(other, leaves).value) if weight(value) < 30 else None
        except (UndefinedError, ArithmeticError, ValueError):
            put = None
        for names in cases:
            known = {**names, **numbers}
            compared += agree(expr, known, lambda value=value, names=names: _evaluated(value, names), "the value")
            if dims.is_size_like(value):
                with contextlib.suppress(ArithmeticError, ValueError):
                    assert isinstance(_evaluated(value, names), int), f"{value} is no whole number"
                    whole_ones += isinstance(value, Poly)
            if put is None or (given := defined(other, known)) is None or given != int(given) or given < 1:
                continue
            further = {**known, replaced: given}
            put_in = lambda put=put, names=names: _evaluated(put, names)  # noqa: E731
            replaced_ones += agree(expr, further, put_in, "with a symbol replaced")
    assert compared > 2 * EXAMPLES
    assert replaced_ones > EXAMPLES / 2
    assert whole_ones > EXAMPLES / 2


# --- what is claimed of all sizes -------------------------------------------------------------------------------------


def test_what_always_holds_of_sizes() -> None:
    """No claim about all sizes is wrong for some."""
    leaves: dict[str, Value] = {n: dims.symbol(n) for n in NAMES}
    claims = Counter[str]()
    for draw, depth in draws(EXAMPLES * 5 // 4):
        a, b = expression(draw, min(depth, 3)), expression(draw, min(depth, 3))
        if draw.random() < 0.5:  # near each other
            b = draw.choice((Bin("+", a, b), Bin("-", b, a), Bin("*", a, b), Bin("//", b, a), Fn("ceil", (a,))))
        if draw.random() < 0.5:
            a, b = b, a
        try:
            x, y = built(a, leaves), built(b, leaves)
            at_most = surely_at_most(x, y)
            divides = dims.mod(x.value, y.value) == 0
            where_whole = dims.equal_where_whole(x.value, y.value)
        except (UndefinedError, ArithmeticError, ValueError):
            continue
        lower = without_floors(x.value)
        for names in sizes(draw):
            left, right = defined(a, names), defined(b, names)
            if left is None:
                continue
            said = f"{x.value} for {names}"
            assert not dims.is_above_zero(x.value) or left > 0, f"0 < {said}"
            assert not dims.at_least_zero(x.value) or left > -1e-9, f"0 <= {said}"
            with contextlib.suppress(ArithmeticError, ValueError):
                assert _evaluated(lower, names) <= left + 1e-6 * (1 + abs(left)), f"{lower} <= {said}"
            claims["above 0"] += dims.is_above_zero(x.value)
            claims["not below 0"] += dims.at_least_zero(x.value)
            if right is None:
                continue
            claims["at most"] += at_most
            assert not at_most or left <= right or alike(left, right), f"{x.value} <= {y.value} for {names}"
            if where_whole and right == int(right):
                claims["equal where whole"] += 1
                assert alike(left, right), f"{x.value} == {y.value} for {names}"
            if divides and right:
                claims["divided by"] += 1
                ratio = left / (Fraction(right) if not isinstance(right, float) else right)
                assert alike(ratio, round(ratio)), f"{y.value} divides {x.value} for {names}"
    wanted = {"above 0": 1, "not below 0": 1.5, "at most": 0.5, "equal where whole": 0.2, "divided by": 0.2}
    assert {k for k, share in wanted.items() if claims[k] < share * EXAMPLES} == set(), claims


def polynomial(draw: Random, least: int = 0) -> Expr:
    """A sum of products of names with coefficients of at least that much."""
    terms = [Lit(str(draw.randint(least, 9)))]
    for _ in range(draw.randint(1, 3)):
        term: Expr = Lit(str(draw.randint(max(least, 1), 5)))
        for name in draw.choices(NAMES, k=draw.randint(1, 2)):
            term = Bin("*", term, Var(name))
        terms.append(term)
    return reduce(lambda a, b: Bin("+", a, b), terms)


def test_what_must_be_decided_of_sizes() -> None:
    """Sums of products of sizes are least where each size is 1: what holds there holds always, and is said to."""
    leaves: dict[str, Value] = {n: dims.symbol(n) for n in NAMES}
    ones: Names = dict.fromkeys(NAMES, 1)
    decided = Counter[bool]()
    for draw, _ in draws(EXAMPLES // 8):
        p, q, k = polynomial(draw), polynomial(draw), Lit(str(draw.randint(2, 9)))
        offset = Lit(str(draw.randint(0, 30)))

        def of(expr: Expr) -> Num:
            return built(expr, leaves)

        more = Bin("-", Bin("+", p, q), offset)
        least = worth(Bin("-", q, offset), ones)
        decided[least >= 0] += 1
        assert surely_at_most(of(p), of(more)) == (least >= 0), (p, more)
        assert not surely_at_most(of(Bin("+", p, q)), of(Bin("-", p, Lit("1"))))
        rounded = (Bin("//", p, k), Fn("floor", (Bin("/", p, k),)))
        for down in rounded:
            assert surely_at_most(of(down), of(p)), down
            assert surely_at_most(of(Bin("*", k, down)), of(p)), down
            assert dims.at_least_zero(of(down).value)
        for up in (Fn("ceil", (Bin("/", p, k),)), Bin("//", Bin("+", p, Bin("-", k, Lit("1"))), k)):
            assert of(up).value == of(Fn("ceil", (Bin("/", p, k),))).value
            assert dims.is_size_like(of(up).value)
        assert dims.is_size_like(of(p).value)
        assert dims.is_above_zero(of(p).value)
        assert dims.mod(of(Bin("*", p, q)).value, of(q).value) == 0 or len(of(q).value.terms) > 1  # type: ignore[union-attr]
        assert dims.mod(of(Bin("*", k, p)).value, of(k).value) == 0
        assert dims.div(of(Bin("*", p, Var("side"))).value, of(Var("side")).value) == of(p).value
        assert dims.sub(of(Bin("+", p, q)).value, of(q).value) == of(p).value
        assert of(Bin("*", Bin("+", p, q), k)).value == of(Bin("+", Bin("*", k, q), Bin("*", p, k))).value
    assert min(decided[True], decided[False]) > EXAMPLES / 80


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("abs(side - heads)", True),
        ("exp(side - heads)", True),
        ("sqrt(side) * heads", True),
        ("maximum(side - heads, 0)", True),
        ("maximum(0, side - heads)", True),
        ("minimum(side, heads)", True),
        ("(side + 1) // heads + side / heads", True),
        ("side * heads + 2 // heads", True),
        ("minimum(side, heads - side)", False),
        ("maximum(heads - side, side - 9 * heads)", False),
        ("side - heads", False),
        ("(side - 3) // 2", False),
        ("cos(side)", False),
        ("floor((side - heads) / 4)", False),
    ],
)
def test_what_is_not_below_zero(text: str, holds: bool) -> None:
    """It is known of all sizes, and does not hold of some where it is not known."""
    value = built(_read_text(text), {n: dims.symbol(n) for n in NAMES}).value
    assert dims.at_least_zero(value) == holds
    found = [defined(_read_text(text), names) for draw, _ in draws(40) for names in sizes(draw)]
    assert all(n >= 0 for n in found if n is not None) == holds


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("side // 2 // 3", "side // 6"),
        ("(side // 2 + 1) // 3", "(side + 2) // 6"),
        ("(side // 4 - 5) // 2", "(side - 20) // 8"),
        ("floor(ceil(side / 2) / 2)", "floor((side + 1) / 4)"),
        ("(6 * side + 5) // 4", "side + (2 * side + 4) // 4"),
        ("(2 * side + 3) // 2", "side + 1"),
        ("(side + 7 * heads) // 7", "side // 7 + heads"),
        ("ceil(side / 4) * 4 / 4", "(side + 3) // 4"),
        ("sqrt(side ** 2 / side ** 2) * side", "side"),
        ("(side + heads) ** 2", "side * side + 2 * side * heads + heads ** 2"),
        ("side * (1 / heads + 1)", "side / heads + side"),
        ("side % heads + heads * (side // heads)", "side"),
        ("8 ** (1 / 3) * side", "2 * side"),
        ("(width * 9) ** 0.5 + side * 0", "(9 * width) ** 0.5"),
    ],
)
def test_equal_values_that_are_known_to_be_equal(a: str, b: str) -> None:
    leaves = {n: dims.symbol(n) for n in NAMES}
    values = [built(_read_text(text), leaves).value for text in (a, b)]
    assert values[0] == values[1], [str(v) for v in values]
    for draw, _ in draws(10):
        for names in sizes(draw):
            assert agree(_read_text(a), names, lambda names=names: worth(_read_text(b), names), a)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("sqrt(768 * 768)", 768),
        ("256 ** 0.5", 16),
        ("27 ** (1 / 3)", 3),
        ("(4 / 9) ** 2", Fraction(16, 81)),
        ("2 ** -3", Fraction(1, 8)),
        ("0.1 + 0.2", Fraction(3, 10)),
        ("7.5 // 2", 3),
        ("-7 // 2", -4),
        ("-7 % 3", 2),
        ("sqrt(2) ** 0", 1),
        ("abs(-3 / 2)", Fraction(3, 2)),
        ("ceil(-0.5)", 0),
    ],
)
def test_numbers_are_exact(text: str, value: Number) -> None:
    """Of its type as well: what is whole is an integer."""
    found = dims.expr_value(_read_text(text))
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize("k", [1, 2, 3, 7, 16])
def test_parts_of_an_axis(k: int) -> None:
    """Of a size the axis that it is a part of, exactly or rounded up, and how many positions make one."""
    side = dims.symbol("side")
    for length in (dims.div(side, k), dims.ceil(dims.div(side, k)), dims.floor(dims.div(dims.add(side, k - 1), k))):
        assert dims.whole_axis(Num(length, Var("n"))) == (side, k)
        assert dims.equal_where_whole(length, dims.div(side, k))
        assert dims.equal_where_whole(dims.floor(length), dims.div(side, k))
    for other in (dims.floor(dims.div(side, k + 1)), dims.add(side, k), dims.mul(side, dims.symbol("heads"))):
        assert dims.whole_axis(Num(other, Var("n"))) == (other, 1)
        assert not dims.equal_where_whole(other, dims.div(side, k))


# --- spellings --------------------------------------------------------------------------------------------------------


def test_text_is_read_back() -> None:
    """As the language reads it, whose operators bind as Python's do; as Python reads it, too."""
    compared = 0
    for draw, depth in draws():
        expr, cases = expression(draw, depth), assignments(draw, count=2)
        text = dims.expr_text(expr)
        again, by_python = _read_text(text), _read_python(text)
        assert dims.expr_text(expr, name="self.{}".format) == re.sub(rf"\b({'|'.join(NAMES)})\b", r"self.\1", text)
        for names in cases:
            compared += agree(expr, names, lambda again=again, names=names: worth(again, names), text)
            agree(expr, names, lambda by_python=by_python, names=names: worth(by_python, names), text)
    assert compared > EXAMPLES


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


SIGNS: Mapping[type, str] = {
    python.Add: "+",
    python.Sub: "-",
    python.Mult: "*",
    python.Div: "/",
    python.FloorDiv: "//",
    python.Mod: "%",
    python.Pow: "**",
}


def _read_python(text: str) -> Expr:
    def read(e: python.expr) -> Expr:
        match e:
            case python.Constant():
                return Lit(python.get_source_segment(text, e) or "")
            case python.Name():
                return Var(e.id)
            case python.UnaryOp(op=python.USub()):
                return Bin("-", Lit("0"), read(e.operand))
            case python.BinOp():
                return Bin(SIGNS[type(e.op)], read(e.left), read(e.right))
            case python.Call(func=python.Name()):
                return Fn(e.func.id, tuple(map(read, e.args)))
            case _:
                raise TypeError(type(e).__name__)

    return read(python.parse(text, mode="eval").body)


@given(st.one_of(st.integers(), st.fractions(), st.floats(allow_nan=False, allow_infinity=False)))
def test_literals_are_exact(value: Number) -> None:
    """A float is read back as the same float."""
    again = dims.expr_value(dims.literal(value))
    assert not isinstance(again, Poly)
    assert (float(again) if isinstance(value, float) else again) == value


def test_what_is_said_of_expressions() -> None:
    """Their names, whether they divide, whether they are whole by the way they are made, and their negatives."""
    integral = 0
    for draw, depth in draws():
        expr, names = expression(draw, depth), {**assignments(draw, size, 1)[0], "e5": Fraction(5, 2)}
        text = dims.expr_text(expr)
        assert dims.free_names(expr) == tuple(dict.fromkeys(re.findall(rf"\b({'|'.join(NAMES)})\b", text)))
        assert dims.divides(expr) == (re.search(r"[^/]/[^/]", text) is not None)
        value = defined(expr, names)
        if value is not None:
            assert alike(worth(dims.negated(expr), names), -value)
            if dims.is_integral(expr, lambda name: name != "e5"):
                integral += 1
                assert value == int(value), f"{text} for {names}"
    assert integral > EXAMPLES / 5
    for draw, _ in draws(50):
        assert dims.is_integral(polynomial(draw), lambda _: True)
        assert dims.is_integral(Bin("//", polynomial(draw), expression(draw, 1)), lambda _: False)


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


@pytest.mark.parametrize(
    ("text", "i", "expected"),
    [
        ("i + 2", "0", "2"),
        ("i + 2", "3", "5"),
        ("width * i", "1", "width"),
        ("i * width + 3", "0", "0 * width + 3"),
        ("width * (i + 1)", "2", "width * 3"),
        ("(i + 1) / 2", "4", "5 / 2"),
        ("i - 5", "2", "2 - 5"),
        ("4 * 64 + i", "0", "4 * 64"),  # as it was written
    ],
)
def test_a_number_that_takes_the_place_of_a_name_is_computed_with(text: str, i: str, expected: str) -> None:
    def expr(node: python.expr) -> Expr:
        match node:
            case python.Name(name):
                return Var(name)
            case python.Constant(value):
                return Lit(repr(value))
            case python.BinOp(left, op, right):
                signs = {python.Add: "+", python.Sub: "-", python.Mult: "*", python.Div: "/"}
                return Bin(signs[type(op)], expr(left), expr(right))
        raise AssertionError(node)

    parsed = expr(python.parse(text, mode="eval").body)
    assert dims.expr_text(dims.substitute(parsed, {"i": Lit(i)})) == expected
