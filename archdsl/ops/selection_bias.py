"""`selection_bias`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.graph import Init, OpNode, Weight
from archdsl.ir.op import Application, Code, Example, OnnxScope, Primitive, TorchScope

SELECTION_BIAS = '''
class SelectionBias(nn.Module):
    """A bias that chooses experts and does not weigh them; no gradient reaches it: it is nudged towards experts that
    get too few tokens
    (DeepSeek-V3, section 2.1.2)."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.register_buffer("bias", torch.zeros(experts))

    def forward(self, scores: Tensor) -> Tensor:
        return scores + self.bias
'''


class SelectionBias(Primitive):
    """Scores plus a bias that only chooses experts: part of the state, not of the parameters (DeepSeek-V3, section
    2.1.2)."""

    balances = True
    signature = "selection_bias()(scores: [..., experts]) -> [..., experts]"
    mixes = False
    examples = (Example("x -> selection_bias"),)

    def weights(self, call: Application) -> Sequence[Weight]:
        return (Weight("bias", (call.axes["experts"],), "raw", Init("zeros"), trained=False),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        own = node.outputs[0].dtype
        return g.Add(g.arg(0, own), g.cast(g.weight("bias"), own))

    def torch(self, node: OpNode, e: TorchScope) -> Code | str:
        return f"{e.module(f'{e.helper(SELECTION_BIAS)}({e.init(node.weights[0].shape[0])})')}({e.arg(0)})"
