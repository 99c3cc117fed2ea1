"""Mistral 7B (Jiang et al., 2023): grouped-query attention over a sliding window of 4096 tokens.

7,241,732,096 parameters. Made by archdsl 0.1.0 from mistral.arch (37547e243ccb):
    archdsl compile mistral.arch:mistral_7b --to torch
"""

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
    layers: int = 32
    width: int = 4096
    heads: int = 32
    kv_heads: int = 8
    hidden: int = 14_336
    window: int = 4096
    vocab: int = 32_000
    context: int = 32_768

    def __post_init__(self) -> None:
        assert min(vars(self).values()) >= 1, f"sizes and counts are whole numbers of at least 1: {self}"
        assert self.width % self.heads == 0, f"heads divides width: {self}"
        assert self.heads % self.kv_heads == 0, f"every group of heads shares one head of keys and values: {self}"
        assert self.width % (2 * self.heads) == 0, f"rope turns pairs of channels: {self}"


def frequencies(dims: int, theta: float, device: torch.device) -> Tensor:
    """Radians a place, for each pair of channels."""
    return theta ** -(torch.arange(0, dims, 2, device=device).float() / dims)


def rope_table(length: int, frequencies: Tensor) -> Tensor:
    """Cosines and sines of every place and pair of channels."""
    angles = torch.outer(torch.arange(length, device=frequencies.device).float(), frequencies)  # [time, dims / 2]
    return torch.stack((angles.cos(), angles.sin()))


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


def rotate(x: Tensor, rope: Tensor) -> Tensor:
    """Turn the channel pairs (i, i + dims / 2) by an angle that grows with the position."""
    cos, sin = rope
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).type_as(x)


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
        self.mask_window = config.window
        self.q = nn.Linear(config.width, config.width, bias=False)
        self.k = nn.Linear(config.width, config.kv_heads * head_dim, bias=False)
        self.v = nn.Linear(config.width, config.kv_heads * head_dim, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor | BlockMask) -> Tensor:
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)  # [batch, kv_heads, time, head_dim]
        v = self.v(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)  # [batch, kv_heads, time, head_dim]
        q = rotate(q, rope)
        y = masked_window_attention(q, rotate(k, rope), v, mask, self.mask_window, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    """Gated by SiLU (Shazeer, 2020).

    swiglu (std/ffn.arch:16)
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Decoder(nn.Module):
    """decoder (mistral.arch:3)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-5)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.width, eps=1e-5)
        self.ffn = SwiGLU(config)

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor | BlockMask) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rope, mask)
        return x + self.ffn(self.ffn_norm(x))


class Mistral7B(nn.Module):
    """mistral_7b (mistral.arch:13)"""

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
        rope = rope_table(time, frequencies(self.config.width // self.config.heads, 10_000, tokens.device))
        mask = mask_of(causal_and_window_mask, time, tokens, self.config.window)
        x = self.token_embedding(tokens)  # [batch, time, width]
        for block in self.blocks:
            x = block(x, rope, mask)
        return self.head(self.norm(x))
