"""`argsort`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, OnnxScope, TorchScope, Tree
from archdsl.ops._common import AxisOp, in_order, written


class ArgSort(AxisOp):
    """The positions along an axis in the order of what stands there, the smallest first (or the largest:
    `descending`)."""

    passes = 0
    signature = "argsort(axis: int = -1, descending: bool = false)(x: [...]) -> int[...]"
    examples = (
        Example("x -> argsort", gradients=False),
        Example("x -> argsort(axis: 1, descending: true)", gradients=False),
    )

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return in_order(node, g)[1]

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        order = {"descending": True} if node.options["descending"] else {}
        return e.py("{0}.argsort(dim={axis}, {**order})", axis=written(node), order=order)
