"""`fill`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, OnnxScope, TorchScope, Tree
from archdsl.ops._common import number, numbers_in
from archdsl.ops._filled import Filled


class Fill(Filled):
    """A tensor of one number everywhere, of the model's own type: `fill(0.5, batch, 8)`."""

    placed = True
    signature = "fill(value: number, dims: sizes) -> [...]"
    examples = (Example("x + fill(0.5, 5, 8)"), Example("concat(fill(-1, 2, 1, 8), x, axis: 1)"))

    def number(self, node: OpNode) -> float:
        return float(number(node, "value"))

    def filled_with(self, node: OpNode, g: OnnxScope) -> Any:
        return g.number(number(node, "value"), "float")

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        holes = {"sizes": numbers_in(node.options, "dims"), "value": number(node, "value")}
        made = "torch.full({sizes}, {value}, dtype={dtype}, device={device})"
        return e.py(made, **holes, dtype=e.dtype(), device=e.device())
