"""`fill`"""

from __future__ import annotations

from collections.abc import Sequence

from archdsl.ir.dims import Shape
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, Primitive, TorchScope
from archdsl.ops._common import demand_sizes, listed, number, numbers_in


class Fill(Primitive):
    """A tensor of one number everywhere, of the model's own type: `fill(0.5, batch, 8)`."""

    signature = "fill(value: number, dims: sizes) -> [...]"
    mixes = False
    examples = (Example("x + fill(0.5, 5, 8)"), Example("concat(fill(-1, 2, 1, 8), x, axis: 1)"))

    def check(self, call: Application) -> None:
        demand_sizes(self, call, "dims")

    def shapes(self, call: Application) -> Sequence[Shape]:
        return (numbers_in(call.options, "dims"),)

    def dtypes(self, call: Application) -> Sequence[str]:
        return ("float",)

    def torch(self, node: OpNode, e: TorchScope) -> str:
        sizes = listed([e.number(n) for n in numbers_in(node.options, "dims")])
        return f"torch.full({sizes}, {e.number(number(node, 'value'))}, dtype={e.dtype()}, device={e.device()})"
