"""`embedding`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Num
from archdsl.ir.graph import OpNode, Weight
from archdsl.ir.op import Application, Example, OnnxScope, Parts, Primitive, TorchScope, Tree
from archdsl.ops._common import number


class Embedding(Primitive):
    """A learned vector for each of `rows` ids: `weight[ids]`."""

    by_rows = True
    passes = 0
    signature = "embedding(rows: size, width: size, init: scheme = none)(ids: int[...]) -> [..., width]"
    mixes = False
    examples = (
        Example("ids -> embedding(5, 8)", "ids: int[2, 5]"),
        Example("ids -> embedding(7, 4)", "ids: int[3]"),
    )

    def dtypes(self, call: Application) -> Sequence[str]:
        return ("float",)

    def weights(self, call: Application) -> Sequence[Weight]:
        rows, width = call.size("rows"), call.size("width")
        return (Weight("weight", (rows, width), "embedding", fan_in=rows, fan_out=width, told=True),)

    def table(self, node: OpNode) -> tuple[int, Num]:
        return 0, number(node, "rows")

    def opens(self, node: OpNode) -> Parts:
        """Rows of the table: a device that does not hold a row adds zeros."""
        return Parts(None, {"weight": 0}, sizes=(number(node, "rows"),))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Gather(g.weight("weight"), g.arg(0), axis=0)

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("nn.Embedding({rows}, {width})", rows=number(node, "rows"), width=number(node, "width"))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{module}({0})")
