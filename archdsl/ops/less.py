"""`<`"""

from __future__ import annotations

from archdsl.ir.op import Example
from archdsl.ops._common import Comparison


class Less(Comparison):
    """`a < b`, element by element: where the first is the smaller; axes from the right are equal or 1."""

    operator = "Less"
    signature = "less()(a: [...], b: [...]) -> bool[...]"
    symbol = "<"
    numpy = "less"
    examples = (
        Example("a < b", "a: int[2, 5], b: int[5]", gradients=False),
        Example("x < 0", gradients=False),
        Example("1 < ids + 1", "ids: int[2, 5]", gradients=False),
    )
