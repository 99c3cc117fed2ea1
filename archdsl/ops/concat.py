"""`concat`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Shape, binary, num
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Application, Example, OnnxScope, Parts, Primitive, Reads, TorchScope, Tree
from archdsl.ops._common import (
    axis_of,
    demand_like,
    first_input,
    from_right,
    later,
    own_but,
    place,
    replaced,
    written,
)


class Concat(Primitive):
    """Tensors one after the other along an axis; all other axes are equal."""

    passes = 0
    signature = "concat(axis: int = -1)(x: [...]) -> [...]"
    variadic = True
    examples = (
        Example("concat(x, y)", "x: [2, 5, 8], y: [2, 5, 3]"),
        Example("concat(x, y, x, axis: 1)", "x: [2, 5, 8], y: [2, 3, 8]"),
        Example("concat(x, axis: 1)"),
        Example("concat(ids, ids)", "ids: int[2, 5]", gradients=False),
    )

    def check(self, call: Application) -> None:
        axis = axis_of(self, call)
        for i in range(1, len(call.inputs)):
            demand_like(self, call, i, but=axis)

    def build(self, call: Application) -> Sequence[Value]:
        return (call.tensor(0),) if len(call.inputs) == 1 else call.node()

    def shapes(self, call: Application) -> Sequence[Shape]:
        axis = axis_of(self, call)
        size = call.shape(0)[axis]
        for i in range(1, len(call.inputs)):
            size = binary("+", size, call.shape(i)[axis])
        return (replaced(call.shape(0), axis, size),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank, axis = first_input(node).rank, place(node)
        reads: list[Reads] = []
        before = num(0)
        for value in node.inputs:
            reads.append(own_but(rank, axis, later(axis, before, -1)))
            before = binary("+", before, value.shape[axis]) if isinstance(value, Value) else before
        return reads

    def parts(self, node: OpNode, cut: Sequence[int | None]) -> Parts | None:
        """Of tensors that are whole each device takes its own part of the axis."""
        axes = {axis for axis in cut if axis is not None}
        if len(axes) != 1 or place(node) in axes:
            return None
        (axis,) = axes
        return Parts(axis, own={i: axis for i, found in enumerate(cut) if found is None})

    def is_linear_map(self, node: OpNode) -> bool:
        return place(node, rank=node.outputs[0].rank) == node.outputs[0].rank - 1

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Concat(*g.args(), axis=from_right(node))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("torch.cat(({*inputs},), dim={axis})", axis=written(node))
