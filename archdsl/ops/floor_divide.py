"""`//`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Num
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Application, Example, OnnxScope, TorchScope, Tree
from archdsl.ops._common import Arithmetic, demand_divisor, remainder


class FloorDivide(Arithmetic):
    """`a // b`, element by element: the quotient rounded down. No gradient flows."""

    signature = "floor_divide()(a: number[...], b: number[...]) -> [...]"
    numpy = "floor_divide"
    examples = (
        Example("ids // 2", "ids: int[2, 5]", gradients=False),
        Example("ids // (ids + 1)", "ids: int[2, 5]", gradients=False),
        Example("x // 0.5", gradients=False),
    )

    def check(self, call: Application) -> None:
        super().check(call)
        demand_divisor(self, call)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        if node.outputs[0].is_int:  # ONNX rounds towards 0, but has the remainder of a quotient that is rounded down
            a, b = g.args()
            return g.Div(g.Sub(a, g.Mod(a, b)), b)
        a, b = (g.cast(x, "float32") for x in g.args())
        rest, less = remainder(g, a, b)
        quotient = g.Round(g.Sub(g.Div(g.Sub(a, rest), b), g.cast(less, "float32")))
        if isinstance(node.inputs[1], Num):  # which is not 0
            return quotient
        return g.Where(g.Equal(b, 0.0), g.Div(a, b), quotient)

    def differentiates(self, node: OpNode, i: int) -> bool:
        return False

    def largest(self, node: OpNode, inputs: Sequence[int | None]) -> int | None:
        a, b = inputs
        return a // b if a is not None and b is not None and isinstance(node.inputs[1], Num) and b > 0 else None

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        a, b = (
            e.py("{x}.detach()", x=e.input(i)) if isinstance(x, Value) and x.is_float else e.input(i)
            for i, x in enumerate(node.inputs)
        )  # torch knows no gradient of `//`, not even that it is 0
        return e.py("{a} // {b}", a=a, b=b)
