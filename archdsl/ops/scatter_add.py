"""`scatter_add`"""

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


class ScatterAdd(AxisOp):
    """x with the values added at the given places along an axis; all three are equal in the other axes."""

    signature = "scatter_add(axis: int = -1)(x: [...], places: int[...], values: [...]) -> [...]"
    examples = (
        Example("scatter_add(x, places, values)", "x: [2, 5, 8], places: int[2, 5, 3], values: [2, 5, 3]"),
        Example("scatter_add(x, places, values, axis: 1)", "x: [2, 5, 8], places: int[2, 3, 8], values: [2, 3, 8]"),
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
        return f"{e.at(0)}.scatter_add({written(node)}, {e.arg(1)}, {e.arg(2)})"
