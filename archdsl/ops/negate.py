"""`-`"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example
from archdsl.ops._common import Arithmetic, Prefix


class Negate(Prefix, Arithmetic):
    """`-x`, element by element."""

    operator = "Neg"
    additive = True
    signature = "negate()(x: number[...]) -> [...]"
    symbol = "-"
    numpy = "negative"
    examples = (Example("-x"), Example("-(x + 1)"), Example("-ids", "ids: int[2, 5]", gradients=False))

    def combines(self, node: OpNode) -> Sequence[Fraction]:
        return (Fraction(-1),)
