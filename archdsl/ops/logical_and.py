"""`&`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import BIT_AND, Code, Example, TorchScope
from archdsl.ops._common import Logical


class LogicalAnd(Logical):
    """`a & b`, element by element, of tensors of true and false: where both are true."""

    operator = "And"
    signature = "logical_and()(a: bool[...], b: bool[...]) -> [...]"
    numpy = "logical_and"
    examples = (
        Example("a & b", "a: bool[2, 5], b: bool[5]", gradients=False),
        Example("(x > 0) & (x < 1)", gradients=False),
    )

    def torch(self, node: OpNode, e: TorchScope) -> Code:
        return Code(f"{e.operand(0, BIT_AND)} & {e.operand(1, BIT_AND + 1)}", BIT_AND)
