"""`softmax`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, OnnxScope, TorchScope
from archdsl.ops._common import AxisOp, demand_floats, place, written


class Softmax(AxisOp):
    """`exp(x) / sum(exp(x))` along an axis, without overflow."""

    passes = 5
    signature = "softmax(axis: int = -1)(x: [...]) -> [...]"
    examples = (Example("x -> softmax"), Example("x -> softmax(axis: 1)"), Example("softmax(x + 1)", "x: [5]"))

    def check(self, call: Application) -> None:
        super().check(call)
        demand_floats(self, call)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Softmax(g.arg(0, "float32"), axis=place(node))

    def torch(self, node: OpNode, e: TorchScope) -> str:
        return f"{e.at(0)}.softmax({written(node)})"
