"""Mixtral (Jiang et al., 2024): Mistral's layers with eight experts for a feed-forward, two for each token.

46,702,792,704 parameters. Made by archdsl 0.1.0 from mixtral.arch (79e8062ad607):
    archdsl compile mixtral.arch:mixtral_8x7b --to torch
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    layers: int = 32
    width: int = 4096
    heads: int = 32
    kv_heads: int = 8
    hidden: int = 14_336
    experts: int = 8
    vocab: int = 32_000
    context: int = 32_768

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
            setattr(self, name, int(size))  # 24.0 is 24
        assert self.experts >= 2, f"top_k must be at most the number of experts: {self}"
        assert self.width % self.heads == 0, f"width must be a multiple of heads: {self}"
        assert self.heads % self.kv_heads == 0, f"heads must be a multiple of kv_heads: {self}"
        assert self.width % (2 * self.heads) == 0, "width % (2 * heads) == 0: rope needs an even number of channels"


def rope_table(positions: Tensor, head_dim: int, theta: float) -> Tensor:
    """Compute the cosines and sines at positions [..., time]: [2, ..., time, head_dim / 2]."""
    frequencies = theta ** -(torch.arange(0, head_dim, 2, device=positions.device).float() / head_dim)
    angles = positions[..., None].float() * frequencies
    return torch.stack((angles.cos(), angles.sin()))


def rotate(x: Tensor, rope: Tensor) -> Tensor:
    """Rotate the channel pairs (i, i + head_dim / 2) of x [..., time, head_dim] by the angles of their positions."""
    cos, sin = rope
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).type_as(x)


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


class Attention(nn.Module):
    """Grouped-query attention (Ainslie et al., 2023): every group of heads shares one head of keys and values."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.width // config.heads
        self.q = nn.Linear(config.width, config.width, bias=False)
        self.k = nn.Linear(config.width, config.kv_heads * self.head_dim, bias=False)
        self.v = nn.Linear(config.width, config.kv_heads * self.head_dim, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, kv_heads, time, head_dim]
        v = self.v(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, kv_heads, time, head_dim]
        q, k = rotate(q, rope), rotate(k, rope)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))


class SoftmaxRouter(nn.Module):
    """Softmax over all experts, then the best (Shazeer et al., 2017; Mixtral)."""

    def __init__(self, config: Config, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.gate = nn.Linear(config.width, config.experts, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.gate(x).float()
        scores = logits.softmax(-1)
        weights, chosen = scores.topk(self.top_k)
        weights = weights / weights.sum(-1, keepdim=True)
        return weights.type_as(x), chosen


class SwiGLU(nn.Module):
    """Gated by SiLU (Shazeer, 2020)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate = GroupedLinear(config.experts, config.width, config.hidden)
        self.up = GroupedLinear(config.experts, config.width, config.hidden)
        self.down = GroupedLinear(config.experts, config.hidden, config.width)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x, ends)) * self.up(x, ends), ends)


class MoE(nn.Module):
    """Mixture of experts: each token goes to its `top_k` experts, weighted by the router."""

    def __init__(self, config: Config, top_k: int) -> None:
        super().__init__()
        self.num_experts = config.experts
        self.router = SoftmaxRouter(config, top_k=top_k)
        self.experts = SwiGLU(config)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x)
        tokens = x.flatten(0, -2)
        expert, order = chosen.flatten().sort(stable=True)  # (token, choice) pairs, sorted by expert
        ends = torch.searchsorted(expert, torch.arange(self.num_experts, device=x.device), right=True, out_int32=True)
        token = order // chosen.size(-1)
        y = self.experts(tokens[token], ends) * weights.flatten()[order, None].to(x.dtype)
        return torch.zeros_like(tokens).index_add(0, token, y).view_as(x)


class Decoder(nn.Module):
    """decoder (mixtral.arch:3)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-5)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.width, eps=1e-5)
        self.ffn = MoE(config, top_k=2)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rope)
        return x + self.ffn(self.ffn_norm(x))


class Mixtral8x7B(nn.Module):
    """mixtral_8x7b (mixtral.arch:12)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(Decoder(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=1e-5)
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
        rope = rope_table(torch.arange(time, device=tokens.device), self.config.width // self.config.heads, 1_000_000)
        x = self.token_embedding(tokens)  # [batch, time, width]
        for block in self.blocks:
            x = block(x, rope)
        return self.head(self.norm(x))
