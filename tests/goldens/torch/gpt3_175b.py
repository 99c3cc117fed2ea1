"""GPT-3 (Brown et al., 2020): GPT-2 with alternating dense and locally banded sparse attention.

174,604,259,328 parameters. Made by archdsl 0.1.0 from gpt3.arch (44ed8ec97bcb):
    archdsl compile gpt3.arch:gpt3_175b --to torch
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention


@dataclass
class Config:
    layers: int = 96
    width: int = 12_288
    heads: int = 96
    band: int = 256
    vocab: int = 50_257
    context: int = 2048

    def __post_init__(self) -> None:
        if min(self.width, self.heads, self.band, self.vocab, self.context) < 1:
            raise ValueError(f"sizes and counts must be whole numbers of at least 1: {self}")
        assert self.layers // 2 >= 1, f"layers // 2 must be at least 1: {self}"
        assert self.width % self.heads == 0, f"width must be a multiple of heads: {self}"


fused_block_mask = torch.compile(create_block_mask)  # nothing is compiled before the first call, on CUDA
fused_attention = torch.compile(flex_attention)  # nothing is compiled before the first call, on CUDA


def causal_and_window_mask(b: Tensor, query: Tensor, key: Tensor, window: int) -> Tensor:
    return (key <= query) & (query - key < window)


def mask_of(
    rule: Callable[..., Tensor], batch: int, time: int, device: torch.device, *given: Any
) -> Tensor | BlockMask:
    """Build the mask of the pairs of positions that a rule allows: blocks for FlexAttention on CUDA, elsewhere a tensor
    [time, time] or [batch, 1, time, time]."""
    if device.type == "cuda":
        return fused_block_mask(lambda b, h, query, key: rule(b, query, key, *given), batch, None, time, time, device)
    rows, positions = torch.arange(batch, device=device)[:, None, None, None], torch.arange(time, device=device)
    return rule(rows, positions[:, None], positions, *given)


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | BlockMask | None = None, **options: Any) -> Tensor:
    """Attend where the mask allows; without a mask, to earlier positions and the query's own."""
    if isinstance(mask, BlockMask):
        return fused_attention(q.type_as(v), k.type_as(v), v, block_mask=mask, **options)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, **options)


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al., 2017, section 3.2)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.width // config.heads
        self.value_dim = self.head_dim
        self.q = nn.Linear(config.width, config.width)
        self.k = nn.Linear(config.width, config.width)
        self.v = nn.Linear(config.width, config.width)
        self.out = nn.Linear(config.width, config.width)
        for linear in (self.q, self.k, self.v):
            nn.init.normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)
        nn.init.normal_(self.out.weight, std=0.02 / math.sqrt(2 * config.layers))
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor, mask: Tensor | BlockMask | None = None) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        v = self.v(x).unflatten(-1, (-1, self.value_dim)).transpose(1, 2)  # [batch, heads, time, value_dim]
        y = masked_attention(q, k, v, mask)
        return self.out(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear maps with an activation between them (Vaswani et al., 2017, section 3.3)."""

    def __init__(self, config: Config, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, hidden)
        self.down = nn.Linear(hidden, config.width)
        nn.init.normal_(self.up.weight, std=0.02)
        nn.init.zeros_(self.up.bias)
        nn.init.normal_(self.down.weight, std=0.02 / math.sqrt(2 * config.layers))
        nn.init.zeros_(self.down.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Layer(nn.Module):
    """layer (gpt3.arch:3)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.attention = Attention(config)
        self.ffn_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.ffn = MLP(config, hidden=4 * config.width)

    def forward(self, x: Tensor, mask: Tensor | BlockMask | None = None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), mask)
        return x + self.ffn(self.ffn_norm(x))


class GPT3_175B(nn.Module):
    """gpt3_175b (gpt3.arch:13)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.position = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Layer(config) for _ in range(config.layers // 2 * 2))
        self.norm = nn.LayerNorm(config.width, eps=1e-5)
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        nn.init.normal_(self.position.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        time = tokens.size(1)
        assert time <= self.config.context, "at most `context` tokens"
        mask = mask_of(causal_and_window_mask, 1, time, tokens.device, self.config.band)
        x = self.token_embedding(tokens) + self.position(torch.arange(time, device=tokens.device))
        for block, layer_mask in zip(self.blocks, self.config.layers // 2 * [None, mask]):
            x = block(x, layer_mask)
        return F.linear(self.norm(x), self.token_embedding.weight)
