"""`unembed`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.cost import Cost, contracted
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Application, Example, OnnxScope, Parts, Primitive, TorchScope, Tree
from archdsl.ops._common import first_input


class Unembed(Primitive):
    """A score for each row of a table, `x @ table.T`: a head tied to `let words = shared(embedding(vocab, width))`."""

    signature = "unembed()(x: float[..., width], table: float[rows, table_width]) -> [..., rows]"
    mixes = False
    examples = (
        Example("x -> unembed(table)", "x: [2, 5, 8], table: [6, 8]"),
        Example("(ids -> words) -> unembed(words)", "ids: int[2, 5]", statements="let words = shared(embedding(5, 8))"),
    )

    def check(self, call: Application) -> None:
        width, expected = call.axes["width"], call.axes["table_width"]
        if not call.same(width, expected):
            raise call.error(
                "E0301",
                f"the head is tied to an embedding of width {expected}, but x has width {width}",
                input=0,
                help=f"project x first: `x -> linear({expected}) -> unembed(…)`",
            )

    def build(self, call: Application) -> Sequence[Value]:
        x, table = call.tensor(0), call.tensor(1)
        if table.dtype in ("float", x.dtype):
            return call.node()
        return call.node(inputs=(x, call.apply("cast", table, dtype=x.dtype)))

    def dtypes(self, call: Application) -> Sequence[str]:
        return (call.tensor(0).dtype,)

    def flops(self, node: OpNode) -> Cost:
        return Cost((contracted((*first_input(node).shape, node.outputs[0].shape[-1]), (0,), (1,)),))

    def parts(self, node: OpNode, cut: Sequence[int | None]) -> Parts | None:
        """Some of the scores where rows of the table are cut."""
        if tuple(cut) != (None, 0) or node.outputs[0].dtype != "float":
            return None
        return Parts(node.outputs[0].rank - 1, sizes=(node.outputs[0].shape[-1],))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        own = node.outputs[0].dtype
        return g.linear(g.arg(0, own), g.arg(1, own))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        cast = {"float32": ".float()", "bfloat16": ".bfloat16()"}.get(node.outputs[0].dtype, "")
        return e.py(f"{e.linear}({{0}}, {{1}}{cast})")
