"""`sqrt`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope, Tree
from archdsl.ops._common import RealFunction


class Sqrt(RealFunction):
    """The square root, element by element."""

    operator = "Sqrt"
    by_result = True
    signature = "sqrt()(x: [...]) -> float[...]"
    numpy = "sqrt"
    examples = (
        Example("sqrt(1 + x * x)"),
        Example("sqrt(ids)", "ids: int[2, 5]", gradients=False),
        Example("sqrt(2) * x"),
    )

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("torch.sqrt({0})")
