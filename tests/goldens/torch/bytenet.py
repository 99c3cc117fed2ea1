"""ByteNet (Kalchbrenner et al., 2016): translates characters in linear time, by dilated convolutions on both sides.

271,905,923 parameters. Made by archdsl 0.1.0 from bytenet.arch (f0cdfcd5601f):
    archdsl compile bytenet.arch:bytenet --to torch
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    source_vocab: int = 296
    vocab: int = 323
    inner: int = 800
    sets: int = 6
    depth: int = 5
    kernel: int = 3

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            if name != "depth":
                assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
                setattr(self, name, int(size))  # 24.0 is 24
        assert self.kernel == 3, f"the graph depends on kernel == 3: compile again with --set: {self}"
        assert self.depth == 5, f"`forward` is written for depth == 5: compile again with --set: {self}"


class EncoderReluBlock(nn.Module):
    """A residual block of rectified units: half the channels inside, a norm and a rectifier before each convolution."""

    def __init__(self, config: Config, dilation: int, width: int) -> None:
        super().__init__()
        assert width / 2 % 1 == 0, "the groups of a convolution share its input channels equally"
        self.layernorm = nn.LayerNorm(width, eps=1e-5)
        self.narrow = nn.Linear(width, width // 2)
        self.layernorm_2 = nn.LayerNorm(width // 2, eps=1e-5)
        self.conv1d = nn.Conv1d(width // 2, width // 2, config.kernel, padding="same", dilation=dilation)
        self.layernorm_3 = nn.LayerNorm(width // 2, eps=1e-5)
        self.widen = nn.Linear(width // 2, width)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.layernorm_2(self.narrow(F.relu(self.layernorm(x)))))
        return x + self.widen(F.relu(self.layernorm_3(self.conv1d(h.transpose(1, 2)).transpose(1, 2))))


class DecoderReluBlock(nn.Module):
    """A residual block of rectified units: half the channels inside, a norm and a rectifier before each convolution."""

    def __init__(self, config: Config, dilation: int, width: int) -> None:
        super().__init__()
        assert width / 2 % 1 == 0, "the groups of a convolution share its input channels equally"
        self.dilation = dilation
        self.kernel = config.kernel
        self.layernorm = nn.LayerNorm(width, eps=1e-5)
        self.narrow = nn.Linear(width, width // 2)
        self.layernorm_2 = nn.LayerNorm(width // 2, eps=1e-5)
        self.conv1d = nn.Conv1d(width // 2, width // 2, config.kernel, dilation=dilation)
        self.layernorm_3 = nn.LayerNorm(width // 2, eps=1e-5)
        self.widen = nn.Linear(width // 2, width)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.layernorm_2(self.narrow(F.relu(self.layernorm(x)))))
        h = self.conv1d(F.pad(h.transpose(1, 2), (self.dilation * (self.kernel - 1), 0))).transpose(1, 2)
        return x + self.widen(F.relu(self.layernorm_3(h)))


class Bytenet(nn.Module):
    """bytenet (bytenet.arch:28)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.source_embedding = nn.Embedding(config.source_vocab, 2 * config.inner)
        self.encoder = nn.ModuleList(
            EncoderReluBlock(config, dilation=dilation, width=2 * config.inner)
            for dilation in config.sets * [1, 2, 4, 8, 16]
        )
        self.target_embedding = nn.Embedding(config.vocab, 2 * config.inner)
        self.decoder = nn.ModuleList(
            DecoderReluBlock(config, dilation=dilation, width=2 * config.inner)
            for dilation in config.sets * [1, 2, 4, 8, 16]
        )
        self.post = nn.Linear(2 * config.inner, config.inner)
        self.head = nn.Linear(config.inner, config.vocab)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()
        nn.init.normal_(self.source_embedding.weight, std=0.02)
        nn.init.normal_(self.target_embedding.weight, std=0.02)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        x = self.source_embedding(source)  # [batch, time, 2 * inner]
        for i in range(self.config.sets):
            for encoder in self.encoder[5 * i : 5 * (i + 1)]:
                x = encoder(x)
        y = x + self.target_embedding(target)
        for i in range(self.config.sets):
            for decoder in self.decoder[5 * i : 5 * (i + 1)]:
                y = decoder(y)
        return self.head(F.relu(self.post(F.relu(y))))
