"""`minimum`"""

from __future__ import annotations

import math
from collections.abc import Sequence

from archdsl.ir.dims import Num
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope, Tree
from archdsl.ops._common import Arithmetic


class Minimum(Arithmetic):
    """The smaller of two, element by element; axes from the right are equal or 1."""

    operator = "Min"
    signature = "minimum()(a: number[...], b: number[...]) -> [...]"
    numpy = "minimum"
    examples = (
        Example("minimum(x, y)", "x: [2, 5, 8], y: [8]"),
        Example("minimum(x, 0.5)"),
        Example("minimum(0, x)"),
        Example("minimum(ids, 2)", "ids: int[2, 5]", gradients=False),
    )

    def largest(self, node: OpNode, inputs: Sequence[int | None]) -> int | None:
        a, b = inputs
        return min(a, b) if a is not None and b is not None and any(isinstance(v, Num) for v in node.inputs) else None

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return -math.inf if -math.inf in known else super().constant(node, known)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        a, b = node.inputs
        if isinstance(b, Num):
            return e.py("{0}.clamp(max={1})")
        if isinstance(a, Num):
            return e.py("{1}.clamp(max={0})")
        return e.py("torch.minimum({0}, {1})")
