"""Activations that torch has no function for."""

import torch
from torch import Tensor, nn

from archdsl.backends.torch.runtime.grouped import expert_of_rows


def quick_gelu(x: Tensor) -> Tensor:
    """Approximate GELU by a sigmoid."""
    return x * torch.sigmoid(1.702 * x)


class GroupedPReLU(nn.Module):
    """PReLU with one slope per expert, for rows sorted by expert."""

    def __init__(self, experts: int, slope: float = 0.25) -> None:
        super().__init__()
        self.slope = slope
        self.weight = nn.Parameter(torch.empty(experts, 1))

    def reset_parameters(self) -> None:
        nn.init.constant_(self.weight, self.slope)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        return torch.where(x > 0, x, self.weight[expert_of_rows(ends, x.size(0))] * x)
