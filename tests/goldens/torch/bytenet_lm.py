"""ByteNet (Kalchbrenner et al., 2016): translates characters in linear time, by dilated convolutions on both sides.

158,527,232 parameters. Made by archdsl 0.1.0 from bytenet.arch (8ff2ece64e91):
    archdsl compile bytenet.arch:bytenet_lm --to torch
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    vocab: int = 256
    inner: int = 512
    sets: int = 6
    depth: int = 5
    kernel: int = 3

    def __post_init__(self) -> None:
        assert min(vars(self).values()) >= 1, f"sizes and counts must be whole numbers of at least 1: {self}"
        assert self.depth == 5, f"`forward` is written for this number: compile again with --set: {self}"


class MultiplicativeUnit(nn.Module):
    """A multiplicative unit (section 3.6): three gates around the input and a new value, all of them by one
    convolution."""

    def __init__(self, kernel: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.conv1d = nn.Conv1d(width, 4 * width, kernel)

    def forward(self, x: Tensor) -> Tensor:
        all_ = self.conv1d(x.transpose(1, 2)).transpose(1, 2)
        a, b, c, new = all_.split((self.width, self.width, self.width, self.width), dim=-1)
        return torch.sigmoid(a) * torch.tanh(torch.sigmoid(b) * x + torch.sigmoid(c) * torch.tanh(new))


class MultiplicativeUnit2(nn.Module):
    """A multiplicative unit (section 3.6): three gates around the input and a new value, all of them by one
    convolution."""

    def __init__(self, config: Config, dilation: int, width: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.kernel = config.kernel
        self.width = width
        self.conv1d = nn.Conv1d(width, 4 * width, config.kernel)

    def forward(self, x: Tensor) -> Tensor:
        all_ = self.conv1d(F.pad(x.transpose(1, 2), (self.dilation * (self.kernel - 1), 0))).transpose(1, 2)
        a, b, c, new = all_.split((self.width, self.width, self.width, self.width), dim=-1)
        return torch.sigmoid(a) * torch.tanh(torch.sigmoid(b) * x + torch.sigmoid(c) * torch.tanh(new))


class MultiplicativeBlock(nn.Module):
    """A residual block of two multiplicative units: the first looks at one place, the second along time."""

    def __init__(self, config: Config, dilation: int, width: int) -> None:
        super().__init__()
        self.layernorm = nn.LayerNorm(width, eps=1e-5)
        self.narrow = nn.Linear(width, width // 2)
        self.layernorm_2 = nn.LayerNorm(width // 2, eps=1e-5)
        self.multiplicative_unit = MultiplicativeUnit(kernel=1, width=width // 2)
        self.layernorm_3 = nn.LayerNorm(width // 2, eps=1e-5)
        self.multiplicative_unit_2 = MultiplicativeUnit2(config, dilation=dilation, width=width // 2)
        self.layernorm_4 = nn.LayerNorm(width // 2, eps=1e-5)
        self.widen = nn.Linear(width // 2, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.narrow(F.relu(self.layernorm(x)))
        h = self.multiplicative_unit_2(self.layernorm_3(self.multiplicative_unit(self.layernorm_2(h))))
        return x + self.widen(F.relu(self.layernorm_4(h)))


class MultiplicativeUnit3(nn.Module):
    """A multiplicative unit (section 3.6): three gates around the input and a new value, all of them by one
    convolution."""

    def __init__(self, config: Config, dilation: int, width: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.kernel = config.kernel
        self.width = width
        self.conv1d = nn.Conv1d(width, 4 * width, config.kernel, dilation=dilation)

    def forward(self, x: Tensor) -> Tensor:
        all_ = self.conv1d(F.pad(x.transpose(1, 2), (self.dilation * (self.kernel - 1), 0))).transpose(1, 2)
        a, b, c, new = all_.split((self.width, self.width, self.width, self.width), dim=-1)
        return torch.sigmoid(a) * torch.tanh(torch.sigmoid(b) * x + torch.sigmoid(c) * torch.tanh(new))


class MultiplicativeBlock2(nn.Module):
    """A residual block of two multiplicative units: the first looks at one place, the second along time."""

    def __init__(self, config: Config, dilation: int, width: int) -> None:
        super().__init__()
        self.layernorm = nn.LayerNorm(width, eps=1e-5)
        self.narrow = nn.Linear(width, width // 2)
        self.layernorm_2 = nn.LayerNorm(width // 2, eps=1e-5)
        self.multiplicative_unit = MultiplicativeUnit(kernel=1, width=width // 2)
        self.layernorm_3 = nn.LayerNorm(width // 2, eps=1e-5)
        self.multiplicative_unit_2 = MultiplicativeUnit3(config, dilation=dilation, width=width // 2)
        self.layernorm_4 = nn.LayerNorm(width // 2, eps=1e-5)
        self.widen = nn.Linear(width // 2, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.narrow(F.relu(self.layernorm(x)))
        h = self.multiplicative_unit_2(self.layernorm_3(self.multiplicative_unit(self.layernorm_2(h))))
        return x + self.widen(F.relu(self.layernorm_4(h)))


class BytenetLM(nn.Module):
    """bytenet_lm (bytenet.arch:42)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab, 2 * config.inner)
        self.blocks = nn.ModuleList(
            [
                MultiplicativeBlock(config, dilation=1, width=2 * config.inner),
                MultiplicativeBlock2(config, dilation=2, width=2 * config.inner),
                MultiplicativeBlock2(config, dilation=4, width=2 * config.inner),
                MultiplicativeBlock2(config, dilation=8, width=2 * config.inner),
                MultiplicativeBlock2(config, dilation=16, width=2 * config.inner),
                MultiplicativeBlock(config, dilation=1, width=2 * config.inner),
                MultiplicativeBlock2(config, dilation=2, width=2 * config.inner),
                MultiplicativeBlock2(config, dilation=4, width=2 * config.inner),
                MultiplicativeBlock2(config, dilation=8, width=2 * config.inner),
                MultiplicativeBlock2(config, dilation=16, width=2 * config.inner),
                MultiplicativeBlock(config, dilation=1, width=2 * config.inner),
                MultiplicativeBlock2(config, dilation=2, width=2 * config.inner),
                MultiplicativeBlock2(config, dilation=4, width=2 * config.inner),
                MultiplicativeBlock2(config, dilation=8, width=2 * config.inner),
                MultiplicativeBlock2(config, dilation=16, width=2 * config.inner),
                MultiplicativeBlock(config, dilation=1, width=2 * config.inner),
                MultiplicativeBlock2(config, dilation=2, width=2 * config.inner),
                MultiplicativeBlock2(config, dilation=4, width=2 * config.inner),
                MultiplicativeBlock2(config, dilation=8, width=2 * config.inner),
                MultiplicativeBlock2(config, dilation=16, width=2 * config.inner),
                MultiplicativeBlock(config, dilation=1, width=2 * config.inner),
                MultiplicativeBlock2(config, dilation=2, width=2 * config.inner),
                MultiplicativeBlock2(config, dilation=4, width=2 * config.inner),
                MultiplicativeBlock2(config, dilation=8, width=2 * config.inner),
                MultiplicativeBlock2(config, dilation=16, width=2 * config.inner),
                MultiplicativeBlock(config, dilation=1, width=2 * config.inner),
                MultiplicativeBlock2(config, dilation=2, width=2 * config.inner),
                MultiplicativeBlock2(config, dilation=4, width=2 * config.inner),
                MultiplicativeBlock2(config, dilation=8, width=2 * config.inner),
                MultiplicativeBlock2(config, dilation=16, width=2 * config.inner),
            ]
        )
        self.post = nn.Linear(2 * config.inner, config.inner)
        self.head = nn.Linear(config.inner, config.vocab)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)  # [batch, time, 2 * inner]
        for i in range(self.config.sets):
            for block in self.blocks[5 * i : 5 * (i + 1)]:
                x = block(x)
        return self.head(F.relu(self.post(F.relu(x))))
