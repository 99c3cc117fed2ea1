"""The elements of tensors that are made of positions and sizes alone, as formulas of the axes' indices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import sympy
import torch
from sympy import S
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational
from sympy.logic.boolalg import BooleanAtom, BooleanFunction
from torch import Tensor

from archdsl.interop.lift.export import Size, Value

Formula = Any
"""An element: a number, or a Boolean, of `axis(0)`, `axis(1)`, ..., BATCH and TIME. Floats are exact rationals."""


class Unread(Exception):  # noqa: N818 - it says that there is no answer, and is always caught
    """A formula that this file cannot give."""


@cache
def axis(n: int) -> sympy.Symbol:
    """The index along axis n of a tensor, from 0."""
    return sympy.Symbol(f"i{n}", integer=True, nonnegative=True)


class Where(sympy.Function):  # type: ignore[misc]
    """`Where(condition, yes, no)` of two numbers."""

    @classmethod
    def eval(cls, condition: Any, yes: Any, no: Any) -> Any:
        if condition == S.true or yes == no:
            return yes
        if condition == S.false:
            return no
        first = _is_first(condition)  # `0 if i == 0 else i` is i
        if first is not None and no.xreplace({first: S.Zero}) == yes.xreplace({first: S.Zero}):
            return no
        return None

    def _eval_is_integer(self) -> bool | None:
        return all(a.is_integer for a in self.args[1:]) or None

    def _eval_is_nonnegative(self) -> bool | None:
        return all(a.is_nonnegative for a in self.args[1:]) or None

    def _eval_is_extended_real(self) -> bool | None:
        return all(a.is_extended_real for a in self.args[1:]) or None


def _is_first(condition: Any) -> sympy.Symbol | None:
    """The index i of the condition i < 1."""
    if not isinstance(condition, Relational) or len(condition.free_symbols) != 1:
        return None
    (symbol,) = condition.free_symbols
    rest = condition.lhs - condition.rhs
    at_zero = (isinstance(condition, sympy.Le | sympy.Eq) and rest == symbol) or (
        isinstance(condition, sympy.Lt) and rest == symbol - 1
    )
    return symbol if symbol.is_nonnegative and at_zero else None


def exact(number: Any) -> Any:
    """A number or a size as sympy has it, without rounding."""
    if isinstance(number, sympy.Basic):
        return number
    if isinstance(number, float):
        if number != number:
            raise Unread
        infinite = number in (float("inf"), float("-inf"))
        return sympy.sympify(number) if infinite else sympy.Rational(*number.as_integer_ratio())
    if isinstance(number, bool | int):
        return sympy.sympify(number)
    raise Unread


def logical(e: Any) -> bool:
    """Whether a formula is true or false, not a number."""
    return isinstance(e, Relational | BooleanFunction | BooleanAtom)


def negation(e: Any) -> Any:
    """Where a condition does not hold, with the negations inward."""
    if isinstance(e, sympy.And | sympy.Or):
        return (sympy.Or if isinstance(e, sympy.And) else sympy.And)(*map(negation, e.args))
    return sympy.Not(e)


def where(condition: Any, yes: Any, no: Any) -> Any:
    """The one or the other, of numbers or of Booleans."""
    if logical(yes) and logical(no):
        return sympy.Or(sympy.And(condition, yes), sympy.And(negation(condition), no))
    return Where(condition, numeric(yes), numeric(no))


def numeric(e: Any) -> Any:
    return Where(e, S.One, S.Zero) if logical(e) else e


def truth(e: Any) -> Any:
    return e if logical(e) else spread(lambda x: sympy.Ne(x, 0), e)


BRANCHES = 6
"""Nested choices that an operator is applied within; beyond, it is applied to the choice."""


def spread(f: Callable[..., Any], *args: Any) -> Any:
    """f of these, with choices taken first: `abs` of `x if c else y` is `abs(x) if c else abs(y)`."""
    if sum(a.count(Where) for a in args) > BRANCHES:
        return f(*args)
    for a in args:
        if isinstance(a, Where):
            taken = [
                spread(f, *(b.args[way] if isinstance(b, Where) and b.args[0] == a.args[0] else b for b in args))
                for way in (1, 2)
            ]
            return where(a.args[0], *taken)
    return f(*args)


def _compare(relation: Any) -> Callable[[Any, Any], Any]:
    def compared(a: Any, b: Any) -> Any:
        apart = a - b
        return relation(apart, 0) if apart.is_finite else relation(a, b)

    return compared


def _log(base: int) -> Callable[[Any], Any]:
    return lambda x: sympy.log(x) / sympy.log(base)


def _ceil(x: Any) -> Any:
    return -sympy.floor(-x)


def _trunc(x: Any) -> Any:
    if x.is_integer:
        return x
    return sympy.floor(x) if x.is_nonnegative else Where(x >= 0, sympy.floor(x), _ceil(x))


def _divided(a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    return {None: lambda x: x, "floor": sympy.floor, "trunc": _trunc}[rounding_mode](a / b)


def _greater(a: Any, b: Any) -> Any:
    return where(_compare(sympy.Ge)(a, b), a, b)


def _lesser(a: Any, b: Any) -> Any:
    return where(_compare(sympy.Le)(a, b), a, b)


NUMBERS: Mapping[str, Callable[..., Any]] = {
    "neg": lambda x: -x,
    "abs": sympy.Abs,
    "exp": sympy.exp,
    "exp2": lambda x: 2**x,
    "log": sympy.log,
    "log2": _log(2),
    "log10": _log(10),
    "log1p": lambda x: sympy.log(1 + x),
    "sqrt": sympy.sqrt,
    "rsqrt": lambda x: 1 / sympy.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "square": lambda x: x**2,
    "sin": sympy.sin,
    "cos": sympy.cos,
    "floor": sympy.floor,
    "ceil": _ceil,
    "trunc": _trunc,
    "sign": sympy.sign,
    "add": lambda a, b, alpha=1: a + exact(alpha) * b,
    "sub": lambda a, b, alpha=1: a - exact(alpha) * b,
    "rsub": lambda a, b, alpha=1: b - exact(alpha) * a,
    "mul": lambda a, b: a * b,
    "div": _divided,
    "true_divide": _divided,
    "floor_divide": lambda a, b: sympy.floor(a / b),
    "remainder": sympy.Mod,
    "pow": lambda a, b: a**b,
    "maximum": _greater,
    "minimum": _lesser,
    "polar": lambda r, angle: r * sympy.exp(S.ImaginaryUnit * angle),
    **{name: _compare(getattr(sympy, name.title())) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
}
"""Operators on numbers, element by element."""
TRUTHS: Mapping[str, Callable[..., Any]] = {
    f"{before}{name}{after}": f
    for name, f in {"and": sympy.And, "or": sympy.Or, "xor": sympy.Xor, "not": negation}.items()
    for before, after in (("__", "__"), ("bitwise_", ""), ("logical_", ""))
    if (before, name) != ("__", "not")
}
"""Operators on truth values; where the operands are whole numbers, `bitwise_and` is none."""
SAME = frozenset(
    [
        "to",
        "_to_copy",
        "clone",
        "contiguous",
        "detach",
        "alias",
        "lift_fresh_copy",
        "type_as",
        "positive",
        "expand",
        "expand_as",
        "broadcast_to",
    ]
)
"""Operators whose elements are those of their operand, in the same order."""
RESHAPES = frozenset(
    [
        "view",
        "view_as",
        "reshape",
        "reshape_as",
        "_unsafe_view",
        "flatten",
        "unflatten",
        "ravel",
        "unsqueeze",
        "squeeze",
    ]
)


class Elements:
    """Formulas of values, each found once."""

    def __init__(self) -> None:
        self._known: dict[Value, Formula | None] = {}
        self.tensors: list[Tensor] = []
        """Those that formulas read: `constant0[i]` is an element of the first."""

    def formula(self, value: Value) -> Formula | None:
        """The element of a value of positions, or None where an operator in it is not understood."""
        todo = [value]
        while todo:
            last = todo[-1]
            missing = [] if last in self._known else [v for v in last.operands() if v not in self._known]
            if missing:
                todo.extend(missing)
                continue
            todo.pop()
            if last not in self._known:
                self._known[last] = self._found(last)
        return self._known[value]

    def _found(self, value: Value) -> Formula | None:
        index = [S.Zero if size == 1 else axis(n) for n, size in enumerate(value.shape)]
        try:
            found = self._made(value, index)
        except (Unread, ValueError, TypeError, IndexError, AttributeError, KeyError, ZeroDivisionError):
            return None
        found = truth(found) if value.dtype == torch.bool else numeric(found)
        for n, size in enumerate(value.shape):
            if isinstance(size, int) and size > 1:  # an index is less than its axis is long
                found = replaced(found, {sympy.Mod(axis(n), size): axis(n), sympy.floor(axis(n) / size): S.Zero})
        if value.dtype is not None and not value.dtype.is_floating_point and not value.dtype.is_complex:
            found = found if logical(found) else spread(_trunc, found)
        return None if found.has(S.NaN, S.ComplexInfinity) or found.count_ops() > MOST else found

    def element(self, read: Any) -> Any:
        """What a reading of a constant tensor gives, at numbers."""
        tensor = self.tensors[int(str(read.func).removeprefix(READ))]
        return exact(tensor[tuple(map(int, read.args))].item())

    def table(self, formula: Any, row: Any, column: Any, columns: int) -> tuple[Tensor, int] | None:
        """The rows [n, columns] from the first that is read on, and its place, of a formula that is nothing but a
        reading of a constant tensor along `row`."""
        if not isinstance(formula, AppliedUndef):
            return None
        tensor = self.tensors[int(str(formula.func).removeprefix(READ))]
        along = [n for n, a in enumerate(formula.args) if a.has(row)]
        if len(along) != 1 or not (formula.args[along[0]] - row).is_Integer:
            return None
        first = int(formula.args[along[0]] - row)
        places = [[a.xreplace({column: sympy.Integer(j)}) for a in formula.args] for j in range(columns)]
        own = [tuple(slice(first, None) if n == along[0] else int(a) for n, a in enumerate(p)) for p in places]
        return torch.stack([tensor[p].double() for p in own], -1), first

    def at(self, operand: Any, index: Sequence[Any]) -> Any:
        """The element of an operand at these indices, of which the last are for its axes; an axis of one element is
        stretched. Raises Unread."""
        if not isinstance(operand, Value):
            return exact(operand)
        found = self._known.get(operand)
        rank = len(operand.shape)
        if found is None or rank > len(index):
            raise Unread
        own = index[len(index) - rank :]
        places = {axis(n): S.Zero if size == 1 else own[n] for n, size in enumerate(operand.shape)}
        return replaced(found, places)

    def _made(self, value: Value, i: list[Any]) -> Any:
        op, args, options = value.op, value.args, value.options
        if op == "constant":
            return self._constant(value.tensor, i)
        if op in SAME:
            return self.at(args[0], i)
        if op in RESHAPES:
            return self.at(args[0], before(args[0].shape, value.shape, i))
        if op in NUMBERS:
            own = {k: v for k, v in options.items() if k in ("alpha", "rounding_mode")}
            operands = [numeric(self.at(a, i)) for a in args]
            return spread(lambda *numbers: NUMBERS[op](*numbers, **own), *operands)
        if op in TRUTHS:
            operands = [self.at(a, i) for a in args]
            if not op.startswith("logical") and any(not logical(a) for a in operands):
                raise Unread
            return TRUTHS[op](*map(truth, operands))
        return OPERATORS[op](self, value, i, *args, **{k: v for k, v in options.items() if k not in PLACEMENT})

    def _constant(self, tensor: Tensor | None, i: list[Any]) -> Any:
        """A number, a line, a band along the diagonal, where all of the tensor is that; else a reading of it."""
        if tensor is None or tensor.is_complex() or tensor.numel() == 0 or tensor.is_meta:
            raise Unread
        x = tensor.detach()
        i = list(i)
        for n, size in enumerate(x.shape):
            if size > 1 and bool((x == x.narrow(n, 0, 1)).all()):
                x, i[n] = x.narrow(n, 0, 1), S.Zero
        moving = [n for n, size in enumerate(x.shape) if size > 1]
        flat = x.squeeze()
        if not moving:
            return exact(flat.item())
        if not x.is_floating_point() and x.dtype != torch.bool and (found := _line(flat.long())) is not None:
            return found[0] + sum(step * i[n] for step, n in zip(found[1:], moving, strict=True))
        first = flat.flatten()[0]
        others = flat[flat != first]
        if len(moving) <= 2 and bool((others == others[0]).all()):
            row = i[moving[0]] if len(moving) == 2 else S.Zero
            inside = _band(flat == first if len(moving) == 2 else (flat == first)[None])
            if inside is not None:
                return where(_between(i[moving[-1]] - row, *inside), exact(first.item()), exact(others[0].item()))
        self.tensors.append(tensor)
        kind = {"integer": True} if not x.is_floating_point() else {"real": True}
        return sympy.Function(f"{READ}{len(self.tensors) - 1}", **kind)(*i)


PLACEMENT = ("dtype", "device", "layout", "pin_memory", "memory_format")
READ = "constant"
MOST = 2000
"""Operations of the longest formula that is kept."""


def replaced(formula: Any, places: Mapping[Any, Any]) -> Any:
    """A formula at other indices, evaluated again."""
    moved = {a: b for a, b in places.items() if a != b}
    return formula.xreplace(moved) if moved else formula


def before(inner: Sequence[Size], outer: Sequence[Size], index: Sequence[Any]) -> list[Any]:
    """The index of an element before a reshape, from its index after it. Raises Unread."""
    found = [S.Zero] * len(inner)
    ours = [n for n, size in enumerate(inner) if size != 1]
    theirs = [n for n, size in enumerate(outer) if size != 1]
    a = b = 0
    while a < len(ours) or b < len(theirs):
        first, start = a, b
        left = right = S.One
        while a == first or sympy.expand(left - right) != 0:  # the least runs of axes that hold the same elements
            if a < len(ours) and (a == first or _divides(left, right)):
                left, a = left * inner[ours[a]], a + 1
            elif b < len(theirs):
                right, b = right * outer[theirs[b]], b + 1
            else:
                raise Unread
        flat = S.Zero
        for n in theirs[start:b]:
            flat = flat * outer[n] + index[n]
        stride = S.One
        for n in reversed(ours[first:a]):
            part = flat if stride == 1 else sympy.floor(flat / stride)
            found[n] = part if n == ours[first] else sympy.Mod(part, inner[n])
            stride *= inner[n]
    return found


def _divides(a: Any, b: Any) -> bool:
    """Whether b holds a as a factor, and is more."""
    rest = sympy.cancel(b / a)
    return rest != 1 and bool(rest.is_integer)


def _line(x: Tensor) -> list[int] | None:
    """Start and steps along each axis of a tensor of whole numbers that grows evenly."""
    start = int(x.flatten()[0])
    steps = [int(x.select(n, 1).flatten()[0]) - start for n in range(x.dim())]
    line = torch.tensor(start)
    for n, step in enumerate(steps):
        line = line + step * torch.arange(x.shape[n]).view(-1, *[1] * (x.dim() - n - 1))
    return [start, *steps] if bool((x == line).all()) else None


def _band(x: Tensor) -> tuple[int | None, int | None] | None:
    """The least and the most of column - row where a matrix is true, None where there is no bound; None for a matrix
    that is not such a band, or empty, or whole."""
    if not bool((x[1:, 1:] == x[:-1, :-1]).all()):
        return None
    diagonals = torch.cat([x[:, 0].flip(0), x[0, 1:]])  # of column - row from 1 - rows on
    inside = diagonals.nonzero().flatten()
    first, last = int(inside[0]), int(inside[-1])
    if last - first + 1 != len(inside) or len(inside) == len(diagonals):
        return None
    lowest = 1 - x.shape[0]
    return first + lowest if first else None, last + lowest if last < len(diagonals) - 1 else None


def _between(x: Any, low: int | None, high: int | None) -> Any:
    parts = [] if low is None else [sympy.Ge(x, low)]
    return sympy.And(*parts, *([] if high is None else [sympy.Le(x, high)]))


Operator = Callable[..., Any]
OPERATORS: dict[str, Operator] = {}


def operator(*names: str) -> Callable[[Operator], Operator]:
    def kept(f: Operator) -> Operator:
        OPERATORS.update(dict.fromkeys(names, f))
        return f

    return kept


def _place(n: int, rank: int) -> int:
    return n + rank if n < 0 else n


def _moved(i: Sequence[Any], n: Any, to: Any) -> list[Any]:
    """An index with another place along axis n."""
    n = _place(n, len(i))
    return [*i[:n], to, *i[n + 1 :]]


# --- what is made of numbers --------------------------------------------------------------------------------------


@operator("arange")
def _arange(e: Elements, value: Value, i: list[Any], *bounds: Any, start: Any = 0, step: Any = 1, **_: Any) -> Any:
    start = bounds[0] if len(bounds) > 1 else start
    step = bounds[2] if len(bounds) > 2 else step
    return exact(start) + exact(step) * i[0]


@operator("linspace")
def _linspace(e: Elements, value: Value, i: list[Any], start: Any, end: Any, steps: Any, **_: Any) -> Any:
    return exact(start) + (exact(end) - exact(start)) * i[0] / (exact(steps) - 1)


@operator("full", "full_like", "new_full")
def _full(e: Elements, value: Value, i: list[Any], *args: Any, fill_value: Any = None, **_: Any) -> Any:
    return e.at(args[-1] if fill_value is None else fill_value, i)


@operator("ones", "ones_like", "new_ones")
def _ones(e: Elements, value: Value, i: list[Any], *_: Any, **__: Any) -> Any:
    return S.One


@operator("zeros", "zeros_like", "new_zeros")
def _zeros(e: Elements, value: Value, i: list[Any], *_: Any, **__: Any) -> Any:
    return S.Zero


@operator("scalar_tensor")
def _scalar(e: Elements, value: Value, i: list[Any], number: Any, **_: Any) -> Any:
    return exact(number)


@operator("eye")
def _eye(e: Elements, value: Value, i: list[Any], *_: Any, **__: Any) -> Any:
    return numeric(sympy.Eq(i[0] - i[1], 0))


# --- what moves elements ------------------------------------------------------------------------------------------


@operator("transpose", "swapaxes", "swapdims")
def _transpose(e: Elements, value: Value, i: list[Any], x: Value, a: int, b: int) -> Any:
    a, b = _place(a, len(i)), _place(b, len(i))
    return e.at(x, [i[{a: b, b: a}.get(n, n)] for n in range(len(i))])


@operator("t", "numpy_T", "mT")
def _t(e: Elements, value: Value, i: list[Any], x: Value) -> Any:
    return e.at(x, [*i[:-2], *i[-2:][::-1]])


@operator("permute")
def _permute(e: Elements, value: Value, i: list[Any], x: Value, order: Sequence[int]) -> Any:
    places = {_place(n, len(i)): i[k] for k, n in enumerate(order)}
    return e.at(x, [places[n] for n in range(len(i))])


@operator("slice")
def _slice(
    e: Elements, value: Value, i: list[Any], x: Value, n: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    n = _place(n, len(i))
    first = exact(start or 0)
    if first.is_negative:
        first += x.shape[n]
        first = first if first.is_nonnegative else sympy.Max(0, first)
    return e.at(x, _moved(i, n, first + step * i[n] if value.shape[n] != 1 else first))


@operator("narrow")
def _narrow(e: Elements, value: Value, i: list[Any], x: Value, n: int, start: Any, length: Any) -> Any:
    return _slice(e, value, i, x, n, start)


@operator("select")
def _select(e: Elements, value: Value, i: list[Any], x: Value, n: int, place: Any) -> Any:
    n, at = _place(n, len(x.shape)), exact(place)
    return e.at(x, [*i[:n], at + x.shape[n] if at.is_negative else at, *i[n:]])


@operator("flip")
def _flip(e: Elements, value: Value, i: list[Any], x: Value, axes: Sequence[int]) -> Any:
    turned = {_place(n, len(i)) for n in axes}
    return e.at(x, [x.shape[n] - 1 - place if n in turned else place for n, place in enumerate(i)])


@operator("roll")
def _roll(e: Elements, value: Value, i: list[Any], x: Value, by: Sequence[int], axes: Sequence[int] = ()) -> Any:
    if len(axes) != len(by):
        raise Unread
    for n, step in zip(axes, by, strict=True):
        place = _place(n, len(i))
        i = _moved(i, place, sympy.Mod(i[place] - exact(step), x.shape[place]))
    return e.at(x, i)


@operator("repeat", "tile")
def _repeat(e: Elements, value: Value, i: list[Any], x: Value, times: Sequence[Any]) -> Any:
    own = i[len(i) - len(x.shape) :]
    times = [1] * (len(x.shape) - len(times)) + list(times)[-len(x.shape) :] if x.shape else []
    return e.at(x, [p if t == 1 else sympy.Mod(p, size) for p, size, t in zip(own, x.shape, times, strict=True)])


@operator("repeat_interleave")
def _interleave(e: Elements, value: Value, i: list[Any], x: Value, times: Any, n: int | None = None, **_: Any) -> Any:
    if not isinstance(times, int) or (n is None and len(x.shape) != 1):
        raise Unread
    n = _place(n or 0, len(i))
    return e.at(x, _moved(i, n, sympy.floor(i[n] / times)))


@operator("cat", "concat", "concatenate")
def _cat(e: Elements, value: Value, i: list[Any], parts: Sequence[Value], n: int = 0) -> Any:
    n = _place(n, len(i))
    if all(p is parts[0] for p in parts):
        return e.at(parts[0], _moved(i, n, sympy.Mod(i[n], parts[0].shape[n])))
    ends = list(accumulate(p.shape[n] for p in parts))
    starts = [S.Zero, *ends]
    found = e.at(parts[-1], _moved(i, n, i[n] - starts[len(parts) - 1]))
    for part, start, end in reversed(list(zip(parts[:-1], starts, ends, strict=False))):
        found = where(sympy.Lt(i[n], end), e.at(part, _moved(i, n, i[n] - start)), found)
    return found


@operator("stack")
def _stack(e: Elements, value: Value, i: list[Any], parts: Sequence[Value], n: int = 0) -> Any:
    n = _place(n, len(i))
    rest = [*i[:n], *i[n + 1 :]]
    found = e.at(parts[-1], rest)
    for k in reversed(range(len(parts) - 1)):
        found = where(sympy.Eq(i[n], k), e.at(parts[k], rest), found)
    return found


@operator("item")
def _item(e: Elements, value: Value, i: list[Any], whole: Value, k: int) -> Any:
    x, how, *axes = whole.args
    n = _place(axes[0] if axes else whole.options.get("dim", 0), len(x.shape))
    if whole.op in ("split", "split_with_sizes") and not isinstance(how, int):
        start = sum(how[:k])
    elif whole.op in ("split", "chunk"):
        start = k * (how if whole.op == "split" else _ceil(exact(x.shape[n]) / how))
    else:
        raise Unread
    return e.at(x, _moved(i, n, i[n] + start))


@operator("split", "split_with_sizes", "chunk")
def _first(e: Elements, value: Value, i: list[Any], *_: Any, **__: Any) -> Any:
    raise Unread  # several results, of which `item` takes one


@operator("index")
def _index(e: Elements, value: Value, i: list[Any], x: Value, places: Sequence[Value | None]) -> Any:
    given = [n for n, p in enumerate(places) if p is not None]
    if given != list(range(given[0], given[-1] + 1)):
        raise Unread  # whose axes come first
    rank = max(len(p.shape) for p in places if p is not None)
    own = i[given[0] : given[0] + rank]
    read = [_from_start(e.at(places[n], own), x.shape[n]) for n in given]
    return e.at(x, [*i[: given[0]], *read, *i[given[0] + rank :]])


def _from_start(place: Any, size: Size) -> Any:
    """An index that may count from the end."""
    if logical(place):
        raise Unread
    return place if place.is_nonnegative else spread(lambda p: where(sympy.Lt(p, 0), p + size, p), place)


@operator("index_select")
def _index_select(e: Elements, value: Value, i: list[Any], x: Value, n: int, places: Value) -> Any:
    return e.at(x, _moved(i, n, e.at(places, [i[n]])))


@operator("embedding")
def _embedding(e: Elements, value: Value, i: list[Any], table: Value, places: Value, *_: Any) -> Any:
    return e.at(table, [e.at(places, i[:-1]), i[-1]])


@operator("gather")
def _gather(e: Elements, value: Value, i: list[Any], x: Value, n: int, places: Value, **_: Any) -> Any:
    return e.at(x, _moved(i, n, e.at(places, i)))


# --- what chooses, and what sums ----------------------------------------------------------------------------------


@operator("where")
def _where(e: Elements, value: Value, i: list[Any], condition: Value, yes: Any, no: Any) -> Any:
    return where(truth(e.at(condition, i)), e.at(yes, i), e.at(no, i))


@operator("masked_fill")
def _masked_fill(e: Elements, value: Value, i: list[Any], x: Value, mask: Value, fill: Any) -> Any:
    return where(truth(e.at(mask, i)), e.at(fill, i), e.at(x, i))


@operator("tril", "triu")
def _triangle(e: Elements, value: Value, i: list[Any], x: Value, diagonal: int = 0) -> Any:
    relation = sympy.Le if value.op == "tril" else sympy.Ge
    kept = e.at(x, i)
    none = S.false if logical(kept) else S.Zero
    return where(relation(i[-1] - i[-2] - diagonal, 0), kept, none)


@operator("clamp", "clip", "clamp_min", "clamp_max")
def _clamp(e: Elements, value: Value, i: list[Any], x: Value, low: Any = None, high: Any = None, **bounds: Any) -> Any:
    low, high = (None, low) if value.op == "clamp_max" else (bounds.get("min", low), bounds.get("max", high))
    found = e.at(x, i)
    found = found if low is None else spread(_greater, found, e.at(low, i))
    return found if high is None else spread(_lesser, found, e.at(high, i))


@operator("diff")
def _diff(
    e: Elements, value: Value, i: list[Any], x: Value, times: int = 1, n: int = -1,
    prepend: Value | None = None, append: Value | None = None,
) -> Any:  # fmt: skip
    if times != 1 or append is not None or (prepend is not None and prepend.shape[n] != 1):
        raise Unread
    n = _place(n, len(i))
    if prepend is None:
        return spread(lambda a, b: a - b, numeric(e.at(x, _moved(i, n, i[n] + 1))), numeric(e.at(x, i)))
    earlier = where(sympy.Lt(i[n], 1), numeric(e.at(prepend, i)), numeric(e.at(x, _moved(i, n, i[n] - 1))))
    return spread(lambda a, b: a - b, numeric(e.at(x, i)), earlier)


@operator("cumsum")
def _cumsum(e: Elements, value: Value, i: list[Any], x: Value, n: int, **_: Any) -> Any:
    n = _place(n, len(i))
    step = numeric(e.at(x, i))
    if step.has(axis(n)):
        raise Unread
    return spread(lambda s: s * (i[n] + 1), step)


@operator("sum", "mean", "amax", "amin", "max", "min", "all", "any")
def _reduce(
    e: Elements, value: Value, i: list[Any], x: Value, axes: Any = None, keep: bool = False, **more: Any
) -> Any:
    if isinstance(axes, Value):
        return spread(_greater if value.op == "max" else _lesser, e.at(x, i), e.at(axes, i))
    if value.results > 1:
        raise Unread
    keep, axes = more.get("keepdim", keep), more.get("dim", axes)
    rank = len(x.shape)
    gone = range(rank) if axes in (None, []) else [_place(n, rank) for n in ([axes] if isinstance(axes, int) else axes)]
    kept = iter(i)
    own = []
    for n in range(rank):
        if n in gone:
            own.append(axis(rank + n))
            if keep:
                next(kept)
        else:
            own.append(next(kept))
    found = e.at(x, own)
    for n in gone:
        if found.has(own[n]):
            found = _extreme(found, own[n], x.shape[n], value.op)
        elif value.op == "sum":
            found = numeric(found) * x.shape[n]
    return found


def _extreme(e: Any, symbol: Any, size: Size, op: str) -> Any:
    """The largest or least of what grows or falls evenly with an index."""
    slope = sympy.expand(e - e.xreplace({symbol: symbol - 1}))
    if op not in ("amax", "amin", "max", "min") or not slope.is_number:
        raise Unread
    return e.xreplace({symbol: size - 1 if (slope > 0) == (op in ("amax", "max")) else S.Zero})


@operator("matmul", "bmm", "mm")
def _matmul(e: Elements, value: Value, i: list[Any], a: Value, b: Value) -> Any:
    if min(len(a.shape), len(b.shape)) < 2:
        raise Unread
    return _sum(lambda k: (e.at(a, [*i[:-1], k]), e.at(b, [*i[:-2], k, i[-1]])), a.shape[-1])


def _sum(terms: Callable[[Any], tuple[Any, ...]], size: Size) -> Any:
    if not isinstance(size, int) or size > 8:
        raise Unread
    return sum(spread(lambda *x: sympy.Mul(*x), *map(numeric, terms(sympy.Integer(k)))) for k in range(size))


@operator("outer", "ger")
def _outer(e: Elements, value: Value, i: list[Any], a: Value, b: Value) -> Any:
    return spread(lambda x, y: x * y, numeric(e.at(a, [i[0]])), numeric(e.at(b, [i[1]])))


@operator("einsum")
def _einsum(e: Elements, value: Value, i: list[Any], equation: str, operands: Sequence[Value], **_: Any) -> Any:
    inputs, wanted = equation.replace(" ", "").split("->")
    names = inputs.split(",")
    sizes = {c: size for word, v in zip(names, operands, strict=True) for c, size in zip(word, v.shape, strict=True)}
    summed = [c for c in sizes if c not in wanted]
    if "." in equation or len(summed) > 1:
        raise Unread
    places = dict(zip(wanted, i, strict=True))

    def terms(k: Any) -> tuple[Any, ...]:
        own = places | dict.fromkeys(summed, k)
        return tuple(e.at(v, [own[c] for c in word]) for word, v in zip(names, operands, strict=True))

    return _sum(terms, sizes[summed[0]] if summed else 1)


@operator("view_as_real")
def _view_as_real(e: Elements, value: Value, i: list[Any], x: Value) -> Any:
    size, angle = polar(e.at(x, i[:-1]))
    return Where(sympy.Eq(i[-1], 0), size * sympy.cos(angle), size * sympy.sin(angle))


@operator("real", "imag")
def _part(e: Elements, value: Value, i: list[Any], x: Value) -> Any:
    size, angle = polar(e.at(x, i))
    return size * (sympy.cos if value.op == "real" else sympy.sin)(angle)


def polar(e: Any) -> tuple[Any, Any]:
    """The size and the angle of a complex number that `polar` made. Raises Unread."""
    size, turned = e.as_independent(sympy.exp, as_Add=False)
    if not isinstance(turned, sympy.exp) or size.has(S.ImaginaryUnit):
        raise Unread
    return size, sympy.expand(turned.exp / S.ImaginaryUnit)
