"""`min`"""

from __future__ import annotations

from archdsl.ir.op import Example
from archdsl.ops._common import Reduction


class Min(Reduction):
    """The smallest along one or several axes; `keep` leaves them, of size 1."""

    operator = "ReduceMin"
    signature = "min(axis: ints = -1, keep: bool = false)(x: [...]) -> [...]"
    method = "amin"
    examples = (
        Example("x -> min"),
        Example("x -> min(1)"),
        Example("x -> min([1, -1], keep: true)"),
        Example("x -> min(0, keep: true)"),
        Example("min(ids)", "ids: int[2, 5]", gradients=False),
        Example("min(real)", "real: bool[2, 5]", gradients=False),
    )
