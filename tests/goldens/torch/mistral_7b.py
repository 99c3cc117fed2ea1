"""Mistral 7B (Jiang et al., 2023): grouped-query attention over a sliding window of 4096 tokens.

7,241,732,096 parameters. Made by archdsl 0.1.0 from mistral.arch (37547e243ccb):
    archdsl compile mistral.arch:mistral_7b --to torch
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention


@dataclass
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
        for name, size in vars(self).items():
            assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
            setattr(self, name, int(size))  # 24.0 is 24
        assert self.width % self.heads == 0, f"width must be a multiple of heads: {self}"
        assert self.heads % self.kv_heads == 0, f"heads must be a multiple of kv_heads: {self}"
        assert self.width % (2 * self.heads) == 0, "width % (2 * heads) == 0: rope needs an even number of channels"


fused_attention = torch.compile(flex_attention)  # nothing is compiled before the first call, on CUDA


def rope_table(positions: Tensor, head_dim: int, theta: float) -> Tensor:
    """Compute the cosines and sines at positions [..., time]: [2, ..., time, head_dim / 2]."""
    frequencies = theta ** -(torch.arange(0, head_dim, 2, device=positions.device).float() / head_dim)
    angles = positions[..., None].float() * frequencies
    return torch.stack((angles.cos(), angles.sin()))


def causal_and_window_mask(b: Tensor, query: Tensor, key: Tensor, window: int) -> Tensor:
    return (key <= query) & (query - key < window)


@torch.compile  # at the first call, on CUDA, so that pairs are counted as they are computed and never stored
def block_counts(rule: Callable[..., Tensor], batch: int, time: int, device: torch.device, *given: Any) -> Tensor:
    """Count the pairs of positions that a rule allows in each block of 128 by 128: [batch, 1, blocks, blocks]."""
    rows = torch.arange(batch, device=device).view(-1, 1, 1, 1, 1, 1)
    key = torch.arange(-(-time // 128) * 128, device=device).view(-1, 128)  # [blocks, 128]
    query = key[..., None, None]
    allowed = rule(rows, query.clamp(max=time - 1), key.clamp(max=time - 1), *given) & (query < time) & (key < time)
    return allowed.sum((-3, -1)).expand(batch, 1, -1, -1)


def block_order(shown: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of blocks shown in each row of [..., blocks], and the indices of all, those shown first."""
    blocks = shown.size(-1)
    order = torch.arange(blocks, device=shown.device) + blocks * ~shown
    # For topk Inductor calls a kernel; for argsort it writes one, which may take minutes to compile.
    return shown.sum(-1, dtype=torch.int32), order.topk(blocks, largest=False).indices.int()


def block_mask(rule: Callable[..., Tensor], batch: int, time: int, device: torch.device, *given: Any) -> BlockMask:
    """Build FlexAttention's mask of a rule: the blocks that it allows in part and those that it allows in full."""
    counts = block_counts(rule, batch, time, device, *given)
    full = counts == 128 * 128
    partial = (counts > 0) & ~full
    by_row = (*block_order(partial), *block_order(full))
    by_column = (*block_order(partial.mT), *block_order(full.mT))
    return BlockMask((time, time), *by_row, *by_column, (128, 128), lambda b, h, q, k: rule(b, q, k, *given))


def mask_of(
    rule: Callable[..., Tensor], batch: int, time: int, device: torch.device, *given: Any
) -> Tensor | BlockMask:
    """Build the mask of the pairs of positions that a rule allows: on CUDA, blocks of 128 by 128 for FlexAttention;
    elsewhere, and of what is shorter than one, a tensor [time, time] or [batch, 1, time, time]."""
    if device.type == "cuda" and time >= 128:
        return block_mask(rule, batch, time, device, *given)
    rows, positions = torch.arange(batch, device=device)[:, None, None, None], torch.arange(time, device=device)
    return rule(rows, positions[:, None], positions, *given)


def rotate(x: Tensor, rope: Tensor) -> Tensor:
    """Rotate the channel pairs (i, i + head_dim / 2) of x [..., time, head_dim] by the angles of their positions."""
    cos, sin = rope
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).type_as(x)


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | BlockMask | None, **options: Any) -> Tensor:
    """Attend where the mask allows; without one, causally."""
    if isinstance(mask, BlockMask):
        return fused_attention(q.type_as(v), k.type_as(v), v, block_mask=mask, **options)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, **options)


class Attention(nn.Module):
    """Grouped-query attention (Ainslie et al., 2023): every group of heads shares one head of keys and values."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.width // config.heads
        self.q = nn.Linear(config.width, config.width, bias=False)
        self.k = nn.Linear(config.width, config.kv_heads * self.head_dim, bias=False)
        self.v = nn.Linear(config.width, config.kv_heads * self.head_dim, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor | BlockMask) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, kv_heads, time, head_dim]
        v = self.v(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, kv_heads, time, head_dim]
        y = masked_attention(rotate(q, rope), rotate(k, rope), v, mask, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    """Gated by SiLU (Shazeer, 2020)."""

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
        rope = rope_table(torch.arange(time, device=tokens.device), self.config.width // self.config.heads, 10_000)
        mask = mask_of(causal_and_window_mask, 1, time, tokens.device, self.config.window)
        x = self.token_embedding(tokens)  # [batch, time, width]
        for block in self.blocks:
            x = block(x, rope, mask)
        return self.head(self.norm(x))
