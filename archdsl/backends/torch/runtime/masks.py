"""Masks made of a rule, as tensors or, on CUDA, as blocks for FlexAttention."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask


def random_keys(query: Tensor, key: Tensor, count: int, seed: int) -> Tensor:
    """Choose for each query the `count` keys whose hash with it is largest: random, and the same at every call."""
    mixed = (query * 40_503 + key * 30_011 + seed * 7_919 + 1) % 2_147_483_647
    mixed = (mixed * mixed + query * 97 + key) % 2_147_483_647
    mixed = (mixed * mixed + key * 89) % 2_147_483_647
    best = mixed.topk(min(count, mixed.size(-1)), dim=-1).indices
    return torch.zeros_like(mixed, dtype=torch.bool).scatter(-1, best, True)


@torch.compile  # at the first call, on CUDA, so that pairs are counted as they are computed and never stored
def block_counts(rule: Callable[..., Tensor], batch: int, time: int, device: torch.device, *given: Any) -> Tensor:
    """Count the pairs of positions that a rule allows in each block of 128 by 128: [batch, 1, blocks, blocks]."""
    rows = torch.arange(batch, device=device).view(-1, 1, 1, 1, 1, 1)
    key = torch.arange(-(-time // 128) * 128, device=device).view(-1, 128)  # [blocks, 128]
    query = key[..., None, None]
    allowed = rule(rows, query.clamp(max=time - 1), key.clamp(max=time - 1), *given) & (query < time) & (key < time)
    return allowed.sum((-3, -1)).expand(batch, 1, -1, -1)


def block_order(shown: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of blocks shown in each row of [..., blocks], and the indices of all, those shown first."""
    blocks = shown.size(-1)
    order = torch.arange(blocks, device=shown.device) + blocks * ~shown
    # For topk Inductor calls a kernel; for argsort it writes one, which may take minutes to compile.
    return shown.sum(-1, dtype=torch.int32), order.topk(blocks, largest=False).indices.int()


def block_mask(rule: Callable[..., Tensor], batch: int, time: int, device: torch.device, *given: Any) -> BlockMask:
    """Build FlexAttention's mask of a rule: the blocks that it allows in part and those that it allows in full."""
    counts = block_counts(rule, batch, time, device, *given)
    full = counts == 128 * 128
    partial = (counts > 0) & ~full
    by_row = (*block_order(partial), *block_order(full))
    by_column = (*block_order(partial.mT), *block_order(full.mT))
    return BlockMask((time, time), *by_row, *by_column, (128, 128), lambda b, h, q, k: rule(b, q, k, *given))


def mask_of(
    rule: Callable[..., Tensor], batch: int, time: int, device: torch.device, *given: Any
) -> Tensor | BlockMask:
    """Build the mask of the pairs of positions that a rule allows: on CUDA, blocks of 128 by 128 for FlexAttention;
    elsewhere, and of what is shorter than one, a tensor [time, time] or [batch, 1, time, time]."""
    if device.type == "cuda" and time >= 128:
        return block_mask(rule, batch, time, device, *given)
    rows, positions = torch.arange(batch, device=device)[:, None, None, None], torch.arange(time, device=device)
    return rule(rows, positions[:, None], positions, *given)
