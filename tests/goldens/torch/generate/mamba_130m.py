"""Mamba (Gu and Dao, 2023): a state of fixed size instead of attention; each token selects what it writes and reads.

129,135,360 parameters. Made by archdsl 0.1.0 from mamba.arch (632f29595d2b):
    archdsl compile mamba.arch:mamba_130m --to torch --with generate
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    layers: int = 24
    width: int = 768
    state: int = 16
    vocab: int = 50_280
    context: int = 1_048_576

    def __post_init__(self) -> None:
        assert min(vars(self).values()) >= 1, f"sizes and counts must be whole numbers of at least 1: {self}"


def linear_recurrence(a: Tensor, b: Tensor) -> Tensor:
    """h[t] = a[t] * h[t - 1] + b[t] along axis 1: chunks of 32 positions in parallel, then from chunk to chunk."""
    time, rest = b.size(1), (0, 0) * (b.dim() - 2)
    padding = (*rest, 32, 32 * (time // 32 + 1) - time)  # a chunk of zeros before the first
    # 32 steps, each [batch, chunk, ...]
    a_steps, b_steps = (F.pad(t.float(), padding).unfold(1, 32, 32).unbind(-1) for t in (a, b))
    states, products = [b_steps[0]], [a_steps[0]]
    for a_t, b_t in zip(a_steps[1:], b_steps[1:]):
        states.append(a_t * states[-1] + b_t)
        products.append(a_t * products[-1])

    # The state after a chunk, from 2, 4, 8, … chunks; a fixed number of turns, so that time can be any when exported.
    carry, factor = states[-1], products[-1]
    chunk = torch.arange(carry.size(1), device=b.device)
    for distance in (2**i for i in range(16)):
        before = (chunk - distance).clamp(min=0)
        carry = carry + factor * carry.index_select(1, before)
        factor = factor * factor.index_select(1, before)
    start = carry.index_select(1, (chunk - 1).clamp(min=0)).unsqueeze(2)
    h = torch.stack(states, dim=2) + torch.stack(products, dim=2) * start
    return h.flatten(1, 2).index_select(1, torch.arange(32, 32 + time, device=b.device)).to(b.dtype)


def selective_scan(x: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Scan Mamba: h[t] = exp(delta[t] a) h[t - 1] + delta[t] b[t] x[t] in each channel, read by y[t] = c[t] · h[t]."""
    delta = delta.float()
    decay = (delta[..., None] * a.float()).exp()  # [batch, time, channels, state]
    h = linear_recurrence(decay, (delta * x)[..., None] * b[:, :, None])
    return (h @ c.float()[..., None]).squeeze(-1).to(x.dtype)


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


def selective_scan_on(x: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Continue Mamba from the state h [batch, channels, state]: the result of each position, and the last state."""
    delta = delta.float()
    decay = (delta[..., None] * a.float()).exp()  # [batch, time, channels, state]
    terms = (delta * x)[..., None] * b[:, :, None]
    if x.size(1) == 1:
        states = decay * h[:, None] + terms
    else:
        states = linear_recurrence(F.pad(decay, (0, 0, 0, 0, 1, 0)), torch.cat((h[:, None], terms), dim=1))[:, 1:]
    return (states @ c.float()[..., None]).squeeze(-1).to(x.dtype), states[:, -1]


class Mixer(nn.Module):
    """mixer (mamba.arch:3)"""

    def __init__(self, config: Config, hidden: int, rank: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.rank = rank
        self.state = config.state
        self.log_rates = nn.Parameter(torch.empty(hidden, config.state))
        self.skip = nn.Parameter(torch.empty(hidden))
        self.step_bias = nn.Parameter(torch.empty(hidden))
        self.input = nn.Linear(config.width, 2 * hidden, bias=False)
        self.conv = nn.Conv1d(hidden, hidden, 4, groups=hidden)
        self.select = nn.Linear(hidden, rank + 2 * config.state, bias=False)
        self.step = nn.Linear(rank, hidden, bias=False)
        self.output = nn.Linear(hidden, config.width, bias=False)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.log_rates.copy_(torch.log(1 + torch.arange(self.state)))
        nn.init.ones_(self.skip)
        self.step_bias.copy_(
            torch.log(
                torch.exp(torch.exp(math.log(0.01) + torch.empty(self.hidden).uniform_(-math.log(10), math.log(10))))
                - 1
            )
        )
        nn.init.uniform_(self.step.weight, -(self.rank**-0.5), self.rank**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        h, gate = self.input(x).split((self.hidden, self.hidden), dim=-1)
        h = F.silu(self.conv(F.pad(h.transpose(1, 2), (3, 0))).transpose(1, 2))
        step, b, c = self.select(h).split((self.rank, self.state, self.state), dim=-1)
        step = F.softplus(self.step(step) + self.step_bias)
        y = selective_scan(h, step, -torch.exp(self.log_rates), b, c) + self.skip * h
        return self.output(y * F.silu(gate))

    def advance(self, x: Tensor, cache: Cache) -> Tensor:
        batch = x.size(0)
        h, gate = self.input(x).split((self.hidden, self.hidden), dim=-1)
        conv = cache.state(lambda: h.new_zeros(batch, 3, self.hidden))
        padded = torch.cat((conv, h), dim=1)
        h = self.conv(padded.transpose(1, 2)).transpose(1, 2)
        cache.set_state(padded[:, -3:])
        h = F.silu(h)
        step, b, c = self.select(h).split((self.rank, self.state, self.state), dim=-1)
        step = F.softplus(self.step(step) + self.step_bias)
        h_2 = cache.state(lambda: h.new_zeros(batch, self.hidden, self.state, dtype=torch.float32))
        y, h_2 = selective_scan_on(h, step, -torch.exp(self.log_rates), b, c, h_2)
        y = y + self.skip * h
        cache.set_state(h_2)
        return self.output(y * F.silu(gate))


class Layer(nn.Module):
    """layer (mamba.arch:17)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-5)
        self.attention = Mixer(config, hidden=2 * config.width, rank=-(-config.width // 16))

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        h = self.attention_norm(x)
        if cache is None:
            h = self.attention(h)
        else:
            h = self.attention.advance(h, cache)
        return x + h


class Mamba130M(nn.Module):
    """mamba_130m (mamba.arch:23)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=1e-5)
        self.init_weights()

    def init_weights(self) -> None:
        """Draw every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()
        nn.init.normal_(self.token_embedding.weight, std=0.02)

    def forward(self, tokens: Tensor, cache: Cache | None = None, at: Tensor | None = None) -> Tensor:
        if cache is None:
            assert tokens.size(1) <= self.config.context, "at most `context` tokens"
        else:
            cache.begin(tokens)
            assert cache.capacity <= self.config.context, "at most `context` tokens"
        x = self.token_embedding(tokens)  # [batch, time, width]
        for block in self.blocks:
            x = block(x, cache)
        if at is not None:  # the logits of this position of each row alone are wanted
            x = x[torch.arange(x.size(0), device=x.device), at][:, None]
        return F.linear(self.norm(x), self.token_embedding.weight)

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
