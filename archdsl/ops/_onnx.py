"""What ONNX forms share: types that have kernels, paddings, recurrences side by side."""

from __future__ import annotations

from typing import Any

from archdsl.ir.dims import Num
from archdsl.ir.op import OnnxScope

END = 2**31 - 1
"""Behind the last place of every axis."""


def with_kernel(g: OnnxScope, x: Any) -> Any:
    """x in float32 where it is bfloat16: convolutions, poolings, recurrent layers and others have no kernel for it."""
    return g.cast(x, "float32") if g.dtype(x) == "bfloat16" else x


def padded(g: OnnxScope, x: Any, before: Any, after: Any, axis: int, value: Any = 0) -> Any:
    """Places more on both sides of an axis, filled with `value`; a number below 0 cuts places off."""
    x = with_kernel(g, x)
    if g.dtype(x) not in ("int", "int32"):
        return g.Pad(x, [before, after], value, [axis])
    # Whole numbers have no kernel on CUDA: pieces are put together there.
    cuts = [n if isinstance(n, int) and n < 0 else 0 for n in (before, after)]
    if any(cuts):
        x = g.Slice(x, [-cuts[0]], [cuts[1] or END], [axis])
    one = g.Unsqueeze(g.number(value, g.dtype(x)) if isinstance(value, Num) else g.constant(value, g.dtype(x)), [0])
    around = [g.Shape(x, start=0, end=axis)] * (axis > 0), [g.Shape(x, start=axis + 1)]
    pieces = [
        g.Expand(one, [*around[0], n, *around[1]]) if not isinstance(n, int) or n > 0 else None for n in (before, after)
    ]
    return g.Concat(*(p for p in (pieces[0], x, pieces[1]) if p is not None), axis=axis)


def in_chunks(g: OnnxScope, length: Any, most: int) -> tuple[Any, Any, Any]:
    """How long the chunks of a sequence are (`most` places, or all of a shorter one), how many there are, and how many
    places are missing in the last one. Numbers where the length is one, else vectors of one int64."""
    if isinstance(length, int):
        each = max(min(most, length), 1)
        count = -(-length // each)
        return each, count, each * count - length
    return _counted(g, length, g.Min(length, most))


def in_square(g: OnnxScope, length: Any) -> tuple[Any, Any, Any]:
    """The same, about as many chunks as each has places."""
    if isinstance(length, int):
        return in_chunks(g, length, _root(length))
    root = g.Ceil(g.Sqrt(g.cast(length, "float32")))
    return _counted(g, length, g.cast(root, "int"))


def _root(n: int) -> int:
    root: int = int(n**0.5)
    return root if root * root >= n else root + 1


def _counted(g: OnnxScope, length: Any, each: Any) -> tuple[Any, Any, Any]:
    count = g.Div(g.Sub(g.Add(length, each), 1), each)
    return each, count, g.Sub(g.Mul(each, count), length)


def recurrence(g: OnnxScope, a: Any, b: Any, length: Any, rank: int, start: Any = None) -> tuple[Any, Any]:
    """`h[t] = a[t] * h[t - 1] + b[t]` along axis 1 of float32, and the last state. `a` may have axes of size 1.

    The sequence is cut into about as many chunks as each has places. All chunks run at once, from nothing, to see what
    each does to a state; the states between them follow; then all run once more, from these: three recurrences of
    `sqrt(length)` steps. A place that fills the last chunk up keeps the state."""
    each, count, missing = in_square(g, length)
    swapped = [2, 1, 0, *range(3, rank + 1)]

    def cut(x: Any, fill: float) -> Any:
        """[place, chunk, batch, …]"""
        x = x if isinstance(missing, int) and missing == 0 else g.Pad(x, [0, missing], fill, [1])
        rest = [g.Shape(x, start=2)] if rank > 2 else []
        return g.Transpose(g.Reshape(x, [0, count, each, *rest]), perm=swapped)

    a, b = cut(a, 1.0), cut(b, 0.0)
    one, zero = g.constant(1.0, "float32"), g.constant(0.0, "float32")
    sums, products = g.scan(
        lambda h, p, a_t, b_t: (g.Add(g.Mul(a_t, h), b_t), g.Mul(a_t, p)),
        [g.Expand(zero, g.Shape(b, start=1)), g.Expand(one, g.Shape(a, start=1))],
        [a, b],
        axis=0,
    )
    first = g.Expand(zero, g.Shape(b, start=2)) if start is None else start
    last, states = g.scan(lambda h, p, s: (g.Add(g.Mul(p, h), s), h), [first], [products, sums], axis=0)

    def step(h: Any, a_t: Any, b_t: Any) -> tuple[Any, Any]:
        after = g.Add(g.Mul(a_t, h), b_t)
        return after, after

    _, h = g.scan(step, [states], [a, b], axis=0)
    h = g.Transpose(h, perm=swapped)
    h = g.Reshape(h, [0, -1, *([g.Shape(h, start=3)] if rank > 2 else [])])
    return (h if isinstance(missing, int) and missing == 0 else g.Slice(h, [0], [length], [1])), last
