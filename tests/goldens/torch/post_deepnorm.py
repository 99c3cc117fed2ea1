"""Norms and where they stand: one encoder of BERT's size, with each norm and each placement in turn.

109,515,840 parameters. Made by archdsl 0.1.0 from norms.arch (bc40ee2e3ddc):
    archdsl compile norms.arch:post_deepnorm --to torch
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
    vocab: int = 30_528
    context: int = 512

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
            setattr(self, name, int(size))  # 24.0 is 24
        assert self.width % self.heads == 0, f"width must be a multiple of heads: {self}"


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al., 2017, section 3.2)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.width // config.heads
        self.layers = config.layers
        self.q = nn.Linear(config.width, config.width)
        self.k = nn.Linear(config.width, config.width)
        self.v = nn.Linear(config.width, config.width)
        self.out = nn.Linear(config.width, config.width)

    def reset_parameters(self) -> None:
        for linear in (self.q, self.k):
            nn.init.xavier_normal_(linear.weight)
            nn.init.zeros_(linear.bias)
        for linear in (self.v, self.out):
            nn.init.xavier_normal_(linear.weight, gain=(8 * self.layers) ** -0.25)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        v = self.v(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear layers with an activation between them (Vaswani et al., 2017, section 3.3)."""

    def __init__(self, config: Config, hidden: int) -> None:
        super().__init__()
        self.layers = config.layers
        self.up = nn.Linear(config.width, hidden)
        self.down = nn.Linear(hidden, config.width)

    def reset_parameters(self) -> None:
        for linear in (self.up, self.down):
            nn.init.xavier_normal_(linear.weight, gain=(8 * self.layers) ** -0.25)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Layer(nn.Module):
    """layer (norms.arch:3)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.layers = config.layers
        self.attention = Attention(config)
        self.attention_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.ffn = MLP(config, hidden=4 * config.width)
        self.ffn_norm = nn.LayerNorm(config.width, eps=1e-5)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention_norm((2 * self.layers) ** 0.25 * x + self.attention(x, mask))
        return self.ffn_norm((2 * self.layers) ** 0.25 * x + self.ffn(x))


class MaskedLM(nn.Module):
    """BERT's masked-language-model head: a linear layer, an activation and a norm before the (tied) logits."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.layers = config.layers
        self.dense = nn.Linear(config.width, config.width)
        self.norm = nn.LayerNorm(config.width, eps=1e-12)
        self.bias = nn.Parameter(torch.empty(config.vocab))

    def reset_parameters(self) -> None:
        nn.init.xavier_normal_(self.dense.weight, gain=(8 * self.layers) ** -0.25)
        nn.init.zeros_(self.dense.bias)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, token_embedding: Tensor) -> Tensor:
        return F.linear(self.norm(F.gelu(self.dense(x))), token_embedding) + self.bias


class PostDeepnorm(nn.Module):
    """post_deepnorm (norms.arch:42)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.position = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.head = MaskedLM(config)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        nn.init.normal_(self.position.weight, std=0.02)

    def forward(self, tokens: Tensor, padding: Tensor) -> Tensor:
        time = tokens.size(1)
        assert time <= self.config.context, "at most `context` tokens"
        mask = padding[:, None, None, :]  # [batch, 1, 1, time]
        x = self.token_embedding(tokens) + self.position(torch.arange(time, device=tokens.device))
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x, self.token_embedding.weight)
