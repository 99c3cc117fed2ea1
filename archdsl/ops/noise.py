"""`noise`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, TorchScope
from archdsl.ops._common import demand_floats

NOISE = '''
class Noise(nn.Module):
    """Normal noise of a given spread in training, zeros else."""

    def forward(self, spread: Tensor) -> Tensor:
        return spread * torch.randn_like(spread) if self.training else spread * 0
'''


class NormalNoise(Primitive):
    """In training a normal draw for each number, whose standard deviation that number is; 0 else.

    `logits + (spread -> noise)` is a noisy gate (Shazeer et al., 2017, equation 4). Gradients reach the spread."""

    signature = "noise()(x: [...]) -> [...]"
    mixes = False
    examples = (Example("x -> noise"), Example("x + (softplus(x) -> noise)"))

    def undivided_in_training(self, node: OpNode) -> bool:
        return True

    def check(self, call: Application) -> None:
        demand_floats(self, call)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Mul(g.arg(0), 0)  # of inference

    def torch(self, node: OpNode, e: TorchScope) -> str:
        module = e.stateless("noise", f"{e.helper(NOISE)}()")
        return f"{module}({e.arg(0)})"
