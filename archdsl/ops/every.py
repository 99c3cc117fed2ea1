"""`every`"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from archdsl.ir.dims import Shape, binary, num
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, At, Example, Primitive, Reads, TorchScope, same


class Every(Primitive):
    """Every `step`-th place along an axis, the first one included."""

    signature = "every(step: size, axis: int = 1)(x: [...])"
    examples = (Example("x -> every(2)"), Example("x -> every(3, axis: 2)"))

    def shapes(self, call: Application) -> Sequence[Shape]:
        shape, step, axis = (
            list(call.shape(0)),
            call.size("step"),
            self._axis(call.options["axis"].value, len(call.shape(0))),
        )
        shape[axis] = binary("//", binary("+", shape[axis], binary("-", step, num(1))), step)
        return (tuple(shape),)

    def _axis(self, axis: int, rank: int) -> int:
        return axis + rank if axis < 0 else axis

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = node.outputs[0].rank
        axis = self._axis(node.options["axis"].value, rank)
        return (tuple(At(((i, Fraction(node.options["step"].value)),)) if i == axis else same(i) for i in range(rank)),)

    def torch(self, node: OpNode, e: TorchScope) -> str:
        rank = node.outputs[0].rank
        axis = self._axis(node.options["axis"].value, rank)
        return f"{e.at(0)}[{':, ' * axis}::{e.number(node.options['step'])}]"
