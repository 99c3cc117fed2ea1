"""DeepNet (Wang et al., 2022): a post-norm Transformer of a thousand layers, kept stable by DeepNorm.

3,178,115,584 parameters. Made by archdsl 0.1.0 from deepnet.arch (2518db424ec1):
    archdsl compile deepnet.arch:deepnet_decoder --to torch
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    layers: int = 1000
    width: int = 512
    heads: int = 8
    vocab: int = 50_257
    context: int = 1024

    def __post_init__(self) -> None:
        assert min(vars(self).values()) >= 1, f"sizes and counts must be whole numbers of at least 1: {self}"
        if math.sqrt(self.width) == 1:
            raise ValueError(f"`scale == 1` was decided by these numbers: compile again with --set: {self}")
        assert self.width % 2 == 0, f"the width must be even: half are sines, half cosines: {self}"
        assert self.width % self.heads == 0, f"width must be a multiple of heads: {self}"


def sinusoid(positions: Tensor, width: int, theta: float = 10_000) -> Tensor:
    """Embed positions by sines, then cosines, of wavelengths from 2π to 2π · theta (Vaswani et al., 2017)."""
    angle = positions[:, None] * theta ** -(torch.arange(0, width, 2, device=positions.device) / width)
    return torch.cat((angle.sin(), angle.cos()), dim=-1)


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al., 2017, section 3.2)."""

    def __init__(self, config: Config, dropout: float = 0) -> None:
        super().__init__()
        self.head_dim = config.width // config.heads
        self.value_dim = self.head_dim
        self.dropout = dropout
        self.q = nn.Linear(config.width, config.width)
        self.k = nn.Linear(config.width, config.width)
        self.v = nn.Linear(config.width, config.width)
        self.out = nn.Linear(config.width, config.width)
        for linear in (self.q, self.k):
            nn.init.xavier_normal_(linear.weight)
            nn.init.zeros_(linear.bias)
        for linear in (self.v, self.out):
            nn.init.xavier_normal_(linear.weight, gain=(8 * config.layers) ** -0.25)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        v = self.v(x).unflatten(-1, (-1, self.value_dim)).transpose(1, 2)  # [batch, heads, time, value_dim]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0)
        return self.out(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear maps with an activation between them (Vaswani et al., 2017, section 3.3)."""

    def __init__(self, config: Config, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, hidden)
        self.down = nn.Linear(hidden, config.width)
        for linear in (self.up, self.down):
            nn.init.xavier_normal_(linear.weight, gain=(8 * config.layers) ** -0.25)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x)))


class CausalLayer(nn.Module):
    """A decoder alone: its skip weighs (2 M)^(1/4), and its weights start by (8 M)^(-1/4)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.layers = config.layers
        self.attention = Attention(config, dropout=0.1)
        self.dropout = nn.Dropout(0.1)
        self.attention_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.ffn = MLP(config, hidden=4 * config.width)
        self.ffn_norm = nn.LayerNorm(config.width, eps=1e-5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention_norm((2 * self.layers) ** 0.25 * x + self.dropout(self.attention(x)))
        return self.ffn_norm((2 * self.layers) ** 0.25 * x + self.dropout(self.ffn(x)))


class DeepnetDecoder(nn.Module):
    """deepnet_decoder (deepnet.arch:58)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.dropout = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(CausalLayer(config) for _ in range(config.layers))
        nn.init.normal_(self.token_embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        time = tokens.size(1)
        assert time <= self.config.context, "at most `context` tokens"
        x = self.token_embedding(tokens) * math.sqrt(self.config.width)
        x = self.dropout(x + sinusoid(torch.arange(time, device=tokens.device), self.config.width).type_as(x))
        for block in self.blocks:
            x = block(x)
        return F.linear(x, self.token_embedding.weight)
