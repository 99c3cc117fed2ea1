"""What ONNX forms share: types that have kernels, paddings, recurrences side by side."""

from __future__ import annotations

import math
from typing import Any

from archdsl.frozen import Frozen
from archdsl.ir.dims import Num
from archdsl.ir.op import OnnxScope

END = 2**31 - 1
"""Behind the last place of every axis."""


def with_kernel(g: OnnxScope, x: Any) -> Any:
    """x in float32 where it is bfloat16: convolutions, poolings, recurrent layers and others have no kernel for it."""
    return g.cast(x, "float32") if g.dtype(x) == "bfloat16" else x


def padded(g: OnnxScope, x: Any, before: Any, after: Any, axis: int, value: Any = 0) -> Any:
    """Positions more on both sides of an axis, filled with `value`; a number below 0 cuts positions off."""
    x = with_kernel(g, x)
    if g.dtype(x) not in ("int", "int32"):
        if x.shape is None:
            return g.Pad(x, [before, after], value, [axis])
        # Of all axes: where onnxruntime moves a transposition past a `Pad` of some, it takes them for all.
        left, right = [0] * axis, [0] * (len(x.shape) - axis - 1)
        return g.Pad(x, [*left, before, *right, *left, after, *right], value)
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
    """How long the chunks of a sequence are (`most` positions, or all of a shorter one), how many there are, and how
    many positions are missing in the last one. Numbers where the length is one, else vectors of one int64."""
    if isinstance(length, int):
        each = max(min(most, length), 1)
        count = -(-length // each)
        return each, count, each * count - length
    return _counted(g, length, g.Max(g.Min(length, most), 1))


def _counted(g: OnnxScope, length: Any, each: Any) -> tuple[Any, Any, Any]:
    count = g.Div(g.Sub(g.Add(length, each), 1), each)
    return each, count, g.Sub(g.Mul(each, count), length)


class Chunks(Frozen):
    """A sequence along axis 1 cut into chunks: `each` positions, `count` chunks, the last with `missing` positions too
    few. Numbers where the length is one, else vectors of one int64."""

    length: Any
    each: Any
    count: Any
    missing: Any

    def cut(self, g: OnnxScope, x: Any, rank: int, fill: float = 0.0) -> Any:
        """[batch, time, …] to [position, chunk, batch, …]. The last chunk is filled up with a number."""
        if not isinstance(self.missing, int) or self.missing:
            others = [0] * (rank - 2)
            x = g.Pad(x, [0, 0, *others, 0, self.missing, *others], fill)  # of all axes: see `padded`
        rest = [g.Shape(x, start=2)] if rank > 2 else []
        return g.Transpose(g.Reshape(x, [0, self.count, self.each, *rest]), perm=[2, 1, 0, *range(3, rank + 1)])

    def joined(self, g: OnnxScope, x: Any, rank: int) -> Any:
        """The way back."""
        x = g.Transpose(x, perm=[2, 1, 0, *range(3, rank + 1)])
        x = g.Reshape(x, [0, -1, *([g.Shape(x, start=3)] if rank > 2 else [])])
        return x if isinstance(self.missing, int) and not self.missing else g.Slice(x, [0], [self.length], [1])


def in_square(g: OnnxScope, length: Any) -> Chunks:
    """About as many chunks as each has positions: a recurrence that runs along all chunks at once, then along the
    states between them, has the fewest steps."""
    if isinstance(length, int):
        return Chunks(length, *in_chunks(g, length, math.isqrt(max(length - 1, 0)) + 1))
    root = g.cast(g.Ceil(g.Sqrt(g.cast(length, "float32"))), "int")
    return Chunks(length, *_counted(g, length, g.Max(root, 1)))


def recurrence(g: OnnxScope, a: Any, b: Any, length: Any, rank: int, start: Any = None) -> tuple[Any, Any]:
    """`h[t] = a[t] * h[t - 1] + b[t]` along axis 1 of float32, and the last state. `a` may have axes of size 1.

    All chunks run at once, from nothing, to see what each does to a state; the states between them follow; then all run
    once more, from these: three recurrences of `sqrt(length)` steps. A position that fills the last chunk up keeps the
    state."""
    chunks = in_square(g, length)
    a, b = chunks.cut(g, a, rank, 1.0), chunks.cut(g, b, rank)
    ones = g.Expand(g.constant(1.0, "float32"), g.Shape(a, start=1))
    sums, products = g.scan(
        lambda h, p, a_t, b_t: (g.Add(g.Mul(a_t, h), b_t), g.Mul(a_t, p)), [zeros(g, b, 1), ones], [a, b]
    )
    first = zeros(g, b, 2) if start is None else start
    last, states = g.scan(lambda h, p, s: (g.Add(g.Mul(p, h), s), h), [first], [products, sums])

    def step(h: Any, a_t: Any, b_t: Any) -> tuple[Any, Any]:
        after = g.Add(g.Mul(a_t, h), b_t)
        return after, after

    _, h = g.scan(step, [states], [a, b])
    return chunks.joined(g, h, rank), last


def zeros(g: OnnxScope, x: Any, first: int) -> Any:
    """Zeros of float32, in the shape that x has from that axis on."""
    return g.Expand(g.constant(0.0, "float32"), g.Shape(x, start=first))
