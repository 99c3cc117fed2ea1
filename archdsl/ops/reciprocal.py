"""`reciprocal`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope, Tree
from archdsl.ops._common import RealFunction


class Reciprocal(RealFunction):
    """`1 / x`, element by element."""

    operator = "Reciprocal"
    by_result = True
    signature = "reciprocal()(x: [...]) -> float[...]"
    numpy = "reciprocal"
    examples = (
        Example("reciprocal(1 + x * x)"),
        Example("reciprocal(ids + 1)", "ids: int[2, 5]", gradients=False),
    )

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("1 / {0}")
