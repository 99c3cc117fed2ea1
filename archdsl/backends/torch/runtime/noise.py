"""Noise of training."""

import torch
from torch import Tensor, nn


class Noise(nn.Module):
    """Normal noise of a given spread in training, zeros else."""

    def forward(self, spread: Tensor) -> Tensor:
        return spread * torch.randn_like(spread) if self.training else spread * 0
