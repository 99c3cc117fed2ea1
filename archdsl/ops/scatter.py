"""`scatter`"""

from __future__ import annotations

from collections.abc import Sequence

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, Reads, TorchScope
from archdsl.ir.signature import promoted
from archdsl.ops._common import (
    AxisOp,
    axis_of,
    demand_like,
    demand_one_type,
    first_input,
    own_but,
    own_places,
    place,
    written,
)


class Scatter(AxisOp):
    """x with the values written at the given places, which differ, along an axis; the other axes of all are equal."""

    signature = "scatter(axis: int = -1)(x: [...], places: int[...], values: [...]) -> [...]"
    examples = (
        Example("scatter(x, argsort(y), y)", "x: [2, 8], y: [2, 3]"),
        Example("scatter(x, argsort(y, axis: 1), y, axis: 1)", "x: [2, 5, 8], y: [2, 3, 8]"),
    )

    def check(self, call: Application) -> None:
        axis = axis_of(self, call)
        demand_like(self, call, 1, but=axis)
        demand_like(self, call, 2, to=1)
        demand_one_type(self, call, (0, 2))

    def dtypes(self, call: Application) -> Sequence[str]:
        return (promoted([call.tensor(0)]),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank, axis = first_input(node).rank, place(node)
        return own_places(rank), own_but(rank, axis), own_but(rank, axis)

    def torch(self, node: OpNode, e: TorchScope) -> str:
        return f"{e.at(0)}.scatter({written(node)}, {e.arg(1)}, {e.arg(2)})"
