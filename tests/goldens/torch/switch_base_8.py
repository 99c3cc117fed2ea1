"""Switch Transformer (Fedus et al., 2021): T5 with mixtures of experts, each token going to a single one.

619,339,008 parameters. Made by archdsl 0.1.0 from switch.arch (76fbea327bde):
    archdsl compile switch.arch:switch_base_8 --to torch
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    pairs: int = 6
    width: int = 768
    heads: int = 12
    hidden: int = 3072
    experts: int = 8
    vocab: int = 32_128
    context: int = 512

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
            setattr(self, name, int(size))  # 24.0 is 24


def grouped_mm(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Multiply x [rows, in], sorted by expert, by weight [experts, in, out]; `ends` [experts] is where rows end."""
    if not x.is_meta and torch.is_autocast_enabled(x.device.type):
        x, weight = (t.to(torch.get_autocast_dtype(x.device.type)) for t in (x, weight))
    kinds = (torch.bfloat16,) if torch.compiler.is_compiling() else (torch.bfloat16, torch.float16, torch.float32)
    aligned = all(size * x.element_size() % 16 == 0 for size in weight.shape[1:])
    if hasattr(F, "grouped_mm") and aligned and x.dtype in kinds:  # torch >= 2.10
        return F.grouped_mm(x, weight, offs=ends)
    rows = x.tensor_split(ends[:-1].long().cpu())
    return torch.cat([part @ matrix for part, matrix in zip(rows, weight)])


class GroupedLinear(nn.Module):
    """One linear layer per expert, for rows sorted by expert."""

    def __init__(self, experts: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, outputs, inputs))

    def reset_parameters(self) -> None:
        bound = self.weight.size(2) ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        return grouped_mm(x, self.weight.transpose(1, 2), ends)


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

    def __init__(self, config: Config, head_dim: int, dropout: float = 0) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.dropout = dropout
        self.q = nn.Linear(config.width, config.heads * head_dim, bias=False)
        self.k = nn.Linear(config.width, config.heads * head_dim, bias=False)
        self.v = nn.Linear(config.width, config.heads * head_dim, bias=False)
        self.out = nn.Linear(config.heads * head_dim, config.width, bias=False)

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


class DenseEncoderLayer(nn.Module):
    """encoder_layer (switch.arch:6)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.attention = Attention(config, head_dim=64, dropout=0.1)
        self.dropout = nn.Dropout(0.1)
        self.ffn_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.ffn = MLP(config, dropout=0.1)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), bias))
        return x + self.dropout(self.ffn(self.ffn_norm(x)))


class SoftmaxRouter(nn.Module):
    """Softmax over all experts, then the best (Shazeer et al., 2017; Mixtral)."""

    def __init__(self, config: Config, top_k: int, balance: float = 0) -> None:
        super().__init__()
        self.top_k = top_k
        self.experts = config.experts
        self.balance = balance
        self.gate = nn.Linear(config.width, config.experts, bias=False)

    def forward(self, x: Tensor, losses: dict[str, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        logits = self.gate(x).float()
        scores = logits.softmax(-1)
        weights, chosen = scores.topk(self.top_k)
        if losses is not None:
            h = F.one_hot(chosen, self.experts).sum(-2).float().flatten(0, -2).mean(0)
            losses["balance"] = losses.get("balance", 0) + self.balance * self.experts * (
                h * scores.flatten(0, -2).mean(0)
            ).sum(-1)
        return weights.type_as(x), chosen


class ExpertMLP(nn.Module):
    """Two linear layers with an activation between them (Vaswani et al., 2017, section 3.3)."""

    def __init__(self, config: Config, dropout: float = 0) -> None:
        super().__init__()
        self.up = GroupedLinear(config.experts, config.width, config.hidden)
        self.dropout = nn.Dropout(dropout)
        self.down = GroupedLinear(config.experts, config.hidden, config.width)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        return self.down(self.dropout(F.relu(self.up(x, ends))), ends)


class MoE(nn.Module):
    """Mixture of experts: each token goes to its `top_k` experts, weighted by the router."""

    def __init__(self, config: Config, top_k: int) -> None:
        super().__init__()
        assert top_k <= config.experts, "top_k must be at most the number of experts"
        self.num_experts = config.experts
        self.router = SoftmaxRouter(config, top_k=top_k, balance=0.01)
        self.experts = ExpertMLP(config, dropout=0.1)

    def forward(self, x: Tensor, losses: dict[str, Tensor] | None = None) -> Tensor:
        weights, chosen = self.router(x, losses)
        tokens = x.flatten(0, -2)
        expert, order = chosen.flatten().sort(stable=True)  # (token, choice) pairs, sorted by expert
        ends = torch.searchsorted(expert, torch.arange(self.num_experts, device=x.device), right=True, out_int32=True)
        token = order // chosen.size(-1)
        y = self.experts(tokens[token], ends) * weights.flatten()[order, None].to(x.dtype)
        return torch.zeros_like(tokens).index_add(0, token, y).view_as(x)


class SparseEncoderLayer(nn.Module):
    """encoder_layer (switch.arch:6)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.attention = Attention(config, head_dim=64, dropout=0.1)
        self.dropout = nn.Dropout(0.1)
        self.ffn_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.ffn = MoE(config, top_k=1)

    def forward(self, x: Tensor, bias: Tensor, losses: dict[str, Tensor] | None = None) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), bias))
        return x + self.dropout(self.ffn(self.ffn_norm(x), losses))


class CrossAttention(nn.Module):
    """Multi-head attention (Vaswani et al., 2017, section 3.2)."""

    def __init__(self, config: Config, head_dim: int, dropout: float = 0) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.dropout = dropout
        self.q = nn.Linear(config.width, config.heads * head_dim, bias=False)
        self.k = nn.Linear(config.width, config.heads * head_dim, bias=False)
        self.v = nn.Linear(config.width, config.heads * head_dim, bias=False)
        self.out = nn.Linear(config.heads * head_dim, config.width, bias=False)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(memory).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, source, head_dim]
        v = self.v(memory).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, source, head_dim]
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=self.dropout if self.training else 0, scale=1
        )
        return self.out(y.transpose(1, 2).flatten(2))


class DenseDecoderLayer(nn.Module):
    """decoder_layer (switch.arch:15)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.attention = Attention(config, head_dim=64, dropout=0.1)
        self.dropout = nn.Dropout(0.1)
        self.cross_attention_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.cross_attention = CrossAttention(config, head_dim=64, dropout=0.1)
        self.ffn_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.ffn = MLP(config, dropout=0.1)

    def forward(self, x: Tensor, memory: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), bias))
        x = x + self.dropout(self.cross_attention(self.cross_attention_norm(x), memory, mask))
        return x + self.dropout(self.ffn(self.ffn_norm(x)))


class SparseDecoderLayer(nn.Module):
    """decoder_layer (switch.arch:15)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.attention = Attention(config, head_dim=64, dropout=0.1)
        self.dropout = nn.Dropout(0.1)
        self.cross_attention_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.cross_attention = CrossAttention(config, head_dim=64, dropout=0.1)
        self.ffn_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.ffn = MoE(config, top_k=1)

    def forward(
        self, x: Tensor, memory: Tensor, bias: Tensor, mask: Tensor, losses: dict[str, Tensor] | None = None
    ) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), bias))
        x = x + self.dropout(self.cross_attention(self.cross_attention_norm(x), memory, mask))
        return x + self.dropout(self.ffn(self.ffn_norm(x), losses))


class SwitchBase8(nn.Module):
    """switch_base_8 (switch.arch:27)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.dropout = nn.Dropout(0.1)
        self.around = RelativeBias(config, sides=2)
        self.encoder = nn.ModuleList(kind(config) for kind in config.pairs * [DenseEncoderLayer, SparseEncoderLayer])
        self.encoder_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.before = RelativeBias(config, sides=1)
        self.decoder = nn.ModuleList(kind(config) for kind in config.pairs * [DenseDecoderLayer, SparseDecoderLayer])
        self.norm = nn.RMSNorm(config.width, eps=1e-6)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()
        nn.init.normal_(self.token_embedding.weight, std=0.02)

    def forward(
        self, source: Tensor, target: Tensor, padding: Tensor, losses: dict[str, Tensor] | None = None
    ) -> Tensor:
        frames = source.size(1)
        time = target.size(1)
        assert frames <= self.config.context, "at most `context` source tokens"
        assert time <= self.config.context, "at most `context` tokens"
        positions = torch.arange(frames, device=source.device)
        bias = torch.where(padding[:, None, None, :], self.around(positions, positions), -torch.inf)
        memory = self.dropout(self.token_embedding(source))
        for encoder_1, encoder_2 in zip(self.encoder[::2], self.encoder[1::2]):
            memory = encoder_1(memory, bias)
            memory = encoder_2(memory, bias, losses)
        memory = self.encoder_norm(memory)
        positions = torch.arange(time, device=source.device)
        query = positions[:, None]
        bias = torch.where(positions <= query, self.before(positions, positions), -torch.inf)
        mask = padding[:, None, None, :]  # [batch, 1, 1, frames]
        x = self.dropout(self.token_embedding(target))
        for decoder_1, decoder_2 in zip(self.decoder[::2], self.decoder[1::2]):
            x = decoder_1(x, memory, bias, mask)
            x = decoder_2(x, memory, bias, mask, losses)
        return F.linear(self.norm(x), self.token_embedding.weight) / math.sqrt(self.config.width)
