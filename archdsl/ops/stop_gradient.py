"""`stop_gradient`"""

from __future__ import annotations

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, Primitive, TorchScope


class StopGradient(Primitive):
    """The tensor itself, through which no gradient flows back."""

    signature = "stop_gradient()(x: [...]) -> [...]"
    mixes = False
    examples = (Example("x * stop_gradient(x)"), Example("(x -> stop_gradient) + x"))

    def torch(self, node: OpNode, e: TorchScope) -> str:
        return f"{e.at(0)}.detach()"
