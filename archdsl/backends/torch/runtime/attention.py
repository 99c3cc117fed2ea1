"""Attention that no kernel of torch computes as it is asked for, in training and in steps of decoding."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

fused_attention = torch.compile(flex_attention)  # nothing is compiled before the first call, on CUDA


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
    """Attend with capped scores or an attention sink, a score for attending to nothing: no fused kernel has them."""
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
    weights = scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)[..., : k.size(-2)].to(v.dtype)
    if dropout > 0:
        weights = F.dropout(weights, dropout)
    return weights @ v


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None = None) -> Tensor:
    """Attend from new positions to all so far; without a mask several do so causally."""
    if mask is None and q.size(2) > 1:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
    shared = q.size(1) // k.size(1)  # so many heads become rows of one matrix: the fastest for a single position
    if mask is not None and mask.shape[1:3] != (1, 1):  # [batch, 1 or heads, new, all]
        mask = mask.expand(-1, max(shared, mask.size(1)), -1, -1).unflatten(1, (-1, shared)).flatten(2, 3)
    y = F.scaled_dot_product_attention(q.unflatten(1, (-1, shared)).flatten(2, 3), k, v, attn_mask=mask, scale=scale)
    return y.unflatten(2, (shared, -1)).flatten(1, 2)


# fmt: off
def attend_latent(q: Tensor, rows: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attend to keys and values that are projections of `rows` [batch, all, dim]. A single new position has that of
    keys absorbed into its queries, that of values into its result (DeepSeek-V2, section 2.1.2)."""
    rows = rows.unsqueeze(1)  # one head that all queries share
    if q.size(2) > 1:  # for many queries the keys and values themselves are cheaper
        return F.scaled_dot_product_attention(q, rows @ keys, rows @ values, mask, is_causal=mask is None, scale=scale)
    q = q @ keys.mT
    mask = None if mask is None else mask.transpose(1, 2)  # heads become rows of one matrix
    return F.scaled_dot_product_attention(q.transpose(1, 2), rows, rows, mask, scale=scale).transpose(1, 2) @ values
# fmt: on


# fmt: off
def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | BlockMask | None, **options: Any) -> Tensor:
    """Attend where the mask allows; without one, causally."""
    if isinstance(mask, BlockMask):
        return fused_attention(q.type_as(v), k.type_as(v), v, block_mask=mask, **options)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, **options)
# fmt: on
