"""`l2_normalize`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, OnnxScope, TorchScope, Tree
from archdsl.ops._common import AxisOp, equals, number, place, usual, written


class L2Normalize(AxisOp):
    """Divided by its Euclidean length along an axis, or by eps where that is larger."""

    passes = 4
    signature = "l2_normalize(axis: int = -1, eps: positive = 1e-12)(x: float[...]) -> [...]"
    examples = (Example("x -> l2_normalize"), Example("x -> l2_normalize(axis: 1, eps: 1e-6)"))

    def check(self, call: Application) -> None:
        super().check(call)
        usual(call, eps=1e-12)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x = g.arg(0, "float32")
        length = g.ReduceL2(x, [place(node)], keepdims=1)
        return g.Div(x, g.Max(length, number(node, "eps")))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        eps = number(node, "eps")
        floor = {} if equals(eps, 1e-12) else {"eps": eps}
        return e.py("F.normalize({0}, dim={axis}, {**floor})", axis=written(node), floor=floor)
