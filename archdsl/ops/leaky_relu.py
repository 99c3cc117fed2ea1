"""`leaky_relu`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, OnnxScope, TorchScope, Tree
from archdsl.ops._common import Activation, equals, number, usual


class LeakyReLU(Activation):
    """x, or `slope * x` below 0."""

    signature = "leaky_relu(slope: number = 0.01)(x: float[...]) -> [...]"
    examples = (Example("x -> leaky_relu"), Example("x -> leaky_relu(0.2)"))

    def check(self, call: Application) -> None:
        super().check(call)
        usual(call, slope=0.01)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x, slope = g.arg(0), number(node, "slope")
        return g.LeakyRelu(x, alpha=float(slope)) if slope.static else g.PRelu(x, slope)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        slope = number(node, "slope")
        return e.py("F.leaky_relu({0})") if equals(slope, 0.01) else e.py("F.leaky_relu({0}, {slope})", slope=slope)
