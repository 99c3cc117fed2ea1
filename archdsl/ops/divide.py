"""`/`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import TIMES, Application, Code, Example, TorchScope
from archdsl.ops._common import RealFunction, demand_divisor


class Divide(RealFunction):
    """`a / b`, element by element; axes from the right are equal or 1. Whole numbers give float32."""

    operator = "Div"
    signature = "divide()(a: [...], b: [...]) -> [...]"
    numpy = "divide"
    examples = (
        Example("x / exp(y)", "x: [2, 5, 8], y: [8]"),
        Example("x / 4"),
        Example("1 / (1 + x * x)"),
        Example("ids / 2", "ids: int[2, 5]", gradients=False),
    )

    def check(self, call: Application) -> None:
        demand_divisor(self, call)

    def torch(self, node: OpNode, e: TorchScope) -> Code:
        return Code(f"{e.operand(0, TIMES)} / {e.operand(1, TIMES + 1)}", TIMES)
