"""Numbers that remember how they came about.

A `Num` is a value, the expression that made it in the names of the enclosing block, and the position it was written at.
The value is exact: an integer, a fraction, a float, or, where a size is known only when the model runs, a `Poly` over
the symbols of the model's inputs.  The expression is what the emitted code prints (`4 * width`, not `3072`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import cache, cached_property, reduce

from archdsl.diagnostics.source import Span
from archdsl.frozen import Entity, Frozen
from archdsl.syntax.limits import MAX_BITS, MAX_EXPRESSION, MAX_PRODUCTS, raising

# --- symbolic values ----------------------------------------------------------------------------------------------


class Symbol(Frozen, order=True):
    """A size that only the running model knows: `batch`, `time`; or, not `whole`, a name that may stand for any
    number."""

    name: str
    whole: bool = True

    def __str__(self) -> str:
        return self.name


class TooLargeError(OverflowError):
    """A number, or the expression that makes it, is beyond the compiler's limits. The text says which of them."""


class Opaque(Frozen):
    """A function of symbols that is not a polynomial: `floor(time / 3)`, `sqrt(time)`."""

    function: str
    args: tuple[Poly | int | Fraction | float, ...]

    @cached_property
    def weight(self) -> int:
        """How many symbols and functions it is made of, each as often as it stands there."""
        return 1 + sum(a.weight for a in self.args if isinstance(a, Poly))

    def __str__(self) -> str:
        if self.function == "floor" and len(self.args) == 2:
            above, below = map(str, self.args)
            return f"({above}) // {below if below.isalnum() else f'({below})'}"
        return f"{self.function}({', '.join(map(str, self.args))})"


Atom = Symbol | Opaque
Monomial = tuple[tuple[Atom, int], ...]


class Poly(Frozen):
    """A sum of products of atoms with exact coefficients; powers may be negative. Never constant: see `poly`."""

    terms: tuple[tuple[Monomial, Fraction], ...]

    def __str__(self) -> str:
        return " + ".join(_term_text(m, c) for m, c in self.terms).replace("+ -", "- ")

    @cached_property
    def symbols(self) -> frozenset[Symbol]:
        """Every symbol that the value depends on."""
        found: set[Symbol] = set()
        for monomial, _ in self.terms:
            for atom, _ in monomial:
                if isinstance(atom, Symbol):
                    found.add(atom)
                else:
                    for arg in atom.args:
                        if isinstance(arg, Poly):
                            found |= arg.symbols
        return frozenset(found)

    @cached_property
    def weight(self) -> int:
        """How many symbols and functions it is made of, each as often as it stands there."""
        return sum(a.weight if isinstance(a, Opaque) else 1 for m, _ in self.terms for a, _ in m)

    @property
    def denominator(self) -> int:
        """The smallest number that makes every coefficient whole: it must divide the size when the model runs."""
        return math.lcm(*(c.denominator for _, c in self.terms))


def _term_text(monomial: Monomial, coefficient: Fraction) -> str:
    if coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1:
        return str(monomial[0][0])
    factors = [(f"({a})" if isinstance(a, Opaque) and a.function == "floor" else str(a), p) for a, p in monomial]
    top = [a if p == 1 else f"{a}**{p}" for a, p in factors if p > 0]
    bottom = [a if p == -1 else f"{a}**{-p}" for a, p in factors if p < 0]
    if coefficient.denominator != 1:
        bottom.insert(0, str(coefficient.denominator))
    head = coefficient.numerator
    text = " * ".join(top)
    if not text:
        text = str(head)
    elif head == -1:
        text = f"-{text}"
    elif head != 1:
        text = f"{head} * {text}"
    return " / ".join([text, *bottom])


Value = int | Fraction | float | Poly


def _normal(terms: Mapping[Monomial, Fraction]) -> Value:
    kept = {m: c for m, c in terms.items() if c != 0}
    if not kept:
        return 0
    if list(kept) == [()]:
        return whole(kept[()])
    # The constant last, products by their text: the order is part of the printed form.
    return Poly(tuple(sorted(kept.items(), key=lambda t: (not t[0], str(t[0])))))


def whole(value: Value) -> Value:
    """An integer where the fraction or float is one."""
    if isinstance(value, Fraction) and value.denominator == 1:
        return int(value)
    return value


def _terms(value: Value) -> dict[Monomial, Fraction]:
    if isinstance(value, Poly):
        return dict(value.terms)
    return {(): Fraction(value)}


def symbol(name: str, *, whole: bool = True) -> Poly:
    """The value of a size called `name` that only the running model knows; not `whole`, of any number."""
    return of_atom(Symbol(name, whole))


def opaque(function: str, *args: Value) -> Poly:
    return of_atom(Opaque(function, args))


def of_atom(atom: Atom) -> Poly:
    return Poly(((((atom, 1),), Fraction(1)),))


def _times(a: Monomial, b: Monomial) -> Monomial:
    powers = dict(a)
    for atom, power in b:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(((x, p) for x, p in powers.items() if p), key=lambda t: str(t[0])))


def add(a: Value, b: Value) -> Value:
    if not isinstance(a, Poly) and not isinstance(b, Poly):
        return whole(a + b)
    terms = _terms(a)
    for m, c in _terms(b).items():
        terms[m] = terms.get(m, Fraction(0)) + c
    return _normal(terms)


def mul(a: Value, b: Value) -> Value:
    """The product; raises TooLargeError where multiplying it out would take very long."""
    if not isinstance(a, Poly) and not isinstance(b, Poly):
        return whole(a * b)
    if not isinstance(a, Poly):
        a, b = b, a
    assert isinstance(a, Poly)
    if not isinstance(b, Poly):
        factor = Fraction(b)  # the products and their order stay as they are
        return Poly(tuple((m, c * factor) for m, c in a.terms)) if factor else 0
    if len(a.terms) * len(b.terms) > MAX_PRODUCTS:
        raise TooLargeError(raising("expression"))
    terms: dict[Monomial, Fraction] = {}
    for m, c in a.terms:
        for n, d in b.terms:
            key = _times(m, n)
            terms[key] = terms.get(key, Fraction(0)) + c * d
    return _normal(terms)


def neg(a: Value) -> Value:
    return mul(a, -1)


def sub(a: Value, b: Value) -> Value:
    return add(a, neg(b))


def excess(a: Value, b: Value) -> int:
    """By how much `a` is more than `b`, where that is a whole number whatever the symbols are; else 0."""
    more = sub(a, b)
    return more if isinstance(more, int) and more > 0 else 0


def div(a: Value, b: Value) -> Value:
    """Exact division; raises ZeroDivisionError."""
    if not isinstance(b, Poly):
        if b == 0:
            raise ZeroDivisionError
        if isinstance(a, Poly):
            return mul(a, 1 / Fraction(b))
        if isinstance(a, float) or isinstance(b, float):
            return a / b
        return whole(Fraction(a) / Fraction(b))
    if a == b:
        return 1
    if len(b.terms) == 1:
        monomial, coefficient = b.terms[0]
        inverse = tuple((atom, -p) for atom, p in monomial)
        return mul(a, Poly(((inverse, 1 / coefficient),)))
    return mul(a, Poly(((((Opaque("sum", (b,)), -1),), Fraction(1)),)))


def floordiv(a: Value, b: Value) -> Value:
    """Division rounded down; raises ZeroDivisionError."""
    if isinstance(a, Poly) or isinstance(b, Poly):
        return floor(div(a, b))
    if b == 0:
        raise ZeroDivisionError
    return whole(a // b) if not isinstance(a, float) and not isinstance(b, float) else math.floor(a / b)


def with_symbol(value: Value, name: str, replacement: Value) -> Value:
    """The value with a symbol replaced by another value."""
    if not isinstance(value, Poly):
        return value
    total: Value = 0
    for monomial, coefficient in value.terms:
        term: Value = whole(coefficient)
        for atom, exponent in monomial:
            if isinstance(atom, Symbol):
                base = replacement if atom.name == name else of_atom(atom)
            else:
                base = _of_function(atom, [with_symbol(a, name, replacement) for a in atom.args])
            for _ in range(abs(exponent)):
                term = mul(term, base) if exponent > 0 else div(term, base)
        total = add(total, term)
    return total


def _of_function(atom: Opaque, args: list[Value]) -> Value:
    """What the function of an atom makes of other arguments."""
    if atom.function == "sum":
        return args[0]
    if atom.function == "pow":
        return power(*args)
    if atom.function == "floor":
        return floordiv(*args)
    return apply_function({"min": "minimum", "max": "maximum"}.get(atom.function, atom.function), *args)


def equal_where_whole(a: Value, b: Value) -> bool:
    """Whether two sizes are equal for every input for which b, such as `time / 4`, is whole."""
    if a == b:
        return True
    if not isinstance(b, Poly) or b.denominator == 1 or len(b.symbols) != 1:
        return False
    name = next(iter(b.symbols)).name
    multiple = mul(symbol(name), b.denominator)
    return with_symbol(a, name, multiple) == with_symbol(b, name, multiple)


def is_size_like(value: Value) -> bool:
    """Whether the value is a whole number whatever its symbols stand for."""
    if not isinstance(value, Poly):
        return isinstance(value, int)
    return value.denominator == 1 and all(_is_whole(m) for m, _ in value.terms)


def _is_whole(monomial: Monomial) -> bool:
    return all(p > 0 and _is_whole_atom(a) for a, p in monomial)


def _is_whole_atom(atom: Atom) -> bool:
    if isinstance(atom, Symbol):
        return atom.whole
    if atom.function == "pow":
        base, exponent = atom.args
        return is_size_like(base) and is_size_like(exponent) and is_above_zero(exponent)
    return atom.function in ("floor", "sign") or (
        atom.function in ("max", "min", "abs", "sum") and all(is_size_like(a) for a in atom.args)
    )


def is_above_zero(value: Value) -> bool:
    """Whether it is made of sizes, which are 1 at least, in a way that keeps it above zero."""
    if not isinstance(value, Poly):
        return value > 0
    return all(c > 0 and all(_is_atom_above_zero(a) for a, _ in m) for m, c in value.terms)


def _is_atom_above_zero(atom: Atom) -> bool:
    if isinstance(atom, Symbol):
        return atom.whole
    return atom.function == "min" and all(map(is_above_zero, atom.args))


def at_least_zero(value: Value | Atom) -> bool:
    """Whether it is surely not negative: sizes are 1 at least."""
    if isinstance(value, Symbol):
        return value.whole
    if isinstance(value, Opaque):
        if value.function in ("floor", "min", "sum"):
            return all(map(at_least_zero, value.args))
        return value.function in ("abs", "exp", "sqrt") or (
            value.function == "max" and any(map(at_least_zero, value.args))
        )
    if isinstance(value, Poly):
        return all(c > 0 and all(at_least_zero(a) for a, _ in m) for m, c in value.terms)
    return value >= 0


def mod(a: Value, b: Value) -> Value:
    if isinstance(a, Poly) or isinstance(b, Poly):
        return sub(a, mul(b, floordiv(a, b)))
    if b == 0:
        raise ZeroDivisionError
    return whole(a % b)


def floor(a: Value) -> Value:
    """The value rounded down, in one form: whole parts outside, what is left as `floor(above / below)`."""
    if not isinstance(a, Poly):
        return math.floor(a)
    counts = {m: Fraction(math.floor(c) if _is_whole(m) else 0) for m, c in a.terms}
    outside, within = _normal(counts), _normal({m: c - counts[m] for m, c in a.terms})
    if not isinstance(within, Poly):
        return add(outside, math.floor(within))
    above, below = _quotient(within)
    merged = _floor_of_floor(above, below) if isinstance(below, int) else None
    if merged is not None:
        return add(outside, merged)
    terms = _terms(above)
    constant = terms.pop((), Fraction(0))
    if isinstance(below, int) and all(map(_is_whole, terms)):  # (4 * time + 5) // 8 is (time + 1) // 2
        common = math.gcd(below, *(int(c) for c in terms.values()))
        terms[()] = Fraction(math.floor(constant / common) * common)
        above, below = div(_normal(terms), common), below // common
    return add(outside, opaque("floor", above, below))


def _quotient(value: Poly) -> tuple[Value, Value]:
    """The value as one quotient of two in which nothing is divided."""
    powers: dict[Atom, int] = {}
    for m, _ in value.terms:
        for atom, p in m:
            powers[atom] = max(powers.get(atom, 0), -p)
    above: Value = mul(value, value.denominator)
    below: Value = value.denominator
    for atom, p in powers.items():
        for _ in range(p):
            above = mul(above, of_atom(atom))
            below = mul(below, atom.args[0] if isinstance(atom, Opaque) and atom.function == "sum" else of_atom(atom))
    return above, below


def _floor_of_floor(above: Value, below: int) -> Value | None:
    """floor((floor(x) + n) / below) as floor((x + n) / below), for a whole n; None where it is nothing of the kind."""
    floors = [a for m, c in _terms(above).items() if c == 1 and len(m) == 1 for a, p in m if p == 1]
    atom = floors[0] if len(floors) == 1 else None
    if not isinstance(atom, Opaque) or atom.function != "floor":
        return None
    rest = sub(above, of_atom(atom))
    return floor(div(add(div(*atom.args), rest), below)) if isinstance(rest, int) else None


def ceil(a: Value) -> Value:
    """The value rounded up."""
    if isinstance(a, Poly):
        above, below = _quotient(a)
        if is_size_like(above) and is_size_like(below) and is_above_zero(below):
            return floor(div(add(above, sub(below, 1)), below))  # what is rounded stays above zero, as in the model
    return neg(floor(neg(a)))


def power(a: Value, b: Value) -> Value:
    """a ** b; raises TooLargeError where the result would be absurdly large, ValueError where it is not real."""
    if isinstance(a, Poly):
        if isinstance(b, int) and abs(b) <= 16:
            result: Value = 1
            for _ in range(abs(b)):
                result = within_limits(mul(result, a))
            return result if b >= 0 else div(1, result)
        return opaque("pow", a, b)
    if isinstance(b, Poly):
        return opaque("pow", a, b)
    if isinstance(b, int) and not isinstance(a, float):
        if b < 0 and a == 0:
            raise ZeroDivisionError
        base = Fraction(a)
        if (max(abs(base.numerator), base.denominator).bit_length() - 1) * abs(b) <= MAX_BITS:
            return whole(base**b)
        if base.denominator == 1 and b > 0:
            raise TooLargeError(raising("bits"))
    if b == 0:
        return 1
    result_float: float | complex = float(a) ** float(b)
    if isinstance(result_float, complex):
        raise ValueError
    exact = not isinstance(a, float) and not isinstance(b, float)
    if exact and result_float == int(result_float) and abs(result_float) < 2**52:
        # sqrt(768 * 768) and 256 ** 0.5 are whole, whatever the rounding of floats.
        root = int(result_float)
        if Fraction(root) ** (1 / Fraction(b)).limit_denominator(64) == a:
            return root
    return result_float


def apply_function(function: str, *args: Value) -> Value:
    """A function of numbers: sqrt exp log sin cos tanh abs sign floor ceil minimum maximum."""
    if function == "floor":
        return floor(args[0])
    if function == "ceil":
        return ceil(args[0])
    if any(isinstance(a, Poly) for a in args):
        if function in ("minimum", "maximum"):
            return opaque(function[:3], *sorted(args, key=str))  # the same whatever the order
        return opaque(function, *args)
    numbers: list[int | Fraction | float] = [a for a in args if not isinstance(a, Poly)]
    if function == "minimum":
        return min(numbers)
    if function == "maximum":
        return max(numbers)
    if function == "abs":
        first = numbers[0]
        return abs(first) if isinstance(first, float) else (-first if first < 0 else first)
    if function == "sign":
        return (numbers[0] > 0) - (numbers[0] < 0)
    if function == "sqrt":
        return power(numbers[0], Fraction(1, 2))
    result: float = getattr(math, function)(float(numbers[0]))
    return result


def evaluate(value: Value, sizes: Mapping[str, int]) -> int | Fraction | float:
    """The number that a value is once every symbol has a size."""
    if not isinstance(value, Poly):
        return value
    total: int | Fraction | float = 0
    for monomial, coefficient in value.terms:
        product: int | Fraction | float = coefficient
        for atom, exponent in monomial:
            if isinstance(atom, Symbol):
                base: Value = sizes[atom.name]
            else:
                base = _of_function(atom, [evaluate(a, sizes) for a in atom.args])
            assert not isinstance(base, Poly)
            product = product * base**exponent if exponent >= 0 else product / Fraction(base) ** -exponent
        total = total + product
    return whole_number(total)


# --- expressions in the names of a block ---------------------------------------------------------------------------


class Lit(Frozen):
    """A number as it was written."""

    text: str


class Var(Frozen):
    """A name of the enclosing block: a hyper-parameter, an axis, a `let`."""

    name: str


class Bin(Frozen):
    op: str
    left: Expr
    right: Expr

    @cached_property
    def weight(self) -> int:
        """How many numbers and names stand in it."""
        return _weight(self.left) + _weight(self.right)


class Fn(Frozen):
    name: str
    args: tuple[Expr, ...]

    @cached_property
    def weight(self) -> int:
        """How many numbers and names stand in it."""
        return sum(map(_weight, self.args))


Expr = Lit | Var | Bin | Fn


def _weight(expr: Expr) -> int:
    return expr.weight if isinstance(expr, Bin | Fn) else 1


def within_limits(value: Value, expr: Expr | None = None) -> Value:
    """The value again, or as a float. Raises TooLargeError where it has too many digits or terms, or its expression is
    too long."""
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise TooLargeError(raising("bits"))
    elif isinstance(value, Fraction):
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
            value = float(value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise TooLargeError("the largest float is 1.8e308")
    elif value.weight > MAX_EXPRESSION:
        raise TooLargeError(raising("expression"))
    if expr is not None and _weight(expr) > MAX_EXPRESSION:
        raise TooLargeError(raising("expression"))
    return value


def literal(value: int | Fraction | float) -> Lit | Bin:
    if isinstance(value, Fraction):
        as_float = float(value)
        if Fraction(repr(as_float)) == value:
            return Lit(repr(as_float))
        return Bin("/", Lit(str(value.numerator)), Lit(str(value.denominator)))
    if isinstance(value, int) and abs(value) >= 10_000:
        return Lit(f"{value:_}")
    return Lit(repr(value))


def substitute(expr: Expr, names: Mapping[str, Expr]) -> Expr:
    """The expression with names replaced: from a callee's names to its caller's."""
    if isinstance(expr, Var):
        return names.get(expr.name, expr)
    if isinstance(expr, Bin):
        left, right = substitute(expr.left, names), substitute(expr.right, names)
        if left is expr.left and right is expr.right:
            return expr
        if _weight(left) + _weight(right) > MAX_EXPRESSION:
            raise TooLargeError(raising("expression"))
        return _tidy(expr.op, left, right)
    if isinstance(expr, Fn):
        args = tuple(substitute(a, names) for a in expr.args)
        if all(new is old for new, old in zip(args, expr.args, strict=True)):
            return expr
        if sum(map(_weight, args)) > MAX_EXPRESSION:
            raise TooLargeError(raising("expression"))
        return Fn(expr.name, args)
    return expr


def negated(expr: Expr) -> Expr:
    """`-expr`"""
    if isinstance(expr, Lit):
        return Lit(expr.text[1:] if expr.text.startswith("-") else f"-{expr.text}")
    return Bin("*", Lit("-1"), expr)


def inner(expr: Expr) -> Iterator[Expr]:
    """Yield an expression and all that it is made of, in order of appearance."""
    yield expr
    for part in (expr.left, expr.right) if isinstance(expr, Bin) else expr.args if isinstance(expr, Fn) else ():
        yield from inner(part)


def free_names(expr: Expr) -> tuple[str, ...]:
    """Names in order of appearance, each once."""
    return tuple(dict.fromkeys(e.name for e in inner(expr) if isinstance(e, Var)))


def axis_name(tensor: str, axis: int) -> str:
    """Return what a size is called that has no name in a spec: the axis of a tensor."""
    return f"{tensor}.{axis}"


def axis_of(name: str) -> int | None:
    """Return the axis that such a name tells; None of a name that a spec can say."""
    axis = name.rpartition(".")[2]
    return int(axis) if axis != name else None


def is_sayable(expr: Expr) -> bool:
    """Whether a spec can say every name in an expression."""
    return all(axis_of(name) is None for name in free_names(expr))


def divides(expr: Expr) -> bool:
    """Whether there is a quotient in an expression."""
    return any(isinstance(e, Bin) and e.op == "/" for e in inner(expr))


def is_integral(expr: Expr, whole: Callable[[str], bool]) -> bool:
    """Whether an expression is an integer by the way it is made, whatever its names are worth: `2.5 * width` is one for
    some widths alone. `whole` says which names are integers."""

    def made(e: Expr) -> bool:
        if isinstance(e, Lit):
            return Fraction(e.text).denominator == 1
        if isinstance(e, Var):
            return whole(e.name)
        if isinstance(e, Fn):
            of_whole = e.name in ("minimum", "maximum", "abs")
            return e.name in ("floor", "ceil", "sign") or (of_whole and all(map(made, e.args)))
        if e.op == "**":
            return made(e.left) and isinstance(e.right, Lit) and e.right.text.isdecimal()
        return e.op == "//" or (e.op != "/" and made(e.left) and made(e.right))

    return made(expr)


PRECEDENCE = {"+": 60, "-": 60, "*": 70, "/": 70, "//": 70, "%": 70, "**": 90}
NEGATIVE = 80
"""How tightly the sign of a negative number binds."""


def expr_text(expr: Expr, above: int = 0, name: Callable[[str], str] = str) -> str:
    """The expression as text; parentheses only where the surrounding precedence `above` asks for them."""
    if isinstance(expr, Lit):
        return f"({expr.text})" if expr.text.startswith("-") and above > NEGATIVE else expr.text
    if isinstance(expr, Var):
        return name(expr.name)
    if isinstance(expr, Fn):
        return f"{expr.name}({', '.join(expr_text(a, 0, name) for a in expr.args)})"
    own = PRECEDENCE[expr.op]
    right_assoc = expr.op == "**"
    left = expr_text(expr.left, own + right_assoc, name)
    right = expr_text(expr.right, own + (not right_assoc), name)
    text = f"{left} {expr.op} {right}"
    return f"({text})" if own < above else text


@cache
def expr_value(expr: Expr, sizes: bool = False) -> Value:
    """The expression as a value over its own names, which may stand for any number: with `sizes`, for whole numbers
    from 1 on alone. Two expressions of equal values are equal whatever the names stand for, where both have a value."""
    if isinstance(expr, Lit):
        if expr.text in ("inf", "-inf"):
            return float(expr.text)
        return whole(Fraction(expr.text.replace("_", "")))
    if isinstance(expr, Var):
        return symbol(expr.name, whole=sizes)
    if isinstance(expr, Fn):
        return apply_function(expr.name, *(expr_value(a, sizes) for a in expr.args))
    return OPERATORS[expr.op](expr_value(expr.left, sizes), expr_value(expr.right, sizes))


def value_in(expr: Expr, names: Mapping[str, Value], known: dict[int, Value]) -> Value:
    """Evaluate an expression, given the values of its names; `known` collects those of its parts by their id. Raises
    KeyError, ArithmeticError, ValueError."""
    if isinstance(expr, Var):
        return names[expr.name]
    if isinstance(expr, Lit):
        return expr_value(expr)
    if id(expr) not in known:
        if isinstance(expr, Fn):
            value = apply_function(expr.name, *(value_in(a, names, known) for a in expr.args))
        else:
            value = OPERATORS[expr.op](value_in(expr.left, names, known), value_in(expr.right, names, known))
        known[id(expr)] = value
    return known[id(expr)]


OPERATORS: dict[str, Callable[[Value, Value], Value]] = {
    "+": add,
    "-": sub,
    "*": mul,
    "/": div,
    "//": floordiv,
    "%": mod,
    "**": power,
}


def shortest(expr: Expr, local: Mapping[str, Expr]) -> Expr:
    """`heads * head_dim` where `head_dim = width / heads` is simply `width`, and `2 * width / heads / 2` is `head_dim`;
    what gets no shorter stays as it was written."""
    try:
        value = _value_within(expr, local)
        if not isinstance(value, Poly):
            return literal(value)
        product = _product(value)
        if product is not None and (isinstance(product, Var) or _leaves(product) < _leaves(expr)):
            expr = product
        if not isinstance(expr, Var):
            return next((Var(n) for n, e in local.items() if _value_within(e, local) == value), expr)
    except (ArithmeticError, ValueError):
        pass
    return expr


def _value_within(expr: Expr, local: Mapping[str, Expr]) -> Value:
    """The value of an expression over names that are no others' result."""
    for _ in range(len(local) + 1):
        names = [n for n in free_names(expr) if n in local]
        if not names:
            break
        expr = substitute(expr, {n: local[n] for n in names})
    return expr_value(expr)


def _product(value: Poly) -> Expr | None:
    """A product of names, or one such product by another, as an expression; None of any other value."""
    if len(value.terms) > 1 or not all(isinstance(atom, Symbol) for atom, _ in value.terms[0][0]):
        return None
    monomial, factor = value.terms[0]
    if factor < 0:
        return None

    def written(number: int, powers: Iterable[tuple[Atom, int]]) -> Expr:
        parts: list[Expr] = [Var(str(atom)) for atom, power in powers for _ in range(power)]
        if number != 1 or not parts:
            parts.insert(0, literal(number))
        return reduce(lambda a, b: Bin("*", a, b), parts)

    above = written(factor.numerator, ((a, p) for a, p in monomial if p > 0))
    below = written(factor.denominator, ((a, -p) for a, p in monomial if p < 0))
    return above if below == Lit("1") else Bin("/", above, below)


def _leaves(expr: Expr) -> int:
    """How many names and numbers an expression is written with."""
    return sum(isinstance(e, Lit | Var) for e in inner(expr))


# --- numbers ---------------------------------------------------------------------------------------------------------


class Num(Entity):
    """A number of a spec. Compare `value`s; print `expr`s; blame `origin`s."""

    value: Value
    expr: Expr
    origin: Span | None = None

    @property
    def static(self) -> bool:
        """Whether the number is known before the model runs."""
        return not isinstance(self.value, Poly)

    @property
    def symbols(self) -> frozenset[Symbol]:
        """Every symbol that the number depends on."""
        return self.value.symbols if isinstance(self.value, Poly) else frozenset()

    def named(self, name: str) -> Num:
        """The same number under a name of its own."""
        return Num(self.value, Var(name), self.origin)

    def at(self, origin: Span | None) -> Num:
        return Num(self.value, self.expr, origin)

    def where(self, symbol: str, size: Value) -> Num:
        """The number where a symbol stands for that size; it is spelled as it was."""
        return Num(with_symbol(self.value, symbol, size), self.expr, self.origin)

    def outward(self, names: Mapping[str, Expr]) -> Num:
        """The same number in the caller's names."""
        expr = substitute(self.expr, names)
        return self if expr is self.expr else Num(self.value, expr, self.origin)

    def __int__(self) -> int:
        assert isinstance(self.value, int), self.value
        return self.value

    def __float__(self) -> float:
        assert not isinstance(self.value, Poly), self.value
        return float(self.value)

    def __str__(self) -> str:
        """The number in decimals: 1.5, not 3/2."""
        if not isinstance(self.value, Fraction | float):
            return str(self.value)
        number = f"{float(self.value):g}"
        return number if "." in number or "e" in number else repr(float(self.value))  # 2.0000001 is no 2


def num(value: int | Fraction | float) -> Num:
    """A number that was not written in the spec."""
    return Num(whole(value), literal(whole_number(value)))


def whole_number(value: int | Fraction | float) -> int | Fraction | float:
    result = whole(value)
    assert not isinstance(result, Poly)
    return result


def binary(op: str, a: Num, b: Num, origin: Span | None = None) -> Num:
    """Arithmetic of numbers; raises ZeroDivisionError, OverflowError, ValueError."""
    value = OPERATORS[op](a.value, b.value)
    expr = _tidy(op, a.expr, b.expr)
    return Num(within_limits(value, expr), expr, origin or a.origin or b.origin)


def _tidy(op: str, a: Expr, b: Expr) -> Expr:
    one, zero = Lit("1"), Lit("0")
    if op == "*" and one in (a, b):
        return b if a == one else a
    if op in ("/", "**") and b == one:
        return a
    if op in ("+", "-") and b == zero:
        return a
    if op == "+" and a == zero:
        return b
    if op == "+" and a == b and not isinstance(a, Lit):
        return Bin("*", Lit("2"), a)
    if (
        isinstance(a, Lit)
        and isinstance(b, Lit)
        and op in ("+", "-", "*")
        and a.text.isdecimal()
        and b.text.isdecimal()
    ):
        value = OPERATORS[op](int(a.text), int(b.text))
        if isinstance(value, int) and value >= 0:
            return literal(value)
    return Bin(op, a, b)


def function(name: str, args: Iterable[Num], origin: Span | None = None) -> Num:
    """A function of numbers; raises ValueError, OverflowError."""
    given = tuple(args)
    value, expr = apply_function(name, *(a.value for a in given)), Fn(name, tuple(a.expr for a in given))
    return Num(within_limits(value, expr), expr, origin)


def domain(function: str) -> str | None:
    """Return how the argument of a function of numbers compares to 0; None where it takes any."""
    return {"log": ">", "sqrt": ">="}.get(function)


def product(nums: Iterable[Num]) -> Num:
    result = num(1)
    for n in nums:
        result = binary("*", result, n)
    return result


Shape = tuple[Num, ...]


def shape_text(shape: Iterable[Num]) -> str:
    """`[batch, time, 768]`"""
    return f"[{', '.join(str(d) for d in shape)}]"


def same_shape(a: Shape, b: Shape) -> bool:
    return len(a) == len(b) and all(x.value == y.value for x, y in zip(a, b, strict=True))


def whole_axis(length: Num) -> tuple[Value, int]:
    """The axis of the model's inputs that a length is a part of, and how many of its positions go to one: `time / 4` is
    (time, 4)."""
    value = length.value
    if not isinstance(value, Poly) or len(value.symbols) != 1:
        return value, 1
    name = next(iter(value.symbols)).name
    axis = symbol(name)
    ratio = div(axis, value)
    if isinstance(ratio, int):
        return axis, ratio
    # ceil(time / 2) and the like: the same strided axis by another spelling.
    return next(((axis, step) for step in range(2, 65) if value == ceil(div(axis, step))), (value, 1))
