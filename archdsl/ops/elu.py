"""`elu`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, OnnxScope, TorchScope, Tree
from archdsl.ops._common import Activation, equals, number, usual


class ELU(Activation):
    """Exponential linear unit (Clevert et al., 2015): x, or `alpha * (exp(x) - 1)` below 0."""

    signature = "elu(alpha: number = 1)(x: float[...]) -> [...]"
    examples = (Example("x -> elu"), Example("x -> elu(0.2)"))

    def check(self, call: Application) -> None:
        super().check(call)
        usual(call, alpha=1)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x, alpha = g.arg(0), number(node, "alpha")
        if alpha.static:
            return g.Elu(x, alpha=float(alpha))
        return g.Add(g.Relu(x), g.Mul(g.Min(g.Elu(x), 0.0), alpha))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        alpha = number(node, "alpha")
        return e.py("F.elu({0})") if equals(alpha, 1) else e.py("F.elu({0}, {alpha})", alpha=alpha)
