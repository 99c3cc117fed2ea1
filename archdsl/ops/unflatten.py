"""`unflatten`"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from archdsl.ir.dims import Shape, product
from archdsl.ir.graph import OpNode
from archdsl.ir.op import (
    EVERYWHERE,
    Application,
    At,
    Example,
    OnnxScope,
    Parts,
    Primitive,
    Reads,
    Regrouping,
    TorchScope,
    Tree,
    same,
)
from archdsl.ir.signature import regrouped_parts
from archdsl.ops._common import (
    axis_of,
    demand_sizes,
    first_input,
    numbers_in,
    own_places,
    place,
    reshaped,
    written,
)


class Unflatten(Primitive):
    """An axis cut into several whose sizes multiply to it, the last of them running fastest: `unflatten(-1, 4, 16)`."""

    passes = 0
    signature = "unflatten(axis: int, sizes: sizes)(x: [...]) -> [...]"
    examples = (
        Example("x -> unflatten(-1, 4, 2)"),
        Example("x -> unflatten(1, 2, 3)", "x: [2, 6, 4]"),
    )

    def check(self, call: Application) -> None:
        size = call.shape(0)[axis_of(self, call)]
        sizes = demand_sizes(self, call, "sizes")
        if len(sizes) < 2:
            raise call.error(
                "E0204",
                "`unflatten` cuts an axis into at least two",
                option="sizes",
                help=f"give sizes whose product is {size}",
            )
        total = product(sizes)
        if total.static and size.static and total.value != size.value:
            raise call.error(
                "E0301",
                f"the sizes do not make the axis: {' * '.join(map(str, sizes))} = {total}, but the axis is {size}",
                option="sizes",
                input=0,
            )
        call.condition("==", total, size, "the sizes of `unflatten` multiply to the axis")

    def shapes(self, call: Application) -> Sequence[Shape]:
        axis, shape = axis_of(self, call), call.shape(0)
        return ((*shape[:axis], *numbers_in(call.options, "sizes"), *shape[axis + 1 :]),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank, axis, sizes = first_input(node).rank, place(node), numbers_in(node.options, "sizes")
        steps = [product(sizes[i + 1 :]).value for i in range(len(sizes))]
        known = tuple((axis + i, Fraction(s)) for i, s in enumerate(steps) if isinstance(s, int))
        cut = At(known) if len(known) == len(steps) else EVERYWHERE
        return ((*own_places(axis), cut, *(same(i + len(sizes) - 1) for i in range(axis + 1, rank))),)

    def regroups(self, node: OpNode) -> Regrouping:
        x, axis, sizes = first_input(node), place(node), node.options["sizes"]
        cuts = tuple(tuple(sizes) if i == axis else (d,) for i, d in enumerate(x.shape))
        return Regrouping(cuts, tuple(((i, k),) for i, cut in enumerate(cuts) for k in range(len(cut))))

    def parts(self, node: OpNode, cut: Sequence[int | None]) -> Parts | None:
        return regrouped_parts(self, node, cut, numbers_in(node.options, "sizes")[:1] if cut[0] == place(node) else ())

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return reshaped(g, g.arg(0), first_input(node).shape, node.outputs[0].shape)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0}.unflatten({axis}, {sizes})", axis=written(node), sizes=numbers_in(node.options, "sizes"))
