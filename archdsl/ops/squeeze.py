"""`squeeze`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Shape, shape_text
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, At, Example, OnnxScope, Primitive, Reads, TorchScope, Tree, same
from archdsl.ops._common import axis_of, first_input, from_right, place, written


class Squeeze(Primitive):
    """An axis of size 1 is left out."""

    by_rows = True
    passes = 0
    moves = True
    signature = "squeeze(axis: int)(x: [...]) -> [...]"
    examples = (Example("x -> squeeze(1)", "x: [2, 1, 8]"), Example("x -> squeeze(-1)", "x: [2, 5, 1]"))

    def check(self, call: Application) -> None:
        axis = axis_of(self, call)
        if not call.is_number(call.shape(0)[axis], 1):
            raise call.error(
                "E0301",
                f"`squeeze` leaves out an axis of size 1, but axis {call.size('axis')} of {shape_text(call.shape(0))} "
                f"is {call.shape(0)[axis]}",
                option="axis",
                input=0,
                help="to take one place of the axis write `x[:, 0]`",
            )

    def shapes(self, call: Application) -> Sequence[Shape]:
        axis = axis_of(self, call)
        return ((*call.shape(0)[:axis], *call.shape(0)[axis + 1 :]),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        axis = place(node)
        return (tuple(At() if i == axis else same(i - (i > axis)) for i in range(first_input(node).rank)),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Squeeze(g.arg(0), [from_right(node)])

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0}.squeeze({axis})", axis=written(node))
