"""Attention to windows and documents by FlashAttention for sequences of different lengths, on CUDA."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.attention.varlen import varlen_attn

from archdsl.backends.torch.runtime.attention import masked_attention
from archdsl.backends.torch.runtime.masks import mask_of


class Spans(NamedTuple):
    """What a query sees of its own document: so many positions before and after its own, all where that is -1."""

    before: int
    after: int
    bounds: Tensor | None  # of the documents, all rows being one sequence [documents + 1]; without, each row is one


def spans_of(
    rule: Callable[..., Tensor],
    batch: int,
    time: int,
    device: torch.device,
    *given: Any,
    causal: bool = False,
    window: int = 0,
) -> Tensor | BlockMask | Spans:
    """Describe the mask of a rule that keeps to windows and documents, on CUDA; elsewhere build it. Each document of a
    row stands in one piece."""
    if device.type != "cuda":
        return mask_of(rule, batch, time, device, *given)
    bounds = None
    for documents in given:
        if isinstance(documents, Tensor):
            begins = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True).flatten()
            bounds = F.pad(begins.nonzero().flatten(), (0, 1), value=begins.numel()).int()
    return Spans(window - 1, 0 if causal else window - 1, bounds)


def varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | BlockMask | Spans | None,
    scale: float | None = None,
    **options: Any,
) -> Tensor:
    """Attend where the mask allows; without one, causally. Spans want bfloat16 or float16."""
    if not isinstance(mask, Spans):
        return masked_attention(q, k, v, mask, scale=scale, **options)
    (batch, _, time, dim), value_dim = q.shape, v.size(-1)
    bounds = mask.bounds
    if bounds is None:
        bounds = torch.arange(0, batch * time + 1, time, dtype=torch.int32, device=q.device)
    even = -(-max(dim, value_dim) // 8) * 8  # the kernel takes heads of one size, a multiple of 8
    scale = dim**-0.5 if scale is None else scale
    q, k, v = (t if t.size(-1) == even else F.pad(t, (0, even - t.size(-1))) for t in (q, k, v))
    q, k, v = (t.type_as(v).transpose(1, 2).flatten(0, 1) for t in (q, k, v))  # [batch * time, heads, head_dim]
    span = (mask.before, mask.after)
    y: Any = varlen_attn(q, k, v, bounds, bounds, time, time, scale=scale, window_size=span, **options)
    return y[..., :value_dim].unflatten(0, (batch, time)).transpose(1, 2)
