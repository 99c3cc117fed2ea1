"""BLOOM (BigScience, 2022): a multilingual decoder with ALiBi, and a norm behind the embedding.

176,247,271,424 parameters. Made by archdsl 0.1.0 from bloom.arch (4f7222ea847d):
    archdsl compile bloom.arch:bloom_176b --to torch
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    layers: int = 70
    width: int = 14_336
    heads: int = 112
    vocab: int = 250_880
    context: int = 2048

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
            setattr(self, name, int(size))  # 24.0 is 24
        assert self.width % self.heads == 0, f"width must be a multiple of heads: {self}"


def alibi(heads: int, queries: int, keys: int, device: torch.device) -> Tensor:
    """Compute the biases of ALiBi (Press et al., 2021): each head has a slope of its own."""
    power = 2 ** math.floor(math.log2(heads))
    head = torch.cat((torch.arange(power, device=device) + 1, torch.arange(heads - power, device=device) + 0.5))
    query = torch.arange(keys - queries, keys, device=device)[:, None]
    distance = (query - torch.arange(keys, device=device)).abs()
    return -(2 ** (-8 / power * head))[:, None, None] * distance  # [heads, query, key]


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al., 2017, section 3.2)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.width // config.heads
        self.q = nn.Linear(config.width, config.width)
        self.k = nn.Linear(config.width, config.width)
        self.v = nn.Linear(config.width, config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        v = self.v(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.out(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear layers with an activation between them (Vaswani et al., 2017, section 3.3)."""

    def __init__(self, config: Config, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, hidden)
        self.down = nn.Linear(hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Decoder(nn.Module):
    """decoder (bloom.arch:3)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.attention = Attention(config)
        self.ffn_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.ffn = MLP(config, hidden=4 * config.width)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), bias)
        return x + self.ffn(self.ffn_norm(x))


class Bloom176B(nn.Module):
    """bloom_176b (bloom.arch:12)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.embedding_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.blocks = nn.ModuleList(Decoder(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=1e-5)
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
        key = torch.arange(time, device=tokens.device)
        query = key[:, None]
        bias = alibi(self.config.heads, time, time, tokens.device).to(next(self.parameters()).dtype)
        bias = torch.where(key <= query, bias, -torch.inf)
        x = self.embedding_norm(self.token_embedding(tokens))
        for block in self.blocks:
            x = block(x, bias)
        return F.linear(self.norm(x), self.token_embedding.weight)
