"""`hard_swish`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope, Tree
from archdsl.ops._common import Activation


class HardSwish(Activation):
    """`x * clamp(x / 6 + 1 / 2, 0, 1)` (Howard et al., 2019)."""

    operator = "HardSwish"
    signature = "hard_swish()(x: float[...]) -> [...]"
    examples = (Example("x -> hard_swish"), Example("hard_swish(x + 1)", "x: [5]"))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("F.hardswish({0})")
