"""`pad`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Shape, binary
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, Reads, TorchScope, Tree
from archdsl.ir.wording import called
from archdsl.ops._common import axis_of, equals, first_input, later, number, own_but, place, replaced, usual
from archdsl.ops._onnx import padded


class Pad(Primitive):
    """`before` and `after` positions more along an axis, filled with `value`."""

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
            if n.static and not call.holds(">=", n, 0, "`pad` only adds places"):
                raise call.error(
                    "E0204",
                    f"`{option}` is {n}: `pad` only adds places",
                    option=option,
                    help="cut places off by a slice: `x[:, 1:]`",
                )
        value = call.size("value")
        usual(call, value=0)
        if not call.tensor(0).is_float and not call.is_whole(value):
            raise call.error(
                "E0204",
                f"{called(call.tensor(0))} holds whole numbers, which {call.size('value')} is not",
                option="value",
            )

    def build(self, call: Application) -> Sequence[Value]:
        return (
            (call.tensor(0),)
            if call.is_number(call.size("before"), 0) and call.is_number(call.size("after"), 0)
            else call.node()
        )

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

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        after, value = first_input(node).rank - 1 - place(node), number(node, "value")
        widths = (*(0, 0) * after, number(node, "before"), number(node, "after"))
        more = {} if equals(value, 0) else {"value": value}
        return e.py("F.pad({0}, {widths}, {**more})", widths=widths, more=more)
