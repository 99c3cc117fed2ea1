"""`embedding`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.graph import OpNode, Weight
from archdsl.ir.op import Application, Example, OnnxScope, Parts, Primitive, TorchScope
from archdsl.ops._common import called, number


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

    def check(self, call: Application) -> None:
        ids = call.tensor(0)
        if not ids.is_int:
            raise call.error(
                "E0304",
                f"`embedding` looks up whole numbers, but {called(ids)} holds "
                f"{'true and false' if ids.is_bool else 'real numbers'}",
                input=0,
                help="`linear(width)` projects vectors; ids are declared `token[batch, time]` or `int[batch, time]`",
            )

    def dtypes(self, call: Application) -> Sequence[str]:
        return ("float",)

    def weights(self, call: Application) -> Sequence[Weight]:
        rows, width = call.size("rows"), call.size("width")
        return (Weight("weight", (rows, width), "embedding", fan_in=rows, fan_out=width, told=True),)

    def opens(self, node: OpNode) -> Parts:
        """Rows of the table: a device that does not hold a row adds zeros."""
        return Parts(None, {"weight": 0}, sizes=(number(node, "rows"),))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Gather(g.weight("weight"), g.arg(0), axis=0)

    def torch(self, node: OpNode, e: TorchScope) -> str:
        rows, width = e.init(number(node, "rows")), e.init(number(node, "width"))
        return f"{e.module(f'nn.Embedding({rows}, {width})')}({e.arg(0)})"
