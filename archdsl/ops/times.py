"""`*`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import TIMES, Code, Example, TorchScope
from archdsl.ops._common import Arithmetic


class Times(Arithmetic):
    """`a * b`, element by element; axes from the right are equal or 1."""

    operator = "Mul"
    signature = "times()(a: [...], b: [...]) -> [...]"
    numpy = "multiply"
    examples = (
        Example("x * y", "x: [2, 5, 8], y: [5, 1]"),
        Example("0.5 * x"),
        Example("(x + 1) * (x - 1)"),
        Example("ids * 2", "ids: int[2, 5]", gradients=False),
    )

    def torch(self, node: OpNode, e: TorchScope) -> Code:
        return Code(f"{e.operand(0, TIMES)} * {e.operand(1, TIMES + 1)}", TIMES)
