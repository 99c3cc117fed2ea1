"""Mixtures of experts: which experts a token is sent to, and how."""

import torch
from torch import Tensor, nn


def dispatch(experts: nn.Module, count: int, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Send each token to its chosen experts and add their outputs, weighted."""
    tokens, chosen, weights = x.flatten(0, -2), chosen.flatten(0, -2), weights.flatten()
    expert, order = chosen.flatten().sort(stable=True)  # (token, choice) pairs, sorted by expert
    ends = torch.searchsorted(expert, torch.arange(count, device=x.device), right=True, out_int32=True)
    token = order // chosen.size(-1)
    y = experts(tokens[token], ends) * weights[order, None].to(x.dtype)
    return torch.zeros_like(tokens).index_add(0, token, y).view_as(x)


def with_room(chosen: Tensor, count: int, capacity: float) -> Tensor:
    """Return which choices [..., time, top_k] are within capacity: of each sequence an expert takes the first ones, in
    the order of tokens, up to `capacity` times its even share."""
    pairs = chosen.flatten(-2)
    expert, order = pairs.sort(stable=True)
    before = torch.arange(pairs.size(-1), device=pairs.device) - torch.searchsorted(expert, expert)
    room = before < capacity * pairs.size(-1) / count
    return torch.empty_like(room).scatter(-1, order, room).view_as(chosen)


def dispatch_within(
    capacity: float | None, experts: nn.Module, count: int, x: Tensor, weights: Tensor, chosen: Tensor
) -> Tensor:
    """Send each token to its chosen experts; tokens over an expert's capacity are dropped."""
    if capacity is None:
        return dispatch(experts, count, x, weights, chosen)
    room = with_room(chosen, count, capacity)
    if torch.compiler.is_compiling() or x.device.type == "meta":  # no size may depend on what is chosen
        return dispatch(experts, count, x, weights * room, chosen)
    tokens, pair = x.flatten(0, -2), room.flatten().nonzero().squeeze(-1)
    token, weights, chosen = pair // chosen.size(-1), weights.flatten()[pair, None], chosen.flatten()[pair, None]
    y = dispatch(experts, count, tokens[token], weights, chosen)
    return torch.zeros_like(tokens).index_add(0, token, y).view_as(x)


def keep_groups(scores: Tensor, groups: int, top: int) -> Tensor:
    """Mask all experts but those of the `top` groups; a group scores the sum of its two best experts."""
    scores = scores.unflatten(-1, (groups, -1))
    best = scores.topk(2).values.sum(-1).topk(top).indices
    keep = torch.zeros_like(scores[..., 0], dtype=torch.bool).scatter(-1, best, True)
    return scores.masked_fill(~keep[..., None], -torch.inf).flatten(-2)


def keep_groups_by_max(scores: Tensor, groups: int, top: int) -> Tensor:
    """Mask all experts but those of the `top` groups; a group scores its best expert."""
    scores = scores.unflatten(-1, (groups, -1))
    best = scores.amax(-1).topk(top).indices
    keep = torch.zeros_like(scores[..., 0], dtype=torch.bool).scatter(-1, best, True)
    return scores.masked_fill(~keep[..., None], -torch.inf).flatten(-2)


class SelectionBias(nn.Module):
    """A bias for choosing experts, not for weighing them. It gets no gradient: it is raised for experts with too few
    tokens (DeepSeek-V3, section 2.1.2)."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.register_buffer("bias", torch.empty(experts))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.bias)

    def forward(self, scores: Tensor) -> Tensor:
        return scores + self.bias
