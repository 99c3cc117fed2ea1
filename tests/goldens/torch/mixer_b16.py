"""MLP-Mixer (Tolstikhin et al., 2021): token mixing and channel mixing, no attention.

59,880,472 parameters. Made by archdsl 0.1.0 from mixer.arch (66ffb797fd5c):
    archdsl compile mixer.arch:mixer_b16 --to torch
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    layers: int = 12
    width: int = 768
    patch: int = 16
    image: int = 224
    classes: int = 1000

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
            setattr(self, name, int(size))  # 24.0 is 24
        assert self.image > self.patch - 1, f"image > patch - 1: the kernel must not be longer than its input: {self}"
        assert self.image % self.patch == 0, f"the image size must be a multiple of the patch size: {self}"
        assert self.width % 2 == 0, f"width must be a multiple of 2: {self}"
        assert self.image // self.patch * (self.image // self.patch) >= 1, (
            f"image // patch * (image // patch) must be at least 1: {self}"
        )


class MLP(nn.Module):
    """Two linear layers with an activation between them (Vaswani et al., 2017, section 3.3)."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class MixerLayer(nn.Module):
    """mixer_layer (mixer.arch:3)"""

    def __init__(self, config: Config, token_hidden: int, channel_hidden: int, patches: int) -> None:
        super().__init__()
        self.layernorm = nn.LayerNorm(config.width, eps=1e-6)
        self.mlp = MLP(hidden=token_hidden, width=patches)
        self.layernorm_2 = nn.LayerNorm(config.width, eps=1e-6)
        self.mlp_2 = MLP(hidden=channel_hidden, width=config.width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mlp(self.layernorm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.mlp_2(self.layernorm_2(x))


class Classifier(nn.Module):
    """A class of the whole sequence: `pool: mean`, or `pool: first`."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.output = nn.Linear(config.width, config.classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(x.mean(1))


class MixerB16(nn.Module):
    """mixer_b16 (mixer.arch:9)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, config.width, config.patch, stride=config.patch)
        self.blocks = nn.ModuleList(
            MixerLayer(
                config,
                token_hidden=config.width // 2,
                channel_hidden=4 * config.width,
                patches=config.image // config.patch * (config.image // config.patch),
            )
            for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.width, eps=1e-6)
        self.head = Classifier(config)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.patches(pixels).flatten(2).transpose(1, 2)  # [batch, image // patch * (image // patch), width]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
