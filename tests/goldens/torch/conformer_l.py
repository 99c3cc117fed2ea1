"""Conformer (Gulati et al., 2020): half-step feed-forwards around attention and convolution, for speech.

115,120,128 parameters. Made by archdsl 0.1.0 from conformer.arch (5f798b1eae9b):
    archdsl compile conformer.arch:conformer_l --to torch
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    width: int = 512
    layers: int = 17
    heads: int = 8
    kernel: int = 32
    features: int = 80

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
            setattr(self, name, int(size))  # 24.0 is 24
        assert self.width % self.heads == 0, f"width must be a multiple of heads: {self}"
        assert self.width % 2 == 0, f"the width must be even: half are sines, half cosines: {self}"
        assert (self.kernel - 1) % 2 != 0, (
            f"`padding: same` is written for a kernel that is odd, or even: compile again with --set: {self}"
        )
        assert self.width * (((self.features - 1) // 2 + 1 - 1) // 2 + 1) == self.width * -(-self.features // 4), (
            f"features and width: the result of `conv_subsampling` has the shape that is written: {self}"
        )


class RelativeScores(nn.Module):
    """Transformer-XL (Dai et al., 2019, section 3.3): the query plus a content bias, and its scaled scores against
    every distance."""

    def __init__(self, width: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.empty(heads * head_dim, width))
        self.u = nn.Parameter(torch.empty(heads, head_dim))
        self.v = nn.Parameter(torch.empty(heads, head_dim))

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight, -(self.width**-0.5), self.width**-0.5)
        nn.init.zeros_(self.u)
        nn.init.zeros_(self.v)

    def forward(self, q: Tensor, keys: int) -> tuple[Tensor, Tensor]:
        query = torch.arange(keys - q.size(-2), keys, device=q.device)[:, None]
        return self.between(q, query, torch.arange(keys, device=q.device), ahead=q.size(-2) - 1)

    def between(self, q: Tensor, query: Tensor, key: Tensor, ahead: int = 0) -> tuple[Tensor, Tensor]:
        """Compute the biases for queries and keys at these positions; of later keys, those up to `ahead` positions."""
        farthest = key.size(-1) - 1
        positions = torch.arange(farthest, -ahead - 1, -1, device=q.device)[:, None]  # distances, farthest first
        angle = positions * 10_000 ** -(torch.arange(0, self.width, 2, device=q.device) / self.width)
        table = torch.cat((angle.sin(), angle.cos()), dim=-1).to(q.dtype)
        r = F.linear(table, self.weight).unflatten(-1, self.u.shape)  # [distance, heads, head_dim]
        scores = torch.einsum("bhtd,rhd->bhtr", q + self.v[:, None], r) * q.size(-1) ** -0.5
        column = (farthest - query + key).clamp(max=farthest + ahead)  # of the distance between them
        return q + self.u[:, None], scores.gather(-1, column.expand(*scores.shape[:-1], -1))


class ConvSubsampling(nn.Module):
    """Two convolutions of stride 2 over time and features (Conformer, Gulati et al., 2020): a quarter of the frames."""

    def __init__(self, config: Config, factor: int = 4) -> None:
        super().__init__()
        assert factor == 4, "two convolutions of stride 2"
        self.factor = factor
        self.first = nn.Conv2d(1, config.width, 3, stride=2, padding=1)
        self.second = nn.Conv2d(config.width, config.width, 3, stride=2, padding=1)

    def forward(self, frames: Tensor) -> Tensor:
        assert frames.size(1) % self.factor == 0, "time must be a multiple of 4"
        x = F.relu(self.first(frames.unsqueeze(1)))
        x = F.relu(self.second(x))
        return x.transpose(1, 2).flatten(2)


class MLP(nn.Module):
    """Two linear layers with an activation between them (Vaswani et al., 2017, section 3.3)."""

    def __init__(self, config: Config, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, hidden)
        self.down = nn.Linear(hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.up(x)))


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al., 2017, section 3.2)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.width // config.heads
        self.q = nn.Linear(config.width, config.width)
        self.k = nn.Linear(config.width, config.width)
        self.v = nn.Linear(config.width, config.width)
        self.position = RelativeScores(config.width, config.heads, self.head_dim)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        v = self.v(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        q, distance = self.position(q, x.size(1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=torch.where(mask, distance, -torch.inf))
        return self.out(y.transpose(1, 2).flatten(2))


class ConvolutionModule(nn.Module):
    """convolution_module (conformer.arch:3)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.layernorm = nn.LayerNorm(config.width, eps=1e-5)
        self.widen = nn.Linear(config.width, 2 * config.width)
        self.depthwise = nn.Conv1d(config.width, config.width, config.kernel, padding="same", groups=config.width)
        self.batchnorm = nn.BatchNorm1d(config.width)
        self.narrow = nn.Linear(config.width, config.width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.depthwise(F.glu(self.widen(self.layernorm(x))).transpose(1, 2)).transpose(1, 2)
        return self.dropout(self.narrow(F.silu(self.batchnorm(h.transpose(1, 2)).transpose(1, 2))))


class ConformerLayer(nn.Module):
    """conformer_layer (conformer.arch:9)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.ffn_1_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.ffn_1 = MLP(config, hidden=4 * config.width)
        self.attention_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.attention = Attention(config)
        self.convolution = ConvolutionModule(config)
        self.ffn_2_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.ffn_2 = MLP(config, hidden=4 * config.width)
        self.norm = nn.LayerNorm(config.width, eps=1e-5)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + 0.5 * self.ffn_1(self.ffn_1_norm(x))
        x = x + self.attention(self.attention_norm(x), mask)
        x = x + self.convolution(x)
        x = x + 0.5 * self.ffn_2(self.ffn_2_norm(x))
        return self.norm(x)


class ConformerL(nn.Module):
    """conformer_l (conformer.arch:19)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.conv_subsampling = ConvSubsampling(config)
        self.linear = nn.Linear(config.width * -(-config.features // 4), config.width)
        self.dropout = nn.Dropout(0.1)
        self.layer = nn.ModuleList(ConformerLayer(config) for _ in range(config.layers))
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()

    def forward(self, frames: Tensor, real: Tensor) -> Tensor:
        assert frames.size(1) % 4 == 0, "time must be a multiple of 4"
        x = self.dropout(self.linear(self.conv_subsampling(frames)))
        mask = real[:, ::4][:, None, None, :]  # [batch, 1, 1, time / 4]
        for layer in self.layer:
            x = layer(x, mask)
        return x
