"""The Transformer (Vaswani et al., 2017): post-norm encoder-decoder for translation.

63,082,496 parameters. Made by archdsl 0.1.0 from transformer.arch (5708441801bb):
    archdsl compile transformer.arch:transformer_base --to torch
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    layers: int = 6
    width: int = 512
    heads: int = 8
    hidden: int = 2048
    dropout: float = 0.1
    vocab: int = 37_000
    context: int = 512

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            if name != "dropout":
                assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
                setattr(self, name, int(size))  # 24.0 is 24
        assert 0 <= self.dropout < 1, f"dropout must be at least 0 and less than 1: {self}"
        assert self.width % 2 == 0, f"the width must be even: half are sines, half cosines: {self}"
        assert self.width % self.heads == 0, f"width must be a multiple of heads: {self}"


def sinusoid(positions: Tensor, width: int, theta: float = 10_000) -> Tensor:
    """Embed positions by sines, then cosines, of wavelengths from 2π to 2π · theta (Vaswani et al., 2017)."""
    angle = positions[..., None] * theta ** -(torch.arange(0, width, 2, device=positions.device) / width)
    return torch.cat((angle.sin(), angle.cos()), dim=-1)


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al., 2017, section 3.2)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.width // config.heads
        self.dropout = config.dropout
        self.q = nn.Linear(config.width, config.width)
        self.k = nn.Linear(config.width, config.width)
        self.v = nn.Linear(config.width, config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        v = self.v(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, dropout_p=self.dropout if self.training else 0
        )
        return self.out(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear layers with an activation between them (Vaswani et al., 2017, section 3.3)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.hidden)
        self.down = nn.Linear(config.hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x)))


class EncoderLayer(nn.Module):
    """encoder_layer (transformer.arch:3)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.dropout = nn.Dropout(config.dropout)
        self.attention_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.ffn = MLP(config)
        self.ffn_norm = nn.LayerNorm(config.width, eps=1e-5)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x, mask)))
        return self.ffn_norm(x + self.dropout(self.ffn(x)))


class CrossAttention(nn.Module):
    """Multi-head attention (Vaswani et al., 2017, section 3.2)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.width // config.heads
        self.dropout = config.dropout
        self.q = nn.Linear(config.width, config.width)
        self.k = nn.Linear(config.width, config.width)
        self.v = nn.Linear(config.width, config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(memory).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, source, head_dim]
        v = self.v(memory).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, source, head_dim]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.dropout if self.training else 0)
        return self.out(y.transpose(1, 2).flatten(2))


class DecoderLayer(nn.Module):
    """decoder_layer (transformer.arch:12)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.dropout = nn.Dropout(config.dropout)
        self.attention_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.cross_attention = CrossAttention(config)
        self.cross_attention_norm = nn.LayerNorm(config.width, eps=1e-5)
        self.ffn = MLP(config)
        self.ffn_norm = nn.LayerNorm(config.width, eps=1e-5)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x)))
        x = self.cross_attention_norm(x + self.dropout(self.cross_attention(x, memory, mask)))
        return self.ffn_norm(x + self.dropout(self.ffn(x)))


class TransformerBase(nn.Module):
    """transformer_base (transformer.arch:24)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
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
        x = self.token_embedding(source) * math.sqrt(self.config.width)
        mask = padding[:, None, None, :]  # [batch, 1, 1, frames]
        memory = self.dropout(x + sinusoid(torch.arange(frames, device=source.device), self.config.width).type_as(x))
        for encoder in self.encoder:
            memory = encoder(memory, mask)
        x = self.token_embedding(target) * math.sqrt(self.config.width)
        x = self.dropout(x + sinusoid(torch.arange(time, device=source.device), self.config.width).type_as(x))
        for decoder in self.decoder:
            x = decoder(x, memory, mask)
        return F.linear(x, self.token_embedding.weight)
