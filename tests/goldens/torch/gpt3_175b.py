"""GPT-3 (Brown et al., 2020): GPT-2 with alternating dense and locally banded sparse attention.

174,604,259,328 parameters. Made by archdsl 0.1.0 from gpt3.arch (44ed8ec97bcb):
    archdsl compile gpt3.arch:gpt3_175b --to torch
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask, flex_attention


@dataclass(frozen=True)
class Config:
    layers: int = 96
    width: int = 12_288
    heads: int = 96
    band: int = 256
    vocab: int = 50_257
    context: int = 2048

    def __post_init__(self) -> None:
        if min(self.width, self.heads, self.band, self.vocab, self.context) < 1:
            raise ValueError(f"sizes and counts are whole numbers of at least 1: {self}")
        assert self.layers // 2 >= 1, f"layers // 2 is a size, at least 1: {self}"
        assert self.width % self.heads == 0, f"heads divides width: {self}"


def causal_and_window_mask(b: Tensor, query: Tensor, key: Tensor, window: int) -> Tensor:
    return (key <= query) & (query - key < window)


def in_blocks(device: torch.device) -> bool:
    """Whether attention is computed block by block: CUDA has the kernels, and an exported graph is for all devices."""
    exported = torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()
    return device.type == "cuda" and not exported


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function)


def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled, as FlexAttention needs it; in a model that is compiled as a whole it is so already."""
    return function if torch.compiler.is_compiling() else compiled(function)


def new_mask(rule: Callable[..., Tensor], time: int, device: torch.device, *given: Any) -> Tensor | BlockMask:
    rows = [x.size(0) for x in given if isinstance(x, Tensor) and x.dim() == 2]
    batch = rows[0] if rows else 1
    if not in_blocks(device):
        key = torch.arange(time, device=device)
        return rule(torch.arange(batch, device=device)[:, None, None, None], key[:, None], key, *given)
    if not torch.compiler.is_compiling():  # numbers as tensors: what is compiled for one of them serves all
        given = tuple(x if isinstance(x, Tensor) else torch.tensor(x, device=device) for x in given)

    def seen(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return rule(b, query, key, *given)

    return fused(create_block_mask)(seen, batch, None, time, time, device)


@lru_cache(maxsize=16)
def kept_mask(rule: Callable[..., Tensor], time: int, device: torch.device, *given: int) -> Tensor | BlockMask:
    """The mask of a rule, if it is one of the latest from before."""
    with torch.inference_mode(False):  # what inference makes serves training, too
        return new_mask(rule, time, device, *given)


def mask_of(rule: Callable[..., Tensor], time: int, like: Tensor, *given: Any) -> Tensor | BlockMask:
    """The pairs of a query and a key that a rule lets through: on CUDA blocks of them for FlexAttention (Dong et al.,
    2024), elsewhere a bool tensor [query, key], or [batch, 1, query, key]. Those of lengths alone are made once."""
    traced = torch.compiler.is_compiling() or type(like) is not Tensor
    if traced or any(isinstance(x, Tensor) for x in given):
        return new_mask(rule, time, like.device, *given)
    return kept_mask(rule, time, like.device, *given)


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | BlockMask | None = None, **options: Any) -> Tensor:
    """Attention to the keys that a mask lets see; without one, to those before each query and its own."""
    if isinstance(mask, BlockMask):
        if q.size(-1) >= 16 <= v.size(-1) and q.dtype != torch.float64:
            return fused(flex_attention)(q.type_as(v), k.type_as(v), v, block_mask=mask, **options)
        mask = create_mask(mask.mask_mod, *mask.shape, device=q.device)  # for heads like these there is no kernel
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, **options)


def window_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, window: int, **options: Any) -> Tensor:
    """Attention of each place to the last `window` places, itself included. A long sequence is cut into blocks of so
    many places: a block sees itself and the one before it, and nothing else is computed."""
    batch, time = q.size(0), q.size(2)
    if isinstance(time, torch.SymInt) or window < time < 3 * window:  # an exported graph is for all lengths
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)
    if time <= window:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, **options)
    blocks = -(-time // window)
    rest = blocks * window - time
    q, k, v = (F.pad(x, (0, 0, 0, rest)).unflatten(2, (blocks, window)).transpose(1, 2) for x in (q, k, v))
    k, v = (torch.cat((F.pad(x, (0, 0, 0, 0, 0, 0, 1, -1)), x), dim=3).flatten(0, 1) for x in (k, v))
    query, key = torch.arange(window, device=q.device)[:, None], torch.arange(2 * window, device=q.device)
    seen = (key > query) & (key <= query + window)
    first = torch.arange(blocks, device=q.device)[:, None, None] == 0  # before it there is nothing
    seen = (seen & ~(first & (key < window))).repeat(batch, 1, 1)[:, None]
    y = F.scaled_dot_product_attention(q.flatten(0, 1), k, v, attn_mask=seen, **options)
    return y.unflatten(0, (batch, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :time]


def masked_window_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | BlockMask, window: int, **options: Any
) -> Tensor:
    if isinstance(mask, BlockMask):
        return masked_attention(q, k, v, mask, **options)
    return window_attention(q, k, v, mask, window, **options)


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al., 2017, section 3.2).

    mha (std/attention.arch:4)
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        assert config.width % config.heads == 0, "heads divides width"
        self.heads = config.heads
        self.q = nn.Linear(config.width, config.width)
        self.k = nn.Linear(config.width, config.width)
        self.v = nn.Linear(config.width, config.width)
        self.out = nn.Linear(config.width, config.width)
        for linear in (self.q, self.k, self.v):
            nn.init.normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)
        nn.init.normal_(self.out.weight, std=0.02 / math.sqrt(2 * config.layers))
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [batch, heads, time, head_dim]
        v = self.v(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [batch, heads, time, value_dim]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear maps with an activation between them (Vaswani et al., 2017, section 3.3).

    mlp (std/ffn.arch:4)
    """

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


class DenseLayer(nn.Module):
    """layer (gpt3.arch:3)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.attention = Attention(config)
        self.ffn_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.ffn = MLP(config, hidden=4 * config.width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.ffn(self.ffn_norm(x))


class Attention2(nn.Module):
    """Multi-head attention (Vaswani et al., 2017, section 3.2).

    mha (std/attention.arch:4)
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        assert config.width % config.heads == 0, "heads divides width"
        self.heads = config.heads
        self.mask_window = config.band
        self.q = nn.Linear(config.width, config.width)
        self.k = nn.Linear(config.width, config.width)
        self.v = nn.Linear(config.width, config.width)
        self.out = nn.Linear(config.width, config.width)
        for linear in (self.q, self.k, self.v):
            nn.init.normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)
        nn.init.normal_(self.out.weight, std=0.02 / math.sqrt(2 * config.layers))
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor, mask: Tensor | BlockMask) -> Tensor:
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [batch, heads, time, head_dim]
        v = self.v(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [batch, heads, time, value_dim]
        y = masked_window_attention(q, k, v, mask, self.mask_window)
        return self.out(y.transpose(1, 2).flatten(2))


class BandedLayer(nn.Module):
    """layer (gpt3.arch:3)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.attention = Attention2(config)
        self.ffn_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.ffn = MLP(config, hidden=4 * config.width)

    def forward(self, x: Tensor, mask: Tensor | BlockMask) -> Tensor:
        x = x + self.attention(self.attention_norm(x), mask)
        return x + self.ffn(self.ffn_norm(x))


class GPT3_175B(nn.Module):
    """gpt3_175b (gpt3.arch:13)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.position = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(
            layer for _ in range(config.layers // 2) for layer in (DenseLayer(config), BandedLayer(config))
        )
        self.norm = nn.LayerNorm(config.width, eps=1e-5)
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        nn.init.normal_(self.position.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        time = tokens.size(1)
        assert time <= self.config.context, "at most `context` tokens"
        mask = mask_of(causal_and_window_mask, time, tokens, self.config.band)
        x = self.token_embedding(tokens) + self.position(torch.arange(time, device=tokens.device))
        for block_1, block_2 in zip(self.blocks[::2], self.blocks[1::2]):
            x = block_1(x)
            x = block_2(x, mask)
        return F.linear(self.norm(x), self.token_embedding.weight)
