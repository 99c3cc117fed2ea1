"""`maximum`"""

from __future__ import annotations

import math
from collections.abc import Sequence

from archdsl.ir.dims import Num
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope, Tree
from archdsl.ops._common import Arithmetic


class Maximum(Arithmetic):
    """The larger of two, element by element; axes from the right are equal or 1."""

    operator = "Max"
    signature = "maximum()(a: number[...], b: number[...]) -> [...]"
    numpy = "maximum"
    examples = (
        Example("maximum(x, y)", "x: [2, 5, 8], y: [8]"),
        Example("maximum(x, 0.5)"),
        Example("maximum(0, x)"),
        Example("maximum(ids, 2)", "ids: int[2, 5]", gradients=False),
    )

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return math.inf if math.inf in known else super().constant(node, known)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        a, b = node.inputs
        if isinstance(b, Num):
            return e.py("{0}.clamp(min={1})")
        if isinstance(a, Num):
            return e.py("{1}.clamp(min={0})")
        return e.py("torch.maximum({0}, {1})")
