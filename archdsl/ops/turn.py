"""`turn`: what rope does, given its table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Shape
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import EVERYWHERE, Application, OnnxScope, Primitive, Reads, TorchScope, same
from archdsl.ops.rope import ROTATE, ROTATE_PAIRS, ROTATE_PART, ROTATE_PART_PAIRS


class Turn(Primitive):
    """Pairs of channels turned by a table of cosines and sines [2, time, dims / 2]; channels beyond `dims` stay.
    Written `rope` or `rotate`."""

    by_rows = True
    signature = "turn(interleaved: bool = false)(x: [..., time, width], table: [two, time, half]) -> [..., time, width]"
    hints = ("=",)

    def shapes(self, call: Application) -> Sequence[Shape]:
        return (call.shape(0),)

    def dtypes(self, call: Application) -> Sequence[str]:
        return (call.tensor(0).dtype,)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = node.outputs[0].rank
        return ((*(same(i) for i in range(rank - 1)), EVERYWHERE), (EVERYWHERE, same(rank - 2), EVERYWHERE))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x, table = node.inputs
        assert isinstance(x, Value)
        assert isinstance(table, Value)
        turned, width = 2 * int(table.shape[2]), int(x.shape[-1])
        y, angles = g.arg(0, "float32"), g.arg(1)
        lead = x.rank - 2
        if g.by_row:  # [2, batch, time, half]: the axes between batch and time
            angles = g.Unsqueeze(angles, list(range(2, lead + 1))) if lead > 1 else angles
        cos, sin = (g.Gather(angles, i, axis=0) for i in (0, 1))
        rest = None
        if turned < width:
            y, rest = g.Split(y, [turned, width - turned], axis=-1, outputs=2)
        if node.options["interleaved"]:
            y = g.Reshape(y, [0] * (x.rank - 1) + [turned // 2, 2])
            a, b = (g.Gather(y, i, axis=-1) for i in (0, 1))
        else:
            a, b = g.Split(y, axis=-1, num_outputs=2, outputs=2)
        parts = g.Sub(g.Mul(a, cos), g.Mul(b, sin)), g.Add(g.Mul(b, cos), g.Mul(a, sin))
        if node.options["interleaved"]:
            y = g.Reshape(g.Concat(*(g.Unsqueeze(p, [-1]) for p in parts), axis=-1), [0] * (x.rank - 1) + [turned])
            return y if rest is None else g.Concat(y, rest, axis=-1)
        return g.Concat(*parts, *(() if rest is None else (rest,)), axis=-1)

    def torch(self, node: OpNode, e: TorchScope) -> str:
        x, table = node.inputs
        assert isinstance(x, Value)
        assert isinstance(table, Value)
        pairs = node.options["interleaved"]
        whole = isinstance(table.shape[2].value, int) and table.shape[2].value * 2 == x.shape[-1].value
        source = (ROTATE_PAIRS if pairs else ROTATE) if whole else (ROTATE_PART_PAIRS if pairs else ROTATE_PART)
        return f"{e.helper(source)}({e.arg(0)}, {e.arg(1)})"
