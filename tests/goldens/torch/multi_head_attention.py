"""Self-attention (Vaswani et al., 2017): one head written as equations, and many heads side by side.

1,048,576 parameters. Made by archdsl 0.1.0 from self_attention.arch (d200b204b633):
    archdsl compile self_attention.arch:multi_head_attention --to torch
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    width: int = 512
    heads: int = 8
    head_dim: int = 64

    def __post_init__(self) -> None:
        assert min(vars(self).values()) >= 1, f"sizes and counts must be whole numbers of at least 1: {self}"


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al., 2017, section 3.2)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        value_dim = config.head_dim
        self.head_dim = config.head_dim
        self.q = nn.Linear(config.width, config.heads * config.head_dim, bias=False)
        self.k = nn.Linear(config.width, config.heads * config.head_dim, bias=False)
        self.v = nn.Linear(config.width, config.heads * value_dim, bias=False)
        self.out = nn.Linear(config.heads * value_dim, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        v = self.v(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, value_dim]
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))


class MultiHeadAttention(nn.Module):
    """multi_head_attention (self_attention.arch:26)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.attention = Attention(config)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x)
