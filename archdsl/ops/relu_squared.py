"""`relu_squared`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, OnnxScope, TorchScope
from archdsl.ops._common import Activation


class ReLUSquared(Activation):
    """`relu(x) ** 2` (So et al., 2021, Primer)."""

    signature = "relu_squared()(x: [...]) -> [...]"
    examples = (Example("x -> relu_squared"), Example("relu_squared(x + 1)", "x: [5]"))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x = g.Relu(g.arg(0))
        return g.Mul(x, x)

    def torch(self, node: OpNode, e: TorchScope) -> str:
        return f"F.relu({e.arg(0)}).square()"
