"""What a module computes of positions alone: masks and numbers in the language's words, confirmed by values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from sympy import S
from sympy.core.relational import Relational
from torch import Tensor, nn

from archdsl.interop.lift.elements import Elements, Formula, Where, axis, logical, negation
from archdsl.interop.lift.export import BATCH, TIME, Exported, Value
from archdsl.interop.lift.holes import binary, call, name
from archdsl.ir import masks
from archdsl.syntax import ast
from archdsl.syntax.ast import NOWHERE

HIDDEN = -1e4
"""A score that this or less is added to is not seen."""
LONGEST = 600
"""Positions at which values are computed to confirm a formula."""
FEW = (2, 3, 7, 33)
"""Lengths at which every value is computed."""


class Positions:
    """The values of a module's graph that depend on sizes and positions alone. `hints` are numbers of its
    configuration, by name, that a rope may be made of."""

    def __init__(self, exported: Exported, hints: Mapping[str, Any] | None = None) -> None:
        self.hints = _configured(exported.module) if hints is None else hints
        self.lengths = exported.lengths
        self.few = exported.lengths.among(FEW)
        self._constant: dict[Value, bool] = {}
        self._values: dict[tuple[Value, int, int], Tensor] = {}
        self._masks: dict[Value, ast.Expr | None] = {}
        self.elements = Elements()

    def constant(self, value: Value) -> bool:
        """Whether no input, no weight and no random number takes part in a value."""
        todo = [value]
        while todo:
            last = todo[-1]
            if last in self._constant:
                todo.pop()
                continue
            operands = list(last.operands())
            unknown = [v for v in operands if v not in self._constant]
            own = last.op not in ("input", "weight") and not _random(last)
            if own and unknown and all(self._constant.get(v, True) for v in operands):
                todo.extend(unknown)
                continue
            self._constant[last] = own and all(self._constant[v] for v in operands if v in self._constant)
        return self._constant[value]

    def at(self, value: Value, time: int, batch: int = 2) -> Tensor:
        """What a value is at these sizes; it is `constant`. Raises what the module's operators raise."""
        key = (value, time, batch)
        if key not in self._values:
            sizes = {BATCH: batch, TIME: time}
            found: dict[Value, Any] = {}
            todo = [value]
            with torch.no_grad():
                while todo:
                    last = todo[-1]
                    missing = [] if last in found else [v for v in last.operands() if v not in found]
                    todo.extend(missing)
                    if not missing:
                        found[todo.pop()] = _run(last, found, sizes)
            self._values[key] = found[value]
        return self._values[key]

    def computed(self, value: Value, times: Iterable[int]) -> Iterator[tuple[int, Tensor]]:
        """Yield these lengths with what a value is at each, but for those that are longer than a table which the module
        keeps."""
        for time in times:
            try:
                found = self.at(value, time)
            except (RuntimeError, IndexError):
                continue
            if value.shape[-1:] != (TIME,) or found.shape[-1] == time:
                yield time, found

    def formula(self, value: Value) -> Formula | None:
        """The element of a value as a formula of its axes' indices; None where an operator in it is not understood."""
        return self.elements.formula(value) if self.constant(value) else None

    def scalar(self, value: Value) -> float | int | bool | None:
        """The number that every element of a value is, whatever the sizes; None where there is no one number."""
        formula = self.formula(value)
        if formula is None or value.dtype is None or value.dtype.is_complex:
            return None
        if not (formula.is_number if not logical(formula) else formula in (S.true, S.false)):
            return None
        every: set[float | int | bool] = {n for _, x in self.computed(value, self.few) for n in x.flatten().tolist()}
        return every.pop() if len(every) == 1 else None

    def arange(self, value: Value) -> int | None:
        """n of a value [..., time] whose elements are n more than their positions."""
        formula = self.formula(value)
        last = len(value.shape) - 1
        if formula is None or value.shape[-1:] != (TIME,) or not (offset := formula - axis(last)).is_Integer:
            return None
        same = [bool((x == torch.arange(time) + int(offset)).all()) for time, x in self.computed(value, self.few)]
        return int(offset) if same and all(same) else None

    def vector(self, value: Value) -> ast.Expr | None:
        """A formula in `indices(n)` of n numbers that form a geometric or an arithmetic series, exact to float32."""
        formula = self.formula(value)
        if formula is None or len(value.shape) != 1 or not isinstance(value.shape[0], int) or formula.has(TIME, BATCH):
            return None
        found = self.at(value, self.few[0])
        return series(found.flatten().double()) if found.is_floating_point() else None

    # --- masks --------------------------------------------------------------------------------------------------------

    def mask(self, value: Value) -> ast.Expr | None:
        """The mask of [..., queries, keys] that is true where a key is seen, or 0 there and very negative elsewhere:
        read from its formula, and equal to what the algebra says at lengths around every number in it. None for
        anything else."""
        if value not in self._masks:
            self._masks[value] = self._mask(value)
        return self._masks[value]

    def _mask(self, value: Value) -> ast.Expr | None:
        formula = self.formula(value)
        seen = None if formula is None else _seen(formula)
        if seen is None or not value.shape:
            return None
        rank = len(value.shape)
        query, key = axis(rank - 2) if rank > 1 else S.Zero, axis(rank - 1)
        keys = value.shape[-1]
        queries = value.shape[-2] if rank > 1 else 1
        if seen != S.true and not ((keys == TIME or isinstance(keys, int)) and queries in (1, keys)):
            return None
        found = algebra(seen, query, key)
        if found is None:
            return None
        numbers = {abs(int(n)) for n in seen.atoms(sympy.Integer)} | {int(n.text) for n in _numbers(found)}
        lengths = self._lengths(numbers) if TIME in (keys, queries) else self.few[-1:]
        if not self._confirmed(value, found, lengths):
            return None
        beyond = [n for n in numbers if 2 * n + 1 > max(lengths)] if keys == TIME else []
        return found if _agree(seen, found, query, key, beyond) else None

    def _lengths(self, numbers: set[int]) -> list[int]:
        """Lengths around every number that the module can compute: a window shows beyond its width only."""
        around = {m for n in numbers for m in (n - 1, n, n + 1, 2 * n + 1)} | {*FEW}
        return self.lengths.among(m for m in around if FEW[0] <= m <= LONGEST)[:MOST_LENGTHS]

    def _confirmed(self, value: Value, mask: ast.Expr, lengths: Sequence[int]) -> bool:
        """Whether a value is what a mask says at each of these lengths, in every row of the batch and every head."""
        confirmed = False
        for _, x in self.computed(value, lengths):
            if x.is_floating_point():
                if not bool(((x == 0) | (x <= HIDDEN)).all()):
                    return False
                x = x == 0
            count = x.shape[-1]
            place = torch.arange(count)
            if not bool((x.bool() == holds(mask, place[:, None], place[None])[: max(x.shape[-2:-1], default=1)]).all()):
                return False
            confirmed = True
        return confirmed


MOST_LENGTHS = 24


def _configured(module: nn.Module) -> dict[str, Any]:
    """The settings of a module's configuration, those inside others too."""
    config: Any = getattr(module, "config", None)
    told = config.to_dict() if callable(getattr(config, "to_dict", None)) else getattr(config, "__dict__", {})
    found: dict[str, Any] = {}
    todo = [told]
    for settings in todo:
        todo += [v for v in settings.values() if isinstance(v, dict)]
        found = {**{k: v for k, v in settings.items() if isinstance(k, str)}, **found}
    return found


def _random(value: Value) -> bool:
    """Whether an operator draws numbers, or gives memory as it is found."""
    tags = getattr(value.call, "tags", ())
    return (
        torch.Tag.nondeterministic_seeded in tags
        or "dropout" in value.op
        or value.op.startswith(("empty", "new_empty"))
    )


def _run(value: Value, known: dict[Value, Any], sizes: dict[Any, int]) -> Any:
    if value.op == "constant":
        return value.tensor
    assert value.call is not None, value

    def filled(part: Any) -> Any:
        if isinstance(part, Value):
            return known[part]
        if isinstance(part, sympy.Basic):
            part = part.subs(sizes)
            return bool(part) if part in (S.true, S.false) else int(part) if part.is_integer else float(part)
        return type(part)(map(filled, part)) if isinstance(part, tuple | list) else part

    return value.call(*map(filled, value.args), **{k: filled(v) for k, v in value.options.items()})


def _seen(formula: Any) -> Any:
    """Where a mask lets a key be seen: of an additive one, where it is 0. None where it is neither."""
    if isinstance(formula, Where):
        yes, no = map(_seen, formula.args[1:])
        if yes is None or no is None:
            return None
        return sympy.Or(sympy.And(formula.args[0], yes), sympy.And(negation(formula.args[0]), no))
    if logical(formula):
        return formula
    if formula == 0:
        return S.true
    return S.false if formula.is_number and formula <= HIDDEN else None


# --- from conditions to the algebra -------------------------------------------------------------------------------


def joined(op: str, parts: Sequence[ast.Expr]) -> ast.Expr:
    found = parts[0]
    for part in parts[1:]:
        found = binary(op, found, part)
    return found


def complement(mask: ast.Expr) -> ast.Expr:
    inner = isinstance(mask, ast.Unary) and mask.op == "~"
    return mask.operand if inner else ast.Unary("~", mask, span=NOWHERE)  # type: ignore[union-attr]


def shortest(x: float, within: float) -> float | int:
    """The number of the fewest digits this near to x, of its size."""
    for digits in range(1, 17):
        near = float(f"{x:.{digits}g}")
        if abs(near - x) <= within * abs(x):
            return int(near) if near.is_integer() else near
    return x


SINGLE = 2e-6
"""How far numbers in float32 lie from the ones that they round, of their size."""


def series(x: Tensor) -> ast.Expr | None:
    """The formula of a series: `theta ** (-2 * indices(n) / dims)`, `2 ** (-8 * (indices(n) + 1) / n)`,
    `a * r ** indices(n)` or `a + d * indices(n)`; None for other numbers."""
    n = len(x)
    if n < 3 or not bool(x.isfinite().all()):
        return None
    place = torch.arange(n, dtype=torch.float64)
    index = call("indices", n)
    first, last = float(x[0]), float(x[-1])

    def fits(own: Tensor) -> bool:
        return torch.allclose(own, x, rtol=SINGLE, atol=0)

    if first * last > 0 and first != last:
        ratio = (last / first) ** (1 / (n - 1))
        theta = shortest(ratio**-n, SINGLE * n)
        if first == 1 and ratio < 1 and fits(theta ** (-2 * place / (2 * n))):
            return binary("**", theta, binary("/", binary("*", -2, index), 2 * n))
        if fits(2 ** (-8 * (place + 1) / n)):
            power = binary("/", binary("*", -8, binary("+", index, 1)), n)
            return binary("**", 2, power)
        near, step = shortest(first, SINGLE / 4), shortest(ratio, SINGLE / n)
        if fits(near * step**place):
            grown = binary("**", step, index)
            return grown if near == 1 else binary("*", near, grown)
    step = (last - first) / (n - 1)
    near, slope = shortest(first, SINGLE / 4) if first else 0, shortest(step, SINGLE / 4)
    if slope and torch.allclose(near + slope * place, x, rtol=SINGLE, atol=SINGLE * abs(step)):
        grown = binary("*", slope, index)
        return binary("+", near, grown) if near else grown
    return None


def algebra(condition: Any, query: Any, key: Any) -> ast.Expr | None:
    """The mask of a condition on the positions of a query and a key; None for one that the algebra has no word for, or
    that reads anything else."""
    if condition == S.true:
        return name("full")
    if isinstance(condition, sympy.And):
        return _all_of(condition.args, query, key)
    if isinstance(condition, sympy.Or):
        found, rest = _first_keys(condition.args, query, key)
        parts = [*(algebra(part, query, key) for part in rest), *found]
        return None if None in parts else joined("|", parts)  # type: ignore[arg-type]
    if not isinstance(condition, Relational) or not condition.free_symbols <= {query, key}:
        return None
    if isinstance(condition, sympy.Ne):
        inner = algebra(sympy.Eq(condition.lhs, condition.rhs), query, key)
        return None if inner is None else complement(inner)
    return _all_of([condition], query, key)


def _ordered(parts: Sequence[Any]) -> list[Any]:
    return sorted(parts, key=sympy.default_sort_key)


def _all_of(conditions: Sequence[Any], query: Any, key: Any) -> ast.Expr | None:
    """The mask where all conditions hold; those on the distance of query and key are one band."""
    low: Any = -math.inf
    high: Any = math.inf
    first, rest = _first_keys(list(map(negation, conditions)), query, key)
    others = list(map(complement, first))
    for condition in map(negation, rest):
        band = _distance(condition, query, key)
        if band is not None:
            low, high = max(low, band[0]), min(high, band[1])
            continue
        other = _single(condition, query, key) if isinstance(condition, Relational) else algebra(condition, query, key)
        if other is None:
            return None
        others.append(other)
    if low > high:
        return None
    stride = next((o for o in others if isinstance(o, ast.Call) and o.function == name("strided")), None)
    if stride is not None and low == -high and high < math.inf:
        step = int(stride.args[0].value.text.replace("_", ""))  # type: ignore[union-attr]
        others[others.index(stride)] = call("dilated", high // step + 1, step)
        return joined("&", others)
    return joined("&", [*_band(low, high), *others])


def _band(low: Any, high: Any) -> list[ast.Expr]:
    """low <= query - key <= high, as masks that all hold."""
    if low == -math.inf and high == math.inf:
        return []
    if high == math.inf:
        return [_at_least(low)]
    if low == -math.inf:
        return [complement(_at_least(high + 1))]
    if low > 0 or high < 0:
        return [_at_least(low), complement(_at_least(high + 1))]
    width = call("window", max(high, -low) + 1)
    if low == -high:
        return [width]
    if -low < high:
        return [_at_least(low), width]
    return [complement(_at_least(high + 1)), width]


def _at_least(n: int) -> ast.Expr:
    """query - key >= n."""
    if n == 0:
        return name("causal")
    if n == 1:
        return joined("&", [name("causal"), complement(call("window", 1))])
    if n > 0:
        return joined("&", [name("causal"), complement(call("window", n))])
    return joined("|", [name("causal"), call("window", 1 - n)])


def _distance(condition: Any, query: Any, key: Any) -> tuple[Any, Any] | None:
    """The least and the most that query - key may be, of a condition on that alone."""
    if not isinstance(condition, Relational):
        return None
    at_most = _at_most(condition)
    if at_most is None:
        return None
    x, n = at_most
    exactly = isinstance(condition, sympy.Eq)
    if isinstance(x, sympy.Abs):
        around = _linear(x.args[0], query, key)
        if exactly or around is None or around[0] != -around[1] or not around[0]:
            return None
        slope, offset = around[0], around[2]
        first, last = sorted(((-n - offset) / slope, (n - offset) / slope))
        return (sympy.ceiling(first), sympy.floor(last)) if n >= 0 else None
    line = _linear(x, query, key)
    if line is None or line[0] != -line[1] or not line[0]:
        return None
    bound = (n - line[2]) / line[0]
    if exactly:
        return (bound, bound) if bound.is_integer else None
    return (-math.inf, sympy.floor(bound)) if line[0] > 0 else (sympy.ceiling(bound), math.inf)


def _at_most(condition: Any) -> tuple[Any, Any] | None:
    """x and n of `x <= n` or `x == n`, as a condition on whole numbers says it; n is a number."""
    apart = sympy.expand(condition.lhs - condition.rhs)
    if isinstance(condition, sympy.Gt | sympy.Ge):
        apart = -apart
    elif not isinstance(condition, sympy.Lt | sympy.Le | sympy.Eq):
        return None
    if not apart.is_integer:
        return None
    if isinstance(condition, sympy.Lt | sympy.Gt):
        apart += 1
    n, x = apart.as_coeff_Add()
    factor, x = x.as_coeff_Mul()
    if isinstance(x, sympy.Abs) and factor > 0:
        return x, -n / factor if isinstance(condition, sympy.Eq) else sympy.floor(-n / factor)
    return x * factor, -n


def _linear(x: Any, query: Any, key: Any) -> tuple[Any, Any, Any] | None:
    """a, b and c of a * query + b * key + c."""
    a, b = x.coeff(query), x.coeff(key)
    c = sympy.expand(x - a * query - b * key)
    return (a, b, c) if c.is_number and a.is_number and b.is_number else None


def _below(condition: Any, symbol: Any, query: Any, key: Any) -> int | None:
    """n of `symbol < n`."""
    at_most = _at_most(condition) if isinstance(condition, Relational) else None
    line = None if at_most is None or isinstance(condition, sympy.Eq) else _linear(at_most[0], query, key)
    if line is None or at_most is None:
        return None
    own, other = (line[0], line[1]) if symbol == query else (line[1], line[0])
    return int(sympy.floor((at_most[1] - line[2]) / own)) + 1 if own > 0 and other == 0 else None


def _first_keys(conditions: Sequence[Any], query: Any, key: Any) -> tuple[list[ast.Expr], list[Any]]:
    """Of conditions of which one is to hold: `global(n)` for each `query < n` with its `key < n`, and the others."""
    rest = _ordered(conditions)
    queries = {n: c for c in rest if (n := _below(c, query, query, key)) is not None}
    keys = {n: c for c in rest if (n := _below(c, key, query, key)) is not None}
    both = sorted(queries.keys() & keys.keys())
    taken = [pair[n] for n in both for pair in (queries, keys)]
    return [call("global", n) for n in both], [c for c in rest if c not in taken]


def _single(condition: Any, query: Any, key: Any) -> ast.Expr | None:
    """The mask of a condition that is not one on the distance: on keys alone, on chunks, or on remainders."""
    if not condition.free_symbols <= {query, key}:
        return None
    if isinstance(condition, sympy.Ne):
        return algebra(condition, query, key)
    for word, other in ((False, condition), (True, negation(condition))):
        n = _below(other, key, query, key)
        if n is not None and n > 0:
            return complement(call("prefix", n)) if word else call("prefix", n)
    at_most = _at_most(condition)
    if at_most is None:
        return None
    x, n = at_most
    if isinstance(condition, sympy.Eq):
        if n == 0 and (step := _stride(x, query, key)):
            return call("strided", step)
        size = _chunk(x, query, key) or _chunk(-x, query, key)
        return call("chunked", size) if size and n == 0 else None
    for size, forward in ((_chunk(-x, query, key), True), (_chunk(x, query, key), False)):
        if not size or n not in (0, -1):
            continue  # forward: key // size <= query // size, or <
        causal, chunk = name("causal"), call("chunked", size)
        if forward:
            return joined("|", [causal, chunk]) if n == 0 else joined("&", [causal, complement(chunk)])
        return complement(joined("&", [causal, complement(chunk)]) if n == 0 else joined("|", [causal, chunk]))
    return None


def _chunk(x: Any, query: Any, key: Any) -> int | None:
    """c of query // c - key // c."""
    floors = x.atoms(sympy.floor)
    for f in floors:
        size = query / f.args[0]
        if size.is_Integer and x == sympy.floor(query / size) - sympy.floor(key / size):
            return int(size)
    return None


def _stride(x: Any, query: Any, key: Any) -> int | None:
    """Return n where a formula is 0 exactly if n divides query - key: the difference, or both, taken % n. Else None."""
    for found in x.atoms(sympy.Mod):
        step = found.args[1]
        ways = [sympy.Mod(query - key, step), sympy.Mod(key - query, step)]
        ways += [sympy.Mod(query, step) - sympy.Mod(key, step), sympy.Mod(key, step) - sympy.Mod(query, step)]
        if step.is_Integer and x in ways:
            return int(step)
    return None


# --- confirmed ----------------------------------------------------------------------------------------------------


def _numbers(mask: ast.Expr) -> Iterator[ast.Number]:
    yield from (node for node in ast.walk(mask) if isinstance(node, ast.Number))


def holds(mask: ast.Expr, query: Any, key: Any) -> Any:
    """Whether a mask of positions lets a query see a key; of tensors of positions, for each of them."""
    match mask:
        case ast.Name(id=word):
            return masks.holds(word, [], query, key) & (query == query)
        case ast.Call(function=ast.Name(id=word), args=args):
            return masks.holds(word, [int(a.value.text) for a in args], query, key) & (query == query)  # type: ignore[union-attr]
        case ast.Unary(operand=inner):
            return holds(inner, query, key) ^ True
    assert isinstance(mask, ast.Binary)
    a, b = holds(mask.left, query, key), holds(mask.right, query, key)
    return a & b if mask.op == "&" else a | b


def _agree(condition: Any, mask: ast.Expr, query: Any, key: Any, numbers: Sequence[int]) -> bool:
    """Whether a condition and a mask agree at pairs around large numbers, at which no tensor is computed."""
    places = {0, 1, *(m for n in numbers for m in (n - 1, n, n + 1, 2 * n, 2 * n + 1, 3 * n + 1))}
    return all(
        bool(condition.xreplace({query: sympy.Integer(q), key: sympy.Integer(k)})) == bool(holds(mask, q, k))
        for q in (sorted(places) if numbers else ())
        for k in sorted(places)
    )
