"""`l2_normalize`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, OnnxScope, TorchScope
from archdsl.ops._common import AxisOp, demand_floats, equals, number, place, written


class L2Normalize(AxisOp):
    """Divided by its Euclidean length along an axis, or by eps where that is larger."""

    passes = 4
    signature = "l2_normalize(axis: int = -1, eps: number = 1e-12)(x: [...]) -> [...]"
    examples = (Example("x -> l2_normalize"), Example("x -> l2_normalize(axis: 1, eps: 1e-6)"))

    def check(self, call: Application) -> None:
        super().check(call)
        demand_floats(self, call)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x = g.arg(0, "float32")
        length = g.ReduceL2(x, [place(node)], keepdims=1)
        return g.Div(x, g.Max(length, number(node, "eps")))

    def torch(self, node: OpNode, e: TorchScope) -> str:
        eps = number(node, "eps")
        floor = "" if equals(eps, 1e-12) else f", eps={e.number(eps)}"
        return f"F.normalize({e.arg(0)}, dim={written(node)}{floor})"
