"""Neural Turing Machine (Graves et al., 2014): an LSTM that reads and writes a memory, by content and by location.

65,220 parameters. Made by archdsl 0.1.0 from ntm.arch (e1119730d7c6):
    archdsl compile ntm.arch:ntm_copy --to torch
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    inputs: int = 9
    outputs: int = 8
    hidden: int = 100
    rows: int = 128
    cells: int = 20
    heads: int = 1

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
            setattr(self, name, int(size))  # 24.0 is 24
        assert self.heads == 1, f"`forward` is written for heads == 1: compile again with --set: {self}"


class Address(nn.Module):
    """Where a head looks (section 3.3): by content, or where it looked before; then moved by at most one row, and
    sharpened."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.key = nn.Linear(config.hidden, config.cells)
        self.strength = nn.Linear(config.hidden, 1)
        self.gate = nn.Linear(config.hidden, 1)
        self.turn = nn.Linear(config.hidden, 3)
        self.sharp = nn.Linear(config.hidden, 1)

    def forward(self, h: Tensor, memory: Tensor, before: Tensor) -> Tensor:
        key = torch.tanh(self.key(h))
        strength = F.softplus(self.strength(h))
        gate = torch.sigmoid(self.gate(h))
        turn = self.turn(h).softmax(-1)
        sharp = 1 + F.softplus(self.sharp(h))
        alike = torch.einsum("bc,brc->br", F.normalize(key, dim=-1), F.normalize(memory, dim=-1))
        weights = gate * (strength * alike).softmax(-1) + (1 - gate) * before
        h = turn[:, :1] * weights.roll(-1, dims=1) + turn[:, 1:2] * weights
        weights = h + turn[:, 2:] * weights.roll(1, dims=1)
        weights = weights**sharp
        return weights / weights.sum(-1, keepdim=True)


class Write(nn.Module):
    """What a head writes (section 3.2): at each row something is erased, then something added."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.erase = nn.Linear(config.hidden, config.cells)
        self.add = nn.Linear(config.hidden, config.cells)

    def forward(self, h: Tensor, memory: Tensor, weights: Tensor) -> Tensor:
        erase = torch.sigmoid(self.erase(h))
        add = torch.tanh(self.add(h))
        kept = memory * (1 - torch.einsum("br,bc->brc", weights, erase))
        return kept + torch.einsum("br,bc->brc", weights, add)


class NtmCopy(nn.Module):
    """ntm_copy (ntm.arch:29)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.start = nn.Parameter(torch.empty(config.rows, config.cells))
        self.lstm_cell = nn.LSTMCell(config.inputs + config.heads * config.cells, config.hidden)
        self.write_to = nn.ModuleList([Address(config)])
        self.write = nn.ModuleList([Write(config)])
        self.read_from = nn.ModuleList([Address(config)])
        self.output = nn.Linear(config.hidden + config.heads * config.cells, config.outputs)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()
        nn.init.normal_(self.start, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.size(0)
        h = x.new_zeros(batch, self.config.hidden)
        c = x.new_zeros(batch, self.config.hidden)
        memory = self.start.unsqueeze(0).expand(batch, -1, -1)
        writes = x.new_zeros(batch, self.config.heads, self.config.rows)
        reads = x.new_zeros(batch, self.config.heads, self.config.rows)
        answers = x.new_zeros(batch, self.config.heads, self.config.cells)
        seens = []
        for x_t in x.unbind(1):
            h, c = self.lstm_cell(torch.cat((x_t, answers.flatten(1)), dim=-1), (h, c))
            writing = []
            for write_to, write in zip(self.write_to, self.write):
                w = write_to(h, memory, writes[:, 0])
                memory = write(h, memory, w)  # [batch, rows, cells]
                writing.append(w)
            reading = []
            for read_from in self.read_from:
                w = read_from(h, memory, reads[:, 0])
                reading.append(w)
            writes = torch.stack(writing, dim=1)  # [batch, heads, rows]
            reads = torch.stack(reading, dim=1)  # [batch, heads, rows]
            answers = torch.einsum("bhr,brc->bhc", reads, memory)
            seens.append(torch.cat((h, answers.flatten(1)), dim=-1))
        seen = torch.stack(seens, dim=1)
        return self.output(seen)
