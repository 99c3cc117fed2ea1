"""`+`"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from archdsl.ir.dims import Num
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Application, Example, TorchScope, Tree
from archdsl.ops._common import Arithmetic, arithmetic_type, numeric_operand, overruling


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
        found = arithmetic_type(call.inputs, call)
        return ("int" if found == "bool" else found,)

    def largest(self, node: OpNode, inputs: Sequence[int | None]) -> int | None:
        a, b = inputs
        return a + b if a is not None and b is not None and any(isinstance(v, Num) for v in node.inputs) else None

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return overruling(known, math.inf, -math.inf) or super().constant(node, known)

    def combines(self, node: OpNode) -> Sequence[Fraction]:
        return Fraction(1), Fraction(1)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        if all(isinstance(v, Value) and v.is_bool for v in node.inputs):
            # PyTorch takes the sum of two truth values for their disjunction.
            return e.py("{a} + {b}", a=numeric_operand(node, e, 0), b=numeric_operand(node, e, 1))
        return e.py("{0} + {1}")
