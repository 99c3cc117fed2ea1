"""`exp`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope
from archdsl.ops._common import RealFunction


class Exp(RealFunction):
    """`e ** x`, element by element."""

    operator = "Exp"
    signature = "exp()(x: [...]) -> [...]"
    numpy = "exp"
    examples = (
        Example("x -> exp"),
        Example("exp(ids)", "ids: int[2, 5]", gradients=False),
        Example("exp(2) * x"),
    )

    def torch(self, node: OpNode, e: TorchScope) -> str:
        return f"torch.exp({e.arg(0)})"
