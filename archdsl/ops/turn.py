"""`turn`: what rope does, given its table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from archdsl.ir.dims import Shape
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import EVERYWHERE, Application, OnnxScope, Parts, Primitive, Reads, TorchScope, Tree, same


class Turn(Primitive):
    """Pairs of channels turned by a table of cosines and sines [2, time, dims / 2]; channels beyond `dims` stay.
    Written `rope` or `rotate`."""

    by_rows = True
    passes = 3
    additive = True
    signature = (
        "turn(interleaved: bool = false)"
        "(x: float[..., time, width], table: float[two, time, half]) -> [..., time, width]"
    )
    hints = ("=",)

    def shapes(self, call: Application) -> Sequence[Shape]:
        return (call.shape(0),)

    def dtypes(self, call: Application) -> Sequence[str]:
        return (call.tensor(0).dtype,)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = node.outputs[0].rank
        return ((*(same(i) for i in range(rank - 1)), EVERYWHERE), (EVERYWHERE, same(rank - 2), EVERYWHERE))

    def parts(self, node: OpNode, cut: Sequence[int | None]) -> Parts | None:
        axis = cut[0]
        return None if axis is None or axis >= node.outputs[0].rank - 2 else Parts(axis)

    def leading(self, node: OpNode, i: int) -> int | None:
        return 1 if i == 1 else None

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        """`RotaryEmbedding`, which takes [batch, heads, time, width] and a table for each row."""
        x, table = node.inputs
        assert isinstance(x, Value)
        assert isinstance(table, Value)
        turned, width = 2 * int(table.shape[2]), int(x.shape[-1])
        y = g.arg(0)
        kind = g.dtype(y)
        if x.rank == 2:
            y = g.Unsqueeze(y, [0, 1])
        elif x.rank == 3:
            y = g.Unsqueeze(y, [1])
        elif x.rank > 4:
            y = g.Reshape(y, [-1, x.shape[-3], g.dimension(y, -2), width])
        rows = x.shape[0] if x.rank in (3, 4) else g.Shape(y, start=0, end=1)

        def halves() -> tuple[Any, Any]:
            """Cosines and sines: [batch, time, half]."""
            found = []
            for i in (0, 1):
                angles = g.Gather(g.arg(1), i, axis=0)
                angles = angles if g.by_row else g.Expand(g.Unsqueeze(angles, [0]), [rows, 1, 1])
                found.append(g.cast(angles, kind))
                g.of_places(found[i], 1, partial(half, i))
            return found[0], found[1]

        def half(i: int, table: Any) -> Any:
            return g.cast(g.Gather(table, i, axis=0), kind)

        cos, sin = g.memo(g.arg(1), f"{kind} {'rows' if x.rank > 4 or x.rank == 2 else 'batch'}", halves)
        part = {"rotary_embedding_dim": turned} if turned < width else {}
        y = g.RotaryEmbedding(y, cos, sin, interleaved=int(bool(node.options["interleaved"])), **part)
        return y if x.rank == 4 else g.Reshape(y, g.Shape(g.arg(0)))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        x, table = node.inputs
        assert isinstance(x, Value)
        assert isinstance(table, Value)
        whole = isinstance(table.shape[2].value, int) and table.shape[2].value * 2 == x.shape[-1].value
        part, pairs = "" if whole else "_part", "_pairs" if node.options["interleaved"] else ""
        return e.py(f"rotate{part}{pairs}({{0}}, {{1}})")
