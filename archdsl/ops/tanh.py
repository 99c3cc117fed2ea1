"""`tanh`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope, Tree
from archdsl.ops._common import RealFunction


class Tanh(RealFunction):
    """The hyperbolic tangent."""

    operator = "Tanh"
    by_result = True
    signature = "tanh()(x: [...]) -> float[...]"
    numpy = "tanh"
    examples = (
        Example("x -> tanh"),
        Example("tanh(x + 1)", "x: [5]"),
        Example("tanh(ids)", "ids: int[2, 5]", gradients=False),
    )

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("torch.tanh({0})")
