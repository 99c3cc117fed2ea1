"""What papers' equations have in common, written out: maps, norms and positions of weights by name."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    y = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def layer_norm(w: Weights, name: str, x: Tensor, eps: float = 1e-5) -> Tensor:
    centered = x - x.mean(-1, keepdim=True)
    scaled = centered / torch.sqrt((centered**2).mean(-1, keepdim=True) + eps)
    return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]


def sines(time: int, width: int) -> Tensor:
    """Attention Is All You Need, section 3.5, sines before cosines."""
    angle = torch.arange(time)[:, None] * 10_000.0 ** (-torch.arange(0, width, 2) / width)
    return torch.cat((angle.sin(), angle.cos()), dim=-1)
