"""`table[ids]`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Num, Shape
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import EVERYWHERE, Application, Example, OnnxScope, Primitive, Reads, TorchScope, Tree, same
from archdsl.ir.signature import promoted
from archdsl.ops._common import first_input, own_places


class Lookup(Primitive):
    """`table[ids]`: the row of a table for every whole number."""

    by_rows = True
    passes = 0
    chosen = (0,)
    signature = "lookup()(table: [rows, ...], ids: int[...]) -> [...]"
    examples = (
        Example("table[ids]", "table: [5, 8], ids: int[2, 3]"),
        Example("table[ids]", "table: [5, 2, 4], ids: int[3]"),
        Example("table[ids]", "table: [5], ids: int[2, 3]"),
    )

    def shapes(self, call: Application) -> Sequence[Shape]:
        return ((*call.shape(1), *call.shape(0)[1:]),)

    def dtypes(self, call: Application) -> Sequence[str]:
        return (promoted([call.tensor(0)]),)

    def table(self, node: OpNode) -> tuple[int, Num]:
        return 1, first_input(node).shape[0]

    def reads(self, node: OpNode) -> Sequence[Reads]:
        table, ids = node.inputs
        assert isinstance(table, Value)
        assert isinstance(ids, Value)
        return (EVERYWHERE, *(same(ids.rank + i) for i in range(table.rank - 1))), own_places(ids.rank)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Gather(g.arg(0), g.arg(1), axis=0)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0}[{1}]")
