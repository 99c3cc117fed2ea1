"""Recurrent language models (Zaremba et al., 2014): stacked LSTMs, dropout between the layers, never within them.

4,653,200 parameters. Made by archdsl 0.1.0 from rnn_lm.arch (63da7a43b5c6):
    archdsl compile rnn_lm.arch:lstm_lm_small --to torch --with generate
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Config:
    vocab: int = 10_000
    width: int = 200
    layers: int = 2
    rate: int = 0

    def __post_init__(self) -> None:
        if min(self.vocab, self.width, self.layers) < 1:
            raise ValueError(f"sizes and counts must be whole numbers of at least 1: {self}")
        assert self.rate == 0, f"`dropout` was compiled for this number: compile again with --set: {self}"


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


class Cache:
    """The KV cache, the states of recurrences, and tensors computed once; decode steps visit them in one order."""

    active: Tensor | None = None  # rows whose recurrences go on, where others stay as they are

    def __init__(self, capacity: int, static: bool = False) -> None:
        self.capacity = capacity  # in positions
        self.static = static  # whether tensors keep their sizes from step to step, as a compiled step wants it
        self.entries: list[tuple[Tensor, ...]] = []
        self.end = 0  # positions so far
        self.start: Tensor | None = None  # the next position of each row, where they differ

    def begin(self, x: Tensor) -> None:
        """Begin a step for x [batch, new, …]."""
        self.first, self.cursor, self.batch, new = not self.entries, 0, x.size(0), x.size(1)
        positions = torch.arange(new, device=x.device)
        if self.start is None:
            self.past, self.end = self.end, self.end + new
            self.positions = self.past + positions[None]
            if self.static:
                self.start = torch.full((1,), new, device=x.device)
        else:
            self.end = self.capacity if self.static else self.end + new
            self.positions = self.start[:, None] + positions
            self.start = self.start + new
        self.keys = torch.arange(self.end, device=x.device)
        # The causal mask of the new positions: none where all keys are attended to, or where the kernel knows it.
        self.mask, self.causal = None, self.first and new > 1
        if not self.first and (self.start is not None or new > 1):
            self.mask = self.keys <= self.positions[:, None, :, None]

    def state(self, *starts: Callable[[], Tensor]) -> Any:
        """Return the state of a recurrence; in the first step, its initial state."""
        if self.first:
            self.entries.append(tuple(make() for make in starts))
        found = self.entries[self.cursor]
        return found if len(found) > 1 else found[0]

    def set_state(self, *tensors: Tensor) -> None:
        """Keep the state of a recurrence for the next step."""
        if self.active is not None:
            shapes = [(-1, *[1] * (t.dim() - 1)) for t in tensors]
            before = self.entries[self.cursor]
            tensors = tuple(torch.where(self.active.view(s), t, b) for s, t, b in zip(shapes, tensors, before))
        self.entries[self.cursor] = tensors
        self.cursor += 1


def sample(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, generator: torch.Generator | None
) -> Tensor:
    """Choose a token for each row of logits [batch, vocab]: the likeliest at temperature 0, else at random from the
    `top_k` likeliest and from those that make up a probability of `top_p` (Holtzman et al., 2019)."""
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits.float() / temperature
    if top_k is not None:
        least = logits.topk(min(top_k, logits.size(-1))).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if top_p is not None:
        likely, order = logits.softmax(-1).sort(descending=True)
        beyond = likely.cumsum(-1) - likely >= top_p  # without these tokens the probability is reached
        logits = logits.masked_fill(beyond.scatter(-1, order, beyond), -torch.inf)
    return logits.softmax(-1).multinomial(1, generator=generator).squeeze(1)


def lstm_on(layer: LSTM, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Continue an LSTM from (h, c): its states after every step, and both states after the last."""
    weights = list(layer.parameters())
    y, h, c = torch.lstm(x, [h[None], c[None]], weights, layer.bias, 1, 0.0, layer.training, False, True)
    return y, h[0], c[0]


class LSTMLMSmall(nn.Module):
    """lstm_lm_small (rnn_lm.arch:5)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.width)
        self.layers = nn.ModuleList(LSTM(config.width, config.width) for _ in range(config.layers))
        self.head = nn.Linear(config.width, config.vocab)
        self.init_weights()

    def init_weights(self) -> None:
        """Draw every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, tokens: Tensor, cache: Cache | None = None, at: Tensor | None = None) -> Tensor:
        batch = tokens.size(0)
        if cache is not None:
            cache.begin(tokens)
        x = self.embedding(tokens)  # [batch, time, width]
        for layer in self.layers:
            if cache is None:
                x = layer(x)
            else:
                h, c = cache.state(
                    lambda: x.new_zeros(batch, self.config.width), lambda: x.new_zeros(batch, self.config.width)
                )
                y, h, c = lstm_on(layer, x, h, c)
                x = y
                cache.set_state(h, c)
        if at is not None:  # the logits of this position of each row alone are wanted
            x = x[torch.arange(x.size(0), device=x.device), at][:, None]
        return self.head(x)

    @torch.no_grad()
    def stream(
        self,
        tokens: Tensor,
        max_new_tokens: int,
        *,
        attention_mask: Tensor | None = None,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: Iterable[int] = (),
        compiled: bool = False,
    ) -> Iterator[Tensor]:
        """Yield the tokens [batch] that continue prompts [batch, time], one after another, until every row has reached one
        of `stop`, which it then repeats.

        `attention_mask` [batch, time] is False at padding, on either side. At temperature 0 the likeliest token is chosen.
        `compiled` compiles the step, whose tensors then keep their sizes."""
        batch, time = tokens.shape
        generator = None if seed is None else torch.Generator(tokens.device).manual_seed(seed)
        cache, step = Cache(time + max_new_tokens, static=compiled), self
        lengths = torch.full((batch,), time, device=tokens.device)
        if attention_mask is not None:  # prompts are moved to the left
            lengths = attention_mask.sum(1)
            tokens = tokens.gather(1, attention_mask.long().argsort(dim=1, descending=True, stable=True))
        last = int(lengths.max())
        shortest = int(lengths.min())
        logits = step(tokens[:, :shortest], cache=cache)[:, -1]
        for i in range(shortest, last):  # a recurrence must not read what lies behind a row's end
            cache.start, cache.active = lengths.clamp(max=i), i < lengths
            logits = torch.where(cache.active[:, None], step(tokens[:, i : i + 1], cache=cache)[:, -1], logits)
        if shortest < last:
            cache.start, cache.active = lengths, None
        stops = torch.tensor([*stop], dtype=torch.long, device=tokens.device)
        ended = torch.zeros(batch, dtype=torch.bool, device=tokens.device)
        token = tokens.new_zeros(batch)
        if compiled:
            step = torch.compile(step)
        for i in range(max_new_tokens):
            if i > 0:
                logits = step(token[:, None], cache=cache)[:, -1]
            token = torch.where(ended, token, sample(logits, temperature, top_k, top_p, generator))
            yield token
            ended |= torch.isin(token, stops)
            if len(stops) and bool(ended.all()):
                return

    def generate(self, tokens: Tensor, max_new_tokens: int, **options: Any) -> Tensor:
        """Continue prompts [batch, time]: [batch, at most max_new_tokens]. Options are those of `stream`."""
        return torch.stack([*self.stream(tokens, max_new_tokens, **options)], dim=1)
