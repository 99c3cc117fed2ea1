"""`-`"""

from __future__ import annotations

from collections.abc import Sequence

from archdsl.ir.graph import OpNode
from archdsl.ir.op import PLUS, Application, Code, Example, TorchScope
from archdsl.ops._common import Arithmetic, arithmetic_type, numeric_operand


class Minus(Arithmetic):
    """`a - b`, element by element; axes from the right are equal or 1. True counts as 1, false as 0."""

    operator = "Sub"
    additive = True
    signature = "minus()(a: [...], b: [...]) -> [...]"
    numpy = "subtract"
    examples = (
        Example("x - y", "x: [2, 5, 8], y: [8]"),
        Example("1 - x"),
        Example("x - (x - 1)"),
        Example("1 - real", "real: bool[2, 5]", gradients=False),
    )

    def dtypes(self, call: Application) -> Sequence[str]:
        found = arithmetic_type(call.inputs)
        return ("int" if found == "bool" else found,)

    def torch(self, node: OpNode, e: TorchScope) -> Code:
        return Code(f"{numeric_operand(node, e, 0, PLUS)} - {numeric_operand(node, e, 1, PLUS + 1)}", PLUS)
