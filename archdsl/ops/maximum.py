"""`maximum`"""

from __future__ import annotations

from archdsl.ir.dims import Num
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope
from archdsl.ops._common import Numeric


class Maximum(Numeric):
    """The larger of two, element by element; axes from the right are equal or 1."""

    operator = "Max"
    signature = "maximum()(a: [...], b: [...]) -> [...]"
    numpy = "maximum"
    examples = (
        Example("maximum(x, y)", "x: [2, 5, 8], y: [8]"),
        Example("maximum(x, 0.5)"),
        Example("maximum(0, x)"),
        Example("maximum(ids, 2)", "ids: int[2, 5]", gradients=False),
    )

    def torch(self, node: OpNode, e: TorchScope) -> str:
        a, b = node.inputs
        if isinstance(b, Num):
            return f"{e.at(0)}.clamp(min={e.number(b)})"
        if isinstance(a, Num):
            return f"{e.at(1)}.clamp(min={e.number(a)})"
        return f"torch.maximum({e.arg(0)}, {e.arg(1)})"
