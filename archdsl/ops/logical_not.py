"""`~`"""

from __future__ import annotations

from archdsl.ir.op import Example
from archdsl.ops._common import Logical, Prefix


class LogicalNot(Prefix, Logical):
    """`~a`, element by element, of a tensor of true and false: where it is false."""

    operator = "Not"
    signature = "logical_not()(a: bool[...]) -> bool[...]"
    symbol = "~"
    numpy = "logical_not"
    examples = (Example("~a", "a: bool[2, 5]", gradients=False), Example("~(x > 0)", gradients=False))
