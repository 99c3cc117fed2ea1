"""DeepSeek-V2 (DeepSeek-AI, 2024): latent attention, and experts of which a token may reach three groups in eight.

15,706,484,224 parameters. Made by archdsl 0.1.0 from deepseek_v2.arch (51f257cf0624):
    archdsl compile deepseek_v2.arch:deepseek_v2_lite --to torch --with generate
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
    layers: int = 27
    width: int = 2048
    heads: int = 16
    q_rank: int = 0
    kv_rank: int = 512
    nope_dim: int = 128
    rope_dim: int = 64
    v_dim: int = 128
    hidden: int = 10_944
    experts: int = 64
    top_k: int = 6
    expert_hidden: int = 1408
    groups: int = 1
    top_groups: int = 1
    scale: int = 1
    vocab: int = 102_400
    context: int = 163_840

    def __post_init__(self) -> None:
        if (
            min(
                self.width,
                self.heads,
                self.kv_rank,
                self.nope_dim,
                self.rope_dim,
                self.v_dim,
                self.hidden,
                self.experts,
                self.top_k,
                self.expert_hidden,
                self.groups,
                self.top_groups,
                self.vocab,
                self.context,
            )
            < 1
        ):
            raise ValueError(f"sizes and counts must be whole numbers of at least 1: {self}")
        assert self.q_rank == 0, f"`q_rank == 0` was decided by these numbers: compile again with --set: {self}"
        assert self.layers >= 2, f"layers - 1 must be at least 1: {self}"
        assert self.top_k <= self.experts, f"top_k must be at most the number of experts: {self}"
        assert self.groups <= 1, f"`groups > 1` was decided by these numbers: compile again with --set: {self}"
        assert self.scale == 1, f"`scale != 1` was decided by these numbers: compile again with --set: {self}"
        assert self.rope_dim % 2 == 0, f"rope needs an even number of channels: {self}"


def rope_frequencies(head_dim: int, theta: float, device: torch.device) -> Tensor:
    """Compute the radians per position of each pair of channels: [head_dim / 2]."""
    return theta ** -(torch.arange(0, head_dim, 2, device=device).float() / head_dim)


def yarn_scaling(
    frequencies: Tensor,
    theta: float,
    factor: float,
    original: int,
    beta_fast: float,
    beta_slow: float,
    truncate: bool = True,
) -> Tensor:
    """YaRN: interpolate the slow waves, keep the fast ones, ramp between them (Peng et al., 2023, section 3.2)."""
    dims = 2 * frequencies.numel()

    def pair(turns: float) -> float:
        """Return the pair of channels that turns so often within the original context."""
        return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(beta_fast), pair(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    ramp = ((torch.arange(dims // 2, device=frequencies.device) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return frequencies * (1 - ramp + ramp / factor)


def scaled_rope_table(positions: Tensor, frequencies: Tensor) -> Tensor:
    """Compute the cosines and sines at positions [..., time]: [2, ..., time, head_dim / 2]."""
    angles = positions[..., None].float() * frequencies
    return torch.stack((angles.cos(), angles.sin()))


def rotate_pairs(x: Tensor, rope: Tensor) -> Tensor:
    """Rotate the channel pairs (2i, 2i + 1) of x [..., time, head_dim] by the angles of their positions."""
    cos, sin = rope
    a, b = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2).type_as(x)


def grouped_mm(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Multiply x [rows, in], sorted by expert, by weight [experts, in, out]; `ends` [experts] is where rows end."""
    if not x.is_meta and torch.is_autocast_enabled(x.device.type):
        x, weight = (t.to(torch.get_autocast_dtype(x.device.type)) for t in (x, weight))
    aligned = all(size * x.element_size() % 16 == 0 for size in weight.shape[1:])
    kinds = (torch.bfloat16,) if torch.compiler.is_compiling() else (torch.bfloat16, torch.float16, torch.float32)
    if hasattr(F, "grouped_mm") and aligned and x.dtype in kinds:  # torch >= 2.10
        return F.grouped_mm(x, weight, offs=ends)
    rows = x.tensor_split(ends[:-1].long().cpu())
    return torch.cat([part @ matrix for part, matrix in zip(rows, weight)])


class GroupedLinear(nn.Module):
    """One linear layer per expert, for rows sorted by expert."""

    def __init__(self, experts: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, outputs, inputs))

    def reset_parameters(self) -> None:
        bound = self.weight.size(2) ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        return grouped_mm(x, self.weight.transpose(1, 2), ends)


def dispatch(experts: nn.Module, count: int, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Send each token to its chosen experts and add their outputs, weighted."""
    tokens, chosen, weights = x.flatten(0, -2), chosen.flatten(0, -2), weights.flatten()
    expert, order = chosen.flatten().sort(stable=True)  # (token, choice) pairs, sorted by expert
    ends = torch.searchsorted(expert, torch.arange(count, device=x.device), right=True, out_int32=True)
    token = order // chosen.size(-1)
    y = experts(tokens[token], ends) * weights[order, None].to(x.dtype)
    return torch.zeros_like(tokens).index_add(0, token, y).view_as(x)


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


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, scale: float | None = None, causal: bool = True
) -> Tensor:
    """Attend from new positions to all so far. Without a mask, a single new position attends to every key, several
    attend causally."""
    shared = q.size(1) // k.size(1)
    if q.size(2) == 1 and shared > 1 and (mask is None or mask.size(1) == 1):
        # Heads that share keys become rows of one matrix: no kernel is faster for a single position.
        y = F.scaled_dot_product_attention(q.unflatten(1, (-1, shared)).squeeze(3), k, v, attn_mask=mask, scale=scale)
        return y.flatten(1, 2).unsqueeze(2)
    causal = causal and mask is None and q.size(2) > 1
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=shared > 1)


def attend_latent(q: Tensor, rows: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attend to keys and values that are projections of `rows` [batch, all, dim]: the projection of keys is absorbed
    into the queries, that of values into the result (DeepSeek-V2, section 2.1.2)."""
    rows = rows.unsqueeze(1)  # one head that all queries share
    return attend(q @ keys.mT, rows, rows, mask, scale) @ values


class LatentAttention(nn.Module):
    """Multi-head latent attention (DeepSeek-V2, section 2.1): keys and values are read from one narrow latent."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.nope_dim = config.nope_dim
        self.rope_dim = config.rope_dim
        self.kv_rank = config.kv_rank
        self.v_dim = config.v_dim
        self.heads = config.heads
        self.q = nn.Linear(config.width, config.heads * (config.nope_dim + config.rope_dim), bias=False)
        self.kv_down = nn.Linear(config.width, config.kv_rank + config.rope_dim, bias=False)
        self.kv_norm = nn.RMSNorm(config.kv_rank, eps=1e-6)
        self.kv_up = nn.Linear(config.kv_rank, config.heads * (config.nope_dim + config.v_dim), bias=False)
        self.out = nn.Linear(config.heads * config.v_dim, config.width, bias=False)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.nope_dim + self.rope_dim)).transpose(1, 2)
        latent, k_rope = self.kv_down(x).split((self.kv_rank, self.rope_dim), dim=-1)
        kv = self.kv_up(self.kv_norm(latent)).unflatten(-1, (-1, self.nope_dim + self.v_dim)).transpose(1, 2)
        q, q_rope = q.split((self.nope_dim, self.rope_dim), dim=-1)
        k, v = kv.split((self.nope_dim, self.v_dim), dim=-1)
        k_rope = rotate_pairs(k_rope.unsqueeze(1), rope).expand(-1, self.heads, -1, -1)
        q = torch.cat((q, rotate_pairs(q_rope, rope)), dim=-1)
        k = torch.cat((k, k_rope), dim=-1)
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            is_causal=True,
            scale=(self.nope_dim + self.rope_dim) ** -0.5 * (0.1 * 0.707 * math.log(40) + 1) ** 2,
        )
        return self.out(y.transpose(1, 2).flatten(2))

    def step(self, x: Tensor, rope: Tensor, cache: Cache) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.nope_dim + self.rope_dim)).transpose(1, 2)
        latent, k_rope = self.kv_down(x).split((self.kv_rank, self.rope_dim), dim=-1)
        h = self.kv_norm(latent)
        q, q_rope = q.split((self.nope_dim, self.rope_dim), dim=-1)
        h_2 = rotate_pairs(k_rope.unsqueeze(1), rope)
        q = torch.cat((q, rotate_pairs(q_rope, rope)), dim=-1)
        rows = cache.update(torch.cat((h, h_2.squeeze(1)), dim=-1))
        if cache.first:  # the maps of keys and values: what is made of the rows of an identity matrix
            h_rows, h_rows_2 = torch.eye(self.kv_rank + self.rope_dim, dtype=h.dtype, device=h.device)[None].split(
                (self.kv_rank, self.rope_dim), dim=-1
            )
            kv = self.kv_up(h_rows).unflatten(-1, (-1, self.nope_dim + self.v_dim)).transpose(1, 2)
            k, v = kv.split((self.nope_dim, self.v_dim), dim=-1)
            k_rope = h_rows_2[:, None].expand(-1, self.heads, -1, -1)
            k = torch.cat((k, k_rope), dim=-1)
            cache.store(k, v)
        k, v = cache.stored()
        y = attend_latent(
            q, rows, k, v, cache.mask, (self.nope_dim + self.rope_dim) ** -0.5 * (0.1 * 0.707 * math.log(40) + 1) ** 2
        )
        return self.out(y.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    """Gated by SiLU (Shazeer, 2020)."""

    def __init__(self, config: Config, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, hidden, bias=False)
        self.up = nn.Linear(config.width, hidden, bias=False)
        self.down = nn.Linear(hidden, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class DenseLayer(nn.Module):
    """layer (deepseek_v2.arch:3)"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.attention = LatentAttention(config)
        self.ffn_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.ffn = SwiGLU(config, hidden=config.hidden)

    def forward(self, x: Tensor, rope: Tensor, cache: Cache | None = None) -> Tensor:
        h = self.attention_norm(x)
        if cache is None:
            h = self.attention(h, rope)
        else:
            h = self.attention.step(h, rope, cache)
        x = x + h
        return x + self.ffn(self.ffn_norm(x))


class SoftmaxRouter(nn.Module):
    """Softmax over all experts, then the best (Shazeer et al., 2017; Mixtral)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.top_k = config.top_k
        self.gate = nn.Linear(config.width, config.experts, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.gate(x).float()
        scores = logits.softmax(-1)
        _, chosen = scores.topk(self.top_k)
        weights = scores.gather(-1, chosen)
        return weights.type_as(x), chosen


class ExpertSwiGLU(nn.Module):
    """Gated by SiLU (Shazeer, 2020)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate = GroupedLinear(config.experts, config.width, config.expert_hidden)
        self.up = GroupedLinear(config.experts, config.width, config.expert_hidden)
        self.down = GroupedLinear(config.experts, config.expert_hidden, config.width)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x, ends)) * self.up(x, ends), ends)


class MoE(nn.Module):
    """Mixture of experts: each token goes to its `top_k` experts, weighted by the router."""

    def __init__(self, config: Config, shared_hidden: int) -> None:
        super().__init__()
        self.num_experts = config.experts
        self.router = SoftmaxRouter(config)
        self.experts = ExpertSwiGLU(config)
        self.shared = SwiGLU(config, hidden=shared_hidden)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x)
        y = dispatch(self.experts, self.num_experts, x, weights, chosen)
        return y + self.shared(x)


class SparseLayer(nn.Module):
    """layer (deepseek_v2.arch:3)"""

    def __init__(self, config: Config, ffn_shared_hidden: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.attention = LatentAttention(config)
        self.ffn_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.ffn = MoE(config, shared_hidden=ffn_shared_hidden)

    def forward(self, x: Tensor, rope: Tensor, cache: Cache | None = None) -> Tensor:
        h = self.attention_norm(x)
        if cache is None:
            h = self.attention(h, rope)
        else:
            h = self.attention.step(h, rope, cache)
        x = x + h
        return x + self.ffn(self.ffn_norm(x))


class DeepseekV2Lite(nn.Module):
    """deepseek_v2_lite (deepseek_v2.arch:33)"""

    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(
            [
                DenseLayer(config),
                *(SparseLayer(config, ffn_shared_hidden=2 * config.expert_hidden) for _ in range(config.layers - 1)),
            ]
        )
        self.norm = nn.RMSNorm(config.width, eps=1e-6)
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
        frequencies = rope_frequencies(self.config.rope_dim, 10_000, tokens.device)
        rope = scaled_rope_table(
            positions, yarn_scaling(frequencies, 10_000, factor=40, original=4096, beta_fast=32, beta_slow=1)
        )
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
