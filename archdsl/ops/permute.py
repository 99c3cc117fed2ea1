"""`permute`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Shape, shape_text
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, Reads, TorchScope, Tree, same
from archdsl.ops._common import axes_of, first_input, numbers_in


class Permute(Primitive):
    """The axes in another order, each named once: the result of `permute(0, 2, 1)` has the input's axis 2 as axis 1."""

    passes = 0
    moves = True
    signature = "permute(axes: sizes)(x: [...]) -> [...]"
    moves_axes = True
    examples = (Example("x -> permute(2, 0, 1)"), Example("x -> permute(0, -1, 1)"), Example("x -> permute(0, 1, 2)"))

    def check(self, call: Application) -> None:
        found = axes_of(self, call, "axes")
        if len(found) != len(call.shape(0)):
            raise call.error(
                "E0302",
                f"`permute` names every axis once, but it names {len(found)} of the {len(call.shape(0))} axes "
                f"of {shape_text(call.shape(0))}",
                option="axes",
                input=0,
                help="`transpose(a, b)` swaps two axes and needs no others",
            )

    def build(self, call: Application) -> Sequence[Value]:
        found = axes_of(self, call, "axes")
        return (call.tensor(0),) if found == tuple(range(len(found))) else call.node()

    def shapes(self, call: Application) -> Sequence[Shape]:
        return (tuple(call.shape(0)[i] for i in axes_of(self, call, "axes")),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = first_input(node).rank
        order = [int(n) % rank for n in numbers_in(node.options, "axes")]
        return (tuple(same(order.index(i)) for i in range(rank)),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        rank = first_input(node).rank
        return g.Transpose(g.arg(0), perm=[int(n) % rank for n in numbers_in(node.options, "axes")])

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0}.permute({*axes})", axes=[int(n) for n in numbers_in(node.options, "axes")])
