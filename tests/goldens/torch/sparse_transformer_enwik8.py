"""Sparse Transformer (Child et al., 2019): two sparse patterns of attention that together reach every earlier place.

94,949,376 parameters. Made by archdsl 0.1.0 from sparse_transformer.arch (a04530b3bdd8):
    archdsl compile sparse_transformer.arch:sparse_transformer_enwik8 --to torch
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    layers: int = 30
    width: int = 512
    heads: int = 8
    stride: int = 128
    summary: int = 32
    context: int = 12_288
    dropout: float = 0.4
    vocab: int = 256

    def __post_init__(self) -> None:
        if min(self.layers, self.width, self.heads, self.stride, self.summary, self.context, self.vocab) < 1:
            raise ValueError(f"sizes and counts must be whole numbers of at least 1: {self}")
        assert self.dropout >= 0, f"dropout must be at least 0 and less than 1: {self}"
        assert self.dropout < 1, f"dropout must be at least 0 and less than 1: {self}"
        assert self.width % self.heads == 0, f"width must be a multiple of heads: {self}"


def quick_gelu(x: Tensor) -> Tensor:
    """The sigmoid approximation of GELU."""
    return x * torch.sigmoid(1.702 * x)


class TextGrid(nn.Module):
    """Places in a grid: a vector for the row, one for the column and, in images, one for the colour (section 5.3)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.columns = config.stride
        self.row = nn.Embedding(-(-config.context // config.stride), config.width)
        self.column = nn.Embedding(config.stride, config.width)
        nn.init.normal_(self.row.weight, std=0.02)
        nn.init.normal_(self.column.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        time = x.size(1)
        row = self.row(torch.arange(time, device=x.device) // self.columns)  # [time, width]
        column = self.column(torch.arange(time, device=x.device) % self.columns)  # [time, width]
        return x + row + column


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al., 2017, section 3.2)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.width // config.heads
        self.value_dim = self.head_dim
        self.dropout = config.dropout
        self.q = nn.Linear(config.width, config.width)
        self.k = nn.Linear(config.width, config.width)
        self.v = nn.Linear(config.width, config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        v = self.v(x).unflatten(-1, (-1, self.value_dim)).transpose(1, 2)  # [batch, heads, time, value_dim]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.dropout if self.training else 0.0)
        return self.out(y.transpose(1, 2).flatten(2))


class FixedAttention(nn.Module):
    """Fixed (section 4.3): the places of one's own chunk, and the last `summary` of every earlier chunk."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.stride = config.stride
        self.summary = config.summary
        self.mha = Attention(config)

    def forward(self, x: Tensor) -> Tensor:
        time = x.size(1)
        sums_up = torch.arange(time, device=x.device) % self.stride >= self.stride - self.summary
        key = torch.arange(time, device=sums_up.device)
        query = key[:, None]
        return self.mha(x, (key <= query) & ((query // self.stride == key // self.stride) | sums_up[None, :]))


class MLP(nn.Module):
    """Two linear maps with an activation between them (Vaswani et al., 2017, section 3.3)."""

    def __init__(self, config: Config, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, hidden)
        self.down = nn.Linear(hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(quick_gelu(self.up(x)))


class FixedLayer(nn.Module):
    """fixed_layer (sparse_transformer.arch:52)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.attention = FixedAttention(config)
        self.dropout = nn.Dropout(config.dropout)
        self.ffn_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.ffn = MLP(config, hidden=4 * config.width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.ffn(self.ffn_norm(x)))


class SparseTransformerEnwik8(nn.Module):
    """sparse_transformer_enwik8 (sparse_transformer.arch:59)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.position = TextGrid(config)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(FixedLayer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=1e-5)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        nn.init.normal_(self.token_embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        assert tokens.size(1) <= self.config.context, "at most `context` tokens"
        x = self.dropout(self.position(self.token_embedding(tokens)))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
