"""`softmax`"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, OnnxScope, TorchScope, Tree
from archdsl.ops._common import AxisOp, place, written


class Softmax(AxisOp):
    """`exp(x) / sum(exp(x))` along an axis, without overflow."""

    passes = 5
    by_result = True
    signature = "softmax(axis: int = -1)(x: float[...]) -> [...]"
    examples = (Example("x -> softmax"), Example("x -> softmax(axis: 1)"), Example("softmax(x + 1)", "x: [5]"))

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return 0.0 if known[0] == -math.inf else None

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Softmax(g.arg(0, "float32"), axis=place(node))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0}.softmax({axis})", axis=written(node))
