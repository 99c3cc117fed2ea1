"""`rmsnorm`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.graph import Init, OpNode, Weight
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, Reads, TorchScope
from archdsl.ops._common import first_input, number, own_but
from archdsl.ops._norms import demand_norm

OFFSET_RMS_NORM = '''
class OffsetRMSNorm(nn.Module):
    """RMS normalization with the gain 1 + weight (Gemma)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, 1 + self.weight.float(), self.eps).to(x.dtype)
'''

GROUPED_RMS_NORM = '''
class GroupedRMSNorm(nn.Module):
    """RMS normalization with a gain for each expert. The rows of x are sorted by expert."""

    def __init__(self, experts: int, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(experts, width))

    def forward(self, x: Tensor, groups: Groups) -> Tensor:
        return (F.rms_norm(x.float(), x.shape[-1:], eps=self.eps) * self.weight[groups.expert]).to(x.dtype)
'''

GROUPED_OFFSET_RMS_NORM = '''
class GroupedOffsetRMSNorm(nn.Module):
    """RMS normalization with the gain 1 + weight, a weight for each expert. The rows of x are sorted by expert."""

    def __init__(self, experts: int, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(experts, width))

    def forward(self, x: Tensor, groups: Groups) -> Tensor:
        return (F.rms_norm(x.float(), x.shape[-1:], eps=self.eps) * (1 + self.weight[groups.expert])).to(x.dtype)
'''


class RMSNorm(Primitive):
    """RMS normalization of the last axis (Zhang and Sennrich, 2019): `x / sqrt(mean(x * x) + eps) * weight`.

    It is computed in float32. With `offset` the gain is `1 + weight`, and the weight starts at 0 (Gemma)."""

    by_rows = True
    passes = 4
    signature = (
        "rmsnorm(eps: number = 1e-6, weight: bool = true, offset: bool = false, init: scheme = none)"
        "(x: [..., width]) -> [..., width]"
    )
    mixes = False
    examples = (
        Example("x -> rmsnorm"),
        Example("x -> rmsnorm(eps: 1e-5, offset: true)"),
        Example("x -> rmsnorm(weight: false)", "x: [2, 3, 5, 8]"),
    )

    def check(self, call: Application) -> None:
        demand_norm(self, call, "eps")
        if call.options["offset"] and not call.options["weight"]:
            raise call.error(
                "E0204",
                "`offset` is about the weight, and there is none",
                option="offset",
                help="leave `weight: false` out",
            )

    def weights(self, call: Application) -> Sequence[Weight]:
        init = Init("zeros" if call.options["offset"] else "default")
        return (Weight("weight", (call.axes["width"],), "gain", init),) if call.options["weight"] else ()

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = first_input(node).rank
        return (own_but(rank, rank - 1),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        width, x = first_input(node).shape[-1], g.arg(0)
        gain = g.cast(g.weight("weight"), g.dtype(x)) if node.options["weight"] else g.Expand(1.0, [width])
        if node.options["offset"]:
            gain = g.Add(gain, 1)
        return g.RMSNormalization(x, gain, axis=-1, epsilon=float(number(node, "eps")))

    def torch(self, node: OpNode, e: TorchScope) -> str:
        width, eps = first_input(node).shape[-1], number(node, "eps")
        if not node.options["weight"]:
            return f"F.rms_norm({e.arg(0)}, ({e.number(width)},), eps={e.number(eps)})"
        cls = e.helper(OFFSET_RMS_NORM) if node.options["offset"] else "nn.RMSNorm"
        return f"{e.module(f'{cls}({e.init(width)}, eps={e.init(eps)})')}({e.arg(0)})"

    def torch_grouped(self, node: OpNode, e: TorchScope, groups: str) -> str | None:
        if not node.weights:
            return None
        cls = e.helper(GROUPED_OFFSET_RMS_NORM if node.options["offset"] else GROUPED_RMS_NORM)
        copies, width = node.weights[0].shape
        eps = e.init(number(node, "eps"))
        return f"{e.module(f'{cls}({e.init(copies)}, {e.init(width)}, eps={eps})')}({e.arg(0)}, {groups})"
