"""`expand`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Shape, shape_text
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Application, At, Example, OnnxScope, Primitive, Reads, TorchScope, Tree
from archdsl.ops._common import axis_of, first_input, from_right, number, own_but, place, replaced


class Expand(Primitive):
    """An axis of size 1 read as one of `size`: the same at every position, without a copy."""

    passes = 0
    moves = True
    placed = True
    signature = "expand(axis: int, size: size)(x: [...]) -> [...]"
    examples = (
        Example("x -> expand(1, 4)", "x: [2, 1, 5, 8]"),
        Example("x -> unsqueeze(-1) -> expand(-1, 3)"),
    )

    def check(self, call: Application) -> None:
        axis = axis_of(self, call)
        if not call.is_number(call.shape(0)[axis], 1):
            raise call.error(
                "E0301",
                f"`expand` needs an axis of size 1, but axis {call.size('axis')} of {shape_text(call.shape(0))} "
                f"is {call.shape(0)[axis]}",
                option="axis",
                input=0,
                help="`repeat` and `tile` repeat axes of any size; `unsqueeze(axis)` makes a new one of size 1",
            )

    def build(self, call: Application) -> Sequence[Value]:
        return (call.tensor(0),) if call.is_number(call.size("size"), 1) else call.node()

    def shapes(self, call: Application) -> Sequence[Shape]:
        return (replaced(call.shape(0), axis_of(self, call), call.size("size")),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        return (own_but(first_input(node).rank, place(node), At()),)

    def is_linear_map(self, node: OpNode) -> bool:
        return place(node) < first_input(node).rank - 2

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Expand(g.arg(0), [number(node, "size"), *[1] * (-from_right(node) - 1)])

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        sizes: list[Any] = [-1] * first_input(node).rank
        sizes[place(node)] = number(node, "size")
        return e.py("{0}.expand({*sizes})", sizes=sizes)
