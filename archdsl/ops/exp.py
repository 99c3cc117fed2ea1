"""`exp`"""

from __future__ import annotations

from collections.abc import Sequence

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope, Tree
from archdsl.ops._common import VANISHES, RealFunction


class Exp(RealFunction):
    """`e ** x`, element by element."""

    operator = "Exp"
    by_result = True
    signature = "exp()(x: [...]) -> float[...]"
    numpy = "exp"
    examples = (
        Example("x -> exp"),
        Example("exp(ids)", "ids: int[2, 5]", gradients=False),
        Example("exp(2) * x"),
    )

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return 0.0 if known[0] is not None and known[0] <= VANISHES else super().constant(node, known)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("torch.exp({0})")
