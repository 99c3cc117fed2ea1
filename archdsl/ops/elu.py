"""`elu`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope
from archdsl.ops._common import Activation, equals, number


class ELU(Activation):
    """Exponential linear unit (Clevert et al., 2015): x, or `alpha * (exp(x) - 1)` below 0."""

    signature = "elu(alpha: number = 1)(x: [...]) -> [...]"
    examples = (Example("x -> elu"), Example("x -> elu(0.2)"))

    def torch(self, node: OpNode, e: TorchScope) -> str:
        alpha = number(node, "alpha")
        return f"F.elu({e.arg(0)})" if equals(alpha, 1) else f"F.elu({e.arg(0)}, {e.number(alpha)})"
