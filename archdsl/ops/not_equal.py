"""`!=`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, OnnxScope
from archdsl.ops._common import Comparison


class NotEqual(Comparison):
    """`a != b`, element by element: where the two differ; axes from the right are equal or 1."""

    operator = "Equal"
    signature = "not_equal()(a: [...], b: [...]) -> bool[...]"
    symbol = "!="
    numpy = "not_equal"
    examples = (
        Example("a != b", "a: int[2, 5], b: int[5]", gradients=False),
        Example("x != 0", gradients=False),
        Example("1 != ids + 1", "ids: int[2, 5]", gradients=False),
    )

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Not(super().onnx(node, g))
