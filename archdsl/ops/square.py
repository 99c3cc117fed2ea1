"""`square`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, OnnxScope, TorchScope, Tree
from archdsl.ops._common import Arithmetic


class Square(Arithmetic):
    """`x ** 2`, element by element."""

    signature = "square()(x: number[...]) -> [...]"
    numpy = "square"
    examples = (
        Example("x -> square"),
        Example("square(ids)", "ids: int[2, 5]", gradients=False),
    )

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x = g.arg(0)
        return g.Mul(x, x)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0}.square()")
