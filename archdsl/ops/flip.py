"""`flip`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope
from archdsl.ops._common import AxisOp, written


class Flip(AxisOp):
    """An axis in reverse order."""

    signature = "flip(axis: int = 1)(x: [...]) -> [...]"
    examples = (Example("x -> flip"), Example("x -> flip(-1)"))

    def torch(self, node: OpNode, e: TorchScope) -> str:
        return f"{e.at(0)}.flip({written(node)})"
