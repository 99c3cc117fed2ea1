"""GPT-2 (Radford et al., 2019): pre-norm decoder, learned positions, tied head.

124,439,808 parameters. Made by archdsl 0.1.0 from gpt2.arch (c693fa13713c):
    archdsl compile gpt2.arch:gpt2 --to torch
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
    vocab: int = 50_257
    context: int = 1024

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
            setattr(self, name, int(size))  # 24.0 is 24
        assert self.width % self.heads == 0, f"width must be a multiple of heads: {self}"


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al., 2017, section 3.2)."""

    def __init__(self, config: Config, dropout: float = 0) -> None:
        super().__init__()
        self.head_dim = config.width // config.heads
        self.dropout = dropout
        self.layers = config.layers
        self.q = nn.Linear(config.width, config.width)
        self.k = nn.Linear(config.width, config.width)
        self.v = nn.Linear(config.width, config.width)
        self.out = nn.Linear(config.width, config.width)

    def reset_parameters(self) -> None:
        for linear in (self.q, self.k, self.v):
            nn.init.normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)
        nn.init.normal_(self.out.weight, std=0.02 / math.sqrt(2 * self.layers))
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        v = self.v(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0)
        return self.out(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear layers with an activation between them (Vaswani et al., 2017, section 3.3)."""

    def __init__(self, config: Config, hidden: int) -> None:
        super().__init__()
        self.layers = config.layers
        self.up = nn.Linear(config.width, hidden)
        self.down = nn.Linear(hidden, config.width)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.up.weight, std=0.02)
        nn.init.zeros_(self.up.bias)
        nn.init.normal_(self.down.weight, std=0.02 / math.sqrt(2 * self.layers))
        nn.init.zeros_(self.down.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Decoder(nn.Module):
    """decoder (gpt2.arch:3)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.attention = Attention(config, dropout=0.1)
        self.dropout = nn.Dropout(0.1)
        self.ffn_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.ffn = MLP(config, hidden=4 * config.width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.ffn(self.ffn_norm(x)))


class GPT2(nn.Module):
    """gpt2 (gpt2.arch:13)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.position = nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(Decoder(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=1e-5)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        nn.init.normal_(self.position.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        time = tokens.size(1)
        assert time <= self.config.context, "at most `context` tokens"
        x = self.token_embedding(tokens) + self.position(torch.arange(time, device=tokens.device))
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token_embedding.weight)
