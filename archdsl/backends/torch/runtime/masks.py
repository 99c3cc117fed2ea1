"""Masks made of a rule, as tensors or, on CUDA, as blocks for FlexAttention."""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask


def random_keys(query: Tensor, key: Tensor, count: int, seed: int) -> Tensor:
    """For each query the `count` keys whose hash with it is largest: random, and the same at every call."""
    mixed = (query * 40_503 + key * 30_011 + seed * 7_919 + 1) % 2_147_483_647
    mixed = (mixed * mixed + query * 97 + key) % 2_147_483_647
    mixed = (mixed * mixed + key * 89) % 2_147_483_647
    best = mixed.topk(min(count, mixed.size(-1)), dim=-1).indices
    return torch.zeros_like(mixed, dtype=torch.bool).scatter(-1, best, True)


def mask_of(rule: Callable[..., Tensor], time: int, like: Tensor, *given: Any) -> Tensor | BlockMask:
    """The pairs of a query and a key that a rule lets through: on CUDA blocks of them for FlexAttention (Dong et al.,
    2024), elsewhere a bool tensor [query, key], or [batch, 1, query, key]. Those of lengths alone are made once."""
    traced = torch.compiler.is_compiling() or type(like) is not Tensor
    if traced or any(isinstance(x, Tensor) for x in given):
        return new_mask(rule, time, like.device, *given)
    return kept_mask(rule, time, like.device, *given)


@lru_cache(maxsize=16)
def kept_mask(rule: Callable[..., Tensor], time: int, device: torch.device, *given: int) -> Tensor | BlockMask:
    """The mask of a rule, if it is one of the latest from before."""
    with torch.inference_mode(False):  # what inference makes serves training, too
        return new_mask(rule, time, device, *given)


def new_mask(rule: Callable[..., Tensor], time: int, device: torch.device, *given: Any) -> Tensor | BlockMask:
    rows = [x.size(0) for x in given if isinstance(x, Tensor) and x.dim() == 2]
    batch = rows[0] if rows else 1
    if not in_blocks(device):
        key = torch.arange(time, device=device)
        return rule(torch.arange(batch, device=device)[:, None, None, None], key[:, None], key, *given)
    if not torch.compiler.is_compiling():  # numbers as tensors: what is compiled for one of them serves all
        given = tuple(x if isinstance(x, Tensor) else torch.tensor(x, device=device) for x in given)

    def seen(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return rule(b, query, key, *given)

    return fused(create_block_mask)(seen, batch, None, time, time, device)


def in_blocks(device: torch.device) -> bool:
    """Whether attention is computed block by block: CUDA has the kernels, and an exported graph is for all devices."""
    exported = torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()
    return device.type == "cuda" and not exported


def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled, as FlexAttention needs it; in a model that is compiled as a whole it is so already."""
    return function if torch.compiler.is_compiling() else compiled(function)


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function)
