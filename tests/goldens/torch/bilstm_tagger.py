"""Taggers (Huang et al., 2015): a label for every token, read off a recurrence in each direction.

7,350,209 parameters. Made by archdsl 0.1.0 from tagger.arch (71d7e795bce4):
    archdsl compile tagger.arch:bilstm_tagger --to torch
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class Config:
    vocab: int = 130_000
    width: int = 50
    hidden: int = 300
    layers: int = 1
    labels: int = 9
    both_ways: bool = True

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            if name != "both_ways":
                assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
                setattr(self, name, int(size))  # 24.0 is 24
        assert self.layers == 1, f"`forward` is written for layers == 1: compile again with --set: {self}"
        assert self.both_ways is True, f"the graph depends on both_ways == True: compile again with --set: {self}"


class LSTM(nn.Module):
    """One layer of long short-term memory: nn.LSTM as a function, which torch.compile takes whole."""

    def __init__(self, inputs: int, hidden: int, bias: bool = True) -> None:
        super().__init__()
        self.hidden = hidden
        self.bias = bias
        self.weight_ih_l0 = nn.Parameter(torch.empty(4 * hidden, inputs))
        self.weight_hh_l0 = nn.Parameter(torch.empty(4 * hidden, hidden))
        if bias:
            self.bias_ih_l0 = nn.Parameter(torch.empty(4 * hidden))
            self.bias_hh_l0 = nn.Parameter(torch.empty(4 * hidden))

    def reset_parameters(self) -> None:
        for weight in self.parameters():
            nn.init.uniform_(weight, -(self.hidden**-0.5), self.hidden**-0.5)

    def forward(self, x: Tensor, h: Tensor | None = None, c: Tensor | None = None) -> Tensor:
        zeros = x.new_zeros(x.size(0), self.hidden)
        start = [(zeros if s is None else s)[None] for s in (h, c)]
        weights = list(self.parameters())
        return torch.lstm(x, start, weights, self.bias, 1, 0.0, self.training, False, True)[0]


class Bidirectional(nn.Module):
    """A recurrence read forwards and backwards, side by side: [batch, time, 2 * hidden]."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.forwards = LSTM(config.width, config.hidden)
        self.backwards = LSTM(config.width, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((self.forwards(x), self.backwards(x.flip(1)).flip(1)), dim=-1)


class BilstmTagger(nn.Module):
    """bilstm_tagger (tagger.arch:5)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab, config.width)
        self.layers = nn.ModuleList(Bidirectional(config) for _ in range(config.layers))
        self.label = nn.Linear(2 * config.hidden, config.labels)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)  # [batch, time, width]
        for layer in self.layers:
            x = layer(x)
        return self.label(x)
