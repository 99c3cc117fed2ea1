"""`transpose`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Shape
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, Reads, TorchScope, Tree, same
from archdsl.ops._common import axis_of, first_input, place, written


class Transpose(Primitive):
    """Two axes change places."""

    passes = 0
    moves = True
    signature = "transpose(a: int, b: int)(x: [...]) -> [...]"
    moves_axes = True
    examples = (
        Example("x -> transpose(1, 2)"),
        Example("x -> transpose(0, -1)"),
        Example("(x -> transpose(2, -1)) * 2"),
    )

    def check(self, call: Application) -> None:
        axis_of(self, call, "a")
        axis_of(self, call, "b")

    def build(self, call: Application) -> Sequence[Value]:
        return (call.tensor(0),) if axis_of(self, call, "a") == axis_of(self, call, "b") else call.node()

    def shapes(self, call: Application) -> Sequence[Shape]:
        order = swapped(axis_of(self, call, "a"), axis_of(self, call, "b"), len(call.shape(0)))
        return (tuple(call.shape(0)[i] for i in order),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        return (tuple(same(i) for i in swapped(place(node, "a"), place(node, "b"), first_input(node).rank)),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Transpose(g.arg(0), perm=swapped(place(node, "a"), place(node, "b"), first_input(node).rank))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0}.transpose({a}, {b})", a=written(node, "a"), b=written(node, "b"))


def swapped(a: int, b: int, rank: int) -> list[int]:
    """All axes in order, but for two."""
    return [b if i == a else a if i == b else i for i in range(rank)]
