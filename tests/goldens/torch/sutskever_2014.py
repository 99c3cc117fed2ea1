"""RNN encoder-decoders (Cho et al., 2014; Sutskever et al., 2014): one vector carries the source, no attention.

384,144,000 parameters. Made by archdsl 0.1.0 from rnn_encoder_decoder.arch (8020dedca564):
    archdsl compile rnn_encoder_decoder.arch:sutskever_2014 --to torch
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class Config:
    source_vocab: int = 160_000
    vocab: int = 80_000
    width: int = 1000
    layers: int = 4

    def __post_init__(self) -> None:
        assert min(vars(self).values()) >= 1, f"sizes and counts must be whole numbers of at least 1: {self}"


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
        for weight in self.parameters():
            nn.init.uniform_(weight, -(hidden**-0.5), hidden**-0.5)

    def forward(self, x: Tensor, h: Tensor | None = None, c: Tensor | None = None) -> Tensor:
        zeros = x.new_zeros(x.size(0), self.hidden)
        start = [(zeros if s is None else s)[None] for s in (h, c)]
        weights = list(self.parameters())
        return torch.lstm(x, start, weights, self.bias, 1, 0.0, self.training, False, True)[0]


class Reader(nn.Module):
    """Sutskever et al.: four layers of 1000 cells read the source in reverse; where a layer of theirs ends, one of
    the decoder starts. 384M parameters, 64M of them recurrent, with 160,000 source and 80,000 target words."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.hidden = config.width
        self.lstm_cell = nn.LSTMCell(config.width, config.width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch = x.size(0)
        h = x.new_zeros(batch, self.hidden)
        c = x.new_zeros(batch, self.hidden)
        ys = []
        for x_t in x.unbind(1):
            h, c = self.lstm_cell(x_t, (h, c))
            ys.append(h)
        return torch.stack(ys, dim=1), h, c


class Sutskever2014(nn.Module):
    """sutskever_2014 (rnn_encoder_decoder.arch:55)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.source_embedding = nn.Embedding(config.source_vocab, config.width)
        self.target_embedding = nn.Embedding(config.vocab, config.width)
        self.encoder = nn.ModuleList(Reader(config) for _ in range(config.layers))
        self.decoder = nn.ModuleList(LSTM(config.width, config.width) for _ in range(config.layers))
        self.head = nn.Linear(config.width, config.vocab)
        nn.init.normal_(self.source_embedding.weight, std=0.02)
        nn.init.normal_(self.target_embedding.weight, std=0.02)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        x = self.source_embedding(source.flip(1))  # [batch, source_time, width]
        y = self.target_embedding(target)  # [batch, time, width]
        for encoder, decoder in zip(self.encoder, self.decoder):
            x, h, c = encoder(x)
            y = decoder(y, h, c)
        return self.head(y)
