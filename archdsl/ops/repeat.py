"""`repeat`"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from archdsl.ir.dims import Shape, binary
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Application, At, Example, OnnxScope, Primitive, Reads, TorchScope, Tree
from archdsl.ops._common import axis_of, first_input, number, own_but, place, replaced, reshaped, written


class Repeat(Primitive):
    """Every position along an axis `times` times, one after the other: a b becomes a a b b."""

    passes = 0
    signature = "repeat(times: size, axis: int = 1)(x: [...]) -> [...]"
    examples = (Example("x -> repeat(3)"), Example("x -> repeat(2, axis: -1)"))

    def check(self, call: Application) -> None:
        axis_of(self, call)

    def build(self, call: Application) -> Sequence[Value]:
        return (call.tensor(0),) if call.is_number(call.size("times"), 1) else call.node()

    def shapes(self, call: Application) -> Sequence[Shape]:
        axis = axis_of(self, call)
        return (replaced(call.shape(0), axis, binary("*", call.shape(0)[axis], call.size("times"))),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        axis, times = place(node), number(node, "times")
        scale = Fraction(1, times.value) if isinstance(times.value, int) else Fraction(1)
        return (own_but(first_input(node).rank, axis, At(((axis, scale),))),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x, axis, times = first_input(node), place(node), number(node, "times")
        y = g.Expand(g.Unsqueeze(g.arg(0), [axis + 1]), [times, *[1] * (x.rank - axis - 1)])
        return reshaped(g, y, (*x.shape[: axis + 1], times, *x.shape[axis + 1 :]), node.outputs[0].shape)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0}.repeat_interleave({times}, dim={axis})", times=number(node, "times"), axis=written(node))
