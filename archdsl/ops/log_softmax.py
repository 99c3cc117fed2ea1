"""`log_softmax`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, OnnxScope, TorchScope
from archdsl.ops._common import AxisOp, demand_floats, from_right, written


class LogSoftmax(AxisOp):
    """`log(softmax(x))` along an axis, without overflow."""

    passes = 5
    signature = "log_softmax(axis: int = -1)(x: [...]) -> [...]"
    examples = (
        Example("x -> log_softmax"),
        Example("x -> log_softmax(axis: 1)"),
        Example("log_softmax(x + 1)", "x: [5]"),
    )

    def check(self, call: Application) -> None:
        super().check(call)
        demand_floats(self, call)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.LogSoftmax(g.arg(0, "float32"), axis=from_right(node))

    def torch(self, node: OpNode, e: TorchScope) -> str:
        return f"{e.at(0)}.log_softmax({written(node)})"
