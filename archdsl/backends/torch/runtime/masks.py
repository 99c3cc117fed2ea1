"""Masks made of a rule, as tensors or, on CUDA, as blocks for FlexAttention."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

fused_block_mask = torch.compile(create_block_mask)  # nothing is compiled before the first call, on CUDA


def random_keys(query: Tensor, key: Tensor, count: int, seed: int) -> Tensor:
    """Choose for each query the `count` keys whose hash with it is largest: random, and the same at every call."""
    mixed = (query * 40_503 + key * 30_011 + seed * 7_919 + 1) % 2_147_483_647
    mixed = (mixed * mixed + query * 97 + key) % 2_147_483_647
    mixed = (mixed * mixed + key * 89) % 2_147_483_647
    best = mixed.topk(min(count, mixed.size(-1)), dim=-1).indices
    return torch.zeros_like(mixed, dtype=torch.bool).scatter(-1, best, True)


def mask_of(
    rule: Callable[..., Tensor], batch: int, time: int, device: torch.device, *given: Any
) -> Tensor | BlockMask:
    """Build the mask of the pairs of positions that a rule allows: on CUDA, blocks of 128 by 128 for FlexAttention;
    elsewhere, and of what is shorter than one, a tensor [time, time] or [batch, 1, time, time]."""
    if device.type == "cuda" and time >= 128:
        return fused_block_mask(lambda b, h, query, key: rule(b, query, key, *given), batch, None, time, time, device)
    rows, positions = torch.arange(batch, device=device)[:, None, None, None], torch.arange(time, device=device)
    return rule(rows, positions[:, None], positions, *given)
