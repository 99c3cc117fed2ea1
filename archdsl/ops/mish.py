"""`mish`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope, Tree
from archdsl.ops._common import Activation


class Mish(Activation):
    """`x * tanh(softplus(x))` (Misra, 2019)."""

    operator = "Mish"
    signature = "mish()(x: float[...]) -> [...]"
    examples = (Example("x -> mish"), Example("mish(x + 1)", "x: [5]"))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("F.mish({0})")
