"""`identity`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, TorchScope, Tree


class Identity(Primitive):
    """The tensor itself: an activation that is none. Nothing is emitted for it."""

    passes = 0
    signature = "identity()(x: [...]) -> [...]"
    elementwise = True
    mixes = False
    examples = (Example("2 * identity(x)"), Example("(x -> identity) + 1"))

    def build(self, call: Application) -> Sequence[Value]:
        return (call.tensor(0),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.arg(0)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.input(0)
