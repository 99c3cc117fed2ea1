"""`where`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Num
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, TorchScope, Tree
from archdsl.ops._common import arithmetic_type


class Where(Primitive):
    """`a` where the condition is true, else `b`, element by element; axes from the right are equal or 1."""

    passes = 0
    signature = "where()(c: bool[...], a: [...], b: [...]) -> [...]"
    elementwise = True
    mixes = False
    chosen = (1, 2)
    numpy = "where"
    examples = (
        Example("where(c, x, y)", "c: bool[2, 5, 1], x: [2, 5, 8], y: [8]"),
        Example("where(c, x, 0)", "c: bool[5, 8], x: [2, 5, 8]"),
        Example("where(x > 0, 1.5, x)"),
        Example("where(c, 1, 0)", "c: bool[2, 5]", gradients=False),
        Example("where(c, 0.5, 0)", "c: bool[2, 5]", gradients=False),
    )

    def dtypes(self, call: Application) -> Sequence[str]:
        choices = call.inputs[1:]
        if all(isinstance(v, Num) for v in choices):
            whole = [call.is_whole(v) for v in choices if isinstance(v, Num)]
            return ("int" if all(whole) else "float32",)
        return (arithmetic_type(choices, call),)

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        condition, a, b = known
        if condition is None:
            return a if a == b else None
        return a if condition else b

    def picks(self, node: OpNode, known: Sequence[float | None]) -> int | None:
        return None if known[0] is None else 1 if known[0] else 2

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        own = node.outputs[0].dtype
        c, a, b = g.arg(0), g.arg(1, own), g.arg(2, own)
        if own == "bool":  # a choice of truth values has no kernel
            return g.Or(g.And(c, a), g.And(g.Not(c), b))
        return g.Where(c, a, b)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("torch.where({0}, {1}, {2})")
