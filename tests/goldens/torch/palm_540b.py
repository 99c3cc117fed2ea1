"""PaLM (Chowdhery et al., 2022): attention and SwiGLU side by side; all heads share one of keys and values.

540,356,474,880 parameters. Made by archdsl 0.1.0 from palm.arch (5da872835442):
    archdsl compile palm.arch:palm_540b --to torch
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    layers: int = 118
    width: int = 18_432
    heads: int = 48
    head_dim: int = 256
    vocab: int = 256_000
    context: int = 2048

    def __post_init__(self) -> None:
        assert min(vars(self).values()) >= 1, f"sizes and counts must be whole numbers of at least 1: {self}"
        if math.sqrt(self.width) == 1:
            raise ValueError(f"`scale == 1` was decided by these numbers: compile again with --set: {self}")
        assert self.head_dim % 2 == 0, f"rope needs an even number of channels: {self}"


def rope_table(length: int, head_dim: int, theta: float, device: torch.device) -> Tensor:
    """Compute the cosines and sines at positions 0 to length - 1: [2, length, head_dim / 2]."""
    frequencies = theta ** -(torch.arange(0, head_dim, 2, device=device).float() / head_dim)
    angles = torch.outer(torch.arange(length, device=device).float(), frequencies)
    return torch.stack((angles.cos(), angles.sin()))


def rotate_pairs(x: Tensor, rope: Tensor) -> Tensor:
    """Rotate the channel pairs (2i, 2i + 1) of x [..., time, head_dim] by the angles of their positions."""
    cos, sin = rope
    a, b = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2).type_as(x)


class Attention(nn.Module):
    """Multi-query attention (Shazeer, 2019): all heads share one head of keys and values."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.q = nn.Linear(config.width, config.heads * config.head_dim, bias=False)
        self.k = nn.Linear(config.width, config.head_dim, bias=False)
        self.v = nn.Linear(config.width, config.head_dim, bias=False)
        self.out = nn.Linear(config.heads * config.head_dim, config.width, bias=False)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        q = rotate_pairs(self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2), rope)
        k = rotate_pairs(self.k(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2), rope)
        v = self.v(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, 1, time, head_dim]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    """Gated by SiLU (Shazeer, 2020)."""

    def __init__(self, config: Config, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, hidden, bias=False)
        self.up = nn.Linear(config.width, hidden, bias=False)
        self.down = nn.Linear(hidden, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Decoder(nn.Module):
    """decoder (palm.arch:3)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width, eps=1e-6, bias=False)
        self.attention = Attention(config)
        self.ffn = SwiGLU(config, hidden=4 * config.width)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        a = self.norm(x)
        return x + (self.attention(a, rope) + self.ffn(a))


class Palm540B(nn.Module):
    """palm_540b (palm.arch:13)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(Decoder(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=1e-6, bias=False)
        nn.init.normal_(self.token_embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        time = tokens.size(1)
        assert time <= self.config.context, "at most `context` tokens"
        rope = rope_table(time, self.config.head_dim, 10_000, tokens.device)
        x = self.token_embedding(tokens)  # [batch, time, width]
        for block in self.blocks:
            x = block(x, rope)
        return F.linear(self.norm(x), self.token_embedding.weight) * (1 / math.sqrt(self.config.width))
