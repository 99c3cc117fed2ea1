"""T5 (Raffel et al., 2019): encoder-decoder with relative position biases, unscaled attention and RMSNorm.

222,903,552 parameters. Made by archdsl 0.1.0 from t5.arch (347edbc4069a):
    archdsl compile t5.arch:t5_base --to torch
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    layers: int = 12
    width: int = 768
    heads: int = 12
    head_dim: int = 64
    hidden: int = 3072
    vocab: int = 32_128
    context: int = 512

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
            setattr(self, name, int(size))  # 24.0 is 24


class RelativeBias(nn.Module):
    """T5's relative position bias: a learned bias for each head and bucket of distances (Raffel et al., 2020)."""

    def __init__(self, config: Config, sides: int, buckets: int = 32, max_distance: int = 128) -> None:
        super().__init__()
        assert sides <= 2, "a query has two sides"
        self.side = buckets // sides
        self.near = self.side // 2
        assert self.near > 0, "each side has a bucket for one distance"
        assert self.near < max_distance, "`max_distance` is larger than the distances that have a bucket each"
        self.sides = sides
        self.max_distance = max_distance
        self.weight = nn.Parameter(torch.empty(buckets, config.heads))

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, i: Tensor, j: Tensor) -> Tensor:
        distance = i.unsqueeze(1) - j
        n = torch.maximum(distance, distance * (1 - self.sides))
        far = torch.log(n.clamp(min=1) / self.near) / math.log(self.max_distance / self.near) * (self.side - self.near)
        far = self.near + far.long()
        found = torch.where(n < self.near, n, far.clamp(max=self.side - 1))
        bucket = found + (distance < 0).long() * (self.side * (self.sides - 1))
        return self.weight.transpose(0, 1)[:, bucket]


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al., 2017, section 3.2)."""

    def __init__(self, config: Config, dropout: float = 0) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.dropout = dropout
        self.q = nn.Linear(config.width, config.heads * config.head_dim, bias=False)
        self.k = nn.Linear(config.width, config.heads * config.head_dim, bias=False)
        self.v = nn.Linear(config.width, config.heads * config.head_dim, bias=False)
        self.out = nn.Linear(config.heads * config.head_dim, config.width, bias=False)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        v = self.v(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, dropout_p=self.dropout if self.training else 0, scale=1
        )
        return self.out(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear layers with an activation between them (Vaswani et al., 2017, section 3.3)."""

    def __init__(self, config: Config, dropout: float = 0) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.dropout(F.relu(self.up(x))))


class EncoderLayer(nn.Module):
    """encoder_layer (t5.arch:3)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.attention = Attention(config, dropout=0.1)
        self.dropout = nn.Dropout(0.1)
        self.ffn_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.ffn = MLP(config, dropout=0.1)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), bias))
        return x + self.dropout(self.ffn(self.ffn_norm(x)))


class CrossAttention(nn.Module):
    """Multi-head attention (Vaswani et al., 2017, section 3.2)."""

    def __init__(self, config: Config, dropout: float = 0) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.dropout = dropout
        self.q = nn.Linear(config.width, config.heads * config.head_dim, bias=False)
        self.k = nn.Linear(config.width, config.heads * config.head_dim, bias=False)
        self.v = nn.Linear(config.width, config.heads * config.head_dim, bias=False)
        self.out = nn.Linear(config.heads * config.head_dim, config.width, bias=False)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(memory).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, source, head_dim]
        v = self.v(memory).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, source, head_dim]
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=self.dropout if self.training else 0, scale=1
        )
        return self.out(y.transpose(1, 2).flatten(2))


class DecoderLayer(nn.Module):
    """decoder_layer (t5.arch:12)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.attention = Attention(config, dropout=0.1)
        self.dropout = nn.Dropout(0.1)
        self.cross_attention_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.cross_attention = CrossAttention(config, dropout=0.1)
        self.ffn_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.ffn = MLP(config, dropout=0.1)

    def forward(self, x: Tensor, memory: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), bias))
        x = x + self.dropout(self.cross_attention(self.cross_attention_norm(x), memory, mask))
        return x + self.dropout(self.ffn(self.ffn_norm(x)))


class T5Base(nn.Module):
    """t5_base (t5.arch:23)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.dropout = nn.Dropout(0.1)
        self.around = RelativeBias(config, sides=2)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        self.encoder_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.before = RelativeBias(config, sides=1)
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=1e-6)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()
        nn.init.normal_(self.token_embedding.weight, std=0.02)

    def forward(self, source: Tensor, target: Tensor, padding: Tensor) -> Tensor:
        frames = source.size(1)
        time = target.size(1)
        assert frames <= self.config.context, "at most `context` source tokens"
        assert time <= self.config.context, "at most `context` tokens"
        positions = torch.arange(frames, device=source.device)
        bias = torch.where(padding[:, None, None, :], self.around(positions, positions), -torch.inf)
        memory = self.dropout(self.token_embedding(source))
        for encoder in self.encoder:
            memory = encoder(memory, bias)
        memory = self.encoder_norm(memory)
        positions = torch.arange(time, device=source.device)
        query = positions[:, None]
        bias = torch.where(positions <= query, self.before(positions, positions), -torch.inf)
        mask = padding[:, None, None, :]  # [batch, 1, 1, frames]
        x = self.dropout(self.token_embedding(target))
        for decoder in self.decoder:
            x = decoder(x, memory, bias, mask)
        return F.linear(self.norm(x), self.token_embedding.weight) / math.sqrt(self.config.width)
