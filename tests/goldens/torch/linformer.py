"""Linformer (Wang et al., 2020): keys and values projected along time to a fixed rank; a custom attention in equations.

137,429,562 parameters. Made by archdsl 0.1.0 from linformer.arch (6dd54e7e8c01):
    archdsl compile linformer.arch:linformer --to torch
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    layers: int = 12
    width: int = 768
    heads: int = 12
    context: int = 4096
    rank: int = 256
    vocab: int = 30_522


class LinformerAttention(nn.Module):
    """linformer_attention (linformer.arch:3)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        assert config.width % config.heads == 0, "heads divides width"
        self.length = config.context
        self.heads = config.heads
        self.e = nn.Parameter(torch.randn(config.rank, config.context) * (1 / math.sqrt(config.context)))
        self.f = nn.Parameter(torch.randn(config.rank, config.context) * (1 / math.sqrt(config.context)))
        self.q = nn.Linear(config.width, config.width)
        self.k = nn.Linear(config.width, config.width)
        self.v = nn.Linear(config.width, config.width)
        self.linear = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        time = x.size(1)
        assert time <= self.length, "Linformer's projection is learned for a fixed length"
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [batch, heads, time, width / heads]
        v = self.v(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [batch, heads, time, width / heads]
        k = torch.einsum("rt,bhtd->bhrd", self.e[:, :time], k)  # [batch, heads, rank, head_dim]
        v = torch.einsum("rt,bhtd->bhrd", self.f[:, :time], v)  # [batch, heads, rank, width / heads]
        return self.linear(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear maps with an activation between them (Vaswani et al., 2017, section 3.3).

    mlp (std/ffn.arch:4)
    """

    def __init__(self, config: Config, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, hidden)
        self.down = nn.Linear(hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class EncoderLayer(nn.Module):
    """encoder_layer (linformer.arch:17)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = LinformerAttention(config)
        self.attention_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.ffn = MLP(config, hidden=4 * config.width)
        self.ffn_norm = nn.LayerNorm(config.width, eps=1e-5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention(x))
        return self.ffn_norm(x + self.ffn(x))


class MaskedLM(nn.Module):
    """BERT's masked-language-model head: a linear map, an activation and a norm before the (tied) logits.

    mlm (std/models.arch:121)
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.dense = nn.Linear(config.width, config.width)
        self.norm = nn.LayerNorm(config.width, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(config.vocab))

    def forward(self, x: Tensor, token_embedding: Tensor) -> Tensor:
        h = self.norm(F.gelu(self.dense(x)))
        return F.linear(h, token_embedding) + self.bias


class Linformer(nn.Module):
    """linformer (linformer.arch:24)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.position = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        self.head = MaskedLM(config)
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        nn.init.normal_(self.position.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        time = tokens.size(1)
        assert time <= self.config.context, "at most `context` tokens"
        x = self.token_embedding(tokens) + self.position(torch.arange(time, device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x, self.token_embedding.weight)
