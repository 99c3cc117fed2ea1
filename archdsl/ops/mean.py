"""`mean`"""

from __future__ import annotations

from collections.abc import Sequence

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, TorchScope
from archdsl.ops._common import Reduction, first_input, real_type


class Mean(Reduction):
    """The mean along one or several axes; `keep` leaves them, of size 1. Whole numbers and bools give float32."""

    operator = "ReduceMean"
    additive = True
    signature = "mean(axis: ints = -1, keep: bool = false)(x: [...]) -> [...]"
    method = "mean"
    real = False
    examples = (
        Example("x -> mean"),
        Example("x -> mean(1)"),
        Example("x -> mean([1, -1], keep: true)"),
        Example("x -> mean(0, keep: true)"),
        Example("mean(ids)", "ids: int[2, 5]", gradients=False),
        Example("mean(real)", "real: bool[2, 5]", gradients=False),
    )

    def dtypes(self, call: Application) -> Sequence[str]:
        return (real_type(call.inputs),)

    def torch(self, node: OpNode, e: TorchScope) -> str:
        cast = "" if first_input(node).is_float else ".float()"
        return f"{e.at(0)}{cast}.mean({self.arguments(node)})"
