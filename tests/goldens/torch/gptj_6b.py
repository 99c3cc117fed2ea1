"""GPT-J (Wang and Komatsuzaki, 2021): attention and feed-forward in parallel, from one norm; written as equations.

6,050,882,784 parameters. Made by archdsl 0.1.0 from gptj.arch (133978bd22f1):
    archdsl compile gptj.arch:gptj_6b --to torch
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    layers: int = 28
    width: int = 4096
    heads: int = 16
    rotary: int = 64
    vocab: int = 50_400
    context: int = 2048

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
            setattr(self, name, int(size))  # 24.0 is 24
        assert self.rotary * self.heads <= self.width, (
            f"rotary * heads <= width: rope turns no more channels than a head has: {self}"
        )
        assert self.width % self.heads == 0, f"width must be a multiple of heads: {self}"
        assert self.rotary % 2 == 0, f"rotary % 2 == 0: rope needs an even number of channels: {self}"


def rope_table(positions: Tensor, head_dim: int, theta: float) -> Tensor:
    """Compute the cosines and sines at positions [..., time]: [2, ..., time, head_dim / 2]."""
    frequencies = theta ** -(torch.arange(0, head_dim, 2, device=positions.device).float() / head_dim)
    angles = positions[..., None].float() * frequencies
    return torch.stack((angles.cos(), angles.sin()))


def rotate_part_pairs(x: Tensor, rope: Tensor) -> Tensor:
    """Rotate the first channels of each head, in pairs (2i, 2i + 1), by the angles of their positions; keep the
    rest."""
    cos, sin = rope
    turned, rest = x.split((2 * cos.size(-1), x.size(-1) - 2 * cos.size(-1)), dim=-1)
    a, b = turned[..., 0::2].float(), turned[..., 1::2].float()
    turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    return torch.cat((turned.type_as(x), rest), dim=-1)


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al., 2017, section 3.2)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.width // config.heads
        self.q = nn.Linear(config.width, config.width, bias=False)
        self.k = nn.Linear(config.width, config.width, bias=False)
        self.v = nn.Linear(config.width, config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        v = self.v(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        q, k = rotate_part_pairs(q, rope), rotate_part_pairs(k, rope)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear layers with an activation between them (Vaswani et al., 2017, section 3.3)."""

    def __init__(self, config: Config, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, hidden)
        self.down = nn.Linear(hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class ParallelLayer(nn.Module):
    """parallel_layer (gptj.arch:3)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(config.width, eps=1e-5)
        self.attention = Attention(config)
        self.ffn = MLP(config, hidden=4 * config.width)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        h = self.ln(x)
        return x + (self.attention(h, rope) + self.ffn(h))


class Gptj6B(nn.Module):
    """gptj_6b (gptj.arch:10)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(ParallelLayer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=1e-5)
        self.head = nn.Linear(config.width, config.vocab)
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
        rope = rope_table(torch.arange(time, device=tokens.device), self.config.rotary, 10_000)
        x = self.token_embedding(tokens)  # [batch, time, width]
        for block in self.blocks:
            x = block(x, rope)
        return self.head(self.norm(x))
