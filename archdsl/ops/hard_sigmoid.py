"""`hard_sigmoid`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, OnnxScope, TorchScope, Tree
from archdsl.ops._common import Activation


class HardSigmoid(Activation):
    """`clamp(x / 6 + 1 / 2, 0, 1)`."""

    signature = "hard_sigmoid()(x: float[...]) -> [...]"
    examples = (Example("x -> hard_sigmoid"), Example("hard_sigmoid(x + 1)", "x: [5]"))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.HardSigmoid(g.arg(0), alpha=1 / 6, beta=0.5)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("F.hardsigmoid({0})")
