"""`flatten`"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from archdsl.ir.dims import Shape, product, shape_text
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import (
    EVERYWHERE,
    Application,
    At,
    Example,
    OnnxScope,
    Primitive,
    Reads,
    Regrouping,
    TorchScope,
    Tree,
    same,
)
from archdsl.ops._common import axis_of, first_input, own_places, place, reshaped, written


class Flatten(Primitive):
    """The axes from `first` to `last` become one: of [a, b, c, d], `flatten(2)` makes [a, b, c * d]."""

    passes = 0
    signature = "flatten(first: int = 1, last: int = -1)(x: [...]) -> [...]"
    examples = (
        Example("x -> flatten(2)", "x: [2, 3, 4, 5]"),
        Example("x -> flatten", "x: [2, 3, 4]"),
        Example("x -> flatten(0, 1)"),
        Example("x -> flatten(-3, -2)", "x: [2, 3, 4, 5]"),
    )

    def check(self, call: Application) -> None:
        first, last = axis_of(self, call, "first"), axis_of(self, call, "last")
        if first > last:
            raise call.error(
                "E0204",
                f"`flatten` goes from axis {first} to axis {last}, which comes before it: {shape_text(call.shape(0))}",
                option="first",
                input=0,
            )

    def build(self, call: Application) -> Sequence[Value]:
        return (call.tensor(0),) if axis_of(self, call, "first") == axis_of(self, call, "last") else call.node()

    def shapes(self, call: Application) -> Sequence[Shape]:
        shape = call.shape(0)
        first, last = axis_of(self, call, "first"), axis_of(self, call, "last")
        return ((*shape[:first], product(shape[first : last + 1]), *shape[last + 1 :]),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        x = first_input(node)
        first, last = place(node, "first"), place(node, "last")
        inner = product(x.shape[first + 1 : last + 1])
        outer = At(((first, Fraction(1, inner.value) if isinstance(inner.value, int) else Fraction(1)),))
        merged = (outer, *(EVERYWHERE for _ in range(first, last)))
        return ((*own_places(first), *merged, *(same(i - last + first) for i in range(last + 1, x.rank))),)

    def regroups(self, node: OpNode) -> Regrouping:
        x = first_input(node)
        first, last = place(node, "first"), place(node, "last")
        axes = [*range(first), tuple(range(first, last + 1)), *range(last + 1, x.rank)]
        return Regrouping(
            tuple((d,) for d in x.shape),
            tuple(tuple((i, 0) for i in (a if isinstance(a, tuple) else (a,))) for a in axes),
        )

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return reshaped(g, g.arg(0), first_input(node).shape, node.outputs[0].shape)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        axes = (written(node, "first"), written(node, "last"))
        return e.py("{0}.flatten({*axes})", axes=axes[:1] if axes[1] == -1 else axes)
