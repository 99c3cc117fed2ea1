"""Mamba (Gu and Dao, 2023): a state of fixed size instead of attention; each token selects what it writes and reads.

129,135,360 parameters. Made by archdsl 0.1.0 from mamba.arch (632f29595d2b):
    archdsl compile mamba.arch:mamba_130m --to torch
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    layers: int = 24
    width: int = 768
    state: int = 16
    vocab: int = 50_280
    context: int = 1_048_576

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
            setattr(self, name, int(size))  # 24.0 is 24


def linear_recurrence(a: Tensor, b: Tensor) -> Tensor:
    """h[t] = a[t] * h[t - 1] + b[t] along axis 1: chunks of 32 positions in parallel, then from chunk to chunk."""
    time, rest = b.size(1), (0, 0) * (b.dim() - 2)
    padding = (*rest, 32, 32 * (time // 32 + 1) - time)  # a chunk of zeros before the first
    # 32 steps, each [batch, chunk, ...]
    a_steps, b_steps = (F.pad(t.float(), padding).unfold(1, 32, 32).unbind(-1) for t in (a, b))
    states, products = [b_steps[0]], [a_steps[0]]
    for a_t, b_t in zip(a_steps[1:], b_steps[1:]):
        states.append(a_t * states[-1] + b_t)
        products.append(a_t * products[-1])

    # The state after a chunk, from 2, 4, 8, … chunks; always 16 iterations, so that time can be any when exported.
    carry, factor = states[-1], products[-1]
    chunk = torch.arange(carry.size(1), device=b.device)
    for distance in (2**i for i in range(16)):
        before = (chunk - distance).clamp(min=0)
        carry = carry + factor * carry.index_select(1, before)
        factor = factor * factor.index_select(1, before)
    start = carry.index_select(1, (chunk - 1).clamp(min=0)).unsqueeze(2)
    h = torch.stack(states, dim=2) + torch.stack(products, dim=2) * start
    return h.flatten(1, 2).index_select(1, torch.arange(32, 32 + time, device=b.device)).to(b.dtype)


def selective_scan(x: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Scan Mamba: h[t] = exp(delta[t] a) h[t - 1] + delta[t] b[t] x[t] in each channel, read by y[t] = c[t] · h[t]."""
    delta = delta.float()
    decay = (delta[..., None] * a.float()).exp()  # [batch, time, channels, state]
    h = linear_recurrence(decay, (delta * x)[..., None] * b[:, :, None])
    return (h @ c.float()[..., None]).squeeze(-1).to(x.dtype)


class Mixer(nn.Module):
    """mixer (mamba.arch:3)"""

    def __init__(self, config: Config, hidden: int, rank: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.rank = rank
        self.state = config.state
        self.log_rates = nn.Parameter(torch.empty(hidden, config.state))
        self.skip = nn.Parameter(torch.empty(hidden))
        self.step_bias = nn.Parameter(torch.empty(hidden))
        self.input = nn.Linear(config.width, 2 * hidden, bias=False)
        self.conv = nn.Conv1d(hidden, hidden, 4, groups=hidden)
        self.select = nn.Linear(hidden, rank + 2 * config.state, bias=False)
        self.step = nn.Linear(rank, hidden, bias=False)
        self.output = nn.Linear(hidden, config.width, bias=False)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.log_rates.copy_(torch.log(1 + torch.arange(self.state)))
        nn.init.ones_(self.skip)
        self.step_bias.copy_(
            torch.log(
                torch.exp(torch.exp(math.log(0.01) + torch.empty(self.hidden).uniform_(-math.log(10), math.log(10))))
                - 1
            )
        )
        nn.init.uniform_(self.step.weight, -(self.rank**-0.5), self.rank**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        h, gate = self.input(x).split((self.hidden, self.hidden), dim=-1)
        h = F.silu(self.conv(F.pad(h.transpose(1, 2), (3, 0))).transpose(1, 2))
        step, b, c = self.select(h).split((self.rank, self.state, self.state), dim=-1)
        step = F.softplus(self.step(step) + self.step_bias)
        y = selective_scan(h, step, -torch.exp(self.log_rates), b, c) + self.skip * h
        return self.output(y * F.silu(gate))


class Layer(nn.Module):
    """layer (mamba.arch:17)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-5)
        self.attention = Mixer(config, hidden=2 * config.width, rank=-(-config.width // 16))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(self.attention_norm(x))


class Mamba130M(nn.Module):
    """mamba_130m (mamba.arch:23)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=1e-5)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()
        nn.init.normal_(self.token_embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        assert tokens.size(1) <= self.config.context, "at most `context` tokens"
        x = self.token_embedding(tokens)  # [batch, time, width]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token_embedding.weight)
