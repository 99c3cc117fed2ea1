"""`erf`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope
from archdsl.ops._common import RealFunction


class Erf(RealFunction):
    """The error function, element by element."""

    operator = "Erf"
    signature = "erf()(x: [...]) -> [...]"
    examples = (
        Example("x -> erf"),
        Example("erf(ids)", "ids: int[2, 5]", gradients=False),
    )

    def torch(self, node: OpNode, e: TorchScope) -> str:
        return f"torch.erf({e.arg(0)})"
