"""`silu`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, OnnxScope, Primitive, TorchScope, Tree


class SiLU(Primitive):
    """Sigmoid-weighted linear unit (Hendrycks and Gimpel, 2016): `x * sigmoid(x)`; also called swish."""

    signature = "silu()(x: float[...]) -> [...]"
    elementwise = True
    mixes = False
    examples = (Example("x -> silu"),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x = g.arg(0)
        return g.Mul(x, g.Sigmoid(x))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("F.silu({0})")
