"""Sparse Transformer (Child et al., 2019): two sparse patterns of attention that together reach every earlier position.

59,196,672 parameters. Made by archdsl 0.1.0 from sparse_transformer.arch (44d67c2aabf6):
    archdsl compile sparse_transformer.arch:sparse_transformer_cifar10 --to torch
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    pairs: int = 64
    width: int = 256
    heads: int = 2
    side: int = 32
    stride: int = 96
    narrow: int = 2
    dropout: float = 0.25
    vocab: int = 256

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            if name not in ("narrow", "dropout"):
                assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
                setattr(self, name, int(size))  # 24.0 is 24
        assert isinstance(self.narrow, int), f"narrow must be a whole number: {self}"
        assert 0 <= self.dropout < 1, f"dropout must be at least 0 and less than 1: {self}"
        assert self.narrow != 0, f"`width / narrow` must not divide by 0: {self}"
        assert self.width / self.narrow / self.heads >= 1, f"width / narrow / heads must be at least 1: {self}"
        assert 4 * self.width / self.narrow >= 1, f"4 * width / narrow must be at least 1: {self}"
        assert self.heads * (self.width / self.narrow / self.heads) >= 1, (
            f"heads * (width / narrow / heads) must be at least 1: {self}"
        )
        assert self.width % (self.heads * self.narrow) == 0, f"width must be a multiple of heads * narrow: {self}"
        assert self.width % self.heads == 0, f"width must be a multiple of heads: {self}"
        assert self.width % self.narrow == 0, f"width must be a multiple of narrow: {self}"


def quick_gelu(x: Tensor) -> Tensor:
    """Approximate GELU by a sigmoid."""
    return x * torch.sigmoid(1.702 * x)


class ImageGrid(nn.Module):
    """image_grid (sparse_transformer.arch:9)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.side = config.side
        self.row = nn.Embedding(config.side, config.width)
        self.column = nn.Embedding(config.side, config.width)
        self.colour = nn.Embedding(3, config.width)

    def reset_parameters(self) -> None:
        for embedding in (self.row, self.column, self.colour):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.size(1), device=x.device)
        row = self.row(positions // (3 * self.side))  # [time, width]
        column = self.column(positions // 3 % self.side)  # [time, width]
        colour = self.colour(positions % 3)  # [time, width]
        return x + row + column + colour


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al., 2017, section 3.2)."""

    def __init__(self, config: Config, head_dim: int, value_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.value_dim = value_dim
        self.dropout = config.dropout
        self.q = nn.Linear(config.width, config.heads * head_dim)
        self.k = nn.Linear(config.width, config.heads * head_dim)
        self.v = nn.Linear(config.width, config.heads * value_dim)
        self.out = nn.Linear(config.heads * value_dim, config.width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        v = self.v(x).unflatten(-1, (-1, self.value_dim)).transpose(1, 2)  # [batch, heads, time, value_dim]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.dropout if self.training else 0)
        return self.out(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear layers with an activation between them (Vaswani et al., 2017, section 3.3)."""

    def __init__(self, config: Config, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, hidden)
        self.down = nn.Linear(hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(quick_gelu(self.up(x)))


class Layer(nn.Module):
    """Queries, keys and feed-forward may be narrower than usual."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.attention = Attention(
            config, head_dim=config.width // config.narrow // config.heads, value_dim=config.width // config.heads
        )
        self.dropout = nn.Dropout(config.dropout)
        self.ffn_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.ffn = MLP(config, hidden=4 * config.width // config.narrow)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), mask))
        return x + self.dropout(self.ffn(self.ffn_norm(x)))


class SparseTransformerCifar10(nn.Module):
    """sparse_transformer_cifar10 (sparse_transformer.arch:27)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.position = ImageGrid(config)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Layer(config) for _ in range(config.pairs * 2))
        self.norm = nn.LayerNorm(config.width, eps=1e-5)
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
        assert time <= 3 * self.config.side * self.config.side, "at most `context` tokens"
        key = torch.arange(time, device=tokens.device)
        query = key[:, None]
        near_mask = (key <= query) & (query - key < self.config.stride + 1)
        far_mask = (key <= query) & ((query - key) % self.config.stride == 0)
        x = self.dropout(self.position(self.token_embedding(tokens)))
        for block, layer_mask in zip(self.blocks, self.config.pairs * [near_mask, far_mask]):
            x = block(x, layer_mask)
        return self.head(self.norm(x))
