"""Attention that no kernel of torch computes as it is asked for, in training and in steps of decoding."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_mask, flex_attention

from archdsl.backends.torch.runtime.masks import fused


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attention with capped scores or with a sink, a score for looking at nothing, written out: no fused kernel has
    them."""
    if k.size(-3) != q.size(-3):
        k, v = (t.repeat_interleave(q.size(-3) // t.size(-3), dim=-3) for t in (k, v))
    scores = (q @ k.transpose(-1, -2)).float() * (q.size(-1) ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    if sink is not None:
        scores = torch.cat((scores, sink.float()[:, None, None].expand(*scores.shape[:-1], 1)), dim=-1)
    empty = scores.isneginf().all(-1, keepdim=True)  # a query without keys gives 0, and a gradient of 0
    weights = scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)[..., : k.size(-2)]
    return F.dropout(weights.to(v.dtype), dropout, dropout > 0) @ v


# fmt: off
def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, scale: float | None = None, causal: bool = True
) -> Tensor:
    """Attention of new places to all so far. Without a mask, one new place sees every key, and of several each sees
    those before it and its own."""
    shared = q.size(1) // k.size(1)
    if q.size(2) == 1 and shared > 1 and (mask is None or mask.size(1) == 1):
        # Heads that share keys become rows of one matrix: no kernel is faster for a single place.
        y = F.scaled_dot_product_attention(q.unflatten(1, (-1, shared)).squeeze(3), k, v, attn_mask=mask, scale=scale)
        return y.flatten(1, 2).unsqueeze(2)
    causal = causal and mask is None and q.size(2) > 1
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=shared > 1)
# fmt: on


# fmt: off
def attend_latent(q: Tensor, rows: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attention to keys and values that are linear maps of `rows` [batch, all, dim]: the map of keys goes over to the
    queries, that of values to the result (DeepSeek-V2, section 2.1.2)."""
    rows = rows.unsqueeze(1)  # one head that all queries share
    return attend(q @ keys.mT, rows, rows, mask, scale) @ values
# fmt: on


# fmt: off
def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | BlockMask | None = None, **options: Any) -> Tensor:
    """Attention to the keys that a mask lets see; without one, to those before each query and its own."""
    if isinstance(mask, BlockMask):
        if q.size(-1) >= 16 <= v.size(-1) and q.dtype != torch.float64:
            return fused(flex_attention)(q.type_as(v), k.type_as(v), v, block_mask=mask, **options)
        mask = create_mask(mask.mask_mod, *mask.shape, device=q.device)  # for heads like these there is no kernel
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, **options)
# fmt: on


def masked_window_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | BlockMask, window: int, **options: Any
) -> Tensor:
    if isinstance(mask, BlockMask):
        return masked_attention(q, k, v, mask, **options)
    return window_attention(q, k, v, mask, window, **options)


def window_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, window: int, **options: Any) -> Tensor:
    """Attention of each place to the last `window` places, itself included. A long sequence is cut into blocks of so
    many places: a block sees itself and the one before it, and nothing else is computed."""
    batch, time = q.size(0), q.size(2)
    if isinstance(time, torch.SymInt) or window < time < 3 * window:  # an exported graph is for all lengths
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)
    if time <= window:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, **options)
    blocks = -(-time // window)
    rest = blocks * window - time
    q, k, v = (F.pad(x, (0, 0, 0, rest)).unflatten(2, (blocks, window)).transpose(1, 2) for x in (q, k, v))
    k, v = (torch.cat((F.pad(x, (0, 0, 0, 0, 0, 0, 1, -1)), x), dim=3).flatten(0, 1) for x in (k, v))
    query, key = torch.arange(window, device=q.device)[:, None], torch.arange(2 * window, device=q.device)
    seen = (key > query) & (key <= query + window)
    first = torch.arange(blocks, device=q.device)[:, None, None] == 0  # before it there is nothing
    seen = (seen & ~(first & (key < window))).repeat(batch, 1, 1)[:, None]
    y = F.scaled_dot_product_attention(q.flatten(0, 1), k, v, attn_mask=seen, **options)
    return y.unflatten(0, (batch, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :time]
