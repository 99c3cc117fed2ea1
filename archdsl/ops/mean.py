"""`mean`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope, Tree
from archdsl.ops._common import Reduction, first_input


class Mean(Reduction):
    """The mean along one or several axes; `keep` leaves them, of size 1. Whole numbers and bools give float32."""

    operator = "ReduceMean"
    additive = True
    signature = "mean(axis: ints = -1, keep: bool = false)(x: [...]) -> float[...]"
    method = "mean"
    examples = (
        Example("x -> mean"),
        Example("x -> mean(1)"),
        Example("x -> mean([1, -1], keep: true)"),
        Example("x -> mean(0, keep: true)"),
        Example("mean(ids)", "ids: int[2, 5]", gradients=False),
        Example("mean(real)", "real: bool[2, 5]", gradients=False),
    )

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        x = e.input(0) if first_input(node).is_float else e.py("{0}.float()")
        return self.reduced(node, e, x)
