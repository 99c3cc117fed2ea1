"""`cumsum`"""

from collections.abc import Sequence
from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, OnnxScope, TorchScope, Tree
from archdsl.ops._common import first_input, place
from archdsl.ops._running import Running


class CumSum(Running):
    """The sum of all positions up to the own, along an axis."""

    signature = "cumsum(axis: int = -1)(x: [...]) -> [...]"
    examples = (
        Example("x -> cumsum"),
        Example("x -> cumsum(axis: 1)"),
        Example("cumsum(real)", "real: bool[2, 5]", gradients=False),
    )

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.CumSum(self.terms(node, g), g.constant(place(node), "int"))

    def onnx_step(self, node: OpNode, g: OnnxScope, past: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        axis, rank = place(node), first_input(node).rank
        terms = g.gated(self.terms(node, g), 0, rank, axis)
        y = g.Add(g.CumSum(terms, g.constant(axis, "int")), g.Unsqueeze(past[0], [axis]))
        return y, [g.Gather(y, g.constant(-1, "int"), axis=axis)]

    def torch_step(self, node: OpNode, e: TorchScope, past: Sequence[Tree]) -> tuple[Tree, Sequence[Tree]]:
        return self.torch_after(node, e, past[0], "+")
