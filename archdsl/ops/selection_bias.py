"""`selection_bias`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.graph import Init, OpNode, Weight
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, TorchScope, Tree
from archdsl.ir.signature import ORDER


class SelectionBias(Primitive):
    """Scores plus a bias that only chooses experts: part of the state, not of the parameters (DeepSeek-V3, section
    2.1.2)."""

    balances = True
    signature = "selection_bias()(scores: float[..., experts]) -> [..., experts]"
    mixes = False
    examples = (Example("x -> selection_bias"),)

    def dtypes(self, call: Application) -> Sequence[str]:
        """The bias is of the model's own type."""
        return (max("float", call.tensor(0).dtype, key=ORDER.index),)

    def weights(self, call: Application) -> Sequence[Weight]:
        return (Weight("bias", (call.axes["experts"],), "raw", Init("zeros"), trained=False),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        own = node.outputs[0].dtype
        return g.Add(g.arg(0, own), g.cast(g.weight("bias"), own))

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("SelectionBias({experts})", experts=node.weights[0].shape[0])

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{module}({0})")
