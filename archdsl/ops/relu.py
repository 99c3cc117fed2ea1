"""`relu`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope
from archdsl.ops._common import Activation


class ReLU(Activation):
    """Rectified linear unit: `maximum(x, 0)`."""

    operator = "Relu"
    signature = "relu()(x: [...]) -> [...]"
    examples = (Example("x -> relu"), Example("relu(x + 1)", "x: [5]"))

    def torch(self, node: OpNode, e: TorchScope) -> str:
        return f"F.relu({e.arg(0)})"
