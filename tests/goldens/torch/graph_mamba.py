"""Graph-Mamba (Wang et al., 2024): nodes in the order of their degree, read by a selective scan.

499,594 parameters. Made by archdsl 0.1.0 from graph_mamba.arch (e23f99dffab7):
    archdsl compile graph_mamba.arch:graph_mamba --to torch
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    layers: int = 4
    width: int = 96
    state: int = 16
    features: int = 9
    classes: int = 10

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


class Noise(nn.Module):
    """Draw normal noise of a given standard deviation in training; zeros otherwise."""

    def forward(self, spread: Tensor) -> Tensor:
        return spread * torch.randn_like(spread) if self.training else spread * 0


class MessagePassing(nn.Module):
    """What the neighbours of a node say on average, and the node itself."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.own = nn.Linear(config.width, config.width)
        self.neighbours = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        around = adjacency @ x / adjacency.sum(-1, keepdim=True).clamp(min=1)
        return F.relu(self.own(x) + self.neighbours(around))


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


class NodeScan(nn.Module):
    """The scan reads from nodes of few neighbours to those of many: the hubs, which matter most, have seen all
    others."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.width = config.width
        self.noise = Noise()
        self.mixer = Mixer(config, hidden=2 * config.width, rank=-(-config.width // 16))

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        nodes = x.size(1)
        degree = adjacency.sum(-1).float()
        if self.training:
            rank = degree + 0.1 * self.noise(torch.ones(x.size(0), nodes, dtype=x.dtype, device=x.device))
        else:
            rank = degree + torch.arange(nodes, device=x.device) / nodes
        order = rank.argsort(dim=-1)
        y = self.mixer(x.gather(1, order.unsqueeze(-1).expand(-1, -1, self.width)))
        return y.gather(1, order.argsort(dim=-1).unsqueeze(-1).expand(-1, -1, self.width))


class MLP(nn.Module):
    """Two linear layers with an activation between them (Vaswani et al., 2017, section 3.3)."""

    def __init__(self, config: Config, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, hidden)
        self.down = nn.Linear(hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x)))


class GraphLayer(nn.Module):
    """graph_layer (graph_mamba.arch:30)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.message_passing = MessagePassing(config)
        self.local_norm = nn.BatchNorm1d(config.width)
        self.node_scan = NodeScan(config)
        self.scan_norm = nn.BatchNorm1d(config.width)
        self.ffn = MLP(config, hidden=2 * config.width)
        self.ffn_norm = nn.BatchNorm1d(config.width)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        local = self.local_norm((x + self.message_passing(x, adjacency)).transpose(1, 2)).transpose(1, 2)
        far = self.scan_norm((x + self.node_scan(x, adjacency)).transpose(1, 2)).transpose(1, 2)
        h = local + far
        return self.ffn_norm((h + self.ffn(h)).transpose(1, 2)).transpose(1, 2)


class GraphMamba(nn.Module):
    """graph_mamba (graph_mamba.arch:38)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.node_embedding = nn.Linear(config.features, config.width)
        self.blocks = nn.ModuleList(GraphLayer(config) for _ in range(config.layers))
        self.head = nn.Linear(config.width, config.classes)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()

    def forward(self, atoms: Tensor, adjacency: Tensor) -> Tensor:
        x = self.node_embedding(atoms)
        for block in self.blocks:
            x = block(x, adjacency)
        return self.head(x.mean(1))
