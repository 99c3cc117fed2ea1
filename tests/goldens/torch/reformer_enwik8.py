"""Reformer (Kitaev et al., 2020): attention within buckets of similar positions, found by hashing; reversible layers.

149,182,722 parameters. Made by archdsl 0.1.0 from reformer.arch (713e2ef933c2):
    archdsl compile reformer.arch:reformer_enwik8 --to torch
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    quarters: int = 3
    width: int = 1024
    heads: int = 8
    head_dim: int = 128
    hidden: int = 4096
    vocab: int = 258
    local_chunk: int = 128
    chunk: int = 256
    buckets: int = 512
    rounds: int = 4
    rows: int = 128
    columns: int = 512
    row_width: int = 256

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
            setattr(self, name, int(size))  # 24.0 is 24
        assert self.width - self.row_width >= 1, f"width - row_width must be at least 1: {self}"
        assert self.buckets % 2 == 0, f"buckets must be a multiple of 2: {self}"


class AxialPositions(nn.Module):
    """A position is the sum of a row and a column of a grid, side by side."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.rows = config.rows
        self.columns = config.columns
        self.row = nn.Embedding(config.rows, config.row_width)
        self.column = nn.Embedding(config.columns, config.width - config.row_width)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.row.weight, std=0.02)
        nn.init.normal_(self.column.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        time = x.size(1)
        assert time <= self.rows * self.columns, "places within the grid"
        positions = torch.arange(time, device=x.device)
        row = self.row(positions // self.columns)  # [time, row_width]
        column = self.column(positions % self.columns)  # [time, width - row_width]
        return x + torch.cat((row, column), dim=-1)


class LocalAttention(nn.Module):
    """Attention to one's own chunk and the one before."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.chunk = config.local_chunk
        self.head_dim = config.head_dim
        self.q = nn.Linear(config.width, config.heads * config.head_dim, bias=False)
        self.k = nn.Linear(config.width, config.heads * config.head_dim, bias=False)
        self.v = nn.Linear(config.width, config.heads * config.head_dim, bias=False)
        self.out = nn.Linear(config.heads * config.head_dim, config.width, bias=False)

    def forward(self, x: Tensor, greater_equal_of_q: Tensor) -> Tensor:
        assert x.size(1) % self.chunk == 0, "the axis (n c) of `rearrange` is cut into equal parts"
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        v = self.v(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        x = (k / math.sqrt(self.head_dim)).unflatten(2, (-1, self.chunk))
        keys = torch.cat((x.roll(1, dims=2), x), dim=3)
        h = torch.einsum("bhnqd,bhnkd->bhnqk", q.unflatten(2, (-1, self.chunk)), keys)
        scores = torch.where(greater_equal_of_q, h, -1_000_000_000)
        x = v.unflatten(2, (-1, self.chunk))  # [batch, heads, time / chunk, chunk, head_dim]
        y = (scores.softmax(-1) @ torch.cat((x.roll(1, dims=2), x), dim=3)).flatten(2, 3)
        return self.out(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear layers with an activation between them (Vaswani et al., 2017, section 3.3)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.hidden)
        self.down = nn.Linear(config.hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x)))


class NearReversibleLayer(nn.Module):
    """Reversible residuals (section 3): two streams, each of which can be computed back from the other."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, eps=1e-12)
        self.attention = LocalAttention(config)
        self.ffn_norm = nn.LayerNorm(config.width, eps=1e-12)
        self.ffn = MLP(config)

    def forward(self, a: Tensor, b: Tensor, greater_equal_of_q: Tensor) -> tuple[Tensor, Tensor]:
        a = a + self.attention(self.attention_norm(b), greater_equal_of_q)
        return a, b + self.ffn(self.ffn_norm(a))


class LshAttention(nn.Module):
    """Attention by locality-sensitive hashing (section 2)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.rounds = config.rounds
        self.chunk = config.chunk
        self.head_dim = config.head_dim
        self.buckets = config.buckets
        self.register_buffer(
            "rotations", torch.empty(config.heads, config.head_dim, config.rounds, config.buckets // 2)
        )
        self.qk = nn.Linear(config.width, config.heads * config.head_dim, bias=False)
        self.v = nn.Linear(config.width, config.heads * config.head_dim, bias=False)
        self.out = nn.Linear(config.heads * config.head_dim, config.width, bias=False)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.rotations)

    def forward(self, x: Tensor, times: Tensor, positions: Tensor) -> Tensor:
        time = x.size(1)
        assert self.rounds * time % self.chunk == 0, "the axis (n c) of `rearrange` is cut into equal parts"
        qk = self.qk(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        v = self.v(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        turned = torch.einsum("bhtd,hdrn->bhrtn", qk.detach(), self.rotations)
        h = turned[..., : self.buckets // 2]
        bucket = torch.cat((h, -h), dim=-1).argmax(-1)  # [batch, heads, rounds, time]
        bucket = bucket + times
        sorted_ = (bucket * time + positions).flatten(2, 3).argsort(dim=-1)
        place = sorted_ % time
        q = qk.gather(2, place.unsqueeze(-1).expand(-1, -1, -1, self.head_dim))
        v = v.gather(2, place.unsqueeze(-1).expand(-1, -1, -1, self.head_dim))
        k = F.rms_norm(q, (self.head_dim,), eps=1e-6)
        x = (k / math.sqrt(self.head_dim)).unflatten(2, (-1, self.chunk))
        of_q = place.unflatten(2, (-1, self.chunk)).unsqueeze(4)  # [batch, heads, rounds * time / chunk, chunk, 1]
        keys = torch.cat((x.roll(1, dims=2), x), dim=3)
        x = place.unsqueeze(-1).unflatten(2, (-1, self.chunk))  # [batch, heads, rounds * time / chunk, chunk, 1]
        of_k = torch.cat((x.roll(1, dims=2), x), dim=3).transpose(-1, -2)
        h = torch.einsum("bhnqd,bhnkd->bhnqk", q.unflatten(2, (-1, self.chunk)), keys)
        scores = torch.where(of_q >= of_k, h, -1_000_000_000)
        own = of_q == of_k
        scores = torch.where(own, -100_000, scores)
        total = scores.logsumexp(-1, keepdim=True)
        x = v.unflatten(2, (-1, self.chunk))  # [batch, heads, rounds * time / chunk, chunk, head_dim]
        y = scores.softmax(-1) @ torch.cat((x.roll(1, dims=2), x), dim=3)
        back = sorted_.argsort(dim=-1).unsqueeze(-1)  # [batch, heads, rounds * time, 1]
        y = y.flatten(2, 3).gather(2, back.expand(-1, -1, -1, self.head_dim))
        h = total.flatten(2, 3).gather(2, back).squeeze(3).unflatten(2, (self.rounds, -1)).unsqueeze(4)
        weights = h.softmax(2)
        y = (weights * y.unflatten(2, (self.rounds, -1))).sum(2)  # [batch, heads, time, head_dim]
        return self.out(y.transpose(1, 2).flatten(2))


class FarReversibleLayer(nn.Module):
    """Reversible residuals (section 3): two streams, each of which can be computed back from the other."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, eps=1e-12)
        self.attention = LshAttention(config)
        self.ffn_norm = nn.LayerNorm(config.width, eps=1e-12)
        self.ffn = MLP(config)

    def forward(self, a: Tensor, b: Tensor, times: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        a = a + self.attention(self.attention_norm(b), times, positions)
        return a, b + self.ffn(self.ffn_norm(a))


class ReformerEnwik8(nn.Module):
    """reformer_enwik8 (reformer.arch:91)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.position = AxialPositions(config)
        self.blocks = nn.ModuleList(
            kind(config)
            for kind in config.quarters * (2 * [NearReversibleLayer] + [FarReversibleLayer, NearReversibleLayer])
        )
        self.layernorm = nn.LayerNorm(2 * config.width, eps=1e-12)
        self.head = nn.Linear(2 * config.width, config.vocab)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()
        nn.init.normal_(self.token_embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        time = tokens.size(1)
        x = self.token_embedding(tokens)  # [batch, time, width]
        x = self.position(x)
        positions = torch.arange(time, device=tokens.device)
        place = positions.unflatten(0, (1, 1, time)).expand(tokens.size(0), -1, -1).expand(-1, self.config.heads, -1)
        x_2 = place.unsqueeze(-1).unflatten(2, (-1, self.config.local_chunk))
        of_k = torch.cat((x_2.roll(1, dims=2), x_2), dim=3).transpose(-1, -2)
        greater_equal_of_q = place.unflatten(2, (-1, self.config.local_chunk)).unsqueeze(4) >= of_k
        times = (self.config.buckets * torch.arange(self.config.rounds, device=tokens.device)).unsqueeze(1)
        a = x
        for i in range(0, len(self.blocks), 4):
            for block in self.blocks[i : i + 2]:
                a, x = block(a, x, greater_equal_of_q)
            a, x = self.blocks[i + 2](a, x, times, positions)
            a, x = self.blocks[i + 3](a, x, greater_equal_of_q)
        y = self.layernorm(torch.cat((a, x), dim=-1))
        return self.head(y)
