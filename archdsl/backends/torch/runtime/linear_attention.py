"""Attention without softmax, in linear time."""

import torch
import torch.nn.functional as F
from torch import Tensor

from archdsl.backends.torch.runtime.delta_rule import decay_after, decay_between
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


def linear_attention_on(q: Tensor, k: Tensor, v: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Continue causal linear attention from a state [batch, heads, dim, value]: the result of each position, and the
    state after the last."""
    dtype = v.dtype
    q, k, v = (t.float() for t in (q, k, v))
    after = state + k.mT @ v
    y = q @ after if q.size(2) == 1 else q @ state + causal_linear_attention(q, k, v)
    return y.to(dtype), after


def decayed_linear_attention(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor) -> Tensor:
    """Sum exp(log_decay[s + 1] + … + log_decay[t]) (q[t] · k[s]) v[s] over s <= t, in float32. A head of q and k
    serves a group of heads of v."""
    dtype, time, groups = v.dtype, v.size(2), (q.size(1), -1)
    padding = (0, 0, 0, 64 * (time // 64 + 2) - time)  # two chunks at least: torch.export takes one for special
    q, k, v, log_decay = (
        F.pad(t.float(), padding).unfold(2, 64, 64).mT  # [batch, heads, chunk, position, dim]
        for t in (q, k, v, log_decay.expand(v.shape[:3])[..., None])
    )
    v, log_decay = v.unflatten(1, groups), log_decay.unflatten(1, groups)
    decay, begin = decay_between(log_decay), log_decay.cumsum(4).exp()
    sums = torch.einsum("bgcsd,bgrcsv->bcgrdv", k, v * decay[..., -1, :, None])
    states = linear_recurrence(begin[..., -1:, :].permute(0, 3, 1, 2, 4, 5), sums)  # after each chunk
    before = F.pad(states, (0, 0, 0, 0, 0, 0, 0, 0, 1, 0))[:, :-1]
    y = torch.einsum("bgctd,bcgrdv->bgrctv", q, before) * begin + ((q @ k.mT).unsqueeze(2) * decay) @ v
    return y.flatten(3, 4).flatten(1, 2).index_select(2, torch.arange(time, device=q.device)).to(dtype)


def decayed_linear_attention_on(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Continue decayed linear attention from a state [batch, heads, dim, value]: the result of each position, and the
    state after the last."""
    dtype, groups = v.dtype, (q.size(1), -1)
    q, k, log_decay = q.float(), k.float(), log_decay.float().expand(v.shape[:3])
    # [batch, group, head, time or dim, value]
    values, state, decay = (t.unflatten(1, groups) for t in (v.float(), state, log_decay[..., None]))
    if q.size(2) == 1:
        after = decay.exp() * state + k.mT.unsqueeze(2) * values
        y = q.unsqueeze(2) @ after
    else:
        begin = decay.cumsum(3).exp()  # what is left of the state
        after = begin[..., -1:, :] * state + torch.einsum("bgsd,bgrsv->bgrdv", k, values * decay_after(decay))
        y = decayed_linear_attention(q, k, v.float(), log_decay).unflatten(1, groups)
        y = y + torch.einsum("bgtd,bgrdv->bgrtv", q, state) * begin
    return y.flatten(1, 2).to(dtype), after.flatten(1, 2)
