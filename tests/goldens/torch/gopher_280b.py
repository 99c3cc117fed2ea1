"""Gopher (Rae et al., 2021): RMSNorm, and Transformer-XL's relative positions in every layer.

279,714,217,984 parameters. Made by archdsl 0.1.0 from gopher.arch (4a51707c4d81):
    archdsl compile gopher.arch:gopher_280b --to torch
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    layers: int = 80
    width: int = 16_384
    heads: int = 128
    vocab: int = 32_000
    context: int = 2048

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
            setattr(self, name, int(size))  # 24.0 is 24
        assert self.width % self.heads == 0, f"width must be a multiple of heads: {self}"
        assert self.width % 2 == 0, f"the width must be even: half are sines, half cosines: {self}"


class RelativeScores(nn.Module):
    """Transformer-XL (Dai et al., 2019, section 3.3): the query plus a content bias, and its scaled scores against
    every distance."""

    def __init__(self, width: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.empty(heads * head_dim, width))
        self.u = nn.Parameter(torch.empty(heads, head_dim))
        self.v = nn.Parameter(torch.empty(heads, head_dim))

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight, -(self.width**-0.5), self.width**-0.5)
        nn.init.zeros_(self.u)
        nn.init.zeros_(self.v)

    def forward(self, q: Tensor, keys: int) -> tuple[Tensor, Tensor]:
        query = torch.arange(keys - q.size(-2), keys, device=q.device)[:, None]
        return self.between(q, query, torch.arange(keys, device=q.device), ahead=q.size(-2) - 1)

    def between(self, q: Tensor, query: Tensor, key: Tensor, ahead: int = 0) -> tuple[Tensor, Tensor]:
        """Compute the biases for queries and keys at these positions; of later keys, those up to `ahead` positions."""
        farthest = key.size(-1) - 1
        positions = torch.arange(farthest, -ahead - 1, -1, device=q.device)[:, None]  # distances, farthest first
        angle = positions * 10_000 ** -(torch.arange(0, self.width, 2, device=q.device) / self.width)
        table = torch.cat((angle.sin(), angle.cos()), dim=-1).to(q.dtype)
        r = F.linear(table, self.weight).unflatten(-1, self.u.shape)  # [distance, heads, head_dim]
        scores = torch.einsum("bhtd,rhd->bhtr", q + self.v[:, None], r) * q.size(-1) ** -0.5
        column = (farthest - query + key).clamp(max=farthest + ahead)  # of the distance between them
        return q + self.u[:, None], scores.gather(-1, column.expand(*scores.shape[:-1], -1))


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al., 2017, section 3.2)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.width // config.heads
        self.q = nn.Linear(config.width, config.width)
        self.k = nn.Linear(config.width, config.width)
        self.v = nn.Linear(config.width, config.width)
        self.position = RelativeScores(config.width, config.heads, self.head_dim)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        v = self.v(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        q, distance = self.position(q, x.size(1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=torch.where(mask, distance, -torch.inf))
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
    """decoder (gopher.arch:3)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.ffn = MLP(config, hidden=4 * config.width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), mask)
        return x + self.ffn(self.ffn_norm(x))


class Gopher280B(nn.Module):
    """gopher_280b (gopher.arch:14)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(Decoder(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=1e-6)
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
        mask = key <= query
        x = self.token_embedding(tokens)  # [batch, time, width]
        for block in self.blocks:
            x = block(x, mask)
        return F.linear(self.norm(x), self.token_embedding.weight)
