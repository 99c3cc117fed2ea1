"""Llama 3.1 (Dubey et al., 2024): grouped-query attention, RoPE, SwiGLU, RMSNorm.

8,030,261,248 parameters. Made by archdsl 0.1.0 from llama3.arch (965964afe800):
    archdsl compile llama3.arch:llama3 --to torch
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    layers: int = 32
    width: int = 4096
    heads: int = 32
    kv_heads: int = 8
    hidden: int = 14_336
    vocab: int = 128_256
    context: int = 131_072

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
            setattr(self, name, int(size))  # 24.0 is 24
        assert self.width % self.heads == 0, f"width must be a multiple of heads: {self}"
        assert self.heads % self.kv_heads == 0, f"heads must be a multiple of kv_heads: {self}"
        assert self.width % (2 * self.heads) == 0, "width % (2 * heads) == 0: rope needs an even number of channels"


def rope_frequencies(head_dim: int, theta: float, device: torch.device) -> Tensor:
    """Compute the radians per position of each pair of channels: [head_dim / 2]."""
    return theta ** -(torch.arange(0, head_dim, 2, device=device).float() / head_dim)


def llama3_scaling(frequencies: Tensor, factor: float, low: float, high: float, original: int) -> Tensor:
    """Slow down wavelengths longer than the original context, keep the short ones, blend between (Llama 3.1)."""
    waves = original * frequencies / (2 * math.pi)  # periods within the original context
    keep = ((waves - low) / (high - low)).clamp(0, 1)
    return frequencies * (keep + (1 - keep) / factor)


def scaled_rope_table(positions: Tensor, frequencies: Tensor) -> Tensor:
    """Compute the cosines and sines at positions [..., time]: [2, ..., time, head_dim / 2]."""
    angles = positions[..., None].float() * frequencies
    return torch.stack((angles.cos(), angles.sin()))


def rotate(x: Tensor, rope: Tensor) -> Tensor:
    """Rotate the channel pairs (i, i + head_dim / 2) of x [..., time, head_dim] by the angles of their positions."""
    cos, sin = rope
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).type_as(x)


class Attention(nn.Module):
    """Grouped-query attention (Ainslie et al., 2023): every group of heads shares one head of keys and values."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.width // config.heads
        self.q = nn.Linear(config.width, config.width, bias=False)
        self.k = nn.Linear(config.width, config.kv_heads * self.head_dim, bias=False)
        self.v = nn.Linear(config.width, config.kv_heads * self.head_dim, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, kv_heads, time, head_dim]
        v = self.v(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, kv_heads, time, head_dim]
        q, k = rotate(q, rope), rotate(k, rope)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    """Gated by SiLU (Shazeer, 2020)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Decoder(nn.Module):
    """decoder (llama3.arch:5)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-5)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.width, eps=1e-5)
        self.ffn = SwiGLU(config)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rope)
        return x + self.ffn(self.ffn_norm(x))


class Llama3(nn.Module):
    """llama3 (llama3.arch:14)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(Decoder(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=1e-5)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()
        nn.init.normal_(self.token_embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        time = tokens.size(1)
        assert time <= self.config.context, "at most `context` tokens"
        frequencies = rope_frequencies(self.config.width // self.config.heads, 500_000, tokens.device)
        positions = torch.arange(time, device=tokens.device)
        rope = scaled_rope_table(positions, llama3_scaling(frequencies, factor=8, low=1, high=4, original=8192))
        x = self.token_embedding(tokens)  # [batch, time, width]
        for block in self.blocks:
            x = block(x, rope)
        return self.head(self.norm(x))
