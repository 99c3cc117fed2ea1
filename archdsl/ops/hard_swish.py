"""`hard_swish`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope
from archdsl.ops._common import Activation


class HardSwish(Activation):
    """`x * clamp(x / 6 + 1 / 2, 0, 1)` (Howard et al., 2019)."""

    operator = "HardSwish"
    signature = "hard_swish()(x: [...]) -> [...]"
    examples = (Example("x -> hard_swish"), Example("hard_swish(x + 1)", "x: [5]"))

    def torch(self, node: OpNode, e: TorchScope) -> str:
        return f"F.hardswish({e.arg(0)})"
