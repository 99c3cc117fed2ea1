"""Rope: the angles of every position, their scalings, and the turning of pairs of channels by them."""

import math

import torch
from torch import Tensor, nn


def rope_table(positions: Tensor, head_dim: int, theta: float) -> Tensor:
    """Compute the cosines and sines at positions [..., time]: [2, ..., time, head_dim / 2]."""
    frequencies = theta ** -(torch.arange(0, head_dim, 2, device=positions.device).float() / head_dim)
    angles = positions[..., None].float() * frequencies
    return torch.stack((angles.cos(), angles.sin()))


def rope_frequencies(head_dim: int, theta: float, device: torch.device) -> Tensor:
    """Compute the radians per position of each pair of channels: [head_dim / 2]."""
    return theta ** -(torch.arange(0, head_dim, 2, device=device).float() / head_dim)


def scaled_rope_table(positions: Tensor, frequencies: Tensor) -> Tensor:
    """Compute the cosines and sines at positions [..., time]: [2, ..., time, head_dim / 2]."""
    angles = positions[..., None].float() * frequencies
    return torch.stack((angles.cos(), angles.sin()))


# fmt: off
def yarn_scaling(
    waves: Tensor, theta: float, factor: float, original: int, beta_fast: float, beta_slow: float, truncate: bool = True
) -> Tensor:
    """YaRN: interpolate the slow waves, keep the fast ones, ramp between them (Peng et al., 2023, section 3.2)."""
    dims = 2 * waves.numel()
    angles = (beta_fast * 2 * math.pi, beta_slow * 2 * math.pi)  # of the pairs low and high within the original context
    low, high = (dims * math.log(original / angle) / (2 * math.log(theta)) for angle in angles)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    ramp = ((torch.arange(dims // 2, device=waves.device) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return waves * (1 - ramp + ramp / factor)
# fmt: on


def llama3_scaling(frequencies: Tensor, factor: float, low: float, high: float, original: int) -> Tensor:
    """Slow down wavelengths longer than the original context, keep the short ones, blend between (Llama 3.1)."""
    waves = original * frequencies / (2 * math.pi)  # periods within the original context
    keep = ((waves - low) / (high - low)).clamp(0, 1)
    return frequencies * (keep + (1 - keep) / factor)


class LongRope(nn.Module):
    """LongRoPE: divide each frequency by a number of its own, another one beyond the original context (Ding et al.,
    2024)."""

    def __init__(self, short: list[float], long: list[float], original: int) -> None:
        super().__init__()
        self.divisors = short, long
        self.original = original
        # float32 as whole numbers of the same bits, which `model.bfloat16()` does not round
        self.bits = nn.Buffer(torch.empty(2, len(short), dtype=torch.int32), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.bits.copy_(torch.tensor(self.divisors, dtype=torch.float32).view(torch.int32))

    def forward(self, frequencies: Tensor, length: int) -> Tensor:
        short, long = self.bits.view(torch.float32)
        beyond = torch.full((), length, device=frequencies.device) > self.original
        return frequencies / torch.where(beyond, long, short)


def rotate(x: Tensor, rope: Tensor) -> Tensor:
    """Rotate the channel pairs (i, i + head_dim / 2) of x [..., time, head_dim] by the angles of their positions."""
    cos, sin = rope
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).type_as(x)


def rotate_pairs(x: Tensor, rope: Tensor) -> Tensor:
    """Rotate the channel pairs (2i, 2i + 1) of x [..., time, head_dim] by the angles of their positions."""
    cos, sin = rope
    a, b = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2).type_as(x)


def rotate_part(x: Tensor, rope: Tensor) -> Tensor:
    """Rotate the first channels of each head, in pairs (i, i + dims / 2), by the angles of their positions; keep the
    rest."""
    cos, sin = rope
    a, b, rest = x.split((cos.size(-1), cos.size(-1), x.size(-1) - 2 * cos.size(-1)), dim=-1)
    a, b = a.float(), b.float()
    return torch.cat(((a * cos - b * sin).type_as(x), (b * cos + a * sin).type_as(x), rest), dim=-1)


def rotate_part_pairs(x: Tensor, rope: Tensor) -> Tensor:
    """Rotate the first channels of each head, in pairs (2i, 2i + 1), by the angles of their positions; keep the
    rest."""
    cos, sin = rope
    turned, rest = x.split((2 * cos.size(-1), x.size(-1) - 2 * cos.size(-1)), dim=-1)
    a, b = turned[..., 0::2].float(), turned[..., 1::2].float()
    turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    return torch.cat((turned.type_as(x), rest), dim=-1)
