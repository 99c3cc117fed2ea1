"""`sin`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope, Tree
from archdsl.ops._common import RealFunction


class Sin(RealFunction):
    """The sine, element by element."""

    operator = "Sin"
    signature = "sin()(x: [...]) -> float[...]"
    numpy = "sin"
    examples = (
        Example("x -> sin"),
        Example("sin(ids)", "ids: int[2, 5]", gradients=False),
        Example("sin(2) * x"),
    )

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("torch.sin({0})")
