"""`log_sigmoid`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, OnnxScope, TorchScope
from archdsl.ops._common import Activation


class LogSigmoid(Activation):
    """`log(sigmoid(x))`, without overflow."""

    signature = "log_sigmoid()(x: [...]) -> [...]"
    examples = (Example("x -> log_sigmoid"), Example("log_sigmoid(x + 1)", "x: [5]"))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Neg(g.Softplus(g.Neg(g.arg(0))))

    def torch(self, node: OpNode, e: TorchScope) -> str:
        return f"F.logsigmoid({e.arg(0)})"
