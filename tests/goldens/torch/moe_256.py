"""Sparsely gated mixture of experts (Shazeer et al., 2017): each word asks four of up to 4096, between two LSTMs.

1,086,207,871 parameters. Made by archdsl 0.1.0 from sparsely_gated_moe.arch (061cd90d0ec5):
    archdsl compile sparsely_gated_moe.arch:moe_256 --to torch
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    experts: int = 256
    top_k: int = 4
    groups: int = 0
    width: int = 512
    hidden: int = 1024
    vocab: int = 793_471

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            if name != "groups":
                assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
                setattr(self, name, int(size))  # 24.0 is 24
        assert self.groups == 0, f"`groups == 0` was decided by these numbers: compile again with --set: {self}"
        assert self.top_k <= self.experts, f"top_k must be at most the number of experts: {self}"
        assert self.top_k < self.experts, "`k < experts` was decided by these numbers: compile again with --set"
        assert self.top_k + 1 <= self.experts, (
            f"top_k + 1 <= experts: k of `topk` must be at most the length of the axis: {self}"
        )


class Noise(nn.Module):
    """Draw normal noise of a given standard deviation in training; zeros otherwise."""

    def forward(self, spread: Tensor) -> Tensor:
        return spread * torch.randn_like(spread) if self.training else spread * 0


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


class LSTM(nn.Module):
    """One layer of long short-term memory: nn.LSTM as a function, which torch.compile takes whole."""

    def __init__(self, inputs: int, hidden: int, bias: bool = True) -> None:
        super().__init__()
        self.hidden = hidden
        self.bias = bias
        self.weight_ih_l0 = nn.Parameter(torch.empty(4 * hidden, inputs))
        self.weight_hh_l0 = nn.Parameter(torch.empty(4 * hidden, hidden))
        if bias:
            self.bias_ih_l0 = nn.Parameter(torch.empty(4 * hidden))
            self.bias_hh_l0 = nn.Parameter(torch.empty(4 * hidden))

    def reset_parameters(self) -> None:
        for weight in self.parameters():
            nn.init.uniform_(weight, -(self.hidden**-0.5), self.hidden**-0.5)

    def forward(self, x: Tensor, h: Tensor | None = None, c: Tensor | None = None) -> Tensor:
        zeros = x.new_zeros(x.size(0), self.hidden)
        start = [(zeros if s is None else s)[None] for s in (h, c)]
        weights = list(self.parameters())
        return torch.lstm(x, start, weights, self.bias, 1, 0.0, self.training, False, True)[0]


class NoisyScores(nn.Module):
    """The scores of a gate and the spread of their noise."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.experts, bias=False)
        self.spread = nn.Linear(config.width, config.experts, bias=False)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.gate.weight, std=0.001)
        nn.init.zeros_(self.spread.weight)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.gate(x).float(), F.softplus(self.spread(x).float())


class NoisyRouter(nn.Module):
    """noisy_router (sparsely_gated_moe.arch:37)"""

    def __init__(self, config: Config, importance: float = 0.1, load: float = 0.1) -> None:
        super().__init__()
        self.top_k = config.top_k
        self.experts = config.experts
        self.importance = importance
        self.load = load
        self.scores = NoisyScores(config)
        self.noise = Noise()

    def forward(self, x: Tensor, losses: dict[str, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        clean, spread = self.scores(x)
        noisy = clean + self.noise(spread)
        best, chosen = noisy.topk(self.top_k)
        bounds, _ = noisy.topk(self.top_k + 1)
        h = bounds[..., self.top_k - 1 : self.top_k]
        h = clean - torch.where(noisy > bounds[..., self.top_k :], bounds[..., self.top_k :], h)
        chance = 0.5 + 0.5 * torch.erf(h / (spread * math.sqrt(2)))
        weights = best.softmax(-1)
        if losses is not None:
            h = (weights.unsqueeze(-1) * F.one_hot(chosen, self.experts).float()).sum(-2).flatten(0, -2).sum(0)
            losses["importance"] = losses.get("importance", 0) + self.importance * (
                h.var(-1, correction=0) / (h.mean(-1).square() + 1e-10)
            )
        if losses is not None:
            h = chance.flatten(0, -2).sum(0)
            losses["load"] = losses.get("load", 0) + self.load * (
                h.var(-1, correction=0) / (h.mean(-1).square() + 1e-10)
            )
        return weights.type_as(x), chosen


class MLP(nn.Module):
    """Two linear layers with an activation between them (Vaswani et al., 2017, section 3.3)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.up = GroupedLinear(config.experts, config.width, config.hidden)
        self.down = GroupedLinear(config.experts, config.hidden, config.width)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x, ends)), ends)


class MoE(nn.Module):
    """Mixture of experts: each token goes to its `top_k` experts, weighted by the router."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.num_experts = config.experts
        self.router = NoisyRouter(config)
        self.experts = MLP(config)

    def forward(self, x: Tensor, losses: dict[str, Tensor] | None = None) -> Tensor:
        weights, chosen = self.router(x, losses)
        tokens = x.flatten(0, -2)
        expert, order = chosen.flatten().sort(stable=True)  # (token, choice) pairs, sorted by expert
        ends = torch.searchsorted(expert, torch.arange(self.num_experts, device=x.device), right=True, out_int32=True)
        token = order // chosen.size(-1)
        y = self.experts(tokens[token], ends) * weights.flatten()[order, None].to(x.dtype)
        return torch.zeros_like(tokens).index_add(0, token, y).view_as(x)


class MoE256(nn.Module):
    """moe_256 (sparsely_gated_moe.arch:71)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.dropout = nn.Dropout(0.1)
        self.lower = LSTM(config.width, config.width)
        self.moe = MoE(config)
        self.upper = LSTM(config.width, config.width)
        self.head = nn.Linear(config.width, config.vocab)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()
        nn.init.normal_(self.token_embedding.weight, std=0.02)

    def forward(self, tokens: Tensor, losses: dict[str, Tensor] | None = None) -> Tensor:
        x = self.dropout(self.token_embedding(tokens))
        x = x + self.dropout(self.lower(x))
        x = x + self.dropout(torch.sigmoid(self.moe(x, losses)))
        x = x + self.dropout(self.upper(x))
        return self.head(x)
