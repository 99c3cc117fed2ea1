"""`turn`: what rope does, given its table."""

from __future__ import annotations

from collections.abc import Sequence

from archdsl.ir.dims import Shape
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import EVERYWHERE, Application, Primitive, Reads, TorchScope, same
from archdsl.ops.rope import ROTATE, ROTATE_PAIRS, ROTATE_PART, ROTATE_PART_PAIRS


class Turn(Primitive):
    """Pairs of channels turned by a table of cosines and sines [2, time, dims / 2]; channels beyond `dims` stay.
    Written `rope` or `rotate`."""

    signature = "turn(interleaved: bool = false)(x: [..., time, width], table: [two, time, half]) -> [..., time, width]"
    hints = ("=",)

    def shapes(self, call: Application) -> Sequence[Shape]:
        return (call.shape(0),)

    def dtypes(self, call: Application) -> Sequence[str]:
        return (call.tensor(0).dtype,)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = node.outputs[0].rank
        return ((*(same(i) for i in range(rank - 1)), EVERYWHERE), (EVERYWHERE, same(rank - 2), EVERYWHERE))

    def torch(self, node: OpNode, e: TorchScope) -> str:
        x, table = node.inputs
        assert isinstance(x, Value)
        assert isinstance(table, Value)
        pairs = node.options["interleaved"]
        whole = isinstance(table.shape[2].value, int) and table.shape[2].value * 2 == x.shape[-1].value
        source = (ROTATE_PAIRS if pairs else ROTATE) if whole else (ROTATE_PART_PAIRS if pairs else ROTATE_PART)
        return f"{e.helper(source)}({e.arg(0)}, {e.arg(1)})"
