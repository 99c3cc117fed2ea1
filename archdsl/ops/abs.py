"""`abs`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope
from archdsl.ops._common import Numeric


class Abs(Numeric):
    """The absolute value, element by element."""

    operator = "Abs"
    signature = "abs()(x: [...]) -> [...]"
    numpy = "abs"
    examples = (
        Example("x -> abs"),
        Example("abs(ids)", "ids: int[2, 5]", gradients=False),
        Example("abs(2) * x"),
    )

    def torch(self, node: OpNode, e: TorchScope) -> str:
        return f"{e.at(0)}.abs()"
