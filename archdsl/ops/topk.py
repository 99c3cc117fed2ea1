"""`topk`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Shape
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, Reads, TorchScope, Tree
from archdsl.ops._common import (
    axis_of,
    demand_at_most,
    first_input,
    from_right,
    number,
    own_but,
    place,
    replaced,
    written,
)


class TopK(Primitive):
    """The k largest along an axis, the largest first, and their positions: two results."""

    passes = 0
    signature = "topk(k: size, axis: int = -1)(x: number[...]) -> (values: [...], places: int[...])"
    hints = ("best", "chosen")
    examples = (
        Example("values", statements="values, places = x -> topk(3)"),
        Example("values, places", statements="values, places = x -> topk(2, axis: 1)"),
        Example("places", statements="values, places = topk(2)(x)", gradients=False),
    )

    def check(self, call: Application) -> None:
        size = call.shape(0)[axis_of(self, call)]
        demand_at_most(call, call.size("k"), size, "k of `topk` must be at most the length of the axis")

    def shapes(self, call: Application) -> Sequence[Shape]:
        shape = replaced(call.shape(0), axis_of(self, call), call.size("k"))
        return shape, shape

    def reads(self, node: OpNode) -> Sequence[Reads]:
        return (own_but(first_input(node).rank, place(node)),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        k = number(node, "k")
        count = [k] if k.static else g.Unsqueeze(g.number(k), [0])
        return g.TopK(g.arg(0), count, axis=from_right(node), outputs=2)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        axis = written(node)
        more = {} if axis == -1 else {"dim": axis}
        return e.py("{0}.topk({k}, {**more})", k=number(node, "k"), more=more)
