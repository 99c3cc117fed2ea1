"""`softplus`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope, Tree
from archdsl.ops._common import Activation


class Softplus(Activation):
    """`log(1 + exp(x))`, without overflow."""

    operator = "Softplus"
    signature = "softplus()(x: float[...]) -> [...]"
    examples = (Example("x -> softplus"), Example("softplus(x + 1)", "x: [5]"))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("F.softplus({0})")
