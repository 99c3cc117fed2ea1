"""`|`"""

from __future__ import annotations

from collections.abc import Sequence

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope, Tree
from archdsl.ops._common import Logical


class LogicalOr(Logical):
    """`a | b`, element by element, of tensors of true and false: where at least one is true."""

    operator = "Or"
    signature = "logical_or()(a: bool[...], b: bool[...]) -> bool[...]"
    numpy = "logical_or"
    examples = (
        Example("a | b", "a: bool[2, 5], b: bool[5]", gradients=False),
        Example("(x > 0) | (x < 1)", gradients=False),
    )

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return 1.0 if 1 in known else super().constant(node, known)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0} | {1}")
