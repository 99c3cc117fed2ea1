"""What `scatter` and `scatter_add` have in common."""

from __future__ import annotations

from collections.abc import Sequence

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Reads, TorchScope
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


class Scattering(AxisOp):
    """Values go to given places along an axis. Its name is that of torch's method."""

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
        return f"{e.at(0)}.{self.name}({written(node)}, {e.arg(1)}, {e.arg(2)})"
