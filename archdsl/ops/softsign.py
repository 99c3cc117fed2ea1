"""`softsign`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope
from archdsl.ops._common import Activation


class Softsign(Activation):
    """`x / (1 + abs(x))`."""

    operator = "Softsign"
    signature = "softsign()(x: [...]) -> [...]"
    examples = (Example("x -> softsign"), Example("softsign(x + 1)", "x: [5]"))

    def torch(self, node: OpNode, e: TorchScope) -> str:
        return f"F.softsign({e.arg(0)})"
