"""`/`"""

from __future__ import annotations

from collections.abc import Sequence

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, TorchScope, Tree
from archdsl.ops._common import RealFunction, demand_divisor


class Divide(RealFunction):
    """`a / b`, element by element; axes from the right are equal or 1. Whole numbers give float32."""

    operator = "Div"
    signature = "divide()(a: [...], b: [...]) -> float[...]"
    numpy = "divide"
    examples = (
        Example("x / exp(y)", "x: [2, 5, 8], y: [8]"),
        Example("x / 4"),
        Example("1 / (1 + x * x)"),
        Example("ids / 2", "ids: int[2, 5]", gradients=False),
    )

    def check(self, call: Application) -> None:
        demand_divisor(self, call)

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return 0.0 if known[0] == 0 and known[1] is None else super().constant(node, known)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0} / {1}")
