"""`abs`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope, Tree
from archdsl.ops._common import Arithmetic


class Abs(Arithmetic):
    """The absolute value, element by element."""

    operator = "Abs"
    signature = "abs()(x: number[...]) -> [...]"
    numpy = "abs"
    examples = (
        Example("x -> abs"),
        Example("abs(ids)", "ids: int[2, 5]", gradients=False),
        Example("abs(2) * x"),
    )

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0}.abs()")
