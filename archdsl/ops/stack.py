"""`stack`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Shape, num
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, Reads, TorchScope, Tree, same
from archdsl.ops._common import axis_of, demand_like, first_input, from_right, place, written


class Stack(Primitive):
    """Tensors of one shape side by side along a new axis."""

    passes = 0
    signature = "stack(axis: int = 1)(x: [...]) -> [...]"
    variadic = True
    examples = (
        Example("stack(x, y)", "x: [2, 5, 8], y: [2, 5, 8]"),
        Example("stack(x, y, x, axis: -1)", "x: [2, 5], y: [2, 5]"),
    )

    def check(self, call: Application) -> None:
        axis_of(self, call, rank=len(call.shape(0)) + 1)
        for i in range(1, len(call.inputs)):
            demand_like(self, call, i)

    def shapes(self, call: Application) -> Sequence[Shape]:
        shape = call.shape(0)
        axis = axis_of(self, call, rank=len(shape) + 1)
        return ((*shape[:axis], num(len(call.inputs)), *shape[axis:]),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = first_input(node).rank
        axis = place(node, rank=rank + 1)
        return (tuple(same(i + (i >= axis)) for i in range(rank)),) * len(node.inputs)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        rank = node.outputs[0].rank
        axis = from_right(node, rank=rank)
        return g.Concat(*(g.Unsqueeze(x, [axis]) for x in g.args()), axis=axis)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("torch.stack(({*inputs},), dim={axis})", axis=written(node))
