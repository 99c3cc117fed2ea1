"""`log`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope, Tree
from archdsl.ops._common import RealFunction


class Log(RealFunction):
    """The natural logarithm, element by element."""

    operator = "Log"
    signature = "log()(x: [...]) -> float[...]"
    numpy = "log"
    examples = (
        Example("log(1 + x * x)"),
        Example("log(ids + 1)", "ids: int[2, 5]", gradients=False),
        Example("log(2) * x"),
    )

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("torch.log({0})")
