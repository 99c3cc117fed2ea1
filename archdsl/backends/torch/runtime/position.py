"""Biases of attention by distance."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def alibi(heads: int, queries: int, keys: int, device: torch.device) -> Tensor:
    """Compute the biases of ALiBi (Press et al., 2021): each head has a slope of its own."""
    power = 2 ** math.floor(math.log2(heads))
    head = torch.cat((torch.arange(power, device=device) + 1, torch.arange(heads - power, device=device) + 0.5))
    query = torch.arange(keys - queries, keys, device=device)[:, None]
    distance = (query - torch.arange(keys, device=device)).abs()
    return -(2 ** (-8 / power * head))[:, None, None] * distance  # [heads, query, key]


def alibi_between(heads: int, query: Tensor, key: Tensor) -> Tensor:
    """Compute the biases of ALiBi (Press et al., 2021) for pairs of positions: each head has a slope of its own."""
    power, device = 2 ** math.floor(math.log2(heads)), key.device
    head = torch.cat((torch.arange(power, device=device) + 1, torch.arange(heads - power, device=device) + 0.5))
    return -(2 ** (-8 / power * head))[:, None, None] * (query - key).abs()  # [batch, heads, query, key]


def sinusoid(positions: Tensor, width: int, theta: float = 10_000) -> Tensor:
    """Embed positions by sines, then cosines, of wavelengths from 2π to 2π · theta (Vaswani et al., 2017)."""
    angle = positions[..., None] * theta ** -(torch.arange(0, width, 2, device=positions.device) / width)
    return torch.cat((angle.sin(), angle.cos()), dim=-1)


def interleaved_sinusoid(positions: Tensor, width: int, theta: float = 10_000) -> Tensor:
    """Embed positions by sines and cosines in turn, of wavelengths from 2π to 2π · theta (Vaswani et al., 2017)."""
    angle = positions[..., None] * theta ** -(torch.arange(0, width, 2, device=positions.device) / width)
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)


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
