"""WaveNet (van den Oord et al., 2016): audio sample by sample, by dilated causal convolutions with gates and skips.

1,271,424 parameters. Made by archdsl 0.1.0 from wavenet.arch (23da298adc9e):
    archdsl compile wavenet.arch:wavenet --to torch
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    levels: int = 256
    width: int = 64
    gate: int = 64
    skip: int = 256
    kernel: int = 2
    stacks: int = 3
    depth: int = 10

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            if name not in ("stacks", "depth"):
                assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
                setattr(self, name, int(size))  # 24.0 is 24
        assert self.stacks == 3, f"`forward` is written for stacks == 3: compile again with --set: {self}"
        assert self.depth == 10, f"`forward` is written for depth == 10: compile again with --set: {self}"


class DilatedLayer(nn.Module):
    """A dilated convolution with a gate (equation 2): one map of it out to the sum of skips, one, unless it is the
    last, back onto the residual stream."""

    def __init__(self, config: Config, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.kernel = config.kernel
        self.filter = nn.Conv1d(config.width, config.gate, config.kernel, dilation=dilation)
        self.gate = nn.Conv1d(config.width, config.gate, config.kernel, dilation=dilation)
        self.skip = nn.Linear(config.gate, config.skip)
        self.residual = nn.Linear(config.gate, config.width)

    def forward(self, x: Tensor, skips: Tensor) -> tuple[Tensor, Tensor]:
        filter_ = self.filter(F.pad(x.transpose(1, 2), (self.dilation * (self.kernel - 1), 0))).transpose(1, 2)
        opened = self.gate(F.pad(x.transpose(1, 2), (self.dilation * (self.kernel - 1), 0))).transpose(1, 2)
        h = torch.tanh(filter_) * torch.sigmoid(opened)
        return x + self.residual(h), skips + self.skip(h)


class DilatedLayer2(nn.Module):
    """A dilated convolution with a gate (equation 2): one map of it out to the sum of skips, one, unless it is the
    last, back onto the residual stream."""

    def __init__(self, config: Config, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.kernel = config.kernel
        self.filter = nn.Conv1d(config.width, config.gate, config.kernel, dilation=dilation)
        self.gate = nn.Conv1d(config.width, config.gate, config.kernel, dilation=dilation)
        self.skip = nn.Linear(config.gate, config.skip)

    def forward(self, x: Tensor, skips: Tensor) -> tuple[Tensor, Tensor]:
        filter_ = self.filter(F.pad(x.transpose(1, 2), (self.dilation * (self.kernel - 1), 0))).transpose(1, 2)
        opened = self.gate(F.pad(x.transpose(1, 2), (self.dilation * (self.kernel - 1), 0))).transpose(1, 2)
        return x, skips + self.skip(torch.tanh(filter_) * torch.sigmoid(opened))


class Wavenet(nn.Module):
    """wavenet (wavenet.arch:18)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.levels, config.width)
        self.conv1d = nn.Conv1d(config.width, config.width, config.kernel)
        self.layers = nn.ModuleList(
            [
                DilatedLayer(config, dilation=1),
                DilatedLayer(config, dilation=2),
                DilatedLayer(config, dilation=4),
                DilatedLayer(config, dilation=8),
                DilatedLayer(config, dilation=16),
                DilatedLayer(config, dilation=32),
                DilatedLayer(config, dilation=64),
                DilatedLayer(config, dilation=128),
                DilatedLayer(config, dilation=256),
                DilatedLayer(config, dilation=512),
                DilatedLayer(config, dilation=1),
                DilatedLayer(config, dilation=2),
                DilatedLayer(config, dilation=4),
                DilatedLayer(config, dilation=8),
                DilatedLayer(config, dilation=16),
                DilatedLayer(config, dilation=32),
                DilatedLayer(config, dilation=64),
                DilatedLayer(config, dilation=128),
                DilatedLayer(config, dilation=256),
                DilatedLayer(config, dilation=512),
                DilatedLayer(config, dilation=1),
                DilatedLayer(config, dilation=2),
                DilatedLayer(config, dilation=4),
                DilatedLayer(config, dilation=8),
                DilatedLayer(config, dilation=16),
                DilatedLayer(config, dilation=32),
                DilatedLayer(config, dilation=64),
                DilatedLayer(config, dilation=128),
                DilatedLayer(config, dilation=256),
                DilatedLayer2(config, dilation=512),
            ]
        )
        self.post = nn.Linear(config.skip, config.skip)
        self.head = nn.Linear(config.skip, config.levels)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, samples: Tensor) -> Tensor:
        x = self.conv1d(F.pad(self.embedding(samples).transpose(1, 2), (self.config.kernel - 1, 0))).transpose(1, 2)
        skips = torch.zeros(
            samples.size(0),
            samples.size(1),
            self.config.skip,
            dtype=next(self.parameters()).dtype,
            device=samples.device,
        )
        for i in range(3):
            for layer in self.layers[10 * i : 10 * (i + 1)]:
                x, skips = layer(x, skips)
        return self.head(F.relu(self.post(F.relu(skips))))
