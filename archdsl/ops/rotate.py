"""`rotate`"""

from __future__ import annotations

from collections.abc import Sequence

from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Application, Example, Primitive, TorchScope, Tree
from archdsl.ops.rope import Rope, turn


class Rotate(Primitive):
    """x turned by a position that is a rope; any other position, or none, leaves it as it is."""

    signature = "rotate(position: position)(x: float[..., time, width]) -> [..., time, width]"
    examples = (
        Example("rotate(x, rope(theta: 100))", "x: [2, 4, 5, 8]"),
        Example("x -> rotate(none)", "x: [2, 4, 5, 8]", gradients=False),
    )

    def build(self, call: Application) -> Sequence[Value]:
        position = call.options["position"]
        target = getattr(getattr(position, "template", position), "target", None)
        if not isinstance(target, Rope):
            return (call.tensor(0),)
        return (turn(call, call.tensor(0), getattr(position, "template", position).args),)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        raise TypeError("rotate is always turned into `turn` nodes")
