"""Mistral 7B (Jiang et al., 2023): grouped-query attention over a sliding window of 4096 tokens.

7,241,732,096 parameters. Made by archdsl 0.1.0 from mistral.arch (37547e243ccb):
    archdsl compile mistral.arch:mistral_7b --to torch --with generate
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention


@dataclass
class Config:
    layers: int = 32
    width: int = 4096
    heads: int = 32
    kv_heads: int = 8
    hidden: int = 14_336
    window: int = 4096
    vocab: int = 32_000
    context: int = 32_768

    def __post_init__(self) -> None:
        assert min(vars(self).values()) >= 1, f"sizes and counts must be whole numbers of at least 1: {self}"
        assert self.width >= 16 * self.heads, f"FlexAttention takes heads of at least 16 channels: {self}"
        assert self.width % self.heads == 0, f"width must be a multiple of heads: {self}"
        assert self.heads % self.kv_heads == 0, f"heads must be a multiple of kv_heads: {self}"
        assert self.width % (2 * self.heads) == 0, f"rope needs an even number of channels: {self}"


fused_block_mask = torch.compile(create_block_mask)  # nothing is compiled before the first call, on CUDA
fused_attention = torch.compile(flex_attention)  # nothing is compiled before the first call, on CUDA


def rope_table(positions: Tensor, head_dim: int, theta: float) -> Tensor:
    """Compute the cosines and sines at positions [..., time]: [2, ..., time, head_dim / 2]."""
    frequencies = theta ** -(torch.arange(0, head_dim, 2, device=positions.device).float() / head_dim)
    angles = positions[..., None].float() * frequencies
    return torch.stack((angles.cos(), angles.sin()))


def causal_and_window_mask(b: Tensor, query: Tensor, key: Tensor, window: int) -> Tensor:
    return (key <= query) & (query - key < window)


def mask_of(
    rule: Callable[..., Tensor], batch: int, time: int, device: torch.device, *given: Any
) -> Tensor | BlockMask:
    """Build the mask of the pairs of positions that a rule allows: blocks for FlexAttention on CUDA, elsewhere a tensor
    [time, time] or [batch, 1, time, time]."""
    if device.type == "cuda":
        return fused_block_mask(lambda b, h, query, key: rule(b, query, key, *given), batch, None, time, time, device)
    rows, positions = torch.arange(batch, device=device)[:, None, None, None], torch.arange(time, device=device)
    return rule(rows, positions[:, None], positions, *given)


def rotate(x: Tensor, rope: Tensor) -> Tensor:
    """Rotate the channel pairs (i, i + head_dim / 2) of x [..., time, head_dim] by the angles of their positions."""
    cos, sin = rope
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).type_as(x)


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | BlockMask | None = None, **options: Any) -> Tensor:
    """Attend where the mask allows; without a mask, to earlier positions and the query's own."""
    if isinstance(mask, BlockMask):
        return fused_attention(q.type_as(v), k.type_as(v), v, block_mask=mask, **options)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, **options)


class Cache:
    """The KV cache, the states of recurrences, and tensors computed once; decode steps visit them in one order."""

    lengths: Tensor | None = None  # of the rows in the first step, where they differ

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

    def last(self, window: int) -> Tensor:
        """Return the positions of the keys that `update_window` gives [1 or batch, keys]; of an empty slot, the end."""
        if self.first or self.capacity <= window:
            return self.keys[None]
        slots, new = torch.arange(window, device=self.keys.device), self.positions.size(1)
        latest = self.positions[:, :1] - int(new > 1)  # of the positions in the buffer
        positions = latest - (latest - slots) % window
        positions = torch.where(positions < 0, self.capacity, positions)
        return positions if new == 1 else torch.cat((positions, self.positions), dim=1)

    def update_window(self, *tensors: Tensor, window: int) -> Any:
        """Write the new positions into the ring of the last `window`; return all that the new ones may attend to."""
        if self.capacity <= window:
            return self.update(*tensors)
        if self.first:
            self.entries.append(tuple(t.new_zeros(*t.shape[:-2], window, t.size(-1)) for t in tensors))
        buffers = self.entries[self.cursor]
        self.cursor += 1
        new, rows = tensors[0].size(-2), torch.arange(self.batch, device=self.keys.device)[:, None]
        found = tensors if self.first else tuple(torch.cat(pair, dim=-2) for pair in zip(buffers, tensors) if new > 1)
        # The last new positions of each row, as many as fit.
        lengths = self.lengths[:, None] if self.first and self.lengths is not None else new
        index = (lengths - min(new, window) + torch.arange(min(new, window), device=rows.device)[None]).clamp(min=0)
        slots = (self.positions[:, :1] + index) % window
        for buffer, tensor in zip(buffers, tensors):
            buffer.movedim(-2, 1)[rows, slots] = tensor.movedim(-2, 1)[rows, index]
        return found or buffers


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
        self.mask_window = config.window
        self.q = nn.Linear(config.width, config.width, bias=False)
        self.k = nn.Linear(config.width, config.kv_heads * self.head_dim, bias=False)
        self.v = nn.Linear(config.width, config.kv_heads * self.head_dim, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor | BlockMask, cache: Cache | None = None) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, kv_heads, time, head_dim]
        v = self.v(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, kv_heads, time, head_dim]
        q = rotate(q, rope)
        k = rotate(k, rope)
        if cache is None:
            y = masked_attention(q, k, v, mask, enable_gqa=True)
        else:
            k, v = cache.update_window(k, v, window=self.mask_window)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
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
    """decoder (mistral.arch:3)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-5)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.width, eps=1e-5)
        self.ffn = SwiGLU(config)

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor | BlockMask, cache: Cache | None = None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rope, mask, cache)
        return x + self.ffn(self.ffn_norm(x))


class Mistral7B(nn.Module):
    """mistral_7b (mistral.arch:13)"""

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
        rope = rope_table(positions, self.config.width // self.config.heads, 10_000)
        if cache is None:
            mask = mask_of(causal_and_window_mask, 1, time, tokens.device, self.config.window)
        else:
            query = cache.positions[:, None, :, None]
            key = cache.last(self.config.window)[:, None, None]
            mask = (key <= query) & (query - key < self.config.window)
        x = self.token_embedding(tokens)  # [batch, time, width]
        for block in self.blocks:
            x = block(x, rope, mask, cache)
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
        cache.lengths = lengths
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
