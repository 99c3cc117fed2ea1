"""`floor`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope, Tree
from archdsl.ops._common import Rounding


class Floor(Rounding):
    """Rounded down, element by element. Its gradient is zero."""

    operator = "Floor"
    signature = "floor()(x: number[...]) -> [...]"
    numpy = "floor"
    examples = (
        Example("x -> floor"),
        Example("floor(ids)", "ids: int[2, 5]", gradients=False),
    )

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("torch.floor({0})")
