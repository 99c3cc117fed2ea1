"""`sigmoid`"""

from __future__ import annotations

from collections.abc import Sequence

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope, Tree
from archdsl.ops._common import VANISHES, RealFunction


class Sigmoid(RealFunction):
    """The logistic function: `1 / (1 + exp(-x))`."""

    operator = "Sigmoid"
    by_result = True
    signature = "sigmoid()(x: [...]) -> float[...]"
    examples = (
        Example("x -> sigmoid"),
        Example("sigmoid(x + 1)", "x: [5]"),
        Example("sigmoid(ids)", "ids: int[2, 5]", gradients=False),
    )

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return 0.0 if known[0] is not None and known[0] <= VANISHES else None

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("torch.sigmoid({0})")
