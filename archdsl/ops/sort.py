"""`sort`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Shape
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, Reads, TorchScope, Tree
from archdsl.ops._common import axis_of, first_input, in_order, own_but, place, written


class Sort(Primitive):
    """Sorted along an axis, the smallest first (`descending`: the largest), and the position each had: two results."""

    passes = 0
    signature = "sort(axis: int = -1, descending: bool = false)(x: [...]) -> (values: [...], places: int[...])"
    examples = (
        Example("values, places", statements="values, places = x -> sort"),
        Example("values", statements="values, places = x -> sort(axis: 1, descending: true)"),
    )

    def check(self, call: Application) -> None:
        axis_of(self, call)

    def shapes(self, call: Application) -> Sequence[Shape]:
        return call.shape(0), call.shape(0)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        return (own_but(first_input(node).rank, place(node)),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return in_order(node, g)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        more = {"descending": True} if node.options["descending"] else {}
        return e.py("{0}.sort(dim={axis}, {**more})", axis=written(node), more=more)
