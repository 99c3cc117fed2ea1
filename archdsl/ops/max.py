"""`max`"""

from __future__ import annotations

from archdsl.ir.op import Example
from archdsl.ops._common import Reduction


class Max(Reduction):
    """The largest along one or several axes; `keep` leaves them, of size 1."""

    operator = "ReduceMax"
    signature = "max(axis: ints = -1, keep: bool = false)(x: [...]) -> [...]"
    method = "amax"
    examples = (
        Example("x -> max"),
        Example("x -> max(1)"),
        Example("x -> max([1, -1], keep: true)"),
        Example("x -> max(0, keep: true)"),
        Example("max(ids)", "ids: int[2, 5]", gradients=False),
        Example("max(real)", "real: bool[2, 5]", gradients=False),
    )
