"""`rsqrt`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, OnnxScope, TorchScope, Tree
from archdsl.ops._common import RealFunction


class Rsqrt(RealFunction):
    """`1 / sqrt(x)`, element by element."""

    by_result = True
    signature = "rsqrt()(x: [...]) -> float[...]"
    examples = (
        Example("rsqrt(1 + x * x)"),
        Example("rsqrt(ids + 1)", "ids: int[2, 5]", gradients=False),
    )

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Div(1.0, g.Sqrt(g.arg(0, node.outputs[0].dtype)))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("torch.rsqrt({0})")
