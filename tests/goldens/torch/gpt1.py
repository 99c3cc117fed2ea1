"""GPT-1 (Radford et al., 2018): the first of the GPTs, a post-norm decoder; no norm stands before the head.

116,534,784 parameters. Made by archdsl 0.1.0 from gpt1.arch (11126cd5c43c):
    archdsl compile gpt1.arch:gpt1 --to torch
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
    vocab: int = 40_478
    context: int = 512

    def __post_init__(self) -> None:
        assert min(vars(self).values()) >= 1, f"sizes and counts must be whole numbers of at least 1: {self}"
        assert self.width % self.heads == 0, f"width must be a multiple of heads: {self}"


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
        for linear in (self.q, self.k, self.v, self.out):
            nn.init.normal_(linear.weight, std=0.02)
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
            nn.init.normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Decoder(nn.Module):
    """decoder (gpt1.arch:3)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = Attention(config, dropout=0.1)
        self.dropout = nn.Dropout(0.1)
        self.attention_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.ffn = MLP(config, hidden=4 * config.width)
        self.ffn_norm = nn.LayerNorm(config.width, eps=1e-5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x)))
        return self.ffn_norm(x + self.dropout(self.ffn(x)))


class GPT1(nn.Module):
    """gpt1 (gpt1.arch:13)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.position = nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(Decoder(config) for _ in range(config.layers))
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        nn.init.normal_(self.position.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        time = tokens.size(1)
        assert time <= self.config.context, "at most `context` tokens"
        x = self.token_embedding(tokens) + self.position(torch.arange(time, device=tokens.device))
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)
        return F.linear(x, self.token_embedding.weight)
