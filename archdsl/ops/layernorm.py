"""`layernorm`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.graph import OpNode, Weight
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, Reads, TorchScope
from archdsl.ops._common import first_input, number, own_but
from archdsl.ops._norms import demand_norm

GROUPED_LAYER_NORM = '''
class GroupedLayerNorm(nn.Module):
    """Layer normalization with a gain and a bias for each expert. The rows of x are sorted by expert."""

    def __init__(self, experts: int, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(experts, width))
        self.bias = nn.Parameter(torch.zeros(experts, width))

    def forward(self, x: Tensor, groups: Groups) -> Tensor:
        y = F.layer_norm(x.float(), x.shape[-1:], eps=self.eps)
        return (y * self.weight[groups.expert] + self.bias[groups.expert]).to(x.dtype)
'''

GROUPED_LAYER_NORM_WITHOUT_BIAS = '''
class GroupedLayerNormWithoutBias(nn.Module):
    """Layer normalization with a gain for each expert. The rows of x are sorted by expert."""

    def __init__(self, experts: int, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(experts, width))

    def forward(self, x: Tensor, groups: Groups) -> Tensor:
        return (F.layer_norm(x.float(), x.shape[-1:], eps=self.eps) * self.weight[groups.expert]).to(x.dtype)
'''


class LayerNorm(Primitive):
    """Layer normalization of the last axis (Ba et al., 2016): `(x - mean) / sqrt(variance + eps) * weight + bias`.

    It is computed in float32."""

    by_rows = True
    passes = 7
    signature = (
        "layernorm(eps: number = 1e-5, weight: bool = true, bias: bool = true, init: scheme = none)"
        "(x: [..., width]) -> [..., width]"
    )
    mixes = False
    examples = (
        Example("x -> layernorm"),
        Example("x -> layernorm(eps: 1e-12, bias: false)"),
        Example("x -> layernorm(weight: false, bias: false)"),
    )

    def check(self, call: Application) -> None:
        demand_norm(self, call, "eps")
        if call.options["bias"] and not call.options["weight"]:
            raise call.error(
                "E0204",
                "a layernorm without `weight` has no `bias` either",
                option="weight",
                help="write `bias: false` too",
            )

    def weights(self, call: Application) -> Sequence[Weight]:
        width = call.axes["width"]
        found = []
        if call.options["weight"]:
            found.append(Weight("weight", (width,), "gain"))
        if call.options["bias"]:
            found.append(Weight("bias", (width,), "bias"))
        return found

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = first_input(node).rank
        return (own_but(rank, rank - 1),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        width, x = first_input(node).shape[-1], g.arg(0)
        gain = g.cast(g.weight("weight"), g.dtype(x)) if node.options["weight"] else g.Expand(1.0, [width])
        bias = g.cast(g.weight("bias"), g.dtype(x)) if node.options["bias"] else None
        return g.LayerNormalization(x, gain, bias, axis=-1, epsilon=float(number(node, "eps")))

    def torch(self, node: OpNode, e: TorchScope) -> str:
        width, eps = first_input(node).shape[-1], number(node, "eps")
        if not node.options["weight"]:
            return f"F.layer_norm({e.arg(0)}, ({e.number(width)},), eps={e.number(eps)})"
        bias = "" if node.options["bias"] else ", bias=False"
        return f"{e.module(f'nn.LayerNorm({e.init(width)}, eps={e.init(eps)}{bias})')}({e.arg(0)})"

    def torch_grouped(self, node: OpNode, e: TorchScope, groups: str) -> str | None:
        if not node.weights:
            return None
        cls = e.helper(GROUPED_LAYER_NORM if node.options["bias"] else GROUPED_LAYER_NORM_WITHOUT_BIAS)
        copies, width = node.weights[0].shape
        eps = e.init(number(node, "eps"))
        return f"{e.module(f'{cls}({e.init(copies)}, {e.init(width)}, eps={eps})')}({e.arg(0)}, {groups})"
