"""`tile`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Num, Shape, binary
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, Reads, TorchScope, Tree
from archdsl.ops._common import axis_of, first_input, number, own_places, place, replaced


class Tile(Primitive):
    """An axis `times` times in a row: a b becomes a b a b."""

    passes = 0
    signature = "tile(times: size, axis: int = 1)(x: [...]) -> [...]"
    examples = (Example("x -> tile(3)"), Example("x -> tile(2, axis: -1)"))

    def check(self, call: Application) -> None:
        axis_of(self, call)

    def build(self, call: Application) -> Sequence[Value]:
        return (call.tensor(0),) if call.is_number(call.size("times"), 1) else call.node()

    def shapes(self, call: Application) -> Sequence[Shape]:
        axis = axis_of(self, call)
        return (replaced(call.shape(0), axis, binary("*", call.shape(0)[axis], call.size("times"))),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        # Position t reads t modulo the size, which is never later.
        return (own_places(first_input(node).rank),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        counts: list[Any] = [1] * first_input(node).rank
        counts[place(node)] = number(node, "times")
        return g.Tile(g.arg(0), counts)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        counts: list[Num | int] = [1] * first_input(node).rank
        counts[place(node)] = number(node, "times")
        return e.py("{0}.repeat({*counts})", counts=counts)
