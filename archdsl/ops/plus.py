"""`+`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import PLUS, Code, Example, TorchScope
from archdsl.ops._common import Arithmetic


class Plus(Arithmetic):
    """`a + b`, element by element; axes from the right are equal or 1."""

    signature = "plus()(a: [...], b: [...]) -> [...]"
    numpy = "add"
    examples = (
        Example("x + y", "x: [2, 5, 8], y: [8]"),
        Example("1 + x"),
        Example("x + y", "x: [2, 1, 8], y: [5, 1]"),
        Example("ids + 0.5", "ids: int[2, 5]", gradients=False),
    )

    def torch(self, node: OpNode, e: TorchScope) -> Code:
        return Code(f"{e.operand(0, PLUS)} + {e.operand(1, PLUS + 1)}", PLUS)
