"""`gelu_tanh`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope
from archdsl.ops._common import Activation


class GELUTanh(Activation):
    """The tanh approximation of GELU: `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))`; that of GPT-2."""

    signature = "gelu_tanh()(x: [...]) -> [...]"
    examples = (Example("x -> gelu_tanh"), Example("gelu_tanh(x + 1)", "x: [5]"))

    def torch(self, node: OpNode, e: TorchScope) -> str:
        return f'F.gelu({e.arg(0)}, approximate="tanh")'
