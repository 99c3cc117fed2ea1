"""`quick_gelu`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, OnnxScope, TorchScope, Tree
from archdsl.ops._common import Activation


class QuickGELU(Activation):
    """The sigmoid approximation of GELU: `x * sigmoid(1.702 * x)`; that of CLIP."""

    signature = "quick_gelu()(x: float[...]) -> [...]"
    examples = (Example("x -> quick_gelu"), Example("quick_gelu(x + 1)", "x: [5]"))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x = g.arg(0)
        return g.Mul(x, g.Sigmoid(g.Mul(x, 1.702)))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("quick_gelu({0})")
