"""`clamp`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, OnnxScope, TorchScope, Tree
from archdsl.ops._common import Arithmetic, arithmetic_type


class Clamp(Arithmetic):
    """Element by element not below `low` and not above `high`; either may be left out."""

    signature = "clamp(low: number = none, high: number = none)(x: number[...]) -> [...]"
    examples = (
        Example("x -> clamp(-1, 1)"),
        Example("x -> clamp(low: 0)"),
        Example("x -> clamp(high: 0.5)"),
        Example("ids -> clamp(1, 3)", "ids: int[2, 5]", gradients=False),
    )

    def check(self, call: Application) -> None:
        super().check(call)
        low, high = call.options["low"], call.options["high"]
        if low is None and high is None:
            raise call.error("E0204", "`clamp` without bounds changes nothing", help="give `low`, `high` or both")
        static = low is not None and high is not None and low.static and high.static
        if static and not call.holds("<=", low, high, "the lower bound of `clamp` is at most the upper one"):
            raise call.error(
                "E0204", f"`clamp` from {low} up to {high}: the lower bound is above the upper one", option="low"
            )

    def dtypes(self, call: Application) -> Sequence[str]:
        bounds = [b for b in (call.options["low"], call.options["high"]) if b is not None]
        return (arithmetic_type([*call.inputs, *bounds], call),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Clip(g.arg(0, node.outputs[0].dtype), node.options["low"], node.options["high"])

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        low, high = node.options["low"], node.options["high"]
        if low is None:
            return e.py("{0}.clamp(max={high})", high=high)
        if high is None:
            return e.py("{0}.clamp(min={low})", low=low)
        return e.py("{0}.clamp({low}, {high})", low=low, high=high)
