"""`*`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import TIMES, Code, Example, Saved, TorchScope
from archdsl.ops._common import Arithmetic


class Times(Arithmetic):
    """`a * b`, element by element; axes from the right are equal or 1."""

    operator = "Mul"
    signature = "times()(a: [...], b: [...]) -> [...]"
    numpy = "multiply"
    examples = (
        Example("x * y", "x: [2, 5, 8], y: [5, 1]"),
        Example("0.5 * x"),
        Example("(x + 1) * (x - 1)"),
        Example("ids * 2", "ids: int[2, 5]", gradients=False),
    )

    def saves(self, node: OpNode) -> Saved:
        """Each factor is the other's gradient; a number needs none."""
        tensors = tuple(i for i, v in enumerate(node.inputs) if isinstance(v, Value))
        return Saved(tensors if len(tensors) > 1 else ())

    def torch(self, node: OpNode, e: TorchScope) -> Code:
        return Code(f"{e.operand(0, TIMES)} * {e.operand(1, TIMES + 1)}", TIMES)
