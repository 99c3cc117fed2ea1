"""RNN search (Bahdanau et al., 2015): a recurrent translator attends to its source, scored in any of six ways.

80,451,000 parameters. Made by archdsl 0.1.0 from seq2seq_attention.arch (06476d46d588):
    archdsl compile seq2seq_attention.arch:seq2seq --to torch
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class Config:
    vocab: int = 30_000
    width: int = 620
    hidden: int = 1000
    reader: int = 1000
    maxout: int = 500

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            assert isinstance(size, int | float) and size % 1 == 0 < size, f"{name} must be a whole number >= 1"
            setattr(self, name, int(size))  # 24.0 is 24


class GRU(nn.Module):
    """One layer of gated recurrent units: nn.GRU as a function, which torch.compile takes whole."""

    def __init__(self, inputs: int, hidden: int, bias: bool = True) -> None:
        super().__init__()
        self.hidden = hidden
        self.bias = bias
        self.weight_ih_l0 = nn.Parameter(torch.empty(3 * hidden, inputs))
        self.weight_hh_l0 = nn.Parameter(torch.empty(3 * hidden, hidden))
        if bias:
            self.bias_ih_l0 = nn.Parameter(torch.empty(3 * hidden))
            self.bias_hh_l0 = nn.Parameter(torch.empty(3 * hidden))

    def reset_parameters(self) -> None:
        for weight in self.parameters():
            nn.init.uniform_(weight, -(self.hidden**-0.5), self.hidden**-0.5)

    def forward(self, x: Tensor, start: Tensor | None = None) -> Tensor:
        if start is None:
            start = x.new_zeros(x.size(0), self.hidden)
        weights = list(self.parameters())
        return torch.gru(x, start[None], weights, self.bias, 1, 0.0, self.training, False, True)[0]


class Additive(nn.Module):
    """v · tanh(W q + U k), with one hidden layer."""

    def __init__(self, config: Config, k_width: int) -> None:
        super().__init__()
        self.b = nn.Linear(k_width, config.hidden, bias=False)
        self.a = nn.Linear(config.hidden, config.hidden, bias=False)
        self.linear = nn.Linear(config.hidden, 1, bias=False)

    def prepare(self, keys: Tensor) -> Tensor:
        return self.b(keys)

    def forward(self, query: Tensor, b: Tensor) -> Tensor:
        a = self.a(query).unsqueeze(1)  # [batch, 1, hidden]
        return self.linear(torch.tanh(a + b)).squeeze(-1)


class Seq2seq(nn.Module):
    """seq2seq (seq2seq_attention.arch:40)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.source_embedding = nn.Embedding(config.vocab, config.width)
        self.target_embedding = nn.Embedding(config.vocab, config.width)
        self.backwards = GRU(config.width, config.reader)
        self.forwards = GRU(config.width, config.reader)
        self.start = nn.Linear(config.reader, config.hidden)
        self.score = Additive(config, k_width=2 * config.reader)
        self.gru_cell = nn.GRUCell(config.width + 2 * config.reader, config.hidden)
        self.pieces = nn.Linear(config.hidden + 2 * config.reader + config.width, 2 * config.maxout)
        self.head = nn.Linear(config.maxout, config.vocab)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()
        nn.init.normal_(self.source_embedding.weight, std=0.02)
        nn.init.normal_(self.target_embedding.weight, std=0.02)

    def forward(self, source_tokens: Tensor, target_tokens: Tensor) -> Tensor:
        x = self.source_embedding(source_tokens)  # [batch, source, width]
        y = self.target_embedding(target_tokens)  # [batch, time, width]
        backwards = self.backwards(x.flip(1)).flip(1)
        memory = torch.cat((self.forwards(x), backwards), dim=-1)
        b = self.score.prepare(memory)
        state = torch.tanh(self.start(backwards[:, 0]))
        seens = []
        for y_t in y.unbind(1):
            weights = self.score(state, b).softmax(-1)
            context = torch.einsum("bs,bsd->bd", weights, memory)
            state_2 = self.gru_cell(torch.cat((y_t, context), dim=-1), state)
            seens.append(torch.cat((state, context), dim=-1))
            state = state_2
        seen = torch.stack(seens, dim=1)  # [batch, time, hidden + 2 * reader]
        pieces = self.pieces(torch.cat((seen, y), dim=-1))
        return self.head(pieces.unflatten(-1, (self.config.maxout, 2)).amax(-1))
