"""`relu_squared`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, OnnxScope, TorchScope, Tree
from archdsl.ops._common import Activation


class ReLUSquared(Activation):
    """`relu(x) ** 2` (So et al., 2021, Primer)."""

    signature = "relu_squared()(x: float[...]) -> [...]"
    examples = (Example("x -> relu_squared"), Example("relu_squared(x + 1)", "x: [5]"))

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return 0.0 if known[0] is not None and known[0] <= 0 else None

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x = g.Relu(g.arg(0))
        return g.Mul(x, x)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("F.relu({0}).square()")
