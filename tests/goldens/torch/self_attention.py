"""Self-attention (Vaswani et al., 2017): one head written as equations, and many heads side by side.

131,072 parameters. Made by archdsl 0.1.0 from self_attention.arch (046f8183f7eb):
    archdsl compile self_attention.arch:self_attention --to torch
"""

import math
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass
class Config:
    width: int = 512
    d_k: int = 64
    d_v: int = 128
    masked: bool = False

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            if name != "masked":
                assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
                setattr(self, name, int(size))  # 24.0 is 24
        assert self.masked is False, f"the graph depends on masked == False: compile again with --set: {self}"


class AttentionHead(nn.Module):
    """One head of attention: each position asks with a query of width d_k and is answered in values of width d_v,
    which may differ."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.d_k = config.d_k
        self.q = nn.Linear(config.width, config.d_k, bias=False)
        self.k = nn.Linear(config.width, config.d_k, bias=False)
        self.v = nn.Linear(config.width, config.d_v, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x)
        k = self.k(x)
        v = self.v(x)
        scores = q @ k.transpose(1, 2) / math.sqrt(self.d_k)
        return scores.softmax(-1) @ v


class SelfAttention(nn.Module):
    """self_attention (self_attention.arch:18)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.attention_head = AttentionHead(config)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()

    def forward(self, x: Tensor) -> Tensor:
        return self.attention_head(x)
