"""`indices`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Value as DimValue
from archdsl.ir.dims import sub
from archdsl.ir.graph import OpNode
from archdsl.ir.op import At, Example, OnnxScope, Primitive, TorchScope, Tree, same
from archdsl.ops._common import number


class Indices(Primitive):
    """The positions 0, 1, … length - 1, whole numbers; in decoding, too, counted from the start."""

    placed = True
    passes = 0
    signature = "indices(length: size) -> int[length]"
    hints = ("positions",)
    mixes = False
    numpy = "arange"
    examples = (
        Example("x * indices(8)"),
        Example("indices(5)", gradients=False),
    )

    def at_positions(self, node: OpNode) -> bool:
        return True

    def positions(self, node: OpNode) -> At:
        return same(0)

    def largest(self, node: OpNode, inputs: Sequence[int | None]) -> DimValue:
        return sub(number(node, "length").value, 1)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.places(number(node, "length"))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.positions(number(node, "length"))
