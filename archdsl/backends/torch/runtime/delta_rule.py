"""The delta rule, and linear attention with a decay for each channel, in chunks."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from archdsl.backends.torch.runtime.recurrent import linear_recurrence


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor,
    state: Tensor | None = None,
    read: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run S[t] = d S[t - 1] + k[t] u[t]ᵀ over time, where d = exp(log_decay[t]) and u[t] = beta[t] (v[t] - (d S[t -
    1])ᵀ read[t]), in float32, in chunks of 64 positions (Yang et al., 2024). Return S[t]ᵀ q[t] of each t, and the last
    S [batch, heads, dim, value]."""
    time, dtype = v.size(2), v.dtype
    log_decay = log_decay.expand(beta.shape)[..., None]
    q, k, v, beta, log_decay = (in_chunks(t) for t in (q, k, v, beta[..., None], log_decay))
    reads = beta * (k if read is None else in_chunks(read))
    decay = decay_between(log_decay)
    begin = log_decay.cumsum(3).exp()
    scores, a = q @ k.mT * decay, reads @ k.mT * decay
    y, last = through_chunks(
        q * begin, k * decay[..., -1, :, None], v * beta, reads * begin, scores, a, begin[..., -1:, :], state=state
    )
    return y[:, :, :time].to(dtype), last


def in_chunks(x: Tensor) -> Tensor:
    """Cut [batch, heads, time, dim] into chunks of 64 positions, in float32: [batch, heads, chunk, position, dim]. The
    last one is filled up with zeros."""
    chunks = (x.size(2) + 63) // 64
    return F.pad(x.float().contiguous(), (0, 0, 0, 64 * chunks - x.size(2))).unflatten(2, (chunks, 64))


def decay_between(log_decay: Tensor) -> Tensor:
    """Return exp(log_decay[s + 1] + … + log_decay[t]) for s <= t, else 0: [..., time, 1] to [..., time, time]. Summed
    position by position: a difference of two long sums would lose digits."""
    later = torch.ones(2 * log_decay.shape[-2:-1], dtype=torch.bool, device=log_decay.device).tril(-1)
    return log_decay.where(later, 0).cumsum(-2).masked_fill(later.mT, -torch.inf).exp()


def channel_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor,
    state: Tensor | None = None,
    read: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run S[t] = d S[t - 1] + k[t] u[t]ᵀ over time, where d = exp(log_decay[t]), one for each channel of k, and u[t] =
    beta[t] (v[t] - (d S[t - 1])ᵀ read[t]), in float32, in chunks of 64 positions (Kimi Linear, 2025). Return S[t]ᵀ q[t]
    of each t, and the last S [batch, heads, dim, value]."""
    time, dtype = v.size(2), v.dtype
    log_decay = log_decay.expand(k.shape)
    q, k, v, beta, log_decay = (in_chunks(t) for t in (q, k, v, beta[..., None], log_decay))
    reads = beta * (k if read is None else in_chunks(read))
    begin = log_decay.cumsum(3).exp()
    scores, a = decayed_scores(torch.stack((q, reads), -2), k, log_decay).unbind(-2)
    y, last = through_chunks(
        q * begin, k * decay_after(log_decay), v * beta, reads * begin, scores, a, begin[..., -1:, :].mT, state=state
    )
    return y[:, :, :time].to(dtype), last


def through_chunks(
    q: Tensor, k: Tensor, v: Tensor, read: Tensor, scores: Tensor, a: Tensor, decay: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Carry the state of the delta rule through chunks [batch, heads, chunk, position, dim]: q, read and k decayed to
    where a chunk begins and ends, scores and a between its positions. In each, u solves (1 + a) u = v - read S, a below
    its diagonal; then S = decay S + kᵀ u."""
    solved = torch.linalg.solve_triangular(a, torch.cat((v, read), -1), upper=False, unitriangular=True)
    v, read = solved.split((v.size(-1), read.size(-1)), -1)
    s = q.new_zeros(*q.shape[:2], q.size(-1), v.size(-1)) if state is None else state.float()
    y = []
    for q_c, k_c, v_c, read_c, scores_c, decay_c in zip(*(t.unbind(2) for t in (q, k, v, read, scores, decay))):
        u = v_c - read_c @ s
        y.append(q_c @ s + scores_c @ u)
        s = decay_c * s + k_c.mT @ u
    return torch.cat(y, 2), s


def decayed_scores(rows: Tensor, k: Tensor, log_decay: Tensor) -> Tensor:
    """Return rows[t] · exp(log_decay[s + 1] + … + log_decay[t]) k[s] for s <= t, else 0: [..., time, n, dim] to [...,
    time, n, time]. Each half of the time reads the half before it, decayed to their midpoint: no factor exceeds 1."""
    half = k.size(-2) // 2
    if half == 0:
        return (rows * k.unsqueeze(-2)).sum(-1, keepdim=True)
    rows, k, log_decay = rows.unflatten(-3, (2, half)), k.unflatten(-2, (2, half)), log_decay.unflatten(-2, (2, half))
    reads = rows[..., 1, :, :, :] * log_decay[..., 1, :, :].cumsum(-2).exp().unsqueeze(-2)
    before = k[..., 0, :, :] * decay_after(log_decay[..., 0, :, :])
    across = (reads.flatten(-3, -2) @ before.mT).unflatten(-2, (half, -1))
    first, second = decayed_scores(rows, k, log_decay).unbind(-4)
    return torch.cat((F.pad(first, (0, half)), torch.cat((across, second), -1)), -3)


def decay_after(log_decay: Tensor) -> Tensor:
    """Return exp(log_decay[t + 1] + … + log_decay[-1]) at each t: [..., time, dim]."""
    return F.pad(log_decay[..., 1:, :], (0, 0, 0, 1)).flip(-2).cumsum(-2).flip(-2).exp()


def delta_rule_on(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, state: Tensor, read: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Continue the delta rule from a state [batch, heads, dim, value]: the result of each position, and the state after
    the last. Few positions are taken one by one."""
    if q.size(2) > 8:
        return delta_rule(q, k, v, beta, log_decay, state, read=read)
    return in_steps(q, k[..., None, :], v[..., None, :], beta[..., None], log_decay, state, read=read)


def channel_delta_rule_on(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, state: Tensor, read: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Continue the delta rule with a decay for each channel from a state [batch, heads, dim, value]: the result of each
    position, and the state after the last. Few positions are taken one by one."""
    if q.size(2) > 8:
        return channel_delta_rule(q, k, v, beta, log_decay, state, read=read)
    return in_steps(q, k[..., None, :], v[..., None, :], beta[..., None], log_decay, state, read=read)


def in_steps(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, state: Tensor, read: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Take the positions of q one by one. k, v, beta and read have an axis of steps behind that of time: the state
    decays before the first, and q reads it after the last."""
    log_decay = log_decay.expand(*q.shape[:3], *log_decay.shape[3:]).reshape(*q.shape[:3], -1)
    rows = q, k, v, k if read is None else read.view_as(k), beta, log_decay
    q, k, values, reads, beta, decay = (t.float() for t in rows)
    y = []
    for t in range(q.size(2)):
        state = decay[:, :, t, :, None].exp() * state
        for i in range(k.size(3)):
            u = beta[:, :, t, i, None, None] * (values[:, :, t, i, None] - reads[:, :, t, i, None] @ state)
            state = state + k[:, :, t, i, :, None] @ u
        y.append(q[:, :, t, None] @ state)
    return (y[0] if len(y) == 1 else torch.cat(y, dim=2)).to(v.dtype), state


def with_substeps(
    rule: Callable[..., tuple[Tensor, Tensor]],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor,
    state: Tensor | None = None,
    read: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Take several steps of a delta rule for each position, beta being [batch, heads, time, steps], and k, v and read
    alike. The state decays before the first step, and q reads it after the last."""
    if state is not None and q.size(2) <= 8:
        return in_steps(q, k, v, beta, log_decay, state, read)
    steps = k.size(3)
    log_decay = log_decay.expand(*v.shape[:3], *log_decay.shape[3:]).unsqueeze(3)
    log_decay = F.pad(log_decay, (*(0, 0) * (log_decay.dim() - 4), 0, steps - 1))
    read = None if read is None else read.flatten(2, 3)
    q, k, v, beta, log_decay = (
        t.flatten(2, 3) for t in (F.pad(q.unsqueeze(3), (0, 0, steps - 1, 0)), k, v, beta, log_decay)
    )
    y, state = rule(q, k, v, beta, log_decay, state, read)
    return y[:, :, steps - 1 :: steps], state


def channel_linear_attention(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor) -> Tensor:
    """Sum (q[t] · exp(log_decay[s + 1] + … + log_decay[t]) k[s]) v[s] over s <= t, in float32: a decay for each channel
    of k, in chunks of 64 positions."""
    dtype, time = v.dtype, v.size(2)
    padding = (0, 0, 0, 64 * (time // 64 + 2) - time)  # two chunks at least: torch.export takes one for special
    q, k, v, log_decay = (
        F.pad(t.float(), padding).unfold(2, 64, 64).mT  # [batch, heads, chunk, position, dim]
        for t in (q, k, v, log_decay.expand(k.shape))
    )
    scores = decayed_scores(q.unsqueeze(-2), k, log_decay).squeeze(-2)
    begin, sums = log_decay.cumsum(3).exp(), (k * decay_after(log_decay)).mT @ v
    states = linear_recurrence(begin[..., -1, :, None].transpose(1, 2), sums.transpose(1, 2))  # after each chunk
    before = F.pad(states, (0, 0, 0, 0, 0, 0, 1, 0))[:, :-1].transpose(1, 2)
    y = (q * begin) @ before + scores @ v
    return y.flatten(2, 3).index_select(2, torch.arange(time, device=q.device)).to(dtype)


def channel_linear_attention_on(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Continue linear attention with a decay for each channel from a state [batch, heads, dim, value]: the result of
    each position, and the state after the last."""
    dtype = v.dtype
    q, k, v, log_decay = (t.float() for t in (q, k, v, log_decay.expand(k.shape)))
    begin = log_decay.cumsum(2).exp()  # what is left of the state
    after = begin[:, :, -1:].mT * state + (k * decay_after(log_decay)).mT @ v
    y = q @ after if q.size(2) == 1 else (q * begin) @ state + channel_linear_attention(q, k, v, log_decay)
    return y.to(dtype), after
