"""`quick_gelu`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, OnnxScope, TorchScope
from archdsl.ops._common import Activation

QUICK_GELU = '''
def quick_gelu(x: Tensor) -> Tensor:
    """The sigmoid approximation of GELU."""
    return x * torch.sigmoid(1.702 * x)
'''


class QuickGELU(Activation):
    """The sigmoid approximation of GELU: `x * sigmoid(1.702 * x)`; that of CLIP."""

    signature = "quick_gelu()(x: [...]) -> [...]"
    examples = (Example("x -> quick_gelu"), Example("quick_gelu(x + 1)", "x: [5]"))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x = g.arg(0)
        return g.Mul(x, g.Sigmoid(g.Mul(x, 1.702)))

    def torch(self, node: OpNode, e: TorchScope) -> str:
        return f"{e.helper(QUICK_GELU)}({e.arg(0)})"
