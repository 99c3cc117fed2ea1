"""DeepSeek-V2 (DeepSeek-AI, 2024): latent attention, and experts of which a token may reach three groups in eight.

235,741,434,880 parameters. Made by archdsl 0.1.0 from deepseek_v2.arch (51f257cf0624):
    archdsl compile deepseek_v2.arch:deepseek_v2 --to torch
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    layers: int = 60
    width: int = 5120
    heads: int = 128
    q_rank: int = 1536
    kv_rank: int = 512
    nope_dim: int = 128
    rope_dim: int = 64
    v_dim: int = 128
    hidden: int = 12_288
    experts: int = 160
    top_k: int = 6
    expert_hidden: int = 1536
    groups: int = 8
    top_groups: int = 3
    scale: int = 16
    vocab: int = 102_400
    context: int = 163_840

    def __post_init__(self) -> None:
        if (
            min(
                self.width,
                self.heads,
                self.q_rank,
                self.kv_rank,
                self.nope_dim,
                self.rope_dim,
                self.v_dim,
                self.hidden,
                self.experts,
                self.top_k,
                self.expert_hidden,
                self.top_groups,
                self.vocab,
                self.context,
            )
            < 1
        ):
            raise ValueError(f"sizes and counts must be whole numbers of at least 1: {self}")
        assert self.scale != 0, f"scale must be other than 0: {self}"
        assert self.layers >= 2, f"layers - 1 must be at least 1: {self}"
        assert self.top_k <= self.experts, f"top_k must be at most the number of experts: {self}"
        assert self.groups >= 2, f"`groups > 1` was decided by these numbers: compile again with --set: {self}"
        assert self.top_groups <= self.groups, f"the number of groups kept must be at most the number of groups: {self}"
        assert self.scale != 1, f"`scale != 1` was decided by these numbers: compile again with --set: {self}"
        assert self.rope_dim % 2 == 0, f"rope needs an even number of channels: {self}"
        assert self.experts % self.groups == 0, f"experts must be a multiple of groups: {self}"


def frequencies(head_dim: int, theta: float, device: torch.device) -> Tensor:
    """Compute the radians per position of each pair of channels: [head_dim / 2]."""
    return theta ** -(torch.arange(0, head_dim, 2, device=device).float() / head_dim)


def yarn_scaling(
    frequencies: Tensor,
    theta: float,
    factor: float,
    original: int,
    beta_fast: float,
    beta_slow: float,
    truncate: bool = True,
) -> Tensor:
    """YaRN: interpolate the slow waves, keep the fast ones, ramp between them (Peng et al., 2023, section 3.2)."""
    dims = 2 * frequencies.numel()

    def pair(turns: float) -> float:
        """Return the pair of channels that turns so often within the original context."""
        return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(beta_fast), pair(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    ramp = ((torch.arange(dims // 2, device=frequencies.device) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return frequencies * (1 - ramp + ramp / factor)


def scaled_rope_table(length: int, frequencies: Tensor) -> Tensor:
    """Compute the cosines and sines at positions 0 to length - 1: [2, length, head_dim / 2]."""
    angles = torch.outer(torch.arange(length, device=frequencies.device).float(), frequencies)
    return torch.stack((angles.cos(), angles.sin()))


def rotate_pairs(x: Tensor, rope: Tensor) -> Tensor:
    """Rotate the channel pairs (2i, 2i + 1) of x [..., time, head_dim] by the angles of their positions."""
    cos, sin = rope
    a, b = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2).type_as(x)


def keep_groups_by_max(scores: Tensor, groups: int, top: int) -> Tensor:
    """Mask all experts but those of the `top` groups; a group scores its best expert."""
    scores = scores.unflatten(-1, (groups, -1))
    best = scores.amax(-1).topk(top).indices
    keep = torch.zeros_like(scores[..., 0], dtype=torch.bool).scatter(-1, best, True)
    return scores.masked_fill(~keep[..., None], -torch.inf).flatten(-2)


def grouped_mm(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Multiply x [rows, in], sorted by expert, by weight [experts, in, out]; `ends` [experts] is where rows end."""
    if not x.is_meta and torch.is_autocast_enabled(x.device.type):
        x, weight = (t.to(torch.get_autocast_dtype(x.device.type)) for t in (x, weight))
    aligned = all(size * x.element_size() % 16 == 0 for size in weight.shape[1:])
    traced = x.dtype == torch.bfloat16 or not torch.compiler.is_compiling()  # torch.compile takes no other type
    if hasattr(F, "grouped_mm") and aligned and traced:  # torch >= 2.10
        return F.grouped_mm(x, weight, offs=ends)
    rows = x.tensor_split(ends[:-1].long().cpu())
    return torch.cat([part @ matrix for part, matrix in zip(rows, weight)])


class GroupedLinear(nn.Module):
    """One linear layer per expert, for rows sorted by expert."""

    def __init__(self, experts: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, outputs, inputs))
        nn.init.uniform_(self.weight, -(inputs**-0.5), inputs**-0.5)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        return grouped_mm(x, self.weight.transpose(1, 2), ends)


def dispatch(experts: nn.Module, count: int, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Send each token to its chosen experts and add their outputs, weighted."""
    tokens, chosen, weights = x.flatten(0, -2), chosen.flatten(0, -2), weights.flatten()
    expert, order = chosen.flatten().sort(stable=True)  # (token, choice) pairs, sorted by expert
    ends = torch.searchsorted(expert, torch.arange(count, device=x.device), right=True, out_int32=True)
    token = order // chosen.size(-1)
    y = experts(tokens[token], ends) * weights[order, None].to(x.dtype)
    return torch.zeros_like(tokens).index_add(0, token, y).view_as(x)


class LatentAttention(nn.Module):
    """Multi-head latent attention (DeepSeek-V2, section 2.1): keys and values are read from one narrow latent."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.nope_dim = config.nope_dim
        self.rope_dim = config.rope_dim
        self.kv_rank = config.kv_rank
        self.v_dim = config.v_dim
        self.heads = config.heads
        self.q_down = nn.Linear(config.width, config.q_rank, bias=False)
        self.q_norm = nn.RMSNorm(config.q_rank, eps=1e-6)
        self.q_up = nn.Linear(config.q_rank, config.heads * (config.nope_dim + config.rope_dim), bias=False)
        self.kv_down = nn.Linear(config.width, config.kv_rank + config.rope_dim, bias=False)
        self.kv_norm = nn.RMSNorm(config.kv_rank, eps=1e-6)
        self.kv_up = nn.Linear(config.kv_rank, config.heads * (config.nope_dim + config.v_dim), bias=False)
        self.out = nn.Linear(config.heads * config.v_dim, config.width, bias=False)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        q = self.q_norm(self.q_down(x))
        q = self.q_up(q).unflatten(-1, (-1, self.nope_dim + self.rope_dim)).transpose(1, 2)
        latent, k_rope = self.kv_down(x).split((self.kv_rank, self.rope_dim), dim=-1)
        kv = self.kv_up(self.kv_norm(latent)).unflatten(-1, (-1, self.nope_dim + self.v_dim)).transpose(1, 2)
        q, q_rope = q.split((self.nope_dim, self.rope_dim), dim=-1)
        k, v = kv.split((self.nope_dim, self.v_dim), dim=-1)
        k_rope = rotate_pairs(k_rope.unsqueeze(1), rope).expand(-1, self.heads, -1, -1)
        q = torch.cat((q, rotate_pairs(q_rope, rope)), dim=-1)
        k = torch.cat((k, k_rope), dim=-1)
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            is_causal=True,
            scale=(self.nope_dim + self.rope_dim) ** -0.5 * (0.1 * 0.707 * math.log(40) + 1) ** 2,
        )
        return self.out(y.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    """Gated by SiLU (Shazeer, 2020)."""

    def __init__(self, config: Config, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, hidden, bias=False)
        self.up = nn.Linear(config.width, hidden, bias=False)
        self.down = nn.Linear(hidden, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class DenseLayer(nn.Module):
    """layer (deepseek_v2.arch:3)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.attention = LatentAttention(config)
        self.ffn_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.ffn = SwiGLU(config, hidden=config.hidden)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rope)
        return x + self.ffn(self.ffn_norm(x))


class SoftmaxRouter(nn.Module):
    """Softmax over all experts, then the best (Shazeer et al., 2017; Mixtral)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.groups = config.groups
        self.top_groups = config.top_groups
        self.top_k = config.top_k
        self.scale = config.scale
        self.gate = nn.Linear(config.width, config.experts, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.gate(x).float()
        scores = logits.softmax(-1)
        choice = keep_groups_by_max(scores, self.groups, self.top_groups)
        _, chosen = choice.topk(self.top_k)
        weights = scores.gather(-1, chosen)
        weights = weights * self.scale
        return weights.type_as(x), chosen


class ExpertSwiGLU(nn.Module):
    """Gated by SiLU (Shazeer, 2020)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate = GroupedLinear(config.experts, config.width, config.expert_hidden)
        self.up = GroupedLinear(config.experts, config.width, config.expert_hidden)
        self.down = GroupedLinear(config.experts, config.expert_hidden, config.width)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x, ends)) * self.up(x, ends), ends)


class MoE(nn.Module):
    """Mixture of experts: each token goes to its `top_k` experts, weighted by the router."""

    def __init__(self, config: Config, shared_hidden: int) -> None:
        super().__init__()
        self.num_experts = config.experts
        self.router = SoftmaxRouter(config)
        self.experts = ExpertSwiGLU(config)
        self.shared = SwiGLU(config, hidden=shared_hidden)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x)
        y = dispatch(self.experts, self.num_experts, x, weights, chosen)
        return y + self.shared(x)


class SparseLayer(nn.Module):
    """layer (deepseek_v2.arch:3)"""

    def __init__(self, config: Config, ffn_shared_hidden: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.attention = LatentAttention(config)
        self.ffn_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.ffn = MoE(config, shared_hidden=ffn_shared_hidden)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rope)
        return x + self.ffn(self.ffn_norm(x))


class DeepseekV2(nn.Module):
    """deepseek_v2 (deepseek_v2.arch:14)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(
            [
                DenseLayer(config),
                *(SparseLayer(config, ffn_shared_hidden=2 * config.expert_hidden) for _ in range(config.layers - 1)),
            ]
        )
        self.norm = nn.RMSNorm(config.width, eps=1e-6)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        nn.init.normal_(self.token_embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        time = tokens.size(1)
        assert time <= self.config.context, "at most `context` tokens"
        rope = scaled_rope_table(
            time,
            yarn_scaling(
                frequencies(self.config.rope_dim, 10_000, tokens.device),
                10_000,
                factor=40,
                original=4096,
                beta_fast=32,
                beta_slow=1,
            ),
        )
        x = self.token_embedding(tokens)  # [batch, time, width]
        for block in self.blocks:
            x = block(x, rope)
        return self.head(self.norm(x))
