"""What `cumsum` and `cumprod` have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, OnnxScope, Reads, State, TorchScope, up_to
from archdsl.ir.signature import promoted
from archdsl.ops._common import AxisOp, first_input, own_but, place, written


class Running(AxisOp):
    """Something of all places up to the own, along an axis. Its name is that of torch's method."""

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

    def torch_after(self, node: OpNode, e: TorchScope, past: str, symbol: str) -> tuple[str, Sequence[str]]:
        """What is of the new places alone, put together with what was before them."""
        x, axis = first_input(node), place(node)
        before = f"{past}.unsqueeze({axis})"
        if node.outputs[0].dtype == "int":
            y = e.local(self.name, f"{before} {symbol} {e.at(0)}.{self.name}({axis})")
            return y, (f"{y}.select({axis}, -1)",)
        y = e.local(self.name, f"{before} {symbol} {e.at(0)}.float().{self.name}({axis})")
        return (y if x.dtype == "float32" else f"{y}.type_as({e.arg(0)})"), (f"{y}.select({axis}, -1)",)

    def torch(self, node: OpNode, e: TorchScope) -> str:
        return f"{e.at(0)}.{self.name}({written(node)})"
