"""Mixtral (Jiang et al., 2024): Mistral's layers with eight experts for a feed-forward, two for each token.

46,702,792,704 parameters. Made by archdsl 0.1.0 from mixtral.arch (79e8062ad607):
    archdsl compile mixtral.arch:mixtral_8x7b --to torch
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
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
        assert min(vars(self).values()) >= 1, f"sizes and counts are whole numbers of at least 1: {self}"
        assert self.experts >= 2, f"a token goes to at most as many experts as there are: {self}"
        assert self.width % self.heads == 0, f"heads divides width: {self}"
        assert self.heads % self.kv_heads == 0, f"every group of heads shares one head of keys and values: {self}"
        assert self.width % (2 * self.heads) == 0, f"rope turns pairs of channels: {self}"


class Groups(NamedTuple):
    """Rows sorted by expert: where each expert's rows end, and the expert of each row."""

    ends: Tensor
    expert: Tensor


def blockwise_matmul(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """The same product where sizes may not depend on the rows that each expert gets: they are moved apart into blocks
    of one expert each, three blocks for every expert at most."""
    rows, count = torch.arange(x.size(0), device=x.device), weight.size(0)
    size = -(-x.size(0) // (2 * count))
    starts = F.pad(ends[:-1], (1, 0))
    blocks = (ends - starts + size - 1) // size  # that an expert needs
    last = blocks.cumsum(0)
    expert = torch.searchsorted(ends, rows, right=True)
    place = rows - starts[expert] + (last - blocks)[expert] * size
    apart = x.new_zeros(3 * count * size, x.size(1)).index_copy(0, place, x).unflatten(0, (3 * count, size))
    expert = torch.searchsorted(last, torch.arange(3 * count, device=x.device), right=True).clamp(max=count - 1)
    return (apart @ weight[expert]).flatten(0, 1)[place]


def opaque_matmul(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """The grouped product, into which no compiler looks: x [rows, in] by weight [experts, in, out]; or x [in, rows] by
    weight [rows, out], which gives [experts, in, out]."""
    return torch.ops.archdsl.opaque_matmul(x, weight, ends)


def opaque_shape(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    experts = ends.shape if weight.dim() == 2 else ()
    return x.new_empty(*experts, x.size(0), weight.size(-1))


def opaque_gradients(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    x, weight, ends = context.saved_tensors
    gradient = gradient.contiguous()
    return opaque_matmul(gradient, weight.transpose(1, 2), ends), opaque_matmul(x.t(), gradient, ends), None


if not hasattr(torch.ops.archdsl, "opaque_matmul"):  # once for all files of a process
    torch.library.define("archdsl::opaque_matmul", "(Tensor x, Tensor weight, Tensor ends) -> Tensor")
    torch.library.impl("archdsl::opaque_matmul", "CPU", lambda x, weight, ends: F.grouped_mm(x, weight, offs=ends))
    torch.library.register_fake("archdsl::opaque_matmul", opaque_shape)
    torch.library.register_autograd(
        "archdsl::opaque_matmul",
        opaque_gradients,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )


def grouped_matmul(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Each expert's rows of x times its own matrix."""
    if x.device.type != "meta" and torch.is_autocast_enabled(x.device.type):
        x, weight = (t.to(torch.get_autocast_dtype(x.device.type)) for t in (x, weight))
    compiling = torch.compiler.is_compiling()
    aligned = all(size * x.element_size() % 16 == 0 for size in weight.shape[1:])
    if hasattr(F, "grouped_mm") and aligned:
        if x.dtype == torch.bfloat16 or not compiling:
            return F.grouped_mm(x, weight, offs=ends)
        if x.device.type == "cpu" and not torch.compiler.is_exporting():  # the kernel is traced in bfloat16 only
            return opaque_matmul(x, weight, ends)
    if compiling:
        return blockwise_matmul(x, weight, ends)
    parts = x.tensor_split(ends[:-1].long().cpu())
    return torch.cat([part @ matrix for part, matrix in zip(parts, weight)])


def frequencies(dims: int, theta: float, device: torch.device) -> Tensor:
    """Radians a place, for each pair of channels."""
    return theta ** -(torch.arange(0, dims, 2, device=device).float() / dims)


def rope_table(length: int, frequencies: Tensor) -> Tensor:
    """Cosines and sines of every place and pair of channels."""
    angles = torch.outer(torch.arange(length, device=frequencies.device).float(), frequencies)  # [time, dims / 2]
    return torch.stack((angles.cos(), angles.sin()))


def rotate(x: Tensor, rope: Tensor) -> Tensor:
    """Turn the channel pairs (i, i + dims / 2) by an angle that grows with the position."""
    cos, sin = rope
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).type_as(x)


class GroupedLinear(nn.Module):
    """One weight matrix an expert. The rows of x are sorted by expert."""

    def __init__(self, experts: int, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, outputs, inputs))
        self.bias = nn.Parameter(torch.empty(experts, outputs)) if bias else None
        for weight in self.parameters():
            nn.init.uniform_(weight, -(inputs**-0.5), inputs**-0.5)

    def forward(self, x: Tensor, groups: Groups) -> Tensor:
        y = grouped_matmul(x, self.weight.transpose(1, 2), groups.ends)
        return y if self.bias is None else y + self.bias[groups.expert]


def dispatch(experts: nn.Module, count: int, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Send each token to its chosen experts and add their answers, weighted."""
    tokens, chosen, weights = x.flatten(0, -2), chosen.flatten(0, -2), weights.flatten()
    expert, order = chosen.flatten().sort(stable=True)  # (token, choice) pairs, sorted by expert
    ends = torch.searchsorted(expert, torch.arange(1, count + 1, device=x.device)).to(torch.int32)
    token = order // chosen.size(-1)
    y = experts(tokens[token], Groups(ends, expert)) * weights[order, None].to(x.dtype)
    return torch.zeros_like(tokens).index_add(0, token, y).view_as(x)


class Attention(nn.Module):
    """Grouped-query attention (Ainslie et al., 2023): every group of heads shares one head of keys and values.

    gqa (std/attention.arch:29)
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        assert config.width % config.heads == 0, "heads divides width"
        assert config.heads % config.kv_heads == 0, "every group of heads shares one head of keys and values"
        head_dim = config.width // config.heads
        self.heads = config.heads
        self.kv_heads = config.kv_heads
        self.q = nn.Linear(config.width, config.width, bias=False)
        self.k = nn.Linear(config.width, config.kv_heads * head_dim, bias=False)
        self.v = nn.Linear(config.width, config.kv_heads * head_dim, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)  # [batch, kv_heads, time, head_dim]
        v = self.v(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)  # [batch, kv_heads, time, head_dim]
        q = rotate(q, rope)
        y = F.scaled_dot_product_attention(q, rotate(k, rope), v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))


class SoftmaxRouter(nn.Module):
    """Softmax over all experts, then the best (Shazeer et al., 2017; Mixtral).

    softmax_router (std/ffn.arch:45)
    """

    def __init__(self, config: Config, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.gate = nn.Linear(config.width, config.experts, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.gate(x).float()
        scores = logits.softmax(-1)
        _, chosen = scores.topk(self.top_k)
        weights = scores.gather(-1, chosen)
        weights = weights / weights.sum(-1, keepdim=True)
        return weights.type_as(x), chosen


class SwiGLU(nn.Module):
    """Gated by SiLU (Shazeer, 2020).

    swiglu (std/ffn.arch:16)
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate = GroupedLinear(config.experts, config.width, config.hidden, bias=False)
        self.up = GroupedLinear(config.experts, config.width, config.hidden, bias=False)
        self.down = GroupedLinear(config.experts, config.hidden, config.width, bias=False)

    def forward(self, x: Tensor, groups: Groups) -> Tensor:
        return self.down(F.silu(self.gate(x, groups)) * self.up(x, groups), groups)


class MoE(nn.Module):
    """Mixture of experts: each token goes to its `top_k` experts, weighted by the router.

    moe (std/ffn.arch:26)
    """

    def __init__(self, config: Config, top_k: int) -> None:
        super().__init__()
        assert top_k <= config.experts, "a token goes to at most as many experts as there are"
        self.num_experts = config.experts
        self.router = SoftmaxRouter(config, top_k=top_k)
        self.experts = SwiGLU(config)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x)
        return dispatch(self.experts, self.num_experts, x, weights, chosen)


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


class Mixtral8X7B(nn.Module):
    """mixtral_8x7b (mixtral.arch:12)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(Decoder(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=1e-5)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        nn.init.normal_(self.token_embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        time = tokens.size(1)
        assert time <= self.config.context, "at most `context` tokens"
        rope = rope_table(time, frequencies(self.config.width // self.config.heads, 1_000_000, tokens.device))
        x = self.token_embedding(tokens)  # [batch, time, width]
        for block in self.blocks:
            x = block(x, rope)
        return self.head(self.norm(x))
