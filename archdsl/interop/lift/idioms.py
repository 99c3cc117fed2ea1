"""What several operations say together: a table of patterns and of the words that replace them.

Both sides are expressions of the language. In a pattern a name stands for anything, the same wherever it occurs; a
number for itself; `also: o` for all options that are not written. Casts between real types are looked through, since
the words compute in float32 by themselves. A row may ask more of what its names stand for, and name more for the
right side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache, partial, reduce
from typing import Any, NamedTuple

import torch

from archdsl.diagnostics.source import Source
from archdsl.interop.lift.export import TIME, Value
from archdsl.interop.lift.holes import binary
from archdsl.interop.lift.positions import Positions, holds
from archdsl.interop.lift.rotary import options, rotary
from archdsl.interop.lift.terms import Term
from archdsl.ops.attention.bias import slopes
from archdsl.syntax import ast
from archdsl.syntax.parse import parse_expression

Found = dict[str, Any]
"""What the names of a pattern stand for."""
Asks = Callable[[Found, Positions], Found | None]

FAR = -1e4
"""A score from here down is never seen."""
FAINT = 1e-2
"""Scores of which so much is left, or more, are not seen where they were not seen before."""


class Idiom(NamedTuple):
    pattern: str
    words: str
    asks: Asks | None = None


# --- what rows ask ----------------------------------------------------------------------------------------------------


def _gain(found: Found, _: Positions) -> Found | None:
    """`w` is a weight of the last axis."""
    w, x = found["w"], found["x"]
    return found if isinstance(w, Term) and w.op == "param" and w.shape == x.shape[-1:] else None


def _number(*names: str) -> Asks:
    def asks(found: Found, _: Positions) -> Found | None:
        return found if all(isinstance(found[n], int | float) for n in names) else None

    return asks


def _scaled(by: Callable[[float, float], float]) -> Asks:
    """`c` is a number above 0, by which scores are multiplied before anything else is done to them but hiding some."""

    def asks(found: Found, _: Positions) -> Found | None:
        c, o = found["c"], found["o"]
        if not isinstance(c, int | float) or c <= 0 or {*o} - {"scale", "mask"}:
            return None
        if "mask" in o and by(1.0, float(c)) < FAINT:
            return None
        kept = {name: value for name, value in o.items() if name != "scale"}
        return {**found, "o": kept, "c": by(float(o.get("scale", 1.0)), float(c))}

    return asks


def _capped(found: Found, _: Positions) -> Found | None:
    """`c` is a number; the scores are divided by it before, which their scale has taken in."""
    c, o = found["c"], found["o"]
    if not isinstance(c, int | float) or {*o} - {"scale"}:
        return None
    return {**found, "o": {"scale": o.get("scale", 1.0) * c}}


def _hidden(seen: bool) -> Asks:
    """`m` is a mask of positions, true at what is seen or at what is hidden, and `c` hides."""

    def asks(found: Found, positions: Positions) -> Found | None:
        m, c = found["m"], found["c"]
        if not isinstance(c, int | float) or c > FAR or not _constant(m):
            return None
        value = m.source
        if not seen:
            value = Value("logical_not", (value,), shape=value.shape, dtype=torch.bool, call=torch.logical_not)
        return _masked(found, positions.mask(value))

    return asks


def _masked(found: Found, mask: ast.Expr | None) -> Found | None:
    """Return what was found with one more mask, joined by `&` to the one that it has; None if `mask` is None."""
    if mask is None:
        return None
    options = dict(found["o"])
    every: list[ast.Expr] = []
    for part in (p for m in (options.pop("mask", None), mask) if m is not None for p in _parts(m)):
        every += [part] if part not in every else []
    return {**found, "m": reduce(partial(binary, "&"), every), "o": options}


def _parts(mask: ast.Expr) -> list[ast.Expr]:
    """The masks of which one is made by `&`."""
    if isinstance(mask, ast.Binary) and mask.op == "&":
        return _parts(mask.left) + _parts(mask.right)
    return [mask]


def _added(found: Found, positions: Positions) -> Found | None:
    """`m` is an additive mask of positions."""
    return _masked(found, positions.mask(found["m"].source)) if _constant(found["m"]) else None


def _is_alibi(bias: Any, q: Term, mask: ast.Expr | None, positions: Positions) -> bool:
    """Whether a bias of scores, [..., heads, queries, keys], is ALiBi's at every key that the mask shows. It may also
    add one number to all scores of a query, which softmax cancels."""
    heads = q.shape[1] if len(q.shape) == 4 else None
    if not _constant(bias) or not isinstance(heads, int) or positions.formula(bias.source) is None:
        return False
    slope = torch.tensor(slopes(heads)).view(heads, 1, 1)

    def agrees(time: int, found: torch.Tensor) -> bool:
        rows = found.shape[-2] if found.dim() > 1 else 1
        if found.shape[-1] != time or rows not in (1, time) or found.numel() % (heads * rows * time):
            return False
        found = found.reshape(-1, heads, rows, time).float().expand(-1, -1, time, time)
        place = torch.arange(time)
        expected = (-slope * (place[:, None] - place).abs()).expand_as(found)
        own = found.diagonal(dim1=-2, dim2=-1)[..., None]
        seen = torch.ones(time, time, dtype=torch.bool) if mask is None else holds(mask, place[:, None], place)
        return torch.allclose(torch.where(seen, found - own, expected), expected, rtol=1e-2, atol=1e-6)

    every = [agrees(*at) for at in positions.computed(bias.source, positions.few)]
    return bool(every) and all(every)


def _biased(found: Found, _: Positions) -> Found | None:
    """`m` is a bias of the scores, none yet."""
    return found if isinstance(found["m"], Term) and "bias" not in found["o"] else None


def _attends(found: Found, positions: Positions) -> Found | None:
    """Finish the options of attention: drop a scale that is the default, 1 / √head_dim, and write a bias as
    `position: alibi` if it is that, else as an input."""
    options, head = dict(found["o"]), found["q"].shape[-1]
    scale = options.pop("scale", 1.0)
    if not (isinstance(head, int) and math.isclose(scale, head**-0.5, rel_tol=1e-6)):
        options["scale"] = scale
    bias = options.pop("bias", None)
    if bias is not None and _is_alibi(bias, found["q"], options.get("mask"), positions):
        bias, options["position"] = None, "alibi"
    return {**found, "o": options, "bias": bias}


def _heads(found: Found, _: Positions) -> Found | None:
    s, x = found["s"], found["x"]
    return {**found, "n": s[0]} if isinstance(s, list) and len(s) == 2 and len(x.shape) == 3 else None


def _half(found: Found, _: Positions) -> Found | None:
    return found if found["x"].shape[-1] == 2 * found["h"] else None


def _of_half(found: Found, _: Positions) -> Found | None:
    return {**found, "d": found["x"].shape[-1] // 2} if "dims" not in found["o"] else None


def _sink(found: Found, _: Positions) -> Found | None:
    """`s` is one more score for each query of a head: a weight, expanded."""
    s = found["s"]
    while isinstance(s, Term) and s.op in ("unsqueeze", "expand"):
        s = s.args[0]
    right = isinstance(s, Term) and s.op == "param" and s.shape == (found["q"].shape[1],)
    return {**found, "s": s} if right and found["e"] in (-1, found["k"].shape[-2]) else None


def _four(found: Found, _: Positions) -> Found | None:
    return found if len(found["x"].shape) == 4 else None


def _rotary(pairing: str | None) -> Asks:
    """`c` and `s` are the cosines and sines of rotary embeddings of this pairing, and `x` is [..., time, width]."""

    def asks(found: Found, positions: Positions) -> Found | None:
        x, c, s = found["x"], found["c"], found["s"]
        if not (_constant(c) and _constant(s)) or len(x.shape) < 2:
            return None
        turns = rotary(positions, c.source, s.source)
        if turns is None or turns.pairing != pairing or turns.dims != x.shape[-1]:
            return None
        said = options(turns, positions.hints)
        if said is None:
            return None
        axis = next((i for i, size in enumerate(x.shape) if size == TIME), None)
        if axis == len(x.shape) - 2:
            return {**found, "o": said, "y": x}
        if axis != 1 or len(x.shape) != 4:
            return None
        return {**found, "o": said, "y": x, "turned": True}

    return asks


def _rotary_of_two(found: Found, positions: Positions) -> Found | None:
    """`c` and `s` are tables for `a` and `b`, the halves of `x`."""
    a, b = found["a"], found["b"]
    if not (isinstance(a, Term) and isinstance(b, Term) and a.shape == b.shape):
        return None
    shape = (*a.shape[:-1], a.shape[-1] * 2)
    whole = rewritten(Term("concat", (a, b), shape=shape, source=a.source, low=a.low), positions)
    return _rotary(None)({**found, "x": whole}, positions)


def _rotary_complex(found: Found, positions: Positions) -> Found | None:
    """`t` are the complex numbers by which pairs of channels are turned."""
    t, s, f = found["t"], found["s"], found["f"]
    x = found["x"]
    if not _constant(t) or len(s) != 2 or s[1] != 2 or f != len(x.shape) - 1:
        return None
    turns = rotary(positions, t.source)
    if turns is None or turns.dims != x.shape[-1] or (said := options(turns, positions.hints)) is None:
        return None
    found = {**found, "o": {**said, "interleaved": "true"}}
    axis = next((i for i, size in enumerate(x.shape) if size == TIME), None)
    if axis == len(x.shape) - 2:
        return found
    return {**found, "turned": True} if axis == 1 and len(x.shape) == 4 else None


def _last_turned(found: Found, positions: Positions) -> Found | None:
    """`y` is `x` with its last two axes exchanged."""
    x = found["x"]
    shape = (*x.shape[:-2], x.shape[-1], x.shape[-2])
    turned = Term("transpose", (x,), {"a": -2, "b": -1}, shape=shape, source=x.source, low=x.low)
    return {**found, "y": rewritten(turned, positions)}


def _cut(found: Found, positions: Positions) -> Found | None:
    """`y` is the first `h` rows of `x`."""
    x, h = found["x"], found["h"]
    shape = (*x.shape[:-2], h, x.shape[-1])
    first = Term("index", (x,), {"axis": -2, "low": None, "high": h}, shape=shape, source=x.source, low=x.low)
    return {**found, "y": rewritten(first, positions)}


def _reaches(found: Found, _: Positions) -> Found | None:
    """`n` zeros stand before, as many as the kernel reaches back, and as many rows come out as went in."""
    o = found["o"]
    rows = found["x"].shape[-2]
    whole = found["n"] == (found["k"] - 1) * o.get("dilation", 1) and o.get("stride", 1) == 1
    return found if whole and found.get("h", rows) == rows else None


def _turned_first(found: Found, positions: Positions) -> Found | None:
    """`y` is `x` with its axes of heads and time exchanged."""
    x = found["x"]
    if len(x.shape) != 4:
        return None
    shape = (x.shape[0], x.shape[2], x.shape[1], x.shape[3])
    turned = Term("transpose", (x,), {"a": 1, "b": 2}, shape=shape, source=x.source, low=x.low)
    return {**found, "y": rewritten(turned, positions)}


def _partial_turned(found: Found, positions: Positions) -> Found | None:
    """`y` is `x` with its axes of heads and time exchanged; rope turns the first channels of it."""
    turned = _turned_first(found, positions)
    if turned is None or not _same(turned["y"], found["y"]) or _partial(found, positions) is None:
        return None
    y = turned["y"]
    options = {**found["o"], "dims": found["d"]}
    return {**found, "r": Term("rope", (y,), options, shape=y.shape, source=y.source, low=y.low)}


def _same(a: Any, b: Any) -> bool:
    """Whether two terms are the same application of the same op, with the same weights, to the same terms."""
    if a is b:
        return True
    if not (isinstance(a, Term) and isinstance(b, Term)):
        return False
    if not a.args:  # inputs, weights and constants are told apart by what they were
        return a.op == b.op and a.source is b.source
    alike = (a.op, a.args, a.options, a.named) == (b.op, b.args, b.options, b.named)
    return alike and [*map(id, a.weights.values())] == [*map(id, b.weights.values())]


def _partial(found: Found, _: Positions) -> Found | None:
    """The rest of the channels begins where those that are turned end."""
    return found if found["d"] == found["e"] and "dims" not in found["o"] else None


def _constant(term: Any) -> bool:
    return isinstance(term, Term) and term.op == "_constant"


# --- the table --------------------------------------------------------------------------------------------------------

ROWS = (
    # numbers
    Idiom("x * x", "square(x)"),
    Idiom("x * sigmoid(x)", "silu(x)"),
    Idiom("x * sigmoid(1.702 * x)", "quick_gelu(x)"),
    Idiom("square(relu(x))", "relu_squared(x)"),
    Idiom("x * tanh(softplus(x))", "mish(x)"),
    Idiom("0.5 * x * (1 + tanh(0.7978845608 * (x + 0.044715 * x ** 3)))", "gelu_tanh(x)"),
    Idiom("x * 0.5 * (1 + tanh(0.79788456 * x * (1 + 0.044715 * x * x)))", "gelu_tanh(x)"),
    Idiom("x * 0.5 * (1 + tanh(0.79788456 * x * (1 + 0.044715 * square(x))))", "gelu_tanh(x)"),
    Idiom("x * 0.5 * (1 + erf(x / 1.4142135))", "gelu(x)"),
    # norms
    Idiom("x - mean(x, keep: true)", "_centred(x)"),
    Idiom(
        "_centred(x) * rsqrt(mean(square(_centred(x)), keep: true) + e)",
        "layernorm(x, eps: e, weight: false, bias: false)",
        _number("e"),
    ),
    Idiom("x * rsqrt(mean(square(x), keep: true) + e)", "rmsnorm(x, eps: e, weight: false)", _number("e")),
    Idiom("x / sqrt(mean(square(x), keep: true) + e)", "rmsnorm(x, eps: e, weight: false)", _number("e")),
    Idiom("x * (mean(square(x), keep: true) + e) ** -0.5", "rmsnorm(x, eps: e, weight: false)", _number("e")),
    Idiom("w * rmsnorm(x, eps: e, weight: false)", "rmsnorm(x, eps: e, weight: w)", _gain),
    Idiom("(1 + w) * rmsnorm(x, eps: e, weight: false)", "rmsnorm(x, eps: e, offset: true, weight: w)", _gain),
    Idiom(
        "w * layernorm(x, eps: e, weight: false, bias: false)", "layernorm(x, eps: e, bias: false, weight: w)", _gain
    ),
    Idiom("layernorm(x, eps: e, bias: false, weight: v) + w", "layernorm(x, eps: e, weight: v, bias: w)", _gain),
    # heads
    Idiom("transpose(transpose(x, a: a, b: b), a: a, b: b)", "x"),
    Idiom("squeeze(unsqueeze(x, axis: a), axis: a)", "x"),
    Idiom(
        "transpose(index(x, axis: -1, low: h, high: g), a: 1, b: 2)",
        "index(y, axis: -1, low: h, high: g)",
        _turned_first,
    ),
    Idiom("transpose(unflatten(x, axis: -1, sizes: s), a: 1, b: 2)", "split_heads(x, heads: n)", _heads),
    Idiom("flatten(transpose(x, a: 1, b: 2), first: 2, last: 3)", "merge_heads(x)", _four),
    Idiom("flatten(expand(unsqueeze(x, axis: 2), axis: 2, size: n), first: 1, last: 2)", "_repeated(x)", _four),
    Idiom("squeeze(expand(unsqueeze(x, axis: 2), axis: 2, size: n), axis: 1)", "_repeated(x)", _four),
    Idiom("repeat(x, times: n, axis: 1)", "_repeated(x)", _four),
    # convolutions
    Idiom("transpose(pad(x, axis: -1, also: o), a: -2, b: -1)", "pad(y, axis: -2, also: o)", _last_turned),
    Idiom("index(transpose(x, a: -2, b: -1), axis: -1, low: none, high: h)", "transpose(y, a: -2, b: -1)", _cut),
    Idiom(
        "conv1d(pad(x, before: n, axis: -2), features: f, kernel: k, padding: none, also: o)",
        "conv1d(x, features: f, kernel: k, padding: causal, also: o)",
        _reaches,
    ),
    Idiom(
        "index(conv1d(pad(x, before: n, after: n, axis: -2), features: f, kernel: k, padding: none, also: o), axis: -2,"
        " low: none, high: h)",
        "conv1d(x, features: f, kernel: k, padding: causal, also: o)",
        _reaches,
    ),
    # halves
    Idiom("index(x, axis: -1, low: none, high: h)", "_first(x)", _half),
    Idiom("index(x, axis: -1, low: h, high: none)", "_second(x)", _half),
    Idiom("item(chunk(x, parts: 2), i: 0)", "_first(x)"),
    Idiom("item(chunk(x, parts: 2), i: 1)", "_second(x)"),
    # attention
    Idiom("softmax(x - max(x, keep: true))", "softmax(x)"),
    Idiom("matmul(q, transpose(k, a: -2, b: -1))", "_scores(q, k)"),
    Idiom("_scores(q * c, k, also: o)", "_scores(q, k, scale: c, also: o)", _scaled(lambda a, c: a * c)),
    Idiom("_scores(q, k, also: o) * c", "_scores(q, k, scale: c, also: o)", _scaled(lambda a, c: a * c)),
    Idiom("_scores(q, k, also: o) / c", "_scores(q, k, scale: c, also: o)", _scaled(lambda a, c: a / c)),
    Idiom("tanh(_scores(q, k, also: o)) * c", "_scores(q, k, softcap: c, also: o)", _capped),
    Idiom("where(m, _scores(q, k, also: o), c)", "_scores(q, k, mask: m, also: o)", _hidden(seen=True)),
    Idiom("where(m, c, _scores(q, k, also: o))", "_scores(q, k, mask: m, also: o)", _hidden(seen=False)),
    Idiom("_scores(q, k, also: o) + m", "_scores(q, k, mask: m, also: o)", _added),
    Idiom("_scores(q, k, also: o) + m", "_scores(q, k, bias: m, also: o)", _biased),
    Idiom("softmax(_scores(q, k, also: o))", "_shares(q, k, also: o)"),
    Idiom(
        "index(softmax(concat(_scores(q, k, also: o), s)), axis: -1, low: none, high: e)",
        "_shares(q, k, sink: s, also: o)",
        _sink,
    ),
    Idiom("dropout(_shares(q, k, also: o), rate: r)", "_shares(q, k, dropout: r, also: o)"),
    Idiom("matmul(_shares(q, k, also: o), v)", "sdpa(q, k, v, bias, also: o)", _attends),
    Idiom("sdpa(q, _repeated(k), _repeated(v), also: o)", "sdpa(q, k, v, also: o)"),
    Idiom("sdpa(q, _repeated(k), _repeated(v), b, also: o)", "sdpa(q, k, v, b, also: o)"),
    # positions
    Idiom("concat(-_second(x), _first(x))", "_half_turned(x)"),
    Idiom("x * c + _half_turned(x) * s", "rope(x, also: o)", _rotary("halves")),
    Idiom("concat(_first(x), _second(x))", "x"),
    Idiom("concat(a * c - b * s, b * c + a * s)", "rope(x, also: o)", _rotary_of_two),
    Idiom(
        "flatten(stack(-every(index(x, axis: -1, low: 1, high: none), step: 2, axis: -1), every(x, step: 2, axis: -1),"
        " axis: -1), first: f, last: l)",
        "_pairs_turned(x)",
    ),
    Idiom(
        "flatten(_real(_complex(unflatten(x, axis: -1, sizes: s)) * t), first: f, last: l)",
        "rope(x, also: o)",
        _rotary_complex,
    ),
    Idiom("x * c + _pairs_turned(x) * s", "rope(x, also: o)", _rotary("interleaved")),
    Idiom(
        "concat(rope(index(x, axis: -1, low: none, high: d), also: o), index(x, axis: -1, low: e, high: none))",
        "rope(x, dims: d, also: o)",
        _partial,
    ),
    Idiom("concat(rope(_first(x), also: o), _second(x))", "rope(x, dims: d, also: o)", _of_half),
    Idiom(
        "concat(transpose(rope(index(y, axis: -1, low: none, high: d), also: o), a: 1, b: 2), index(x, axis: -1,"
        " low: e, high: none))",
        "transpose(r, a: 1, b: 2)",
        _partial_turned,
    ),
)  # fmt: skip

IN_FLOAT32 = {"rmsnorm", "layernorm", "softmax", "rope", "sdpa", "_shares", "_centred"}
"""Words that compute in float32 and give the type of their operand: a cast before them says nothing more."""

NAMES = {"+": "plus", "-": "minus", "*": "times", "/": "divide"}


# --- matching ---------------------------------------------------------------------------------------------------------


@cache
def _rows() -> dict[str, list[tuple[ast.Expr, ast.Expr, Asks | None]]]:
    """The rows by the op that their pattern begins with."""
    rows: dict[str, list[tuple[ast.Expr, ast.Expr, Asks | None]]] = {}
    for row in ROWS:
        pattern, words = (parse_expression(Source("idiom", text)) for text in (row.pattern, row.words))
        rows.setdefault(_op(pattern), []).append((pattern, words, row.asks))
    return rows


def _op(pattern: ast.Expr) -> str:
    if isinstance(pattern, ast.Binary):
        return pattern.op
    assert isinstance(pattern, ast.Call)
    return _id(pattern.function)


def rewritten(term: Term, positions: Positions) -> Term:
    """Return a term, whose operands are rewritten already, in the words of the first row that fits, until none does."""
    while fit := next(_fits(term, positions), None):
        term = _written(*fit, term, positions)
    return term


def _fits(term: Term, positions: Positions) -> Iterator[tuple[ast.Expr, Found]]:
    """Yield the words of each row that fits, with what its names stand for."""
    for pattern, words, asks in _rows().get(term.op, ()):
        for found in _matches(pattern, term, {}):
            whole = asks(found, positions) if asks else found
            if whole is not None:
                yield words, whole


def _uncast(x: Any) -> Any:
    while isinstance(x, Term) and x.op == "cast" and x.options["dtype"] in ("float", "float32"):
        x = x.args[0]
    return x


def _matches(pattern: ast.Expr, x: Any, found: Found) -> Iterator[Found]:
    """Yield each way in which a term, a number or an option is of a pattern."""
    match pattern:
        case ast.Name(id="true" | "false" | "none" as word):
            if x == word or (x is None and word == "none"):
                yield found
        case ast.Name(id=name):
            if name not in found:
                yield {**found, name: x}
            elif _same(_uncast(found[name]), _uncast(x)) or (not isinstance(x, Term) and found[name] == x):
                yield found
        case ast.Unary("-", ast.Number(text)):
            if _is_number(x, -float(text)):
                yield found
        case ast.Number(text):
            if _is_number(x, float(text)):
                yield found
        case ast.Binary(op, left, right):
            x = _uncast(x)
            if isinstance(x, Term) and x.op == op:
                orders = [(left, right), (right, left)] if op in "+*" else [(left, right)]
                for first, second in orders:
                    for half in _matches(first, x.args[0], found):
                        yield from _matches(second, x.args[1], half)
        case ast.Unary("-", inner):
            x = _uncast(x)
            if isinstance(x, Term) and x.op == "negate":
                yield from _matches(inner, x.args[0], found)
        case ast.Call(ast.Name(op), args):
            x = _uncast(x)
            if isinstance(x, Term) and x.op == op:
                yield from _matches_call(args, x, found)


def _is_number(x: Any, number: float) -> bool:
    return isinstance(x, int | float) and math.isclose(x, number, rel_tol=1e-6)


def _matches_call(args: tuple[ast.Arg, ...], term: Term, found: Found) -> Iterator[Found]:
    tensors = [a.value for a in args if a.name is None]
    named = {a.name: a.value for a in args if a.name is not None}
    rest = named.pop("also", None)
    held: dict[str, Any] = {**term.options, **term.weights, **term.named}
    if len(tensors) != len(term.args) or {*named} - {*held} or (rest is None and {*held} - {*named}):
        return
    todo = [*zip(tensors, term.args, strict=True), *((p, held[name]) for name, p in named.items())]
    if isinstance(rest, ast.Name):
        found = {**found, rest.id: {n: v for n, v in held.items() if n not in named}}

    def each(i: int, so_far: Found) -> Iterator[Found]:
        if i == len(todo):
            yield so_far
        else:
            for one in _matches(*todo[i], so_far):
                yield from each(i + 1, one)

    yield from each(0, found)


def _written(words: ast.Expr, found: Found, was: Term, positions: Positions) -> Any:
    """The right side of a row as a term in the place of another."""
    match words:
        case ast.Name(id="true" | "false" | "causal" as word):
            return word
        case ast.Name(id=name):
            return found[name]
        case ast.Number(text):
            return int(text)
        case ast.Unary("-", ast.Number(text)):
            return -int(text)
    assert isinstance(words, ast.Call)
    op = _id(words.function)
    tensors: list[Any] = []
    options: dict[str, Any] = {}
    weights: dict[str, Value] = {}
    named: dict[str, Term] = {}
    for arg in words.args:
        value = found[_id(arg.value)] if arg.name == "also" else _written(arg.value, found, was, positions)
        if arg.name is None:
            tensors += [] if value is None else [_uncast(value) if op in IN_FLOAT32 else value]
        elif arg.name == "also":
            named |= {n: v for n, v in value.items() if isinstance(v, Term)}
            weights |= {n: v for n, v in value.items() if isinstance(v, Value)}
            options |= {n: v for n, v in value.items() if not isinstance(v, Value | Term)}
        elif isinstance(value, Term) and value.op == "param" and arg.name in ("weight", "bias") and op[0] != "_":
            weights[arg.name] = value.weights[""]
        elif isinstance(value, Term):
            named[arg.name] = value
        elif isinstance(value, Value):
            weights[arg.name] = value
        else:
            options[arg.name] = value
    plain = was if op.startswith("_") else None
    low = tensors[0].low if op in IN_FLOAT32 and isinstance(tensors[0], Term) else was.low
    term = Term(op, tuple(tensors), options, weights, was.shape, was.source, plain, low=low, named=named)
    return _time_inside(term, positions) if found.get("turned") else term


def _id(name: ast.Expr) -> str:
    assert isinstance(name, ast.Name)
    return name.id


def _time_inside(rope: Term, positions: Positions) -> Term:
    """Rope of [batch, time, heads, width]: with the axes of heads and time exchanged before and after."""
    x = rope.args[0]
    shape = (x.shape[0], x.shape[2], x.shape[1], x.shape[3])
    options = {"a": 1, "b": 2}
    before = rewritten(Term("transpose", (x,), options, shape=shape, source=rope.source, low=x.low), positions)
    turned = Term("rope", (before,), rope.options, shape=shape, source=rope.source, low=x.low)
    return Term("transpose", (turned,), options, shape=rope.shape, source=rope.source, low=x.low)
