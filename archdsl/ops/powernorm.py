"""`powernorm`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.graph import Init, OpNode, Weight
from archdsl.ir.op import EVERYWHERE, Application, Example, OnnxScope, Primitive, Reads, TorchScope, same
from archdsl.ops._common import first_input, number
from archdsl.ops._norms import demand_norm, scaled, settings

POWER_NORM = '''
class PowerNorm(nn.Module):
    """Power normalization (Shen et al., 2020, PN-V): each channel by its root mean square, or a running one."""

    def __init__(self, width: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_square", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            square = x.float().square().flatten(0, -2).mean(0)
            self.running_square.lerp_(square.detach().to(self.running_square.dtype), self.momentum)
        else:
            square = self.running_square.float()
        return (x * (square + self.eps).rsqrt() * self.weight + self.bias).to(x.dtype)
'''


class PowerNorm(Primitive):
    """Power normalization (Shen et al., 2020, PN-V): each channel by its root mean square over all other axes.

    The channels are the last axis. Training takes the mean square of the batch, the later places of a sequence
    included, and keeps a running one for evaluation."""

    passes = 4
    signature = (
        "powernorm(eps: number = 1e-5, momentum: number = 0.1, init: scheme = none)(x: [batch, ..., channels]) "
        "-> [batch, ..., channels]"
    )
    examples = (Example("x -> powernorm"), Example("x -> powernorm(eps: 1e-3, momentum: 0.2)", "x: [5, 8]"))

    def check(self, call: Application) -> None:
        demand_norm(self, call, "eps", "momentum")

    def weights(self, call: Application) -> Sequence[Weight]:
        channels = (call.axes["channels"],)
        return (
            Weight("weight", channels, "gain"),
            Weight("bias", channels, "bias"),
            Weight("running_square", channels, "buffer", Init("ones"), trained=False),
        )

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = first_input(node).rank
        return ((*(EVERYWHERE for _ in range(rank - 1)), same(rank - 1)),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return scaled(g, g.arg(0, "float32"), g.weight("running_square"), number(node, "eps"))

    def torch(self, node: OpNode, e: TorchScope) -> str:
        more = settings(node, e, "eps", "momentum")
        cls, width = e.helper(POWER_NORM), e.init(first_input(node).shape[-1])
        return f"{e.module(f'{cls}({width}{more})')}({e.arg(0)})"
