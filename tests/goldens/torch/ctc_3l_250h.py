"""Deep recurrent networks (Graves et al., 2013): bidirectional LSTMs in layers, which label the frames of speech.

3,787,562 parameters. Made by archdsl 0.1.0 from deep_rnn.arch (52d56064b36c):
    archdsl compile deep_rnn.arch:ctc_3l_250h --to torch
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class Config:
    layers: int = 3
    hidden: int = 250
    features: int = 123
    classes: int = 62
    both_ways: bool = True

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            if name != "both_ways":
                assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
                setattr(self, name, int(size))  # 24.0 is 24
        assert self.layers == 3, f"`forward` is written for layers == 3: compile again with --set: {self}"
        assert self.both_ways is True, f"the graph depends on both_ways == True: compile again with --set: {self}"


class PeepholeLSTM(nn.Module):
    """An LSTM whose gates also see the cell, each channel its own: input and forget gate the one before, output gate
    the new one."""

    def __init__(self, config: Config, width: int) -> None:
        super().__init__()
        self.hidden = config.hidden
        self.see_i = nn.Parameter(torch.empty(config.hidden))
        self.see_f = nn.Parameter(torch.empty(config.hidden))
        self.see_o = nn.Parameter(torch.empty(config.hidden))
        self.input = nn.Linear(width, 4 * config.hidden)
        self.state = nn.Linear(config.hidden, 4 * config.hidden, bias=False)

    def reset_parameters(self) -> None:
        for weight in (self.see_i, self.see_f, self.see_o):
            nn.init.uniform_(weight, -0.1, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.size(0)
        inputs = self.input(x)
        h = inputs.new_zeros(batch, self.hidden)
        c = inputs.new_zeros(batch, self.hidden)
        ys = []
        for x_t in inputs.unbind(1):
            i, f, g, o = (x_t + self.state(h)).split((self.hidden, self.hidden, self.hidden, self.hidden), dim=-1)
            c = torch.sigmoid(f + self.see_f * c) * c + torch.sigmoid(i + self.see_i * c) * torch.tanh(g)
            h = torch.sigmoid(o + self.see_o * c) * torch.tanh(c)
            ys.append(h)
        return torch.stack(ys, dim=1)


class Bidirectional(nn.Module):
    """A recurrence read forwards and backwards, side by side: [batch, time, 2 * hidden]."""

    def __init__(self, config: Config, width: int) -> None:
        super().__init__()
        self.forwards = PeepholeLSTM(config, width=width)
        self.backwards = PeepholeLSTM(config, width=width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((self.forwards(x), self.backwards(x.flip(1)).flip(1)), dim=-1)


class Ctc3L250H(nn.Module):
    """ctc_3l_250h (deep_rnn.arch:21)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            Bidirectional(config, width=width) for width in [config.features] + 2 * [2 * config.hidden]
        )
        self.output = nn.Linear(2 * config.hidden, config.classes)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()

    def forward(self, frames: Tensor) -> Tensor:
        x = frames
        for layer in self.layers:
            x = layer(x)
        return self.output(x)
