"""`log_sigmoid`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope
from archdsl.ops._common import Activation


class LogSigmoid(Activation):
    """`log(sigmoid(x))`, without overflow."""

    signature = "log_sigmoid()(x: [...]) -> [...]"
    examples = (Example("x -> log_sigmoid"), Example("log_sigmoid(x + 1)", "x: [5]"))

    def torch(self, node: OpNode, e: TorchScope) -> str:
        return f"F.logsigmoid({e.arg(0)})"
