"""`unsqueeze`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Shape, num
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, Reads, TorchScope, Tree, same
from archdsl.ops._common import axis_of, first_input, from_right, place, written


class Unsqueeze(Primitive):
    """A new axis of size 1, which is `axis` of the result."""

    by_rows = True
    passes = 0
    moves = True
    signature = "unsqueeze(axis: int)(x: [...]) -> [...]"
    examples = (Example("x -> unsqueeze(1)"), Example("x -> unsqueeze(-1)"), Example("x -> unsqueeze(0)", "x: [5]"))

    def check(self, call: Application) -> None:
        axis_of(self, call, rank=len(call.shape(0)) + 1)

    def shapes(self, call: Application) -> Sequence[Shape]:
        shape = call.shape(0)
        axis = axis_of(self, call, rank=len(shape) + 1)
        return ((*shape[:axis], num(1), *shape[axis:]),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = first_input(node).rank
        axis = place(node, rank=rank + 1)
        return (tuple(same(i + (i >= axis)) for i in range(rank)),)

    def is_linear_map(self, node: OpNode) -> bool:
        return place(node, rank=node.outputs[0].rank) < node.outputs[0].rank - 1

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Unsqueeze(g.arg(0), [from_right(node, rank=node.outputs[0].rank)])

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0}.unsqueeze({axis})", axis=written(node))
