"""T5 (Raffel et al., 2019): encoder-decoder with relative position biases, unscaled attention and RMSNorm.

60,506,624 parameters. Made by archdsl 0.1.0 from t5.arch (347edbc4069a):
    archdsl compile t5.arch:t5_small --to torch --with generate
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
    layers: int = 6
    width: int = 512
    heads: int = 8
    head_dim: int = 64
    hidden: int = 2048
    vocab: int = 32_128
    context: int = 512

    def __post_init__(self) -> None:
        assert min(vars(self).values()) >= 1, f"sizes and counts must be whole numbers of at least 1: {self}"
        if math.sqrt(self.width) == 1:
            raise ValueError(f"`scale == 1` was decided by these numbers: compile again with --set: {self}")


class RelativeBias(nn.Embedding):
    """A bias for each head and bucket of distances; buckets grow with the distance (T5, Raffel et al., 2019, section
    2.1)."""

    def __init__(self, buckets: int, heads: int, max_distance: int, bidirectional: bool = True) -> None:
        super().__init__(buckets, heads)
        self.max_distance = max_distance
        self.bidirectional = bidirectional

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, queries: int, keys: int) -> Tensor:
        query = torch.arange(keys - queries, keys, device=self.weight.device)[:, None]
        return self.between(query, torch.arange(keys, device=self.weight.device))

    def between(self, query: Tensor, key: Tensor) -> Tensor:
        distance = query - key  # how far back the key lies
        buckets, bucket = self.num_embeddings, torch.zeros_like(distance)
        if self.bidirectional:
            buckets //= 2
            bucket = (distance < 0) * buckets
            distance = distance.abs()
        else:
            distance = distance.clamp(min=0)
        near = buckets // 2
        far = torch.log(distance.clamp(min=1).float() / near) / math.log(self.max_distance / near) * (buckets - near)
        far = (near + far.long()).clamp(max=buckets - 1)
        bucket = bucket + torch.where(distance < near, distance, far)
        return super().forward(bucket).movedim(-1, -3)  # [heads, query, key]


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

    def store(self, *tensors: Tensor) -> None:
        """Keep tensors that the first step has computed."""
        self.entries.append(tensors)

    def stored(self) -> Any:
        """Return the next tensors that the first step has computed."""
        tensors = self.entries[self.cursor]
        self.cursor += 1
        return tensors if len(tensors) > 1 else tensors[0]

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
    """Multi-head attention (Vaswani et al., 2017, section 3.2)."""

    def __init__(self, config: Config, scale: float, dropout: float = 0) -> None:
        super().__init__()
        value_dim = config.head_dim
        self.head_dim = config.head_dim
        self.dropout = dropout
        self.scale = scale
        self.q = nn.Linear(config.width, config.heads * config.head_dim, bias=False)
        self.k = nn.Linear(config.width, config.heads * config.head_dim, bias=False)
        self.v = nn.Linear(config.width, config.heads * value_dim, bias=False)
        self.out = nn.Linear(config.heads * value_dim, config.width, bias=False)

    def forward(self, x: Tensor, bias: Tensor, cache: Cache | None = None) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        k = self.k(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        v = self.v(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, value_dim]
        if cache is None:
            y = F.scaled_dot_product_attention(
                q, k, v, attn_mask=bias, dropout_p=self.dropout if self.training else 0.0, scale=self.scale
            )
        else:
            k, v = cache.update(k, v)
            y = F.scaled_dot_product_attention(
                q, k, v, attn_mask=bias, dropout_p=self.dropout if self.training else 0.0, scale=self.scale
            )
        return self.out(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear maps with an activation between them (Vaswani et al., 2017, section 3.3)."""

    def __init__(self, config: Config, dropout: float = 0) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.dropout(F.relu(self.up(x))))


class EncoderLayer(nn.Module):
    """encoder_layer (t5.arch:3)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.attention = Attention(config, dropout=0.1, scale=1)
        self.dropout = nn.Dropout(0.1)
        self.ffn_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.ffn = MLP(config, dropout=0.1)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), bias))
        return x + self.dropout(self.ffn(self.ffn_norm(x)))


class CrossAttention(nn.Module):
    """Multi-head attention (Vaswani et al., 2017, section 3.2)."""

    def __init__(self, config: Config, scale: float, dropout: float = 0) -> None:
        super().__init__()
        value_dim = config.head_dim
        self.head_dim = config.head_dim
        self.dropout = dropout
        self.scale = scale
        self.q = nn.Linear(config.width, config.heads * config.head_dim, bias=False)
        self.k = nn.Linear(config.width, config.heads * config.head_dim, bias=False)
        self.v = nn.Linear(config.width, config.heads * value_dim, bias=False)
        self.out = nn.Linear(config.heads * value_dim, config.width, bias=False)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor, cache: Cache | None = None) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]
        if cache is None:
            h = self.k(memory)
            k = h.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, source, head_dim]
            h = self.v(memory)
            v = h.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, source, value_dim]
        else:
            if cache.first:
                h = self.k(memory)
                k = h.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, source, head_dim]
                h = self.v(memory)
                v = h.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, source, value_dim]
                cache.store(k, v)
            k, v = cache.stored()
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=self.dropout if self.training else 0.0, scale=self.scale
        )
        return self.out(y.transpose(1, 2).flatten(2))


class DecoderLayer(nn.Module):
    """decoder_layer (t5.arch:12)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.attention = Attention(config, dropout=0.1, scale=1)
        self.dropout = nn.Dropout(0.1)
        self.cross_attention_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.cross_attention = CrossAttention(config, dropout=0.1, scale=1)
        self.ffn_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.ffn = MLP(config, dropout=0.1)

    def forward(self, x: Tensor, memory: Tensor, bias: Tensor, mask: Tensor, cache: Cache | None = None) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), bias, cache))
        x = x + self.dropout(self.cross_attention(self.cross_attention_norm(x), memory, mask, cache))
        return x + self.dropout(self.ffn(self.ffn_norm(x)))


class T5Small(nn.Module):
    """t5_small (t5.arch:39)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.dropout = nn.Dropout(0.1)
        self.around = RelativeBias(32, config.heads, 128)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        self.encoder_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.before = RelativeBias(32, config.heads, 128, bidirectional=False)
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=1e-6)
        self.init_weights()

    def init_weights(self) -> None:
        """Draw every weight; call it after `to_empty()` if the model was built on the meta device."""
        for module in reversed([*self.modules()]):
            if reset := getattr(module, "reset_parameters", None):
                reset()
        nn.init.normal_(self.token_embedding.weight, std=0.02)

    def forward(self, source: Tensor, target: Tensor, padding: Tensor) -> Tensor:
        frames = source.size(1)
        time = target.size(1)
        assert frames <= self.config.context, "at most `context` source tokens"
        assert time <= self.config.context, "at most `context` tokens"
        bias = self.around(frames, frames).masked_fill(~padding[:, None, None, :], -torch.inf)
        memory = self.dropout(self.token_embedding(source))
        for encoder in self.encoder:
            memory = encoder(memory, bias)
        memory = self.encoder_norm(memory)
        key = torch.arange(time, device=source.device)
        query = key[:, None]
        bias = self.before(time, time).masked_fill(~(key <= query), -torch.inf)
        mask = padding[:, None, None, :]  # [batch, 1, 1, frames]
        x = self.dropout(self.token_embedding(target))
        for decoder in self.decoder:
            x = decoder(x, memory, bias, mask)
        return F.linear(self.norm(x), self.token_embedding.weight) * (1 / math.sqrt(self.config.width))

    def step(
        self,
        target: Tensor,
        cache: Cache,
        source: Tensor | None = None,
        padding: Tensor | None = None,
        at: Tensor | None = None,
    ) -> Tensor:
        cache.begin(target)
        if cache.first:
            assert source.size(1) <= self.config.context, "at most `context` source tokens"
            assert cache.capacity <= self.config.context, "at most `context` tokens"
            bias = self.around(source.size(1), source.size(1)).masked_fill(~padding[:, None, None, :], -torch.inf)
            memory = self.dropout(self.token_embedding(source))
            for encoder in self.encoder:
                memory = encoder(memory, bias)
            mask = padding[:, None, None, :]  # [batch, 1, 1, frames]
            cache.store(mask)
            memory = self.encoder_norm(memory)
        else:
            memory = None
        mask = cache.stored()
        query = cache.positions[:, :, None]
        key = cache.keys
        bias = self.before.between(query, key)
        query = cache.positions[:, None, :, None]
        bias = bias.masked_fill(~(key <= query), -torch.inf)
        x = self.dropout(self.token_embedding(target))
        for decoder in self.decoder:
            x = decoder(x, memory, bias, mask, cache)
        if at is not None:  # the logits of this position of each row alone are wanted
            x = x[torch.arange(x.size(0), device=x.device), at][:, None]
        return F.linear(self.norm(x), self.token_embedding.weight) * (1 / math.sqrt(self.config.width))

    @torch.no_grad()
    def stream(
        self,
        tokens: Tensor,
        max_new_tokens: int,
        *,
        source: Tensor | None = None,
        padding: Tensor | None = None,
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
        cache, step = Cache(time + max_new_tokens, static=compiled), self.step
        lengths = torch.full((batch,), time, device=tokens.device)
        if attention_mask is not None:  # prompts are moved to the left
            lengths = attention_mask.sum(1)
            tokens = tokens.gather(1, attention_mask.long().argsort(dim=1, descending=True, stable=True))
        last = int(lengths.max())
        # What lies behind a row's end is never attended to, and overwritten.
        logits = step(tokens[:, :last], source=source, padding=padding, cache=cache, at=lengths - 1)[:, 0]
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
