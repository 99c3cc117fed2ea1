"""`ceil`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope, Tree
from archdsl.ops._common import Rounding


class Ceil(Rounding):
    """Rounded up, element by element. Its gradient is zero."""

    operator = "Ceil"
    signature = "ceil()(x: number[...]) -> [...]"
    numpy = "ceil"
    examples = (
        Example("x -> ceil"),
        Example("ceil(ids)", "ids: int[2, 5]", gradients=False),
    )

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("torch.ceil({0})")
