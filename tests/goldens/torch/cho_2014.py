"""RNN encoder-decoders (Cho et al., 2014; Sutskever et al., 2014): one vector carries the source, no attention.

18,250,000 parameters. Made by archdsl 0.1.0 from rnn_encoder_decoder.arch (5f7d20648b43):
    archdsl compile rnn_encoder_decoder.arch:cho_2014 --to torch
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class Config:
    vocab: int = 15_000
    rank: int = 100
    hidden: int = 1000
    maxout: int = 500

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
            setattr(self, name, int(size))  # 24.0 is 24


class EncoderUnit(nn.Module):
    """The gated unit of Cho et al. as their appendix has it, without biases: the state is reset before its matrix,
    and the update gate says how much of it is kept."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.w_r = nn.Linear(config.rank, config.hidden, bias=False)
        self.u_r = nn.Linear(config.hidden, config.hidden, bias=False)
        self.w_z = nn.Linear(config.rank, config.hidden, bias=False)
        self.u_z = nn.Linear(config.hidden, config.hidden, bias=False)
        self.w = nn.Linear(config.rank, config.hidden, bias=False)
        self.u = nn.Linear(config.hidden, config.hidden, bias=False)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        reset = torch.sigmoid(self.w_r(x) + self.u_r(h))
        update = torch.sigmoid(self.w_z(x) + self.u_z(h))
        new = torch.tanh(self.w(x) + self.u(reset * h))
        return update * h + (1 - update) * new


class DecoderUnit(nn.Module):
    """The decoder's unit sees the summary of the source at every step, and resets behind the matrices."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.c_r = nn.Linear(config.hidden, config.hidden, bias=False)
        self.c_z = nn.Linear(config.hidden, config.hidden, bias=False)
        self.c = nn.Linear(config.hidden, config.hidden, bias=False)
        self.w_r = nn.Linear(config.rank, config.hidden, bias=False)
        self.u_r = nn.Linear(config.hidden, config.hidden, bias=False)
        self.w_z = nn.Linear(config.rank, config.hidden, bias=False)
        self.u_z = nn.Linear(config.hidden, config.hidden, bias=False)
        self.w = nn.Linear(config.rank, config.hidden, bias=False)
        self.u = nn.Linear(config.hidden, config.hidden, bias=False)

    def prepare(self, summary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.c_r(summary), self.c_z(summary), self.c(summary)

    def forward(self, y: Tensor, h: Tensor, prepared_1: Tensor, prepared_2: Tensor, prepared_3: Tensor) -> Tensor:
        reset = torch.sigmoid(self.w_r(y) + self.u_r(h) + prepared_1)
        update = torch.sigmoid(self.w_z(y) + self.u_z(h) + prepared_2)
        new = torch.tanh(self.w(y) + reset * (self.u(h) + prepared_3))
        return update * h + (1 - update) * new


class Cho2014(nn.Module):
    """cho_2014 (rnn_encoder_decoder.arch:24)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.source_embedding = nn.Embedding(config.vocab, config.rank)
        self.encoder_unit = EncoderUnit(config)
        self.summarize = nn.Linear(config.hidden, config.hidden, bias=False)
        self.target_embedding = nn.Embedding(config.vocab, config.rank)
        self.start = nn.Linear(config.hidden, config.hidden, bias=False)
        self.decoder_unit = DecoderUnit(config)
        self.o_h = nn.Linear(config.hidden, 2 * config.maxout, bias=False)
        self.o_y = nn.Linear(config.rank, 2 * config.maxout, bias=False)
        self.o_c = nn.Linear(config.hidden, 2 * config.maxout, bias=False)
        self.narrow = nn.Linear(config.maxout, config.rank, bias=False)
        self.head = nn.Linear(config.rank, config.vocab, bias=False)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()
        nn.init.normal_(self.source_embedding.weight, std=0.02)
        nn.init.normal_(self.target_embedding.weight, std=0.02)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        x = self.source_embedding(source)  # [batch, source_time, rank]
        h = x.new_zeros(source.size(0), self.config.hidden)
        reads = []
        for x_t in x.unbind(1):
            h = self.encoder_unit(x_t, h)
            reads.append(h)
        read = torch.stack(reads, dim=1)
        summary = torch.tanh(self.summarize(read[:, -1]))
        y = self.target_embedding(target)  # [batch, time, rank]
        h, h_2, h_3 = self.decoder_unit.prepare(summary)
        s = torch.tanh(self.start(summary))
        states = []
        for y_t in y.unbind(1):
            s = self.decoder_unit(y_t, s, h, h_2, h_3)
            states.append(s)
        states = torch.stack(states, dim=1)  # [batch, time, hidden]
        pieces = self.o_h(states) + self.o_y(y) + self.o_c(summary).unsqueeze(1)
        best = pieces.unflatten(-1, (self.config.maxout, 2)).amax(-1)  # [batch, time, maxout]
        return self.head(self.narrow(best))
