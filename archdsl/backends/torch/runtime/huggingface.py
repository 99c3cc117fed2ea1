"""Attention as transformers calls it, for modules of which a user chooses the kernel."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def eager_attention(
    module: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Attend without a fused kernel: outputs [batch, time, heads, head_dim] and weights [batch, heads, time, keys]."""
    if kwargs.get("output_attentions", module.config.output_attentions):
        raise ValueError("output_attentions: this model hands out hidden states, and no attention weights")
    k, v = (t.repeat_interleave(q.size(1) // t.size(1), dim=1) for t in (k, v))
    scores = q @ k.transpose(2, 3) * scaling
    weights = (scores if mask is None else scores + mask).softmax(-1, dtype=torch.float32).type_as(q)
    return (F.dropout(weights, dropout, module.training) @ v).transpose(1, 2), weights


def eager_capped_attention(
    module: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scaling: float,
    softcap: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Attend with scores between -softcap and softcap: outputs [batch, time, heads, head_dim], weights [batch, heads,
    time, keys]."""
    if kwargs.get("output_attentions", module.config.output_attentions):
        raise ValueError("output_attentions: this model hands out hidden states, and no attention weights")
    k, v = (t.repeat_interleave(q.size(1) // t.size(1), dim=1) for t in (k, v))
    scores = softcap * torch.tanh(q @ k.transpose(2, 3) * scaling / softcap)
    weights = (scores if mask is None else scores + mask).softmax(-1, dtype=torch.float32).type_as(q)
    return (F.dropout(weights, dropout, module.training) @ v).transpose(1, 2), weights


def eager_sink_attention(
    module: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scaling: float,
    s_aux: Tensor,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Attend with a sink s_aux [heads], a score for attending to nothing: outputs [batch, time, heads, head_dim] and
    weights [batch, heads, time, keys]."""
    if kwargs.get("output_attentions", module.config.output_attentions):
        raise ValueError("output_attentions: this model hands out hidden states, and no attention weights")
    k, v = (t.repeat_interleave(q.size(1) // t.size(1), dim=1) for t in (k, v))
    scores = q @ k.transpose(2, 3) * scaling
    scores = scores if mask is None else scores + mask
    sinks = s_aux[:, None, None].expand(*scores.shape[:-1], 1)
    weights = torch.cat((scores, sinks), dim=-1).softmax(-1, dtype=torch.float32)[..., :-1].type_as(q)
    return (F.dropout(weights, dropout, module.training) @ v).transpose(1, 2), weights


def demand_no_padding(mask: Tensor | None) -> None:
    """Raise ValueError where a source has padding: this model attends to all of it."""
    if mask is not None and not torch.compiler.is_compiling() and not mask.all():
        raise ValueError("attention_mask: this model attends to all of a source, and some of it is padding here")


def masked_bias(bias: Tensor, mask: Tensor) -> Tensor:
    """Join a bias of scores with a mask, which is True where a key is attended to, or added to the scores."""
    if mask.dtype == torch.bool:
        return torch.where(mask, bias, torch.finfo(bias.dtype).min)
    return bias + mask


class ZeroCenteredRMSNorm(nn.Module):
    """RMSNorm with the gain 1 + weight (Gemma), in steps that servers know and put their own kernel in place of."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return ((1.0 + self.weight.float()) * y).type_as(x)
