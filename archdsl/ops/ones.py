"""`ones`"""

from __future__ import annotations

from collections.abc import Sequence

from archdsl.ir.dims import Shape
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, Primitive, TorchScope
from archdsl.ops._common import demand_sizes, numbers_in


class Ones(Primitive):
    """A tensor of ones of the model's own type: `ones(batch, 8)`."""

    signature = "ones(dims: sizes) -> [...]"
    mixes = False
    numpy = "ones"
    examples = (Example("x + ones(5, 8)"), Example("concat(ones(2, 1, 8), x, axis: 1)"))

    def check(self, call: Application) -> None:
        demand_sizes(self, call, "dims")

    def shapes(self, call: Application) -> Sequence[Shape]:
        return (numbers_in(call.options, "dims"),)

    def dtypes(self, call: Application) -> Sequence[str]:
        return ("float",)

    def torch(self, node: OpNode, e: TorchScope) -> str:
        sizes = ", ".join(e.number(n) for n in numbers_in(node.options, "dims"))
        return f"torch.ones({sizes}, dtype={e.dtype()}, device={e.device()})"
