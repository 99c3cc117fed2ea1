"""GLM-130B (Zeng et al., 2022): DeepNorm, RoPE and GeGLU; a prompt that is read in both directions.

128,697,794,560 parameters. Made by archdsl 0.1.0 from glm_130b.arch (56eb58e69131):
    archdsl compile glm_130b.arch:glm_130b_prefix --to torch
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention


@dataclass
class Config:
    layers: int = 70
    width: int = 12_288
    heads: int = 96
    hidden: int = 32_768
    vocab: int = 150_528

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
            setattr(self, name, int(size))  # 24.0 is 24
        assert self.width % self.heads == 0, f"width must be a multiple of heads: {self}"
        assert self.width % (2 * self.heads) == 0, "width % (2 * heads) == 0: rope needs an even number of channels"
        assert self.layers * self.layers % 2 == 0, "layers ** 2 / 2 must be a whole number: compile again with --set"


fused_attention = torch.compile(flex_attention)  # nothing is compiled before the first call, on CUDA


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


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | BlockMask | None, **options: Any) -> Tensor:
    """Attend where the mask allows; without one, causally."""
    if isinstance(mask, BlockMask):
        return fused_attention(q.type_as(v), k.type_as(v), v, block_mask=mask, **options)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, **options)


def causal_or_keys_mask(b: Tensor, query: Tensor, key: Tensor, keys: Tensor) -> Tensor:
    return (key <= query) | keys[b, key]


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


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al., 2017, section 3.2)."""

    def __init__(self, config: Config, init_layers: int) -> None:
        super().__init__()
        self.head_dim = config.width // config.heads
        self.init_layers = init_layers
        self.q = nn.Linear(config.width, config.width)
        self.k = nn.Linear(config.width, config.width)
        self.v = nn.Linear(config.width, config.width)
        self.out = nn.Linear(config.width, config.width)

    def reset_parameters(self) -> None:
        for linear in (self.q, self.k):
            nn.init.xavier_normal_(linear.weight)
            nn.init.zeros_(linear.bias)
        for linear in (self.v, self.out):
            nn.init.xavier_normal_(linear.weight, gain=(8 * self.init_layers) ** -0.25)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor | BlockMask) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        v = self.v(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        y = masked_attention(rotate(q, rope), rotate(k, rope), v, mask)
        return self.out(y.transpose(1, 2).flatten(2))


class GEGLU(nn.Module):
    """Gated by GELU (Shazeer, 2020)."""

    def __init__(self, config: Config, init_layers: int) -> None:
        super().__init__()
        self.init_layers = init_layers
        self.gate = nn.Linear(config.width, config.hidden)
        self.up = nn.Linear(config.width, config.hidden)
        self.down = nn.Linear(config.hidden, config.width)

    def reset_parameters(self) -> None:
        for linear in (self.gate, self.up, self.down):
            nn.init.xavier_normal_(linear.weight, gain=(8 * self.init_layers) ** -0.25)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.gate(x)) * self.up(x))


class Decoder(nn.Module):
    """The skip weighs sqrt(2 * layers), and the maps of values, outputs and feed-forwards start by its inverse."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.layers = config.layers
        self.attention = Attention(config, init_layers=config.layers**2 // 2)
        self.attention_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.ffn = GEGLU(config, init_layers=config.layers**2 // 2)
        self.ffn_norm = nn.LayerNorm(config.width, eps=1e-5)

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor | BlockMask) -> Tensor:
        x = self.attention_norm(math.sqrt(2 * self.layers) * x + self.attention(x, rope, mask))
        return self.ffn_norm(math.sqrt(2 * self.layers) * x + self.ffn(x))


class Glm130BPrefix(nn.Module):
    """glm_130b_prefix (glm_130b.arch:30)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(Decoder(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=1e-5)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()
        nn.init.normal_(self.token_embedding.weight, std=0.02)

    def forward(self, tokens: Tensor, given: Tensor) -> Tensor:
        time = tokens.size(1)
        x = self.token_embedding(tokens)  # [batch, time, width]
        rope = rope_table(torch.arange(time, device=tokens.device), self.config.width // self.config.heads, 10_000)
        mask = mask_of(causal_or_keys_mask, tokens.size(0), time, given.device, given)  # [batch, 1, time, time]
        for block in self.blocks:
            x = block(x, rope, mask)
        return F.linear(self.norm(x), self.token_embedding.weight)
