"""`split`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Num, Shape, binary, num
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Application, Example, OnnxScope, Parts, Primitive, Reads, TorchScope, Tree
from archdsl.ir.signature import promoted
from archdsl.ops._common import (
    axis_of,
    demand_sizes,
    first_input,
    from_right,
    later,
    numbers_in,
    own_but,
    place,
    replaced,
    written,
)


class Split(Primitive):
    """An axis cut into parts of the given sizes, which add up to it: as many results as sizes."""

    passes = 0
    moves = True
    signature = "split(sizes: sizes, axis: int = -1)(x: [...]) -> [...]"
    examples = (
        Example("b, a", statements="a, b = x -> split(3, 5)"),
        Example("a, b, c", statements="a, b, c = x -> split(1, 2, 2, axis: 1)"),
        Example("x -> split(8)"),
    )

    def check(self, call: Application) -> None:
        size = call.shape(0)[axis_of(self, call)]
        sizes = demand_sizes(self, call, "sizes", least=0)
        if not sizes:
            raise call.error(
                "E0204",
                "`split` needs the sizes of the parts",
                help=f"they add up to {size}; `chunk(parts)` cuts into equal parts",
            )
        total = added(sizes)
        if total.static and size.static and total.value != size.value:
            shown = " + ".join(str(n) for n in sizes) + ("" if len(sizes) == 1 else f" = {total}")
            raise call.error(
                "E0301",
                f"the parts do not add up to the axis: {shown}, but the axis is {size}",
                option="sizes",
                input=0,
                help="`chunk(parts)` cuts an axis into equal parts",
            )
        call.condition("==", total, size, "the parts of `split` add up to the axis")

    def build(self, call: Application) -> Sequence[Value]:
        return (call.tensor(0),) if len(parts(call)) == 1 else call.node()

    def shapes(self, call: Application) -> Sequence[Shape]:
        axis = axis_of(self, call)
        return [replaced(call.shape(0), axis, n) for n in parts(call)]

    def dtypes(self, call: Application) -> Sequence[str]:
        return (promoted(call.inputs),) * len(parts(call))

    def reads(self, node: OpNode) -> Sequence[Reads]:
        # One bound for all results: that of the last, which reads the latest positions.
        axis = place(node)
        return (own_but(first_input(node).rank, axis, later(axis, added(numbers_in(node.options, "sizes")[:-1]))),)

    def reads_of(self, node: OpNode, result: int) -> Sequence[Reads]:
        axis = place(node)
        return (own_but(first_input(node).rank, axis, later(axis, added(numbers_in(node.options, "sizes")[:result]))),)

    def parts(self, node: OpNode, cut: Sequence[int | None]) -> Parts | None:
        return None if cut[0] is None or cut[0] == place(node) else Parts(cut[0])

    def is_linear_map(self, node: OpNode) -> bool:
        return place(node) == first_input(node).rank - 1

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        sizes = numbers_in(node.options, "sizes")
        return g.Split(g.arg(0), sizes, axis=from_right(node), outputs=len(sizes))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0}.split({sizes}, dim={axis})", sizes=numbers_in(node.options, "sizes"), axis=written(node))


def parts(call: Application) -> tuple[Num, ...]:
    return numbers_in(call.options, "sizes")


def added(sizes: Sequence[Num]) -> Num:
    """Their sum."""
    total = num(0)
    for n in sizes:
        total = binary("+", total, n)
    return total
