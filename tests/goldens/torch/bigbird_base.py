"""BigBird (Zaheer et al., 2020): each position sees its neighbours, a few global positions and a few random ones.

127,520,694 parameters. Made by archdsl 0.1.0 from bigbird.arch (89bf73efff48):
    archdsl compile bigbird.arch:bigbird_base --to torch
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    layers: int = 12
    width: int = 768
    heads: int = 12
    window: int = 96
    globals: int = 128
    randoms: int = 192
    vocab: int = 50_358
    context: int = 4096

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            if name != "layers":
                assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
                setattr(self, name, int(size))  # 24.0 is 24
        assert self.layers == 12, f"`forward` is written for layers == 12: compile again with --set: {self}"
        assert self.width % self.heads == 0, f"width must be a multiple of heads: {self}"


def random_keys(query: Tensor, key: Tensor, count: int, seed: int) -> Tensor:
    """Choose for each query the `count` keys whose hash with it is largest: random, and the same at every call."""
    mixed = (query * 40_503 + key * 30_011 + seed * 7_919 + 1) % 2_147_483_647
    mixed = (mixed * mixed + query * 97 + key) % 2_147_483_647
    mixed = (mixed * mixed + key * 89) % 2_147_483_647
    best = mixed.topk(min(count, mixed.size(-1)), dim=-1).indices
    return torch.zeros_like(mixed, dtype=torch.bool).scatter(-1, best, True)


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al., 2017, section 3.2)."""

    def __init__(self, config: Config, dropout: float = 0) -> None:
        super().__init__()
        self.head_dim = config.width // config.heads
        self.dropout = dropout
        self.q = nn.Linear(config.width, config.width)
        self.k = nn.Linear(config.width, config.width)
        self.v = nn.Linear(config.width, config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        v = self.v(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.dropout if self.training else 0)
        return self.out(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear layers with an activation between them (Vaswani et al., 2017, section 3.3)."""

    def __init__(self, config: Config, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, hidden)
        self.down = nn.Linear(hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class EncoderLayer(nn.Module):
    """The paper counts in blocks of 64 positions: 3 in the window, 2 global, 3 random."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = Attention(config, dropout=0.1)
        self.dropout = nn.Dropout(0.1)
        self.attention_norm = nn.LayerNorm(config.width, eps=1e-12)
        self.ffn = MLP(config, hidden=4 * config.width)
        self.ffn_norm = nn.LayerNorm(config.width, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x, mask)))
        return self.ffn_norm(x + self.dropout(self.ffn(x)))


class MaskedLM(nn.Module):
    """BERT's masked-language-model head: a linear layer, an activation and a norm before the (tied) logits."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.dense = nn.Linear(config.width, config.width)
        self.norm = nn.LayerNorm(config.width, eps=1e-12)
        self.bias = nn.Parameter(torch.empty(config.vocab))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, token_embedding: Tensor) -> Tensor:
        return F.linear(self.norm(F.gelu(self.dense(x), approximate="tanh")), token_embedding) + self.bias


class BigbirdBase(nn.Module):
    """bigbird_base (bigbird.arch:15)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.position = nn.Embedding(config.context, config.width)
        self.segment_embedding = nn.Embedding(2, config.width)
        self.embedding_norm = nn.LayerNorm(config.width, eps=1e-12)
        self.dropout = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(EncoderLayer(config) for _ in range(12))
        self.head = MaskedLM(config)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()
        for embedding in (self.token_embedding, self.position, self.segment_embedding):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: Tensor, segments: Tensor, padding: Tensor) -> Tensor:
        time = tokens.size(1)
        assert time <= self.config.context, "at most `context` tokens"
        x = self.token_embedding(tokens) + self.position(torch.arange(time, device=tokens.device))
        key = torch.arange(time, device=padding.device)
        query = key[:, None]
        mask = (
            ((query - key).abs() < self.config.window)
            | ((query < self.config.globals) | (key < self.config.globals))
            | random_keys(query, key, self.config.randoms, 0)
        ) & padding[:, None, None, :]
        mask_2 = (
            ((query - key).abs() < self.config.window)
            | ((query < self.config.globals) | (key < self.config.globals))
            | random_keys(query, key, self.config.randoms, 1)
        ) & padding[:, None, None, :]
        mask_3 = (
            ((query - key).abs() < self.config.window)
            | ((query < self.config.globals) | (key < self.config.globals))
            | random_keys(query, key, self.config.randoms, 2)
        ) & padding[:, None, None, :]
        mask_4 = (
            ((query - key).abs() < self.config.window)
            | ((query < self.config.globals) | (key < self.config.globals))
            | random_keys(query, key, self.config.randoms, 3)
        ) & padding[:, None, None, :]
        mask_5 = (
            ((query - key).abs() < self.config.window)
            | ((query < self.config.globals) | (key < self.config.globals))
            | random_keys(query, key, self.config.randoms, 4)
        ) & padding[:, None, None, :]
        mask_6 = (
            ((query - key).abs() < self.config.window)
            | ((query < self.config.globals) | (key < self.config.globals))
            | random_keys(query, key, self.config.randoms, 5)
        ) & padding[:, None, None, :]
        mask_7 = (
            ((query - key).abs() < self.config.window)
            | ((query < self.config.globals) | (key < self.config.globals))
            | random_keys(query, key, self.config.randoms, 6)
        ) & padding[:, None, None, :]
        mask_8 = (
            ((query - key).abs() < self.config.window)
            | ((query < self.config.globals) | (key < self.config.globals))
            | random_keys(query, key, self.config.randoms, 7)
        ) & padding[:, None, None, :]
        mask_9 = (
            ((query - key).abs() < self.config.window)
            | ((query < self.config.globals) | (key < self.config.globals))
            | random_keys(query, key, self.config.randoms, 8)
        ) & padding[:, None, None, :]
        mask_10 = (
            ((query - key).abs() < self.config.window)
            | ((query < self.config.globals) | (key < self.config.globals))
            | random_keys(query, key, self.config.randoms, 9)
        ) & padding[:, None, None, :]
        mask_11 = (
            ((query - key).abs() < self.config.window)
            | ((query < self.config.globals) | (key < self.config.globals))
            | random_keys(query, key, self.config.randoms, 10)
        ) & padding[:, None, None, :]
        mask_12 = (
            ((query - key).abs() < self.config.window)
            | ((query < self.config.globals) | (key < self.config.globals))
            | random_keys(query, key, self.config.randoms, 11)
        ) & padding[:, None, None, :]
        x = self.dropout(self.embedding_norm(x + self.segment_embedding(segments)))
        for block, layer_mask in zip(
            self.blocks,
            [mask, mask_2, mask_3, mask_4, mask_5, mask_6, mask_7, mask_8, mask_9, mask_10, mask_11, mask_12],
        ):
            x = block(x, layer_mask)
        return self.head(x, self.token_embedding.weight)
