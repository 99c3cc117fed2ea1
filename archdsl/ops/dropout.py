"""`dropout`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.cost import Amount, elements
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, Saved, TorchScope, Tree
from archdsl.ops._common import number


class Dropout(Primitive):
    """In training each number is 0 with probability `rate`, else divided by 1 - rate (Srivastava et al., 2014)."""

    by_rows = True
    passes = 0
    signature = "dropout(rate: rate)(x: float[...]) -> [...]"
    mixes = False
    examples = (Example("x -> dropout(0.1)"), Example("(x -> dropout(0)) + 1"))

    def build(self, call: Application) -> Sequence[Value]:
        return (call.tensor(0),) if call.is_number(call.size("rate"), 0) else call.node()

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        return 0.0 if known[0] == 0 else None

    def saves(self, node: OpNode) -> Saved:
        """Which numbers were kept."""
        return Saved(own=((Amount(elements(node.outputs[0].shape)), "bool"),))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.arg(0)  # of inference

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        module = e.stateless("dropout", e.py("nn.Dropout({rate})", rate=number(node, "rate")))
        return e.py("{module}({0})", module=module)
