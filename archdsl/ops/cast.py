"""`cast`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, TorchScope, Tree
from archdsl.ir.signature import promoted

METHODS = {"float32": "float", "bfloat16": "bfloat16", "int": "long", "bool": "bool"}


class Cast(Primitive):
    """The same numbers as another type: float (the model's own), float32, bfloat16, int or bool."""

    by_rows = True
    passes = 0
    moves = True
    signature = "cast(dtype: type)(x: [...]) -> [...]"
    mixes = False
    examples = (
        Example("x -> cast(float32)"),
        Example("x -> cast(bfloat16)"),
        Example("x -> cast(int)", gradients=False),
        Example("x -> cast(bool)", gradients=False),
        Example("x * cast(float)(ids)", "x: [2, 5], ids: int[2, 5]"),
    )

    def build(self, call: Application) -> Sequence[Value]:
        return (call.tensor(0),) if promoted(call.inputs) == call.options["dtype"] else call.node()

    def dtypes(self, call: Application) -> Sequence[str]:
        return (call.options["dtype"],)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.arg(0)  # which is brought to the type of the result

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        dtype = node.options["dtype"]
        if dtype == "float":
            return e.py("{0}.to({dtype})", dtype=e.dtype())
        return e.py(f"{{0}}.{METHODS[dtype]}()")
