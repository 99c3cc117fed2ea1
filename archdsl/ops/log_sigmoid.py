"""`log_sigmoid`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, OnnxScope, TorchScope, Tree
from archdsl.ops._common import Activation


class LogSigmoid(Activation):
    """`log(sigmoid(x))`, without overflow."""

    signature = "log_sigmoid()(x: float[...]) -> [...]"
    examples = (Example("x -> log_sigmoid"), Example("log_sigmoid(x + 1)", "x: [5]"))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Neg(g.Softplus(g.Neg(g.arg(0))))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("F.logsigmoid({0})")
