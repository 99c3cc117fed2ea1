"""`noise`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, OnnxScope, Primitive, TorchScope, Tree


class NormalNoise(Primitive):
    """In training a normal draw for each number, whose standard deviation that number is; 0 else.

    `logits + (spread -> noise)` is a noisy gate (Shazeer et al., 2017, equation 4). Gradients reach the spread."""

    signature = "noise()(x: float[...]) -> [...]"
    mixes = False
    examples = (Example("x -> noise"), Example("x + (softplus(x) -> noise)"))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Mul(g.arg(0), 0)  # of inference

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{module}({0})", module=e.stateless("noise", e.py("Noise()")))
