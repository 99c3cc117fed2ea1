"""`var`"""

from __future__ import annotations

from archdsl.ir.op import Example
from archdsl.ops._common import Reduction


class Var(Reduction):
    """The variance along one or several axes (divided by n, as norms do); `keep` leaves them, of size 1."""

    signature = "var(axis: ints = -1, keep: bool = false)(x: [...]) -> [...]"
    method = "var"
    extra = ", correction=0"
    examples = (
        Example("x -> var"),
        Example("x -> var(1)"),
        Example("x -> var(axis: [1, -1], keep: true)"),
        Example("x -> var(0, keep: true)"),
    )
