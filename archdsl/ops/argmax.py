"""`argmax`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Shape, num
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, Reads, TorchScope, Tree
from archdsl.ops._common import axis_of, first_input, from_right, kept_reads, place, replaced, written


class ArgMax(Primitive):
    """The position of the largest along an axis; `keep` leaves the axis, of size 1."""

    passes = 0
    signature = "argmax(axis: int = -1, keep: bool = false)(x: number[...]) -> int[...]"
    examples = (
        Example("x -> argmax", gradients=False),
        Example("x -> argmax(axis: 1, keep: true)", gradients=False),
    )

    def check(self, call: Application) -> None:
        axis_of(self, call)

    def shapes(self, call: Application) -> Sequence[Shape]:
        axis, shape = axis_of(self, call), call.shape(0)
        return (replaced(shape, axis, num(1)) if call.options["keep"] else (*shape[:axis], *shape[axis + 1 :]),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        return (kept_reads(first_input(node).rank, {place(node)}, bool(node.options["keep"])),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.ArgMax(g.arg(0), axis=from_right(node), keepdims=int(node.options["keep"]))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        keep = {"keepdim": True} if node.options["keep"] else {}
        return e.py("{0}.argmax({axis}, {**keep})", axis=written(node), keep=keep)
