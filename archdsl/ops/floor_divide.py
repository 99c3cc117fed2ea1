"""`//`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import TIMES, Application, Code, Example, TorchScope
from archdsl.ops._common import Numeric, demand_divisor


class FloorDivide(Numeric):
    """`a // b`, element by element: the quotient rounded down. No gradient flows."""

    signature = "floor_divide()(a: [...], b: [...]) -> [...]"
    numpy = "floor_divide"
    examples = (
        Example("ids // 2", "ids: int[2, 5]", gradients=False),
        Example("ids // (ids + 1)", "ids: int[2, 5]", gradients=False),
        Example("x // 0.5", gradients=False),
    )

    def check(self, call: Application) -> None:
        super().check(call)
        demand_divisor(self, call)

    def torch(self, node: OpNode, e: TorchScope) -> Code:
        return Code(f"{e.operand(0, TIMES)} // {e.operand(1, TIMES + 1)}", TIMES)
