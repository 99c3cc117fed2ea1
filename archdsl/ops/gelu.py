"""`gelu`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope, Tree
from archdsl.ops._common import Activation


class GELU(Activation):
    """Gaussian error linear unit (Hendrycks and Gimpel, 2016): `x * (1 + erf(x / sqrt(2))) / 2`."""

    operator = "Gelu"
    signature = "gelu()(x: float[...]) -> [...]"
    examples = (Example("x -> gelu"), Example("gelu(x + 1)", "x: [5]"))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("F.gelu({0})")
