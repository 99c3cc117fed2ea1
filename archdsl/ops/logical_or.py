"""`|`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import BIT_OR, Code, Example, TorchScope
from archdsl.ops._common import Logical


class LogicalOr(Logical):
    """`a | b`, element by element, of tensors of true and false: where at least one is true."""

    operator = "Or"
    signature = "logical_or()(a: bool[...], b: bool[...]) -> [...]"
    numpy = "logical_or"
    examples = (
        Example("a | b", "a: bool[2, 5], b: bool[5]", gradients=False),
        Example("(x > 0) | (x < 1)", gradients=False),
    )

    def torch(self, node: OpNode, e: TorchScope) -> Code:
        return Code(f"{e.operand(0, BIT_OR)} | {e.operand(1, BIT_OR + 1)}", BIT_OR)
