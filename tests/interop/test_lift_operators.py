"""Operators of ATen, each beside what it becomes: one module calls them all, and its outputs must be the spec's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import archdsl

pytestmark = pytest.mark.slow

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "clamp": lambda x: x.clamp(-0.5, 0.25),
    "clamp_max": lambda x: x.clamp_max(0.1),
    "clamp_min": lambda x: x.clamp_min(-0.1),
    "cumsum": lambda x: x.cumsum(1),
    "every": lambda x: torch.cat([x[..., 1::2], x[..., ::2]], -1),
    "exp": lambda x: x.exp().log1p(),
    "expm1": torch.expm1,
    "flip": lambda x: x.flip(-1),
    "hard": lambda x: F.hardswish(x) + F.hardsigmoid(x),
    "in place": lambda x: torch.zeros_like(x).copy_(x).mul_(2),
    "leaky": lambda x: F.leaky_relu(x, 0.2) + F.elu(x) + F.selu(x),
    "maximum": lambda x: torch.maximum(x, x.flip(-1)) + torch.min(x, -x),
    "masked": lambda x: x.masked_fill(x > 0.3, 0.5),
    "norm": lambda x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt(),
    "norm of the channels": lambda x: torch.multiply(x, x.norm(dim=-1, keepdim=True)) + F.normalize(x, dim=-1),
    "pad": lambda x: F.pad(x, (2, 0))[..., :-2],
    "most": lambda x: x.max(-1, keepdim=True).values * x.max(-1)[1][..., None] + x.clamp(min=x.mean(-1, keepdim=True)),
    "pushed": lambda x: F.pad(x, (0, 0, 1, -1)) + F.pad(x, (-2, 2)),
    "power": lambda x: x**3 + x.square() - x.abs().sqrt(),
    "ranges": lambda x: written(x),
    "roll": lambda x: x.roll(1, -1),
    "rows": lambda x: chosen(x),
    "rsub": lambda x: 1 - x,
    "softmax": lambda x: (x - x.max(-1, keepdim=True).values).softmax(-1),
    "sum": lambda x: x.sum(-1, keepdim=True) + x.amax(-1, keepdim=True) - x.logsumexp(-1, keepdim=True) + x,
    "topk": lambda x: x.topk(8, -1)[0],
    "twice": lambda x: x * twice(x.shape[1]),
    "where": lambda x: torch.where(x > 0, x, 0.1 * x),
}


def written(x: Tensor) -> Tensor:
    """A tensor that is written range by range."""
    y = x.new_empty(x.shape)
    y[..., :5] = x[..., 3:]
    y[..., 5:] = -x[..., :3]
    return y


def chosen(x: Tensor) -> Tensor:
    """Of each position the four channels of the two pairs of pairs that are largest, as a router in groups has them."""
    rows = x.reshape(-1, 8)
    groups = rows.view(-1, 2, 4).topk(2, dim=-1)[0].sum(-1)
    mask = torch.zeros_like(groups).scatter_(1, groups.topk(1, dim=-1)[1], 1)
    mask = mask.unsqueeze(-1).expand(-1, 2, 4).reshape(-1, 8)
    return rows.masked_fill(mask == 0, 0.0).view(x.shape)


def twice(time: int) -> Tensor:
    """A table [1, time, 8] of four numbers a position, each twice."""
    table = torch.arange(time)[None, :, None] * torch.tensor([0.1, 0.3, 0.2, 0.7])
    return torch.stack([table.cos(), table.cos()], -1).reshape(1, time, 8)


class All(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 8)
        self.gate, self.up = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.one, self.two = (nn.Parameter(torch.rand(8)) for _ in range(2))
        self.register_buffer("corrected", torch.zeros(8))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        found = [call(x) for call in CALLS.values()]
        own = [self.gate(x) * self.up(x), x * (self.one * self.two).sum(), x + self.corrected]
        return torch.cat(found + own, -1)


def test_each_operator_gives_its_numbers() -> None:
    report = archdsl.lift(All(), torch.zeros(2, 5, dtype=torch.int64))
    assert report.verified, [check.message for check in report.checks if not check.passed]
