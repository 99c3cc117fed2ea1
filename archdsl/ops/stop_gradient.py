"""`stop_gradient`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, OnnxScope, Primitive, TorchScope, Tree


class StopGradient(Primitive):
    """The tensor itself, through which no gradient flows back."""

    by_rows = True
    passes = 0
    moves = True
    signature = "stop_gradient()(x: [...]) -> [...]"
    mixes = False
    examples = (Example("x * stop_gradient(x)"), Example("(x -> stop_gradient) + x"))

    def differentiates(self, node: OpNode, i: int) -> bool:
        return False

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.arg(0)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0}.detach()")
