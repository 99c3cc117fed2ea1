"""`chunk`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Shape, binary, num
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, Reads, TorchScope, Tree
from archdsl.ir.signature import promoted
from archdsl.ops._common import (
    axis_of,
    first_input,
    from_right,
    later,
    number,
    own_but,
    place,
    replaced,
    written,
)
from archdsl.syntax.limits import MAX_LIST


class Chunk(Primitive):
    """An axis cut into equal parts: as many results as parts."""

    passes = 0
    moves = True
    signature = "chunk(parts: size, axis: int = -1)(x: [...]) -> [...]"
    examples = (
        Example("b, a", statements="a, b = x -> chunk(2)"),
        Example("a, b, c", "x: [2, 6, 4]", statements="a, b, c = x -> chunk(3, axis: 1)"),
    )

    def check(self, call: Application) -> None:
        size, parts = call.shape(0)[axis_of(self, call)], call.size("parts")
        if not isinstance(parts.value, int) or parts.value > MAX_LIST:
            raise call.error(
                "E0204",
                f"`chunk` makes a known number of parts, at most {MAX_LIST}, but `parts` is {parts}",
                option="parts",
            )
        call.fixed(parts)
        call.condition("%", size, parts, "`chunk` cuts into equal parts")

    def build(self, call: Application) -> Sequence[Value]:
        return (call.tensor(0),) if call.is_number(call.size("parts"), 1) else call.node()

    def shapes(self, call: Application) -> Sequence[Shape]:
        axis, parts = axis_of(self, call), call.size("parts")
        return (replaced(call.shape(0), axis, binary("/", call.shape(0)[axis], parts)),) * int(parts)

    def dtypes(self, call: Application) -> Sequence[str]:
        return (promoted(call.inputs),) * int(call.size("parts"))

    def reads(self, node: OpNode) -> Sequence[Reads]:
        # One bound for all results: that of the last, which reads the latest positions.
        axis = place(node)
        before = binary("-", first_input(node).shape[axis], node.outputs[0].shape[axis])
        return (own_but(first_input(node).rank, axis, later(axis, before)),)

    def reads_of(self, node: OpNode, result: int) -> Sequence[Reads]:
        axis = place(node)
        before = binary("*", node.outputs[0].shape[axis], num(result))
        return (own_but(first_input(node).rank, axis, later(axis, before)),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        count = len(node.outputs)
        return g.Split(g.arg(0), axis=from_right(node), num_outputs=count, outputs=count)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0}.chunk({parts}, dim={axis})", parts=number(node, "parts"), axis=written(node))
