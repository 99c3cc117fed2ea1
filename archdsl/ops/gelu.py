"""`gelu`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope
from archdsl.ops._common import Activation


class GELU(Activation):
    """Gaussian error linear unit (Hendrycks and Gimpel, 2016): `x * (1 + erf(x / sqrt(2))) / 2`."""

    operator = "Gelu"
    signature = "gelu()(x: [...]) -> [...]"
    examples = (Example("x -> gelu"), Example("gelu(x + 1)", "x: [5]"))

    def torch(self, node: OpNode, e: TorchScope) -> str:
        return f"F.gelu({e.arg(0)})"
