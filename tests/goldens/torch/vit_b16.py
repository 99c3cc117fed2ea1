"""Vision Transformer (Dosovitskiy et al., 2020): an image as a sequence of patches behind a class token.

86,567,656 parameters. Made by archdsl 0.1.0 from vit.arch (9936dd4acd51):
    archdsl compile vit.arch:vit_b16 --to torch
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    layers: int = 12
    width: int = 768
    heads: int = 12
    hidden: int = 3072
    patch: int = 16
    image: int = 224
    classes: int = 1000

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
            setattr(self, name, int(size))  # 24.0 is 24
        assert self.image > self.patch - 1, f"image > patch - 1: the kernel must not be longer than its input: {self}"
        assert self.image % self.patch == 0, f"the image size must be a multiple of the patch size: {self}"
        assert self.width % self.heads == 0, f"width must be a multiple of heads: {self}"


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al., 2017, section 3.2)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.width // config.heads
        self.q = nn.Linear(config.width, config.width)
        self.k = nn.Linear(config.width, config.width)
        self.v = nn.Linear(config.width, config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        v = self.v(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear layers with an activation between them (Vaswani et al., 2017, section 3.3)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.hidden)
        self.down = nn.Linear(config.hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class EncoderLayer(nn.Module):
    """encoder_layer (vit.arch:3)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, eps=1e-12)
        self.attention = Attention(config)
        self.ffn_norm = nn.LayerNorm(config.width, eps=1e-12)
        self.ffn = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.ffn(self.ffn_norm(x))


class Classifier(nn.Module):
    """A class of the whole sequence: `pool: mean`, or `pool: first`."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.output = nn.Linear(config.width, config.classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(x[:, 0])


class ViTB16(nn.Module):
    """vit_b16 (vit.arch:11)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, config.width, config.patch, stride=config.patch)
        self.class_token = nn.Parameter(torch.empty(1, 1, config.width))
        self.position = nn.Embedding(1 + config.image // config.patch * (config.image // config.patch), config.width)
        self.blocks = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=1e-12)
        self.head = Classifier(config)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()
        nn.init.normal_(self.class_token, std=0.02)
        nn.init.normal_(self.position.weight, std=0.02)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.patches(pixels).flatten(2).transpose(1, 2)  # [batch, image // patch * (image // patch), width]
        x = torch.cat((self.class_token.expand(pixels.size(0), -1, -1), x), dim=1) + self.position.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
