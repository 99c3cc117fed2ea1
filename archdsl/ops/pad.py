"""`pad`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Shape, binary
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, Reads, TorchScope
from archdsl.ops._common import (
    axis_of,
    called,
    equals,
    first_input,
    is_whole,
    later,
    listed,
    number,
    own_but,
    place,
    replaced,
)
from archdsl.ops._onnx import padded


class Pad(Primitive):
    """`before` and `after` places more along an axis, filled with `value`."""

    passes = 0
    signature = "pad(before: int = 0, after: int = 0, axis: int = 1, value: number = 0)(x: [...]) -> [...]"
    examples = (
        Example("x -> pad(2)"),
        Example("x -> pad(1, 2, axis: -1, value: -0.5)"),
        Example("x -> pad(after: 3)"),
        Example("ids -> pad(before: 1, value: 4)", "ids: int[2, 5]", gradients=False),
    )

    def check(self, call: Application) -> None:
        axis_of(self, call)
        for option in ("before", "after"):
            n = call.size(option)
            if n.static and float(n) < 0:
                raise call.error(
                    "E0204",
                    f"`{option}` is {n}: `pad` only adds places",
                    option=option,
                    help="cut places off by a slice: `x[:, 1:]`",
                )
        if not call.tensor(0).is_float and not is_whole(call.size("value")):
            raise call.error(
                "E0204",
                f"{called(call.tensor(0))} holds whole numbers, which {call.size('value')} is not",
                option="value",
            )

    def build(self, call: Application) -> Sequence[Value]:
        return (call.tensor(0),) if equals(call.size("before"), 0) and equals(call.size("after"), 0) else call.node()

    def shapes(self, call: Application) -> Sequence[Shape]:
        axis = axis_of(self, call)
        size = binary("+", binary("+", call.shape(0)[axis], call.size("before")), call.size("after"))
        return (replaced(call.shape(0), axis, size),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        axis = place(node)
        return (own_but(first_input(node).rank, axis, later(axis, number(node, "before"), -1)),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        before, after = (int(n) if n.static else n for n in (number(node, "before"), number(node, "after")))
        return padded(g, g.arg(0), before, after, place(node), number(node, "value"))

    def torch(self, node: OpNode, e: TorchScope) -> str:
        rank, axis, value = first_input(node).rank, place(node), number(node, "value")
        amounts = ["0", "0"] * (rank - 1 - axis) + [e.number(number(node, "before")), e.number(number(node, "after"))]
        fill = "" if equals(value, 0) else f", value={e.number(value)}"
        return f"F.pad({e.arg(0)}, {listed(amounts)}{fill})"
