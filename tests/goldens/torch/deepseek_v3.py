"""DeepSeek-V3 (DeepSeek-AI, 2024): latent attention, 256 experts balanced by a bias, and a second token predicted.

671,026,404,352 parameters. Made by archdsl 0.1.0 from deepseek_v3.arch (ff538f940159):
    archdsl compile deepseek_v3.arch:deepseek_v3 --to torch
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    dense_layers: int = 3
    sparse_layers: int = 58
    width: int = 7168
    heads: int = 128
    q_rank: int = 1536
    kv_rank: int = 512
    nope_dim: int = 128
    rope_dim: int = 64
    v_dim: int = 128
    hidden: int = 18_432
    experts: int = 256
    top_k: int = 8
    expert_hidden: int = 2048
    groups: int = 8
    top_groups: int = 4
    vocab: int = 129_280
    context: int = 163_840

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
            setattr(self, name, int(size))  # 24.0 is 24
        assert self.top_k <= self.experts, f"top_k must be at most the number of experts: {self}"
        assert self.top_k * self.groups <= self.top_groups * self.experts, "the best groups must have top_k experts"
        assert self.groups >= 2, f"`groups > 1` was decided by these numbers: compile again with --set: {self}"
        assert self.top_groups <= self.groups, f"the number of groups kept must be at most the number of groups: {self}"
        assert self.rope_dim % 2 == 0, f"rope_dim % 2 == 0: rope needs an even number of channels: {self}"
        assert self.experts % self.groups == 0, f"experts must be a multiple of groups: {self}"
        assert self.experts // self.groups >= 2, "`top2` needs two experts in every group; `score: max` needs one"


def rope_frequencies(head_dim: int, theta: float, device: torch.device) -> Tensor:
    """Compute the radians per position of each pair of channels: [head_dim / 2]."""
    return theta ** -(torch.arange(0, head_dim, 2, device=device).float() / head_dim)


def yarn_scaling(
    waves: Tensor, theta: float, factor: float, original: int, beta_fast: float, beta_slow: float
) -> Tensor:
    """YaRN: interpolate the slow waves, keep the fast ones, ramp between them (Peng et al., 2023, section 3.2)."""
    dims = 2 * waves.numel()
    angles = (beta_fast * 2 * math.pi, beta_slow * 2 * math.pi)  # of the pairs low and high within the original context
    low, high = (dims * math.log(original / angle) / (2 * math.log(theta)) for angle in angles)
    low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    ramp = ((torch.arange(dims // 2, device=waves.device) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return waves * (1 - ramp + ramp / factor)


def scaled_rope_table(positions: Tensor, frequencies: Tensor) -> Tensor:
    """Compute the cosines and sines at positions [..., time]: [2, ..., time, head_dim / 2]."""
    angles = positions[..., None].float() * frequencies
    return torch.stack((angles.cos(), angles.sin()))


def rotate_pairs(x: Tensor, rope: Tensor) -> Tensor:
    """Rotate the channel pairs (2i, 2i + 1) of x [..., time, head_dim] by the angles of their positions."""
    cos, sin = rope
    a, b = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2).type_as(x)


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


def keep_groups(scores: Tensor, groups: int, top: int) -> Tensor:
    """Mask all experts but those of the `top` groups; a group scores the sum of its two best experts."""
    scores = scores.unflatten(-1, (groups, -1))
    best = scores.topk(2).values.sum(-1).topk(top).indices
    keep = torch.zeros_like(scores[..., 0], dtype=torch.bool).scatter(-1, best, True)
    return scores.masked_fill(~keep[..., None], -torch.inf).flatten(-2)


def grouped_mm(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Multiply x [rows, in], sorted by expert, by weight [experts, in, out]; `ends` [experts] is where rows end."""
    if not x.is_meta and torch.is_autocast_enabled(x.device.type):
        x, weight = (t.to(torch.get_autocast_dtype(x.device.type)) for t in (x, weight))
    kinds = (torch.bfloat16,) if torch.compiler.is_compiling() else (torch.bfloat16, torch.float16, torch.float32)
    aligned = all(size * x.element_size() % 16 == 0 for size in weight.shape[1:])
    if hasattr(F, "grouped_mm") and aligned and x.dtype in kinds:  # torch >= 2.10
        return F.grouped_mm(x, weight, offs=ends)
    rows = x.tensor_split(ends[:-1].long().cpu())
    return torch.cat([part @ matrix for part, matrix in zip(rows, weight)])


class GroupedLinear(nn.Module):
    """One linear layer per expert, for rows sorted by expert."""

    def __init__(self, experts: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, outputs, inputs))

    def reset_parameters(self) -> None:
        bound = self.weight.size(2) ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        return grouped_mm(x, self.weight.transpose(1, 2), ends)


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
            q, k, v, is_causal=True, scale=(self.nope_dim + self.rope_dim) ** -0.5 * (0.1 * math.log(40) + 1) ** 2
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
    """layer (deepseek_v3.arch:3)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.attention = LatentAttention(config)
        self.ffn_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.ffn = SwiGLU(config, hidden=config.hidden)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rope)
        return x + self.ffn(self.ffn_norm(x))


class SigmoidRouter(nn.Module):
    """Sigmoid scores (DeepSeek-V3, section 2.1.2)."""

    def __init__(self, config: Config, scale: float = 1) -> None:
        super().__init__()
        self.groups = config.groups
        self.top_groups = config.top_groups
        self.top_k = config.top_k
        self.scale = scale
        self.gate = nn.Linear(config.width, config.experts, bias=False)
        self.balance = SelectionBias(config.experts)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = torch.sigmoid(self.gate(x).float())
        choice = self.balance(scores)
        choice = keep_groups(choice, self.groups, self.top_groups)
        _, chosen = choice.topk(self.top_k)
        weights = scores.gather(-1, chosen)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return (weights * self.scale).type_as(x), chosen


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

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.num_experts = config.experts
        self.router = SigmoidRouter(config, scale=2.5)
        self.experts = ExpertSwiGLU(config)
        self.shared = SwiGLU(config, hidden=config.expert_hidden)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x)
        tokens = x.flatten(0, -2)
        expert, order = chosen.flatten().sort(stable=True)  # (token, choice) pairs, sorted by expert
        ends = torch.searchsorted(expert, torch.arange(self.num_experts, device=x.device), right=True, out_int32=True)
        token = order // chosen.size(-1)
        y = self.experts(tokens[token], ends) * weights.flatten()[order, None].to(x.dtype)
        y = torch.zeros_like(tokens).index_add(0, token, y).view_as(x)
        return y + self.shared(x)


class SparseLayer(nn.Module):
    """layer (deepseek_v3.arch:3)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.attention = LatentAttention(config)
        self.ffn_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.ffn = MoE(config)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rope)
        return x + self.ffn(self.ffn_norm(x))


class DeepseekV3(nn.Module):
    """deepseek_v3 (deepseek_v3.arch:13)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(
            kind(config) for kind in config.dense_layers * [DenseLayer] + config.sparse_layers * [SparseLayer]
        )
        self.norm = nn.RMSNorm(config.width, eps=1e-6)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()
        nn.init.normal_(self.token_embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        time = tokens.size(1)
        assert time <= self.config.context, "at most `context` tokens"
        frequencies = rope_frequencies(self.config.rope_dim, 10_000, tokens.device)
        positions = torch.arange(time, device=tokens.device)
        rope = scaled_rope_table(
            positions, yarn_scaling(frequencies, 10_000, factor=40, original=4096, beta_fast=32, beta_slow=1)
        )
        x = self.token_embedding(tokens)  # [batch, time, width]
        for block in self.blocks:
            x = block(x, rope)
        return self.head(self.norm(x))
