"""`sigmoid`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope
from archdsl.ops._common import RealFunction


class Sigmoid(RealFunction):
    """The logistic function: `1 / (1 + exp(-x))`."""

    operator = "Sigmoid"
    signature = "sigmoid()(x: [...]) -> [...]"
    examples = (
        Example("x -> sigmoid"),
        Example("sigmoid(x + 1)", "x: [5]"),
        Example("sigmoid(ids)", "ids: int[2, 5]", gradients=False),
    )

    def torch(self, node: OpNode, e: TorchScope) -> str:
        return f"torch.sigmoid({e.arg(0)})"
