"""What `cumsum` and `cumprod` have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, OnnxScope, Reads, State, TorchScope, Tree, up_to
from archdsl.ir.signature import promoted
from archdsl.ops._common import AxisOp, first_input, own_but, place, written


class Running(AxisOp):
    """Something of all positions up to the own, along an axis. Its name is that of torch's method."""

    def dtypes(self, call: Application) -> Sequence[str]:
        found = promoted(call.inputs)
        return ("int" if found == "bool" else found,)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        return (own_but(first_input(node).rank, place(node), up_to(place(node))),)

    def terms(self, node: OpNode, g: OnnxScope) -> Any:
        """The input, real numbers in float32."""
        return g.arg(0, "int" if node.outputs[0].dtype == "int" else "float32")

    def states(self, node: OpNode) -> Sequence[State]:
        output, axis = node.outputs[0], place(node)
        shape = tuple(d for i, d in enumerate(output.shape) if i != axis)
        kind = "int" if output.dtype == "int" else "float32"
        return (State(self.name, shape, kind, axis),) if axis else ()

    def torch_after(self, node: OpNode, e: TorchScope, past: Tree, symbol: str) -> tuple[Tree, Sequence[Tree]]:
        """What is of the new positions alone, put together with what was before them."""
        x, axis, whole = first_input(node), place(node), node.outputs[0].dtype == "int"
        terms = e.input(0) if whole else e.py("{0}.float()")
        both = f"{{past}}.unsqueeze({{axis}}) {symbol} {{terms}}.{self.name}({{axis}})"
        y = e.let(self.name, e.py(both, past=past, terms=terms, axis=axis))
        last = e.py("{y}.select({axis}, -1)", y=y, axis=axis)
        return (y if whole or x.dtype == "float32" else e.py("{y}.type_as({0})", y=y)), (last,)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py(f"{{0}}.{self.name}({{axis}})", axis=written(node))
