"""`flip`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, OnnxScope, TorchScope, Tree
from archdsl.ops._common import AxisOp, from_right, written
from archdsl.ops._onnx import END


class Flip(AxisOp):
    """An axis in reverse order."""

    passes = 0
    signature = "flip(axis: int = 1)(x: [...]) -> [...]"
    examples = (Example("x -> flip"), Example("x -> flip(-1)"))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Slice(g.arg(0), [-1], [-END], [from_right(node)], [-1])

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0}.flip({axis})", axis=written(node))
