"""Normalizations that torch has no module for, and those of experts."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archdsl.backends.torch.runtime.grouped import expert_of_rows


class GroupedLayerNorm(nn.Module):
    """LayerNorm with one gain and bias per expert, for rows sorted by expert."""

    def __init__(self, experts: int, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(experts, width))
        self.bias = nn.Parameter(torch.empty(experts, width))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        y = F.layer_norm(x.float(), x.shape[-1:], eps=self.eps)
        expert = expert_of_rows(ends, x.size(0))
        return (y * self.weight[expert] + self.bias[expert]).to(x.dtype)


class GroupedLayerNormWithoutBias(nn.Module):
    """LayerNorm with one gain per expert, for rows sorted by expert."""

    def __init__(self, experts: int, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(experts, width))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        expert = expert_of_rows(ends, x.size(0))
        return (F.layer_norm(x.float(), x.shape[-1:], eps=self.eps) * self.weight[expert]).to(x.dtype)


class PowerNorm(nn.Module):
    """PowerNorm (Shen et al., 2020, PN-V): divide each channel by its root mean square, or by the running one."""

    def __init__(self, width: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width))
        self.register_buffer("running_square", torch.empty(width))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        nn.init.ones_(self.running_square)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            square = x.float().square().flatten(0, -2).mean(0)
            self.running_square.lerp_(square.detach().to(self.running_square.dtype), self.momentum)
        else:
            square = self.running_square.float()
        return (x * (square + self.eps).rsqrt() * self.weight + self.bias).to(x.dtype)


class OffsetRMSNorm(nn.Module):
    """RMSNorm with the gain 1 + weight (Gemma)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, 1 + self.weight.float(), self.eps).to(x.dtype)


class GroupedRMSNorm(nn.Module):
    """RMSNorm with one gain per expert, for rows sorted by expert."""

    def __init__(self, experts: int, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(experts, width))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        expert = expert_of_rows(ends, x.size(0))
        return (F.rms_norm(x.float(), x.shape[-1:], eps=self.eps) * self.weight[expert]).to(x.dtype)


class GroupedOffsetRMSNorm(nn.Module):
    """RMSNorm with the gain 1 + weight, one weight per expert, for rows sorted by expert."""

    def __init__(self, experts: int, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(experts, width))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        expert = expert_of_rows(ends, x.size(0))
        return (F.rms_norm(x.float(), x.shape[-1:], eps=self.eps) * (1 + self.weight[expert])).to(x.dtype)
