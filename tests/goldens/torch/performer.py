"""Performer (Choromanski et al., 2021): softmax attention in linear time by positive orthogonal random features.

75,716,608 parameters. Made by archdsl 0.1.0 from performer.arch (719048293840):
    archdsl compile performer.arch:performer --to torch
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    layers: int = 36
    width: int = 512
    heads: int = 8
    hidden: int = 1024
    features: int = 256
    vocab: int = 30
    context: int = 1024

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
            setattr(self, name, int(size))  # 24.0 is 24
        assert self.features * self.heads == 4 * self.width, (
            f"`forward` is written for features * heads == 4 * width: compile again with --set: {self}"
        )
        assert self.width % 2 == 0, f"the width must be even: half are sines, half cosines: {self}"
        assert self.width % self.heads == 0, f"the width must be a multiple of heads: {self}"


def sinusoid(positions: Tensor, width: int, theta: float = 10_000) -> Tensor:
    """Embed positions by sines, then cosines, of wavelengths from 2π to 2π · theta (Vaswani et al., 2017)."""
    angle = positions[..., None] * theta ** -(torch.arange(0, width, 2, device=positions.device) / width)
    return torch.cat((angle.sin(), angle.cos()), dim=-1)


def causal_linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Sum (q[t] · k[s]) v[s] over s <= t: within chunks of 64 positions by scores, between them by a state."""
    time = q.size(2)
    padding = (0, 0, 0, 64 * (time // 64 + 2) - time)  # two chunks at least: torch.export takes one for special
    q, k, v = (F.pad(t, padding).unfold(2, 64, 64).mT for t in (q, k, v))  # [batch, heads, chunk, position, dim]
    states = (k.mT @ v).float().cumsum(2).to(v.dtype)  # after each chunk
    before = F.pad(states, (0, 0, 0, 0, 1, 0))[:, :, :-1]
    y = q @ before + (q @ k.mT).tril() @ v
    return y.flatten(2, 3).index_select(2, torch.arange(time, device=q.device))


class RandomDirections(nn.Module):
    """As many random directions as channels, orthogonal to each other and as long as normal vectors are."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("turn", torch.empty(channels, channels))
        self.register_buffer("normals", torch.empty(channels, channels))

    def reset_parameters(self) -> None:
        nn.init.orthogonal_(self.turn)
        nn.init.normal_(self.normals)

    def forward(self, x: Tensor) -> Tensor:
        h = self.turn * torch.sqrt(self.normals.square().sum(-1, keepdim=True))
        return torch.einsum("bhtc,fc->bhtf", x, h)


class SoftmaxFeatures(nn.Module):
    """Positive features whose products estimate the softmax kernel (FAVOR+, lemma 1): exp(w x - |x|^2 / 2) for each
    random w."""

    def __init__(self, config: Config, head_dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.eps = eps
        self.random_directions = RandomDirections(channels=head_dim)
        self.random_directions_2 = RandomDirections(channels=head_dim)
        self.random_directions_3 = RandomDirections(channels=head_dim)
        self.random_directions_4 = RandomDirections(channels=head_dim)

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q = q / self.head_dim**0.25
        k = k / self.head_dim**0.25
        h = self.random_directions_2(q)
        h_2 = self.random_directions_3(q)
        h = torch.cat((self.random_directions(q), h, h_2, self.random_directions_4(q)), dim=-1)
        a = h - 0.5 * q.square().sum(-1, keepdim=True)
        h = self.random_directions_2(k)
        h_2 = self.random_directions_3(k)
        h = torch.cat((self.random_directions(k), h, h_2, self.random_directions_4(k)), dim=-1)
        b = h - 0.5 * k.square().sum(-1, keepdim=True)
        return torch.exp(a - a.amax(-1, keepdim=True).detach()) + self.eps, torch.exp(b) + self.eps


class FavorAttention(nn.Module):
    """favor_attention (performer.arch:23)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.width // config.heads
        self.q = nn.Linear(config.width, config.width)
        self.k = nn.Linear(config.width, config.width)
        self.v = nn.Linear(config.width, config.width)
        self.kernel = SoftmaxFeatures(config, eps=1e-6, head_dim=self.head_dim)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        v = self.v(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        q, k = self.kernel(q, k)
        y = causal_linear_attention(q, k, F.pad(v, (0, 1), value=1.0))
        return self.out((y[..., :-1] / (y[..., -1:] + 1e-6)).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear layers with an activation between them (Vaswani et al., 2017, section 3.3)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.hidden)
        self.down = nn.Linear(config.hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Layer(nn.Module):
    """layer (performer.arch:32)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.attention = FavorAttention(config)
        self.ffn_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.ffn = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.ffn(self.ffn_norm(x))


class Performer(nn.Module):
    """performer (performer.arch:40)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=1e-5)
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
        x = self.token_embedding(tokens)  # [batch, time, width]
        x = x + sinusoid(torch.arange(time, device=tokens.device), self.config.width).type_as(x)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token_embedding.weight)
