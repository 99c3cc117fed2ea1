"""`one_hot`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, OnnxScope, Primitive, TorchScope, Tree
from archdsl.ops._common import number


class OneHot(Primitive):
    """1 at the position of each whole number along a new last axis, 0 elsewhere; of type int, so `cast(float)` it."""

    signature = "one_hot(classes: size)(ids: int[...]) -> int[..., classes]"
    mixes = False
    examples = (
        Example("ids -> one_hot(6)", "ids: int[2, 5]", gradients=False),
        Example("x * one_hot(5)(ids)", "x: [2, 3, 5], ids: int[3]"),
    )

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.OneHot(g.arg(0), number(node, "classes"), [0, 1], axis=-1)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("F.one_hot({0}, {classes})", classes=number(node, "classes"))
