"""GRU encoder-decoder with additive attention (Bahdanau et al., 2015), as in the lectures on seq2seq.

111,456,512 parameters. Made by archdsl 0.1.0 from seq2seq_attention.arch (b085091b6aed):
    archdsl compile seq2seq_attention.arch:seq2seq --to torch
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    vocab: int = 32_000
    width: int = 512
    hidden: int = 1024


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
        for weight in self.parameters():
            nn.init.uniform_(weight, -(hidden**-0.5), hidden**-0.5)

    def forward(self, x: Tensor, start: Tensor | None = None) -> Tensor:
        if start is None:
            start = x.new_zeros(x.size(0), self.hidden)
        weights = list(self.parameters())
        return torch.gru(x, start[None], weights, self.bias, 1, 0.0, self.training, False, True)[0]


class Bidirectional(nn.Module):
    """A recurrence read forwards and backwards, side by side: [batch, time, 2 * hidden].

    bidirectional (std/transformer.arch:111)
    """

    def __init__(self, config: Config, cell_hidden: int) -> None:
        super().__init__()
        self.forwards = GRU(config.width, cell_hidden)
        self.backwards = GRU(config.width, cell_hidden)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((self.forwards(x), self.backwards(x.flip(1)).flip(1)), dim=-1)


class AdditiveScore(nn.Module):
    """additive_score (seq2seq_attention.arch:3)"""

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
    """seq2seq (seq2seq_attention.arch:9)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.width)
        self.bidirectional = Bidirectional(config, cell_hidden=config.hidden // 2)
        self.embedding_2 = nn.Embedding(config.vocab, config.width)
        self.additive_score = AdditiveScore(config, k_width=2 * (config.hidden // 2))
        self.gru_cell = nn.GRUCell(config.width + 2 * (config.hidden // 2), config.hidden)
        self.linear = nn.Linear(config.hidden + 2 * (config.hidden // 2), config.vocab)
        nn.init.normal_(self.embedding.weight, std=0.02)
        nn.init.normal_(self.embedding_2.weight, std=0.02)

    def forward(self, source_tokens: Tensor, target_tokens: Tensor) -> Tensor:
        memory = self.bidirectional(self.embedding(source_tokens))
        y = self.embedding_2(target_tokens)  # [batch, time, width]
        b = self.additive_score.prepare(memory)
        state = y.new_zeros(source_tokens.size(0), self.config.hidden)
        states = []
        for y_t in y.unbind(1):
            weights = self.additive_score(state, b).softmax(-1)
            context = torch.einsum("bs,bsd->bd", weights, memory)
            state = self.gru_cell(torch.cat((y_t, context), dim=-1), state)
            states.append(torch.cat((state, context), dim=-1))
        states = torch.stack(states, dim=1)
        return self.linear(states)
