"""ConvMixer (Trockman and Kolter, 2022): patches mixed by depthwise, then by pointwise convolutions.

51,625,960 parameters. Made by archdsl 0.1.0 from convmixer.arch (0e2411c213e3):
    archdsl compile convmixer.arch:convmixer_1536_20 --to torch
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    width: int = 1536
    layers: int = 20
    kernel: int = 9
    patch: int = 7
    image: int = 224
    classes: int = 1000

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
            setattr(self, name, int(size))  # 24.0 is 24
        assert self.image > self.patch - 1, f"image > patch - 1: the kernel must not be longer than its input: {self}"
        assert (self.kernel - 1) % 2 == 0, (
            f"`padding: same` is written for a kernel that is odd, or even: compile again with --set: {self}"
        )
        assert self.image // self.patch + 2 * ((self.kernel - 1) // 2) > self.kernel - 1, (
            f"the kernel must not be longer than its input: {self}"
        )
        assert self.image // self.patch >= 1, "image // patch >= 1: the kernel must not be longer than its input"


class ConvmixerLayer(nn.Module):
    """The activation stands before the norm, and only the depthwise half has a residual."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(config.width, config.width, config.kernel, padding="same", groups=config.width)
        self.batchnorm = nn.BatchNorm2d(config.width)
        self.pointwise = nn.Conv2d(config.width, config.width, 1)
        self.batchnorm_2 = nn.BatchNorm2d(config.width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.batchnorm(F.gelu(self.depthwise(x)))
        return self.batchnorm_2(F.gelu(self.pointwise(x)))


class Convmixer1536_20(nn.Module):
    """convmixer_1536_20 (convmixer.arch:10)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, config.width, config.patch, stride=config.patch)
        self.batchnorm = nn.BatchNorm2d(config.width)
        self.blocks = nn.ModuleList(ConvmixerLayer(config) for _ in range(config.layers))
        self.head = nn.Linear(config.width, config.classes)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.batchnorm(F.gelu(self.patches(pixels)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))
