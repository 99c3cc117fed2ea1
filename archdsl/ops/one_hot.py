"""`one_hot`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, TorchScope
from archdsl.ops._common import number


class OneHot(Primitive):
    """1 at the place of each whole number along a new last axis, 0 elsewhere; of type int, so `cast(float)` it."""

    signature = "one_hot(classes: size)(ids: int[...]) -> int[..., classes]"
    mixes = False
    examples = (
        Example("ids -> one_hot(6)", "ids: int[2, 5]", gradients=False),
        Example("x * one_hot(5)(ids)", "x: [2, 3, 5], ids: int[3]"),
    )

    def dtypes(self, call: Application) -> Sequence[str]:
        return ("int",)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.OneHot(g.arg(0), number(node, "classes"), [0, 1], axis=-1)

    def torch(self, node: OpNode, e: TorchScope) -> str:
        return f"F.one_hot({e.arg(0)}, {e.number(number(node, 'classes'))})"
