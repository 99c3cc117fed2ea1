"""`+`"""

from __future__ import annotations

from collections.abc import Sequence

from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import PLUS, Application, Code, Example, TorchScope
from archdsl.ops._common import Arithmetic, arithmetic_type, numeric_operand


class Plus(Arithmetic):
    """`a + b`, element by element; axes from the right are equal or 1. True counts as 1, false as 0."""

    operator = "Add"
    additive = True
    signature = "plus()(a: [...], b: [...]) -> [...]"
    numpy = "add"
    examples = (
        Example("x + y", "x: [2, 5, 8], y: [8]"),
        Example("1 + x"),
        Example("x + y", "x: [2, 1, 8], y: [5, 1]"),
        Example("ids + 0.5", "ids: int[2, 5]", gradients=False),
        Example("(ids > 1) + (ids > 2)", "ids: int[2, 5]", gradients=False),
    )

    def dtypes(self, call: Application) -> Sequence[str]:
        found = arithmetic_type(call.inputs)
        return ("int" if found == "bool" else found,)

    def torch(self, node: OpNode, e: TorchScope) -> Code:
        if all(isinstance(v, Value) and v.is_bool for v in node.inputs):
            # PyTorch takes the sum of two truth values for their disjunction.
            return Code(f"{numeric_operand(node, e, 0, PLUS)} + {numeric_operand(node, e, 1, PLUS + 1)}", PLUS)
        return Code(f"{e.operand(0, PLUS)} + {e.operand(1, PLUS + 1)}", PLUS)
