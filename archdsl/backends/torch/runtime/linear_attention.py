"""Attention without softmax, in linear time."""

import torch
import torch.nn.functional as F
from torch import Tensor

from archdsl.backends.torch.runtime.recurrent import linear_recurrence


def causal_linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Sum (q[t] · k[s]) v[s] over s <= t: within chunks of 64 positions by scores, between them by a state."""
    time = q.size(2)
    padding = (0, 0, 0, 64 * (time // 64 + 2) - time)  # two chunks at least: torch.export takes one for special
    q, k, v = (F.pad(t, padding).unfold(2, 64, 64).mT for t in (q, k, v))  # [batch, heads, chunk, position, dim]
    states = (k.mT @ v).float().cumsum(2).to(v.dtype)  # after each chunk
    before = F.pad(states, (0, 0, 0, 0, 1, 0))[:, :, :-1]
    y = q @ before + (q @ k.mT).tril() @ v
    return y.flatten(2, 3).index_select(2, torch.arange(time, device=q.device))


def decayed_linear_attention(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor) -> Tensor:
    """Sum exp(log_decay[s + 1] + … + log_decay[t]) (q[t] · k[s]) v[s] over s <= t, in float32."""
    dtype, time = v.dtype, q.size(2)
    padding = (0, 0, 0, 64 * (time // 64 + 2) - time)  # two chunks at least: torch.export takes one for special
    q, k, v, log_decay = (
        F.pad(t.float(), padding).unfold(2, 64, 64).mT  # [batch, heads, chunk, position, dim]
        for t in (q, k, v, log_decay.expand(q.shape[:3])[..., None])
    )
    passed = log_decay.cumsum(3)  # since the chunk began
    later = torch.ones(64, 64, dtype=torch.bool, device=q.device).triu(1)
    scores = q @ k.mT * (passed - passed.mT).masked_fill(later, -torch.inf).exp()
    last = passed[..., -1:, :]
    sums = (k * (last - passed).exp()).mT @ v
    states = linear_recurrence(last.exp().transpose(1, 2), sums.transpose(1, 2)).transpose(1, 2)  # after each chunk
    before = F.pad(states, (0, 0, 0, 0, 1, 0))[:, :, :-1]
    y = (q * passed.exp()) @ before + scores @ v
    return y.flatten(2, 3).index_select(2, torch.arange(time, device=q.device)).to(dtype)


def linear_attention_on(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, log_decay: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Continue causal linear attention from a state [batch, heads, dim, value]: the result of each position, and the
    state after the last."""
    dtype = v.dtype
    q, k, v = (t.float() for t in (q, k, v))
    scores = q @ k.mT
    if log_decay is None:
        return (q @ state + scores.tril() @ v).to(dtype), state + k.mT @ v
    passed = log_decay.float().expand(q.shape[:3])[..., None].cumsum(2)  # since the step began
    later = torch.ones(q.size(2), q.size(2), dtype=torch.bool, device=q.device).triu(1)
    scores = scores * (passed - passed.mT).masked_fill(later, -torch.inf).exp()
    last = passed[:, :, -1:]
    after = state * last.exp() + (k * (last - passed).exp()).mT @ v
    return ((q * passed.exp()) @ state + scores @ v).to(dtype), after
