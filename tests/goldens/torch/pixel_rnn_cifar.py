"""PixelRNN (van den Oord et al., 2016): an image pixel by pixel and colour by colour, by LSTMs that run down its rows.

8,026,880 parameters. Made by archdsl 0.1.0 from pixel_rnn.arch (eefe7ff08ea7):
    archdsl compile pixel_rnn.arch:pixel_rnn_cifar --to torch
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    layers: int = 12
    hidden: int = 128
    readout: int = 1024
    colours: int = 3
    levels: int = 256

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
            setattr(self, name, int(size))  # 24.0 is 24


class OwnPixel(nn.Module):
    """The channels belong to the colours in turn, a third each."""

    def __init__(self, features: int, channels: int, gates: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(gates * features, channels))
        self.bias = nn.Parameter(torch.empty(gates * features))

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, open_: Tensor) -> Tensor:
        return torch.einsum("brci,oi->brco", x, torch.where(open_, self.weight, 0)) + self.bias


class FirstLayer(nn.Module):
    """The first layer, a convolution of 7 x 7 with mask A: three rows above, three pixels to the left, and the pixel
    itself."""

    def __init__(self, config: Config, features: int) -> None:
        super().__init__()
        self.colours = config.colours
        self.features = features
        self.channels = config.colours
        self.above = nn.Conv1d(3 * config.colours, features, 7, padding="same", bias=False)
        self.left = nn.Conv1d(config.colours, features, 3, bias=False)
        self.own = OwnPixel(features=features, channels=config.colours)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.size(1)
        h = F.pad(x, (0, 0, 0, 0, 2, 0))[:, :-2]
        h = torch.cat((F.pad(x, (0, 0, 0, 0, 1, -1)), h, F.pad(x, (0, 0, 0, 0, 3, 0))[:, :-3]), dim=-1)
        above = self.above(h.flatten(0, -3).transpose(1, 2)).transpose(1, 2).unflatten(0, (-1, rows))
        h = F.pad(x, (0, 0, 1, -1))
        left = self.left(F.pad(h.flatten(0, -3).transpose(1, 2), (2, 0))).transpose(1, 2).unflatten(0, (-1, rows))
        of_output = (
            self.colours * (torch.arange(self.features, device=x.device) % self.features) // self.features
        ).unsqueeze(1)
        later = (self.colours * torch.arange(self.channels, device=x.device) // self.channels).unsqueeze(0) - of_output
        return above + left + self.own(x, later < 0)


class RowLSTM(nn.Module):
    """The Row LSTM (section 3.1): all pixels of a row at once."""

    def __init__(self, config: Config, width: int) -> None:
        super().__init__()
        self.hidden = config.hidden
        self.left = nn.Linear(width, 4 * config.hidden, bias=False)
        self.own = OwnPixel(features=config.hidden, gates=4, channels=width)
        self.above = nn.Conv1d(config.hidden, 4 * config.hidden, 3, padding="same", bias=False)
        self.out = OwnPixel(features=width, channels=config.hidden)

    def forward(self, x: Tensor, open_: Tensor, open__2: Tensor) -> Tensor:
        batch = x.size(0)
        columns = x.size(2)
        seen = self.left(F.pad(x, (0, 0, 1, -1))) + self.own(x, open_)
        h = seen.new_zeros(batch, columns, self.hidden)
        c = seen.new_zeros(batch, columns, self.hidden)
        states = []
        for row in seen.unbind(1):
            h = row + self.above(h.transpose(1, 2)).transpose(1, 2)
            o, f, i, g = h.split((self.hidden, self.hidden, self.hidden, self.hidden), dim=-1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            states.append(h)
        states = torch.stack(states, dim=1)
        return x + self.out(states, open__2)


class PixelRNNCifar(nn.Module):
    """pixel_rnn_cifar (pixel_rnn.arch:38)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.first_layer = FirstLayer(config, features=2 * config.hidden)
        self.layers = nn.ModuleList(RowLSTM(config, width=2 * config.hidden) for _ in range(config.layers))
        self.readout_1 = OwnPixel(features=config.readout, channels=2 * config.hidden)
        self.readout_2 = OwnPixel(features=config.readout, channels=config.readout)
        self.output = OwnPixel(features=config.colours * config.levels, channels=config.readout)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()

    def forward(self, image: Tensor) -> Tensor:
        x = self.first_layer(image)
        positions = torch.arange(2 * self.config.hidden, device=image.device)
        of_input = (self.config.colours * positions // (2 * self.config.hidden)).unsqueeze(0)  # [1, 2 * hidden]
        of_output = (
            self.config.colours
            * (torch.arange(4 * self.config.hidden, device=image.device) % self.config.hidden)
            // self.config.hidden
        )
        open_ = of_input - of_output.unsqueeze(1) <= 0
        of_input_2 = (
            self.config.colours * torch.arange(self.config.hidden, device=image.device) // self.config.hidden
        ).unsqueeze(0)
        open__2 = (
            of_input_2
            - (self.config.colours * (positions % (2 * self.config.hidden)) // (2 * self.config.hidden)).unsqueeze(1)
            <= 0
        )
        for layer in self.layers:
            x = layer(x, open_, open__2)
        positions = torch.arange(self.config.readout, device=image.device)
        of_output = (self.config.colours * (positions % self.config.readout) // self.config.readout).unsqueeze(1)
        x = self.readout_1(F.relu(x), of_input - of_output <= 0)
        of_input = (self.config.colours * positions // self.config.readout).unsqueeze(0)  # [1, readout]
        x = self.readout_2(F.relu(x), of_input - of_output <= 0)
        times = self.config.colours * (
            torch.arange(self.config.colours * self.config.levels, device=image.device)
            % (self.config.colours * self.config.levels)
        )
        y = self.output(F.relu(x), of_input - (times // (self.config.colours * self.config.levels)).unsqueeze(1) <= 0)
        return y.unflatten(-1, (self.config.colours, self.config.levels))
