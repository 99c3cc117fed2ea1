"""`relu`"""

from __future__ import annotations

from collections.abc import Sequence

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope, Tree
from archdsl.ops._common import Activation


class ReLU(Activation):
    """Rectified linear unit: `maximum(x, 0)`."""

    operator = "Relu"
    by_result = True
    signature = "relu()(x: float[...]) -> [...]"
    examples = (Example("x -> relu"), Example("relu(x + 1)", "x: [5]"))

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return 0.0 if known[0] is not None and known[0] <= 0 else None

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("F.relu({0})")
