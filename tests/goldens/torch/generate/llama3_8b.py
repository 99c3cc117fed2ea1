"""Llama 3.1 (Dubey et al., 2024): grouped-query attention, RoPE, SwiGLU, RMSNorm.

8,030,261,248 parameters. Made by archdsl 0.1.0 from llama3.arch (2288a133fc52):
    archdsl compile llama3.arch:llama3_8b --to torch --with generate
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    layers: int = 32
    width: int = 4096
    heads: int = 32
    kv_heads: int = 8
    hidden: int = 14_336
    vocab: int = 128_256
    context: int = 131_072

    def __post_init__(self) -> None:
        assert min(vars(self).values()) >= 1, f"sizes and counts must be whole numbers of at least 1: {self}"
        assert self.width % self.heads == 0, f"width must be a multiple of heads: {self}"
        assert self.heads % self.kv_heads == 0, f"heads must be a multiple of kv_heads: {self}"
        assert self.width % (2 * self.heads) == 0, f"rope needs an even number of channels: {self}"


def rope_frequencies(head_dim: int, theta: float, device: torch.device) -> Tensor:
    """Compute the radians per position of each pair of channels: [head_dim / 2]."""
    return theta ** -(torch.arange(0, head_dim, 2, device=device).float() / head_dim)


def llama3_scaling(frequencies: Tensor, factor: float, low: float, high: float, original: int) -> Tensor:
    """Slow down wavelengths longer than the original context, keep the short ones, blend between (Llama 3.1)."""
    waves = original * frequencies / (2 * math.pi)  # periods within the original context
    keep = ((waves - low) / (high - low)).clamp(0, 1)
    return frequencies * (keep + (1 - keep) / factor)


def scaled_rope_table(positions: Tensor, frequencies: Tensor) -> Tensor:
    """Compute the cosines and sines at positions [..., time]: [2, ..., time, head_dim / 2]."""
    angles = positions[..., None].float() * frequencies
    return torch.stack((angles.cos(), angles.sin()))


def rotate(x: Tensor, rope: Tensor) -> Tensor:
    """Rotate the channel pairs (i, i + head_dim / 2) of x [..., time, head_dim] by the angles of their positions."""
    cos, sin = rope
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).type_as(x)


class Cache:
    """The KV cache, the states of recurrences, and tensors computed once; decode steps visit them in one order."""

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

    def update(self, *tensors: Tensor, axis: int = -2) -> Any:
        """Append the new positions; return all so far."""
        if self.first:
            axes = [axis % t.dim() for t in tensors]
            shapes = [(*t.shape[:a], self.capacity, *t.shape[a + 1 :]) for t, a in zip(tensors, axes)]
            self.entries.append(tuple(t.new_zeros(shape) for t, shape in zip(tensors, shapes)))
        buffers = self.entries[self.cursor]
        self.cursor += 1
        for buffer, new in zip(buffers, tensors):
            if self.first or self.start is None:
                buffer.narrow(axis, self.past, new.size(axis)).copy_(new)
            else:
                rows = torch.arange(new.size(0), device=new.device)[:, None]
                buffer.movedim(axis, 1)[rows, self.positions] = new.movedim(axis, 1)
        found = tuple(buffer.narrow(axis, 0, self.end) for buffer in buffers)
        return found if len(found) > 1 else found[0]


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


class Attention(nn.Module):
    """Grouped-query attention (Ainslie et al., 2023): every group of heads shares one head of keys and values."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.width // config.heads
        self.q = nn.Linear(config.width, config.width, bias=False)
        self.k = nn.Linear(config.width, config.kv_heads * self.head_dim, bias=False)
        self.v = nn.Linear(config.width, config.kv_heads * self.head_dim, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, rope: Tensor, cache: Cache | None = None) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, kv_heads, time, head_dim]
        v = self.v(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, kv_heads, time, head_dim]
        q = rotate(q, rope)
        k = rotate(k, rope)
        if cache is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            k, v = cache.update(k, v)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=cache.mask, is_causal=cache.causal, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    """Gated by SiLU (Shazeer, 2020)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Decoder(nn.Module):
    """decoder (llama3.arch:5)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-5)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.width, eps=1e-5)
        self.ffn = SwiGLU(config)

    def forward(self, x: Tensor, rope: Tensor, cache: Cache | None = None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rope, cache)
        return x + self.ffn(self.ffn_norm(x))


class Llama3_8B(nn.Module):
    """llama3_8b (llama3.arch:23)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(Decoder(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=1e-5)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        self.init_weights()

    def init_weights(self) -> None:
        """Draw every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()
        nn.init.normal_(self.token_embedding.weight, std=0.02)

    def forward(self, tokens: Tensor, cache: Cache | None = None, at: Tensor | None = None) -> Tensor:
        time = tokens.size(1)
        if cache is None:
            assert time <= self.config.context, "at most `context` tokens"
            positions = torch.arange(time, device=tokens.device)
        else:
            cache.begin(tokens)
            assert cache.capacity <= self.config.context, "at most `context` tokens"
            positions = cache.positions[:, None]
        frequencies = rope_frequencies(self.config.width // self.config.heads, 500_000, tokens.device)
        rope = scaled_rope_table(positions, llama3_scaling(frequencies, factor=8, low=1, high=4, original=8192))
        x = self.token_embedding(tokens)  # [batch, time, width]
        for block in self.blocks:
            x = block(x, rope, cache)
        if at is not None:  # the logits of this position of each row alone are wanted
            x = x[torch.arange(x.size(0), device=x.device), at][:, None]
        return self.head(self.norm(x))

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
        # What lies behind a row's end is never attended to, and overwritten.
        logits = step(tokens[:, :last], cache=cache, at=lengths - 1)[:, 0]
        if int(lengths.min()) < last:
            cache.start = lengths
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
