"""`sum`"""

from __future__ import annotations

from collections.abc import Sequence

from archdsl.ir.op import Application, Example
from archdsl.ir.signature import promoted
from archdsl.ops._common import Reduction


class Sum(Reduction):
    """The sum along one or several axes; `keep` leaves them, of size 1. True counts as 1."""

    operator = "ReduceSum"
    additive = True
    signature = "sum(axis: ints = -1, keep: bool = false)(x: [...]) -> [...]"
    method = "sum"
    examples = (
        Example("x -> sum"),
        Example("x -> sum(1)"),
        Example("x -> sum([1, -1], keep: true)"),
        Example("x -> sum(0, keep: true)"),
        Example("sum(ids)", "ids: int[2, 5]", gradients=False),
        Example("sum(real)", "real: bool[2, 5]", gradients=False),
    )

    def dtypes(self, call: Application) -> Sequence[str]:
        found = promoted(call.inputs)
        return ("int" if found == "bool" else found,)
