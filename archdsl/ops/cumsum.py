"""`cumsum`"""

from __future__ import annotations

from collections.abc import Sequence

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, Reads, TorchScope
from archdsl.ir.signature import promoted
from archdsl.ops._common import AxisOp, first_input, own_places, written


class CumSum(AxisOp):
    """The sum of all places up to the own, along an axis."""

    signature = "cumsum(axis: int = -1)(x: [...]) -> [...]"
    examples = (
        Example("x -> cumsum"),
        Example("x -> cumsum(axis: 1)"),
        Example("cumsum(real)", "real: bool[2, 5]", gradients=False),
    )

    def dtypes(self, call: Application) -> Sequence[str]:
        found = promoted(call.inputs)
        return ("int" if found == "bool" else found,)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        return (own_places(first_input(node).rank),)

    def torch(self, node: OpNode, e: TorchScope) -> str:
        return f"{e.at(0)}.cumsum({written(node)})"
