"""`zeros`"""

from __future__ import annotations

from collections.abc import Sequence

from archdsl.ir.dims import Shape
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, Primitive, TorchScope
from archdsl.ops._common import demand_sizes, numbers_in


class Zeros(Primitive):
    """A tensor of zeros of the model's own type: `zeros(batch, 8)`."""

    signature = "zeros(dims: sizes) -> [...]"
    mixes = False
    numpy = "zeros"
    examples = (Example("x + zeros(5, 8)"), Example("concat(zeros(2, 1, 8), x, axis: 1)"))

    def check(self, call: Application) -> None:
        demand_sizes(self, call, "dims")

    def shapes(self, call: Application) -> Sequence[Shape]:
        return (numbers_in(call.options, "dims"),)

    def dtypes(self, call: Application) -> Sequence[str]:
        return ("float",)

    def torch(self, node: OpNode, e: TorchScope) -> str:
        sizes = ", ".join(e.number(n) for n in numbers_in(node.options, "dims"))
        return f"torch.zeros({sizes}, dtype={e.dtype()}, device={e.device()})"
