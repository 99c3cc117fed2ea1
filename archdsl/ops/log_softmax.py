"""`log_softmax`"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, OnnxScope, TorchScope, Tree
from archdsl.ops._common import AxisOp, from_right, written


class LogSoftmax(AxisOp):
    """`log(softmax(x))` along an axis, without overflow."""

    passes = 5
    by_result = True
    signature = "log_softmax(axis: int = -1)(x: float[...]) -> [...]"
    examples = (
        Example("x -> log_softmax"),
        Example("x -> log_softmax(axis: 1)"),
        Example("log_softmax(x + 1)", "x: [5]"),
    )

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return -math.inf if known[0] == -math.inf else None

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.LogSoftmax(g.arg(0, "float32"), axis=from_right(node))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0}.log_softmax({axis})", axis=written(node))
