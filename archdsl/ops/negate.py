"""`-`"""

from __future__ import annotations

from archdsl.ir.op import Example
from archdsl.ops._common import Numeric, Prefix


class Negate(Prefix, Numeric):
    """`-x`, element by element."""

    operator = "Neg"
    additive = True
    signature = "negate()(x: [...]) -> [...]"
    symbol = "-"
    numpy = "negative"
    examples = (Example("-x"), Example("-(x + 1)"), Example("-ids", "ids: int[2, 5]", gradients=False))
