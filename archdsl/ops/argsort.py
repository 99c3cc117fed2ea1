"""`argsort`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, OnnxScope, TorchScope
from archdsl.ops._common import AxisOp, in_order, written


class ArgSort(AxisOp):
    """The places along an axis in the order of what stands there, the smallest first (or the largest: `descending`)."""

    passes = 0
    signature = "argsort(axis: int = -1, descending: bool = false)(x: [...]) -> [...]"
    examples = (
        Example("x -> argsort", gradients=False),
        Example("x -> argsort(axis: 1, descending: true)", gradients=False),
    )

    def dtypes(self, call: Application) -> Sequence[str]:
        return ("int",)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return in_order(node, g)[1]

    def torch(self, node: OpNode, e: TorchScope) -> str:
        return f"{e.at(0)}.argsort(dim={written(node)}{', descending=True' if node.options['descending'] else ''})"
