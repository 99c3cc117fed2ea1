"""`dropout`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.cost import Amount, elements
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, Saved, TorchScope
from archdsl.ir.wording import plain
from archdsl.ops._common import demand_floats, equals, number


class Dropout(Primitive):
    """In training each number is 0 with probability `rate`, else divided by 1 - rate (Srivastava et al., 2014)."""

    by_rows = True
    passes = 0
    signature = "dropout(rate: number)(x: [...]) -> [...]"
    mixes = False
    examples = (Example("x -> dropout(0.1)"), Example("(x -> dropout(0)) + 1"))

    def check(self, call: Application) -> None:
        demand_floats(self, call)
        rate = call.size("rate")
        if not rate.static or not 0 <= float(rate) < 1:
            raise call.error(
                "E0204", f"a dropout rate is at least 0 and less than 1, and {plain(rate)} was given", option="rate"
            )

    def build(self, call: Application) -> Sequence[Value]:
        return (call.tensor(0),) if equals(call.size("rate"), 0) else call.node()

    def saves(self, node: OpNode) -> Saved:
        """Which numbers were kept."""
        return Saved(own=((Amount(elements(node.outputs[0].shape)), "bool"),))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.arg(0)  # of inference

    def torch(self, node: OpNode, e: TorchScope) -> str:
        module = e.stateless("dropout", f"nn.Dropout({e.init(number(node, 'rate'))})")
        return f"{module}({e.arg(0)})"
