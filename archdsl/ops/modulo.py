"""`%`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, OnnxScope, TorchScope, Tree
from archdsl.ops._common import Arithmetic, demand_divisor, remainder


class Modulo(Arithmetic):
    """`a % b`, element by element: what `a // b` leaves, with the sign of b."""

    signature = "modulo()(a: number[...], b: number[...]) -> [...]"
    numpy = "remainder"
    examples = (
        Example("ids % 2", "ids: int[2, 5]", gradients=False),
        Example("x % 1.5"),
        Example("7 % (ids + 1)", "ids: int[2, 5]", gradients=False),
    )

    def check(self, call: Application) -> None:
        super().check(call)
        demand_divisor(self, call)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        if node.outputs[0].is_int:
            return g.Mod(*g.args())
        a, b = (g.cast(x, "float32") for x in g.args())
        rest, less = remainder(g, a, b)
        return g.Where(less, g.Add(rest, b), rest)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0} % {1}")
