"""`gelu_tanh`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, OnnxScope, TorchScope, Tree
from archdsl.ops._common import Activation


class GELUTanh(Activation):
    """The tanh approximation of GELU: `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))`; that of GPT-2."""

    signature = "gelu_tanh()(x: float[...]) -> [...]"
    examples = (Example("x -> gelu_tanh"), Example("gelu_tanh(x + 1)", "x: [5]"))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Gelu(g.arg(0), approximate="tanh")

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py('F.gelu({0}, approximate="tanh")')
