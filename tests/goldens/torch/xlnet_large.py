"""XLNet (Yang et al., 2019): predicts tokens in any order, by two streams of attention over relative positions.

360,300,800 parameters. Made by archdsl 0.1.0 from xlnet.arch (8099fd75d833):
    archdsl compile xlnet.arch:xlnet_large --to torch
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    layers: int = 24
    width: int = 1024
    heads: int = 16
    vocab: int = 32_000

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
            setattr(self, name, int(size))  # 24.0 is 24
        assert self.width % self.heads == 0, f"the width must be a multiple of heads: {self}"
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


class SegmentScores(nn.Module):
    """The score for standing in the query's segment, or in another (section 2.5)."""

    def __init__(self, config: Config, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.bias = nn.Parameter(torch.empty(config.heads, head_dim))
        self.kind = nn.Parameter(torch.empty(2, config.heads, head_dim))

    def reset_parameters(self) -> None:
        nn.init.normal_(self.bias, std=0.02)
        nn.init.normal_(self.kind, std=0.02)

    def forward(self, q: Tensor, apart: Tensor) -> Tensor:
        scores = torch.einsum("bhtd,shd->bhts", q + self.bias.unsqueeze(1), self.kind) / math.sqrt(self.head_dim)
        return torch.where(apart.unsqueeze(1), scores[..., 1:], scores[..., :1])


class TwoStreamAttention(nn.Module):
    """Attention of one or two streams (section 2.3) over Transformer-XL's relative positions."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.width // config.heads
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.k = nn.Linear(config.width, config.width, bias=False)
        self.v = nn.Linear(config.width, config.width, bias=False)
        self.segment = SegmentScores(config, head_dim=self.head_dim)
        self.position = RelativeScores(config.width, config.heads, self.head_dim)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, h: Tensor, apart: Tensor, order: Tensor, g: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        time = h.size(1)
        q = self.query(h).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(h).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        v = self.v(h).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        before = order.unsqueeze(1) < order.unsqueeze(2)
        up_to = order.unsqueeze(1) <= order.unsqueeze(2)
        h_2 = self.segment(q, apart) + torch.where(up_to.unsqueeze(1), 0, -1e30).to(h.dtype)
        q, distance = self.position(q, time)
        h_2 = F.scaled_dot_product_attention(q, k, v, attn_mask=h_2 + distance).transpose(1, 2).flatten(2)
        y = self.out(h_2)
        h_2 = torch.einsum("bpt,bpd->btd", targets, self.query(g))
        q = h_2.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        h = self.segment(q, apart) + torch.where(before.unsqueeze(1), 0, -1e30).to(h.dtype)
        q, distance = self.position(q, time)
        z = F.scaled_dot_product_attention(q, k, v, attn_mask=h + distance).transpose(1, 2).flatten(2)
        return y, self.out(torch.einsum("bpt,btd->bpd", targets, z))


class MLP(nn.Module):
    """Two linear layers with an activation between them (Vaswani et al., 2017, section 3.3)."""

    def __init__(self, config: Config, hidden: int, dropout: float = 0) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, hidden)
        self.dropout = nn.Dropout(dropout)
        self.down = nn.Linear(hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.dropout(F.gelu(self.up(x))))


class RestOfLayer(nn.Module):
    """rest_of_layer (xlnet.arch:42)"""

    def __init__(self, config: Config, hidden: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.1)
        self.attention_norm = nn.LayerNorm(config.width, eps=1e-12)
        self.ffn = MLP(config, hidden=hidden, dropout=0.1)
        self.ffn_norm = nn.LayerNorm(config.width, eps=1e-12)

    def forward(self, x: Tensor, update: Tensor) -> Tensor:
        x = self.attention_norm(x + self.dropout(update))
        return self.ffn_norm(x + self.dropout(self.ffn(x)))


class Layer(nn.Module):
    """layer (xlnet.arch:47)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = TwoStreamAttention(config)
        self.rest = RestOfLayer(config, hidden=4 * config.width)

    def forward(self, h: Tensor, apart: Tensor, order: Tensor, g: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        y, z = self.attention(h, apart, order, g, targets)
        return self.rest(h, y), self.rest(g, z)


class WithBias(nn.Module):
    """with_bias (std/models.arch:123)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(config.vocab))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


class XlnetLarge(nn.Module):
    """xlnet_large (xlnet.arch:63)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.mask = nn.Parameter(torch.empty(config.width))
        self.words = nn.Embedding(config.vocab, config.width)
        self.dropout = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.head = WithBias(config)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()
        nn.init.normal_(self.words.weight, std=0.02)
        nn.init.normal_(self.mask, std=0.02)

    def forward(self, tokens: Tensor, segments: Tensor, order: Tensor, targets: Tensor) -> Tensor:
        apart = segments.unsqueeze(1) != segments.unsqueeze(2)
        h = (
            self.mask.unflatten(0, (1, 1, self.config.width))
            .expand(tokens.size(0), -1, -1)
            .expand(-1, targets.size(1), -1)
        )
        g = self.dropout(h)
        h = self.dropout(self.words(tokens))
        for block in self.blocks:
            h, g = block(h, apart, order, g, targets)
        return self.head(F.linear(self.dropout(g), self.words.weight))
