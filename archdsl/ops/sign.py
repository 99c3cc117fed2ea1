"""`sign`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope, Tree
from archdsl.ops._common import Arithmetic


class Sign(Arithmetic):
    """-1, 0 or 1, element by element. Its gradient is zero."""

    operator = "Sign"
    signature = "sign()(x: number[...]) -> [...]"
    numpy = "sign"
    examples = (
        Example("x -> sign"),
        Example("sign(ids)", "ids: int[2, 5]", gradients=False),
    )

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("torch.sign({0})")
