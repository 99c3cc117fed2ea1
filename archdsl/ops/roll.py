"""`roll`"""

from __future__ import annotations

from collections.abc import Sequence

from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import EVERYWHERE, Application, Example, Reads, TorchScope
from archdsl.ops._common import AxisOp, equals, first_input, later, number, own_but, place, written


class Roll(AxisOp):
    """Everything `by` places later along an axis; what falls off at the end comes in at the start."""

    signature = "roll(by: int = 1, axis: int = 1)(x: [...]) -> [...]"
    examples = (Example("x -> roll"), Example("x -> roll(-2)"), Example("x -> roll(3, axis: -1)"))

    def build(self, call: Application) -> Sequence[Value]:
        return (call.tensor(0),) if equals(call.size("by"), 0) else call.node()

    def reads(self, node: OpNode) -> Sequence[Reads]:
        axis, by = place(node), number(node, "by")
        forward = isinstance(by.value, int) and by.value <= 0
        return (own_but(first_input(node).rank, axis, later(axis, by, -1) if forward else EVERYWHERE),)

    def torch(self, node: OpNode, e: TorchScope) -> str:
        return f"{e.at(0)}.roll({e.number(number(node, 'by'))}, dims={written(node)})"
