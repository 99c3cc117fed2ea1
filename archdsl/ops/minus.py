"""`-`"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from archdsl.ir.dims import Num
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, TorchScope, Tree
from archdsl.ops._common import Arithmetic, arithmetic_type, numeric_operand, overruling


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
        found = arithmetic_type(call.inputs, call)
        return ("int" if found == "bool" else found,)

    def largest(self, node: OpNode, inputs: Sequence[int | None]) -> int | None:
        a, b = inputs
        return a - b if a is not None and b is not None and isinstance(node.inputs[1], Num) else None

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        a, b = known
        return overruling((a, None if b is None else -b), math.inf, -math.inf) or super().constant(node, known)

    def combines(self, node: OpNode) -> Sequence[Fraction]:
        return Fraction(1), Fraction(-1)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{a} - {b}", a=numeric_operand(node, e, 0), b=numeric_operand(node, e, 1))
