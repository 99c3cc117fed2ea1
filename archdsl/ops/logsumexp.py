"""`logsumexp`"""

from __future__ import annotations

from archdsl.ir.op import Example
from archdsl.ops._common import Reduction


class LogSumExp(Reduction):
    """`log(sum(exp(x)))` along one or several axes, without overflow; `keep` leaves them, of size 1."""

    signature = "logsumexp(axis: ints = -1, keep: bool = false)(x: [...]) -> [...]"
    method = "logsumexp"
    examples = (
        Example("x -> logsumexp"),
        Example("x -> logsumexp(1)"),
        Example("x -> logsumexp(axis: [1, -1], keep: true)"),
        Example("x -> logsumexp(0, keep: true)"),
    )
