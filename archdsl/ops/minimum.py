"""`minimum`"""

from __future__ import annotations

from archdsl.ir.dims import Num
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope
from archdsl.ops._common import Numeric


class Minimum(Numeric):
    """The smaller of two, element by element; axes from the right are equal or 1."""

    operator = "Min"
    signature = "minimum()(a: [...], b: [...]) -> [...]"
    numpy = "minimum"
    examples = (
        Example("minimum(x, y)", "x: [2, 5, 8], y: [8]"),
        Example("minimum(x, 0.5)"),
        Example("minimum(0, x)"),
        Example("minimum(ids, 2)", "ids: int[2, 5]", gradients=False),
    )

    def torch(self, node: OpNode, e: TorchScope) -> str:
        a, b = node.inputs
        if isinstance(b, Num):
            return f"{e.at(0)}.clamp(max={e.number(b)})"
        if isinstance(a, Num):
            return f"{e.at(1)}.clamp(max={e.number(a)})"
        return f"torch.minimum({e.arg(0)}, {e.arg(1)})"
