"""`where`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Num
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, TorchScope
from archdsl.ops._common import argument, arithmetic_type, called, is_whole


class Where(Primitive):
    """`a` where the condition is true, else `b`, element by element; axes from the right are equal or 1."""

    passes = 0
    signature = "where()(c: bool[...], a: [...], b: [...]) -> [...]"
    elementwise = True
    mixes = False
    numpy = "where"
    examples = (
        Example("where(c, x, y)", "c: bool[2, 5, 1], x: [2, 5, 8], y: [8]"),
        Example("where(c, x, 0)", "c: bool[5, 8], x: [2, 5, 8]"),
        Example("where(x > 0, 1.5, x)"),
        Example("where(c, 1, 0)", "c: bool[2, 5]", gradients=False),
        Example("where(c, 0.5, 0)", "c: bool[2, 5]", gradients=False),
    )

    def check(self, call: Application) -> None:
        condition = call.inputs[0]
        if not isinstance(condition, Value) or not condition.is_bool:
            what = (
                f"{called(condition)} holds {condition.dtype} numbers"
                if isinstance(condition, Value)
                else "a number was given"
            )
            raise call.error(
                "E0304",
                f"`where` chooses by a tensor of true and false, but {what}",
                input=0,
                help="compare first, `where(x != 0, a, b)`; for a choice at compile time write `if cond then a else b`",
            )

    def dtypes(self, call: Application) -> Sequence[str]:
        choices = call.inputs[1:]
        if all(isinstance(v, Num) for v in choices):
            return ("int" if all(isinstance(v, Num) and is_whole(v) for v in choices) else "float32",)
        return (arithmetic_type(choices),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        own = node.outputs[0].dtype
        c, a, b = g.arg(0), g.arg(1, own), g.arg(2, own)
        if own == "bool":  # a choice of truth values has no kernel
            return g.Or(g.And(c, a), g.And(g.Not(c), b))
        return g.Where(c, a, b)

    def torch(self, node: OpNode, e: TorchScope) -> str:
        return f"torch.where({', '.join(argument(node, e, i) for i in range(3))})"
