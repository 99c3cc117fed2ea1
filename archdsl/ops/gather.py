"""`gather`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Shape
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, Reads, TorchScope, Tree
from archdsl.ir.signature import promoted
from archdsl.ops._common import axis_of, demand_like, first_input, from_right, own_but, own_places, place, written


class Gather(Primitive):
    """What stands at the given positions along an axis, `gather(scores, chosen)`; all other axes of the two are
    equal."""

    passes = 0
    chosen = (0,)
    signature = "gather(axis: int = -1)(x: [...], places: int[...]) -> [...]"
    examples = (
        Example("gather(x, places)", "x: [2, 5, 8], places: int[2, 5, 3]"),
        Example("gather(x, places, axis: 1)", "x: [2, 5, 8], places: int[2, 3, 8]"),
    )

    def check(self, call: Application) -> None:
        demand_like(self, call, 1, but=axis_of(self, call))

    def shapes(self, call: Application) -> Sequence[Shape]:
        return (call.shape(1),)

    def dtypes(self, call: Application) -> Sequence[str]:
        return (promoted([call.tensor(0)]),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = first_input(node).rank
        return own_but(rank, place(node)), own_places(rank)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.GatherElements(g.arg(0), g.arg(1, "int"), axis=from_right(node))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0}.gather({axis}, {1})", axis=written(node))
