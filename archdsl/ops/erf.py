"""`erf`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope, Tree
from archdsl.ops._common import RealFunction


class Erf(RealFunction):
    """The error function, element by element."""

    operator = "Erf"
    signature = "erf()(x: [...]) -> float[...]"
    examples = (
        Example("x -> erf"),
        Example("erf(ids)", "ids: int[2, 5]", gradients=False),
    )

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("torch.erf({0})")
