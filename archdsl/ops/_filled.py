"""What `zeros`, `ones` and `fill` have in common."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar

from archdsl.ir.dims import Shape
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, At, OnnxScope, Primitive, TorchScope, Tree
from archdsl.ops._common import demand_sizes, numbers_in


class Filled(Primitive):
    """A tensor of the model's own type, of the sizes `dims`, that is one number everywhere."""

    alike = True
    mixes = False
    passes = 0
    filling: ClassVar[float]

    def check(self, call: Application) -> None:
        demand_sizes(self, call, "dims")

    def shapes(self, call: Application) -> Sequence[Shape]:
        return (numbers_in(call.options, "dims"),)

    def dtypes(self, call: Application) -> Sequence[str]:
        return ("float",)

    def constants(self, node: OpNode) -> Sequence[tuple[At, float]]:
        return ((At((), Fraction(1)), self.number(node)),)

    def number(self, node: OpNode) -> float:
        """The number that it is filled with."""
        return self.filling

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Expand(self.filled_with(node, g), numbers_in(node.options, "dims"))

    def filled_with(self, node: OpNode, g: OnnxScope) -> Any:
        """The number as a scalar."""
        return g.constant(self.filling)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        """By torch's function of the same name."""
        sizes = numbers_in(node.options, "dims")
        made = f"torch.{self.name}({{*sizes}}, dtype={{dtype}}, device={{device}})"
        return e.py(made, sizes=sizes, dtype=e.dtype(), device=e.device())
