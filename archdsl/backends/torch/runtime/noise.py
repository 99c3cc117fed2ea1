"""Noise of training."""

import torch
from torch import Tensor, nn


class Noise(nn.Module):
    """Draw normal noise of a given standard deviation in training; zeros otherwise."""

    def forward(self, spread: Tensor) -> Tensor:
        return spread * torch.randn_like(spread) if self.training else spread * 0
