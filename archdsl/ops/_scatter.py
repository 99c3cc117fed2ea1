"""What `scatter` and `scatter_add` have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, OnnxScope, Reads, TorchScope, Tree
from archdsl.ir.signature import promoted
from archdsl.ops._common import (
    AxisOp,
    axis_of,
    demand_like,
    first_input,
    from_right,
    own_but,
    own_places,
    place,
    written,
)


class Scattering(AxisOp):
    """Values go to given positions along an axis. Its name is that of torch's method."""

    chosen = (0, 2)
    one_type = ("x", "values")
    reduction: ClassVar[str] = "none"
    """What becomes of values that go to one place."""

    def check(self, call: Application) -> None:
        axis = axis_of(self, call)
        demand_like(self, call, 1, but=axis)
        demand_like(self, call, 2, to=1)

    def dtypes(self, call: Application) -> Sequence[str]:
        return (promoted([call.tensor(0)]),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank, axis = first_input(node).rank, place(node)
        return own_places(rank), own_but(rank, axis), own_but(rank, axis)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        own = node.outputs[0].dtype
        if self.reduction != "none":
            # Sums of half precision and of truth values have no kernel.
            own = {"float": "float32", "bfloat16": "float32", "bool": "int"}.get(own, own)
        x, values = g.arg(0, own), g.arg(2, own)
        return g.ScatterElements(x, g.arg(1, "int"), values, axis=from_right(node), reduction=self.reduction)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py(f"{{0}}.{self.name}({{axis}}, {{1}}, {{2}})", axis=written(node))
