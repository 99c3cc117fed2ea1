"""`softsign`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope, Tree
from archdsl.ops._common import Activation


class Softsign(Activation):
    """`x / (1 + abs(x))`."""

    operator = "Softsign"
    signature = "softsign()(x: float[...]) -> [...]"
    examples = (Example("x -> softsign"), Example("softsign(x + 1)", "x: [5]"))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("F.softsign({0})")
