"""`cos`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope, Tree
from archdsl.ops._common import RealFunction


class Cos(RealFunction):
    """The cosine, element by element."""

    operator = "Cos"
    signature = "cos()(x: [...]) -> float[...]"
    numpy = "cos"
    examples = (
        Example("x -> cos"),
        Example("cos(ids)", "ids: int[2, 5]", gradients=False),
        Example("cos(2) * x"),
    )

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("torch.cos({0})")
