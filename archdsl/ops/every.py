"""`every`"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from archdsl.ir.dims import Shape, binary, num
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, At, Example, OnnxScope, Primitive, Reads, TorchScope, Tree, same
from archdsl.ops._common import axis_of, number, place
from archdsl.ops._onnx import END


class Every(Primitive):
    """Every `step`-th position along an axis, the first one included."""

    passes = 0
    moves = True
    signature = "every(step: size, axis: int = 1)(x: [...])"
    examples = (Example("x -> every(2)"), Example("x -> every(3, axis: 2)"))

    def check(self, call: Application) -> None:
        if not call.size("step").static:
            raise call.error("E0402", "a step is a number that is known before the model runs", option="step")

    def shapes(self, call: Application) -> Sequence[Shape]:
        shape, step, axis = list(call.shape(0)), call.size("step"), axis_of(self, call)
        shape[axis] = binary("//", binary("+", shape[axis], binary("-", step, num(1))), step)
        return (tuple(shape),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank, axis = node.outputs[0].rank, place(node)
        return (tuple(At(((i, Fraction(int(node.options["step"]))),)) if i == axis else same(i) for i in range(rank)),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        axis = place(node) - node.outputs[0].rank
        return g.Slice(g.arg(0), [0], [END], [axis], [number(node, "step")])

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py(f"{{0}}[{':, ' * place(node)}::{{step}}]", step=number(node, "step"))
