"""`*`"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Example, OnnxScope, Saved, TorchScope, Tree
from archdsl.ops._common import Arithmetic, factor, overruling


class Times(Arithmetic):
    """`a * b`, element by element; axes from the right are equal or 1."""

    signature = "times()(a: [...], b: [...]) -> [...]"
    numpy = "multiply"
    examples = (
        Example("x * y", "x: [2, 5, 8], y: [5, 1]"),
        Example("0.5 * x"),
        Example("(x + 1) * (x - 1)"),
        Example("ids * 2", "ids: int[2, 5]", gradients=False),
    )

    def saves(self, node: OpNode) -> Saved:
        """Each factor is the other's gradient."""
        return Saved(factors=tuple(i for i, v in enumerate(node.inputs) if isinstance(v, Value)))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return (g.And if node.outputs[0].is_bool else g.Mul)(*g.args())

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return 0.0 if overruling(known, 0) == 0 else super().constant(node, known)

    def combines(self, node: OpNode) -> Sequence[Fraction] | None:
        a, b = map(factor, node.inputs)
        return (Fraction(0), a) if a is not None else (b, Fraction(0)) if b is not None else None

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0} * {1}")
