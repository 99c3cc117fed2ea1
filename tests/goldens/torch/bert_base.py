"""BERT (Devlin et al., 2018): post-norm bidirectional encoder with segments; pre-training and fine-tuning heads.

110,106,428 parameters. Made by archdsl 0.1.0 from bert.arch (fea9959b23fa):
    archdsl compile bert.arch:bert_base --to torch
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    layers: int = 12
    width: int = 768
    heads: int = 12
    vocab: int = 30_522
    context: int = 512

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
            setattr(self, name, int(size))  # 24.0 is 24
        assert self.width % self.heads == 0, f"width must be a multiple of heads: {self}"


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al., 2017, section 3.2)."""

    def __init__(self, config: Config, dropout: float = 0) -> None:
        super().__init__()
        self.head_dim = config.width // config.heads
        self.dropout = dropout
        self.q = nn.Linear(config.width, config.width)
        self.k = nn.Linear(config.width, config.width)
        self.v = nn.Linear(config.width, config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        v = self.v(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.dropout if self.training else 0)
        return self.out(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear layers with an activation between them (Vaswani et al., 2017, section 3.3)."""

    def __init__(self, config: Config, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, hidden)
        self.down = nn.Linear(hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class EncoderLayer(nn.Module):
    """encoder_layer (bert.arch:6)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = Attention(config, dropout=0.1)
        self.dropout = nn.Dropout(0.1)
        self.attention_norm = nn.LayerNorm(config.width, eps=1e-12)
        self.ffn = MLP(config, hidden=4 * config.width)
        self.ffn_norm = nn.LayerNorm(config.width, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x, mask)))
        return self.ffn_norm(x + self.dropout(self.ffn(x)))


class MaskedLM(nn.Module):
    """BERT's masked-language-model head: a linear layer, an activation and a norm before the (tied) logits."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.dense = nn.Linear(config.width, config.width)
        self.norm = nn.LayerNorm(config.width, eps=1e-12)
        self.bias = nn.Parameter(torch.empty(config.vocab))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, token_embedding: Tensor) -> Tensor:
        return F.linear(self.norm(F.gelu(self.dense(x))), token_embedding) + self.bias


class NextSentence(nn.Module):
    """BERT's two-way head on the first position."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.pooler = nn.Linear(config.width, config.width)
        self.classifier = nn.Linear(config.width, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))


class BERTBase(nn.Module):
    """bert_base (bert.arch:16)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.position = nn.Embedding(config.context, config.width)
        self.segment_embedding = nn.Embedding(2, config.width)
        self.embedding_norm = nn.LayerNorm(config.width, eps=1e-12)
        self.dropout = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        self.mlm = MaskedLM(config)
        self.next_sentence = NextSentence(config)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()
        for embedding in (self.token_embedding, self.position, self.segment_embedding):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: Tensor, segments: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        time = tokens.size(1)
        assert time <= self.config.context, "at most `context` tokens"
        x = self.token_embedding(tokens) + self.position(torch.arange(time, device=tokens.device))
        mask = padding[:, None, None, :]  # [batch, 1, 1, time]
        x = self.dropout(self.embedding_norm(x + self.segment_embedding(segments)))
        for block in self.blocks:
            x = block(x, mask)
        return self.mlm(x, self.token_embedding.weight), self.next_sentence(x)
