"""`indices`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, TorchScope
from archdsl.ops._common import number


class Indices(Primitive):
    """The places 0, 1, … length - 1, whole numbers; in decoding, too, counted from the start."""

    placed = True
    passes = 0
    signature = "indices(length: size) -> int[length]"
    mixes = False
    numpy = "arange"
    examples = (
        Example("x * indices(8)"),
        Example("indices(5)", gradients=False),
    )

    def dtypes(self, call: Application) -> Sequence[str]:
        return ("int",)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.places(number(node, "length"))

    def torch(self, node: OpNode, e: TorchScope) -> str:
        return f"torch.arange({e.number(number(node, 'length'))}, device={e.device()})"
