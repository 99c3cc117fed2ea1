"""`selu`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope, Tree
from archdsl.ops._common import Activation


class SELU(Activation):
    """Scaled exponential linear unit (Klambauer et al., 2017): `1.0507 * elu(x, 1.6733)`; keeps mean and variance."""

    operator = "Selu"
    signature = "selu()(x: float[...]) -> [...]"
    examples = (Example("x -> selu"), Example("selu(x + 1)", "x: [5]"))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("F.selu({0})")
