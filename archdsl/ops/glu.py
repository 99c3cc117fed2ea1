"""`glu`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Shape, binary, num
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, Reads, TorchScope, Tree
from archdsl.ops._common import axis_of, first_input, own_but, place, replaced, written


class GLU(Primitive):
    """Gated linear unit (Dauphin et al., 2016): the first half of an axis times the sigmoid of the second."""

    passes = 2
    signature = "glu(axis: int = -1)(x: float[...]) -> [...]"
    examples = (Example("x -> glu"), Example("x -> glu(axis: 1)", "x: [2, 6, 4]"))

    def check(self, call: Application) -> None:
        size = call.shape(0)[axis_of(self, call)]
        call.condition("%", size, num(2), "`glu` halves the axis")

    def shapes(self, call: Application) -> Sequence[Shape]:
        axis = axis_of(self, call)
        return (replaced(call.shape(0), axis, binary("/", call.shape(0)[axis], num(2))),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        return (own_but(first_input(node).rank, place(node)),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        a, b = g.Split(g.arg(0), axis=place(node), num_outputs=2, outputs=2)
        return g.Mul(a, g.Sigmoid(b))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        axis = written(node)
        return e.py("F.glu({0})") if axis == -1 else e.py("F.glu({0}, dim={axis})", axis=axis)
