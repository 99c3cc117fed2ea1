"""Linformer (Wang et al., 2020): keys and values projected along time to a fixed rank, shared in four ways.

124,762,969 parameters. Made by archdsl 0.1.0 from linformer.arch (df0bfd37abd0):
    archdsl compile linformer.arch:linformer --to torch
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    layers: int = 12
    width: int = 768
    heads: int = 12
    context: int = 512
    rank: int = 128
    vocab: int = 50_265
    sharing: str = "layerwise"

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            if name != "sharing":
                assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
                setattr(self, name, int(size))  # 24.0 is 24
        assert self.width % self.heads == 0, f"the width must be a multiple of heads: {self}"
        assert self.sharing == "layerwise", "the graph depends on sharing == layerwise: compile again with --set"


class OverTime(nn.Module):
    """From `length` positions to `rank`, one projection for all heads, or one for each."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.length = config.context
        self.weight = nn.Parameter(torch.empty(config.rank, config.context))

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=1 / math.sqrt(self.length))

    def forward(self, x: Tensor) -> Tensor:
        time = x.size(2)
        assert time <= self.length, "a slice ends within its axis"
        return torch.einsum("rt,bhtd->bhrd", self.weight[:, :time], x)


class LinformerAttention(nn.Module):
    """`e` projects the keys; `f` the values, or `e` again where there is none."""

    def __init__(self, config: Config, dropout: float = 0) -> None:
        super().__init__()
        self.head_dim = config.width // config.heads
        self.length = config.context
        self.dropout = dropout
        self.q = nn.Linear(config.width, config.width)
        self.k = nn.Linear(config.width, config.width)
        self.v = nn.Linear(config.width, config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, e: nn.Module) -> Tensor:
        assert x.size(1) <= self.length, "Linformer's projections are learned for a fixed length"
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = e(self.k(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2))
        v = e(self.v(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0)
        return self.out(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear layers with an activation between them (Vaswani et al., 2017, section 3.3)."""

    def __init__(self, config: Config, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, hidden)
        self.down = nn.Linear(hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class EncoderLayer(nn.Module):
    """encoder_layer (linformer.arch:27)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = LinformerAttention(config, dropout=0.1)
        self.dropout = nn.Dropout(0.1)
        self.attention_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.ffn = MLP(config, hidden=4 * config.width)
        self.ffn_norm = nn.LayerNorm(config.width, eps=1e-5)

    def forward(self, x: Tensor, e: nn.Module) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x, e)))
        return self.ffn_norm(x + self.dropout(self.ffn(x)))


class MaskedLM(nn.Module):
    """BERT's masked-language-model head: a linear layer, an activation and a norm before the (tied) logits."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.dense = nn.Linear(config.width, config.width)
        self.norm = nn.LayerNorm(config.width, eps=1e-5)
        self.bias = nn.Parameter(torch.empty(config.vocab))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, token_embedding: Tensor) -> Tensor:
        return F.linear(self.norm(F.gelu(self.dense(x))), token_embedding) + self.bias


class Linformer(nn.Module):
    """linformer (linformer.arch:38)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.position = nn.Embedding(config.context + 2, config.width)
        self.segment_embedding = nn.Embedding(1, config.width)
        self.embedding_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.dropout = nn.Dropout(0.1)
        self.e = OverTime(config)
        self.blocks = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        self.head = MaskedLM(config)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()
        for embedding in (self.token_embedding, self.position, self.segment_embedding):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: Tensor, segments: Tensor) -> Tensor:
        time = tokens.size(1)
        assert time <= self.config.context, "at most `context` tokens"
        x = self.token_embedding(tokens) + self.position(torch.arange(time, device=tokens.device) + 2)
        x = self.dropout(self.embedding_norm(x + self.segment_embedding(segments)))
        for block in self.blocks:
            x = block(x, self.e)
        return self.head(x, self.token_embedding.weight)
