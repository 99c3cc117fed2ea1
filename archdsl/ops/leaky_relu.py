"""`leaky_relu`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, OnnxScope, TorchScope
from archdsl.ops._common import Activation, equals, number


class LeakyReLU(Activation):
    """x, or `slope * x` below 0."""

    signature = "leaky_relu(slope: number = 0.01)(x: [...]) -> [...]"
    examples = (Example("x -> leaky_relu"), Example("x -> leaky_relu(0.2)"))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x, slope = g.arg(0), number(node, "slope")
        return g.LeakyRelu(x, alpha=float(slope)) if slope.static else g.PRelu(x, slope)

    def torch(self, node: OpNode, e: TorchScope) -> str:
        slope = number(node, "slope")
        return f"F.leaky_relu({e.arg(0)})" if equals(slope, 0.01) else f"F.leaky_relu({e.arg(0)}, {e.number(slope)})"
