"""`roll`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import EVERYWHERE, Application, Example, OnnxScope, Reads, TorchScope, Tree
from archdsl.ops._common import AxisOp, first_input, later, number, own_but, place, written
from archdsl.ops._onnx import END


class Roll(AxisOp):
    """Everything `by` positions later along an axis; what falls off at the end comes in at the start."""

    passes = 0
    signature = "roll(by: int = 1, axis: int = 1)(x: [...]) -> [...]"
    examples = (Example("x -> roll"), Example("x -> roll(-2)"), Example("x -> roll(3, axis: -1)"))

    def build(self, call: Application) -> Sequence[Value]:
        return (call.tensor(0),) if call.is_number(call.size("by"), 0) else call.node()

    def reads(self, node: OpNode) -> Sequence[Reads]:
        axis, by = place(node), number(node, "by")
        forward = isinstance(by.value, int) and by.value <= 0
        return (own_but(first_input(node).rank, axis, later(axis, by, -1) if forward else EVERYWHERE),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x, by, axis = g.arg(0), number(node, "by"), place(node)
        length = first_input(node).shape[axis]
        if by.static and length.static:
            cut: Any = -int(by) % int(length)
        elif by.static and abs(int(by)) == 1:
            cut = -int(by)  # every axis has that many places
        else:
            cut = g.Mod(g.Neg(g.Unsqueeze(g.number(by), [0])), g.size(0, axis))
        return g.Concat(g.Slice(x, [cut], [END], [axis]), g.Slice(x, [0], [cut], [axis]), axis=axis)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0}.roll({by}, dims={axis})", by=number(node, "by"), axis=written(node))
