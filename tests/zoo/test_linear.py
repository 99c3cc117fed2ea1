"""Decoders with linear attention, and what came of it: published counts, and the papers' equations, token by token.

Kimi Linear is compared with `transformers`, as is what it is made of, in `parity/zoo_cases.py`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from parity.reference import VOCAB
from torch import Tensor, nn

import archdsl
from zoo import tiny as zoo
from zoo.equations import Weights, layer_norm, linear
from zoo.tiny import close

pytestmark = pytest.mark.slow


# --- counts -----------------------------------------------------------------------------------------------------------


def count(layers: int, width: int, hidden: int, mixer: int, vocab: int = 32_000) -> int:
    """Of a mixer for each layer, three maps of a feed-forward and two norms; a last norm, embedding and head."""
    return layers * (mixer + 3 * width * hidden + 2 * width) + width + 2 * vocab * width


def delta(width: int, heads: int, dim: int, more: int = 0) -> int:
    """Maps to queries and keys, to values, a gate and back of twice the size, and to the strength and step of a head;
    convolutions of four places, two numbers for a head (and `more`), and a norm."""
    keys = heads * dim
    return width * 8 * keys + 4 * 4 * keys + 2 * width * heads + (2 + more) * heads + 2 * dim


def products(width: int, heads: int, steps: int, gated: bool = False) -> int:
    """As many keys, values and strengths as steps; a gate adds a map, and a step for each head."""
    maps = (2 + 2 * steps) * width**2 + 4 * (1 + 2 * steps) * width + steps * heads * width + width // heads
    return maps + gated * (width**2 + heads * width + 2 * heads)


def gla(width: int, heads: int) -> int:
    """Queries and keys of half the width, values, a gate and the way back; a narrow map of 16, and a norm."""
    return 4 * width**2 + 16 * width + 16 * width // 2 + width // 2 + width // heads


def pro(width: int, heads: int) -> int:
    """Five maps, two shares for a head and one gate that forgets, and three norms of all heads."""
    return 5 * width**2 + 2 * heads * width + heads * width + heads + 3 * width


def mamba2(width: int, heads: int, dim: int, state: int, more: int) -> int:
    """Maps to a gate and values, to a key and a query of all heads, to a step of each and `more`; a convolution with a
    bias, three numbers for a head, a norm, and the way back."""
    hidden = heads * dim
    inner = 2 * hidden + 2 * state + heads + more
    return width * inner + 5 * (hidden + 2 * state) + 3 * heads + hidden + hidden * width


def mamba3(width: int, heads: int, dim: int, state: int, angles: int) -> int:
    """Maps to a gate, values, a key and a query of all heads, three numbers of each and the angles; norms and biases of
    keys and queries, two numbers for a head, and the way back."""
    hidden = heads * dim
    return width * (3 * hidden + 2 * state + 3 * heads + angles) + 2 * state * (1 + heads) + 2 * heads


def finch(layers: int, width: int, mix: int, decay: int) -> int:
    """Eagle and Finch, appendix: 13 D² a layer, and D times its vectors and the ranks of its narrow maps."""
    return layers * (13 * width**2 + width * (16 + 10 * mix + 2 * decay)) + 4 * width + 2 * 65_536 * width


PUBLISHED = {
    "kimi_linear:kimi_linear_48b": 49_122_675_072,  # KimiLinearForCausalLM
    "gated_deltanet:gated_deltanet_1_3b": count(21, 2048, 5632, delta(2048, 6, 256)),
    "gla:gla_1_3b": count(24, 2048, 5632, gla(2048, 4)),
    "gla:gla_340m": count(24, 1024, 2816, gla(1024, 4)),
    "hgrn2:hgrn2_1_3b": count(24, 2048, 5632, 4 * 2048**2 + 2048) + 24 * 2048,
    "delta_product:delta_product_2": count(24, 1024, 2816, products(1024, 8, 2)),
    "delta_product:delta_product_3": count(24, 1024, 2816, products(1024, 8, 3)),
    "delta_product:gated_delta_product_2": count(24, 1024, 2816, products(1024, 8, 2, gated=True)),
    "delta_product:delta_net_340m": count(24, 1024, 2816, products(1024, 8, 1)),
    "comba:comba_1_3b": count(21, 2048, 5632, delta(2048, 6, 256, more=2)),
    "path_attention:path_760m": count(24, 1536, 4096, 4 * 1536**2 + (2 * 32 + 3) * 1536 + 1537 * 24),
    "forgetting_transformer:fox_pro_760m": count(24, 1536, 3584, pro(1536, 24), 50_257),
    "forgetting_transformer:fox_pro_360m": count(24, 1024, 2560, pro(1024, 16), 50_257),
    "forgetting_transformer:fox_pro_125m": count(12, 768, 1792, pro(768, 12), 50_257),
    "forgetting_transformer:fox_llama_760m": count(24, 1536, 4096, 4 * 1536**2 + 1537 * 24, 50_257),
    "forgetting_transformer:fox_llama_360m": count(24, 1024, 2816, 4 * 1024**2 + 1025 * 16, 50_257),
    "forgetting_transformer:fox_llama_125m": count(12, 768, 2048, 4 * 768**2 + 769 * 12, 50_257),
    "log_linear_attention:log_linear_mamba2": count(21, 1536, 4096, mamba2(1536, 48, 64, 128, 15 * 48) + 15 * 48),
    "mamba3:mamba3_1_5b": count(24, 2048, 4096, mamba3(2048, 64, 64, 128, 32), 128_256) - 128_256 * 2048,  # tied
    "rwkv6:rwkv6_1_6b": finch(24, 2048, 32, 64),
    "rwkv6:rwkv6_3b": finch(32, 2560, 32, 64),
    "rwkv6:rwkv6_7b": finch(32, 4096, 64, 128),
    "rwkv6:rwkv6_14b": finch(61, 4096, 64, 128),
}
ACTIVE = {"kimi_linear:kimi_linear_48b": 3_484_453_248}
ROUNDED = {
    "rwkv6:rwkv6_1_6b": 1600,
    "rwkv6:rwkv6_3b": 3100,
    "rwkv6:rwkv6_7b": 7600,
    "rwkv6:rwkv6_14b": 14_100,
    "log_linear_attention:log_linear_mamba2": 825,
    "mamba3:mamba3_1_5b": 1500,
}
"""Millions, as their authors say: whole ones, or hundreds."""


def test_counts_are_what_authors_say() -> None:
    said = {name: round(PUBLISHED[name] / 1e6, 0 if millions % 100 else -2) for name, millions in ROUNDED.items()}
    assert said == ROUNDED


# --- against the equations --------------------------------------------------------------------------------------------

HEADS, LAYERS = 2, 3


def rms(w: Weights, name: str, x: Tensor, eps: float = 1e-6) -> Tensor:
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + eps) * w[f"{name}.weight"]


def unit(x: Tensor) -> Tensor:
    return x / torch.sqrt((x**2).sum(-1, keepdim=True) + 1e-6)


def heads(x: Tensor, count: int = HEADS) -> Tensor:
    """[batch, time, width] to [batch, time, heads, dim]."""
    return x.unflatten(-1, (count, -1))


def mapped(w: Weights, name: str, x: Tensor) -> Tensor:
    return heads(linear(w, name, x))


def convolved(w: Weights, name: str, x: Tensor) -> Tensor:
    """Each channel a sum of its last places, tap by tap; then silu."""
    kernel = w[f"{name}.weight"][:, 0]
    taps = kernel.shape[-1]
    before = F.pad(x, (0, 0, taps - 1, 0))
    start = w.get(f"{name}.bias", torch.zeros(()))
    return F.silu(sum((kernel[:, i] * before[:, i : i + x.shape[1]] for i in range(taps)), start))


def short(w: Weights, name: str, x: Tensor) -> Tensor:
    return convolved(w, f"{name}_conv.conv1d", linear(w, name, x))


def fading(w: Weights, b: str, x: Tensor) -> Tensor:
    """exp(-exp(A) softplus(step)), as Mamba has it: [batch, time, heads]."""
    return torch.exp(-torch.exp(w[f"{b}.log_rate"]) * F.softplus(linear(w, f"{b}.step", x) + w[f"{b}.step_bias"]))


def over_time(step: Callable[[Tensor, int], tuple[Tensor, Tensor]], like: Tensor, keys: int, values: int) -> Tensor:
    """What `step` gives of a state [batch, heads, keys, values], position by position."""
    state, found = like.new_zeros(len(like), HEADS, keys, values), []
    for t in range(like.shape[1]):
        state, y = step(state, t)
        found.append(y)
    return torch.stack(found, 1)


def outer(a: Tensor, b: Tensor) -> Tensor:
    return a[..., :, None] * b[..., None, :]


def read(state: Tensor, by: Tensor) -> Tensor:
    return torch.einsum("bhk,bhkv->bhv", by, state)


def deltanet(w: Weights, b: str, x: Tensor) -> Tensor:
    """S[t] = a S[t - 1] (I - b k k^T) + b v k^T (equation 10), here transposed."""
    q, k, v = (heads(short(w, f"{b}.{n}", x)) for n in "qkv")
    q, k, decay, beta = unit(q) * q.shape[-1] ** -0.5, unit(k), fading(w, b, x), linear(w, f"{b}.strength", x).sigmoid()

    def step(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
        state = decay[:, t, :, None, None] * state
        state = state + beta[:, t, :, None, None] * outer(k[:, t], v[:, t] - read(state, k[:, t]))
        return state, read(state, q[:, t])

    y = over_time(step, x, k.shape[-1], v.shape[-1])
    y = rms(w, f"{b}.norm", y) * F.silu(mapped(w, f"{b}.gate", x))
    return linear(w, f"{b}.out", y.flatten(2))


def gated_linear(w: Weights, b: str, x: Tensor) -> Tensor:
    """S[t] = diag(a) S[t - 1] + k^T v (equation 3)."""
    q, k, v = (mapped(w, f"{b}.{n}", x) for n in "qkv")
    kept = linear(w, f"{b}.fade_up", linear(w, f"{b}.fade_down", x)).sigmoid() ** (1 / 16)
    kept, q = heads(kept), q * q.shape[-1] ** -0.5

    def step(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
        state = kept[:, t, :, :, None] * state + outer(k[:, t], v[:, t])
        return state, read(state, q[:, t])

    y = rms(w, f"{b}.norm", over_time(step, x, k.shape[-1], v.shape[-1]))
    return linear(w, f"{b}.out", (y * F.silu(mapped(w, f"{b}.gate", x))).flatten(2))


def expanded(w: Weights, b: str, x: Tensor) -> Tensor:
    """HGRN2, section 3: f = bound + (1 - bound) sigmoid, S[t] = diag(f) S[t - 1] + (1 - f) i^T."""
    shares = w["bounds"].softmax(0)
    bound = shares[1 : int(b.split(".")[1]) + 1].sum(0)
    f = heads(bound + (1 - bound) * linear(w, f"{b}.forget", x).sigmoid())
    q, v = F.silu(mapped(w, f"{b}.q", x)), mapped(w, f"{b}.input", x)

    def step(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
        state = f[:, t, :, :, None] * state + outer(1 - f[:, t], v[:, t])
        return state, read(state, q[:, t])

    y = over_time(step, x, f.shape[-1], v.shape[-1]).flatten(2)
    return linear(w, f"{b}.out", rms(w, f"{b}.norm", y))


def product(w: Weights, b: str, x: Tensor, steps: int, reach: float, gated: bool = False) -> Tensor:
    """Equation 3: for each token H[j] = H[j - 1] (I - b k k^T) + b v k^T, j up to `steps`."""
    width = x.shape[-1]
    q = unit(heads(short(w, f"{b}.q", x))) * (width / HEADS) ** -0.5
    keys, values = (short(w, f"{b}.{n}", x).split(width, -1) for n in "kv")
    betas = [reach * beta for beta in linear(w, f"{b}.strength", x).sigmoid().split(HEADS, -1)]

    def step(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
        if gated:
            state = fading(w, b, x[:, t : t + 1])[:, 0, :, None, None] * state
        for j in range(steps):
            k, v = unit(heads(keys[j][:, t])), heads(values[j][:, t])
            transition = torch.eye(k.shape[-1]) - betas[j][:, t, :, None, None] * outer(k, k)
            state = transition @ state + betas[j][:, t, :, None, None] * outer(k, v)
        return state, read(state, q[:, t])

    y = rms(w, f"{b}.norm", over_time(step, x, width // HEADS, width // HEADS))
    if gated:
        y = y * F.silu(mapped(w, f"{b}.gate", x))
    return linear(w, f"{b}.out", y.flatten(2))


def comba(w: Weights, b: str, x: Tensor) -> Tensor:
    """S[t] = S[t - 1] (a - f b k k^T) + b v k^T, of which o[t] = S[t] (q - d k), here transposed."""
    q, k, v = (heads(short(w, f"{b}.{n}", x)) for n in "qkv")
    q, k, decay, beta = unit(q), unit(k), fading(w, b, x), linear(w, f"{b}.strength", x).sigmoid()
    q = (q - w[f"{b}.correction"][:, 0] * k) * q.shape[-1] ** -0.5
    feedback = w[f"{b}.feedback"].sigmoid()

    def step(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
        a, strength = decay[:, t, :, None, None], beta[:, t, :, None, None]
        transition = a * torch.eye(k.shape[-1]) - feedback * strength * outer(k[:, t], k[:, t])
        state = transition @ state + strength * outer(k[:, t], v[:, t])
        return state, read(state, q[:, t])

    y = rms(w, f"{b}.norm", over_time(step, x, k.shape[-1], v.shape[-1]), 1e-5)
    return linear(w, f"{b}.out", (y * mapped(w, f"{b}.gate", x).sigmoid()).flatten(2))


def log_linear(w: Weights, b: str, x: Tensor) -> Tensor:
    """Equation 3, on Mamba-2, token by token: where t ends in n zeros in base 2, level n + 1 takes what those below it
    held."""
    levels, hidden = w[f"{b}.scales"].shape[1], len(w[f"{b}.norm.weight"])
    state = (len(w[f"{b}.conv.weight"]) - hidden) // 2
    parts = (hidden, hidden + 2 * state, HEADS, HEADS * levels)
    gate, inner, step, weights = linear(w, f"{b}.input", x).split(parts, -1)
    v, k, q = convolved(w, f"{b}.conv", inner).split((hidden, state, state), -1)
    v, dt = heads(v), F.softplus(step + w[f"{b}.step_bias"])
    kept = torch.exp(-torch.exp(w[f"{b}.log_rate"]) * dt)
    weights = F.softplus(w[f"{b}.scales"] * heads(weights))
    held = [x.new_zeros(len(x), HEADS, state, v.shape[-1]) for _ in range(levels)]
    found = []
    for t in range(x.shape[1]):
        if t:
            merged = (t & -t).bit_length()
            held[merged] = torch.stack(held[:merged]).sum(0)
            held[:merged] = [torch.zeros_like(held[0])] * merged
        held = [kept[:, t, :, None, None] * s for s in held]
        held[0] = outer(k[:, t, None], dt[:, t, :, None] * v[:, t])
        levelled = torch.stack([weights[:, t, :, i, None, None] * s for i, s in enumerate(held)]).sum(0)
        found.append(torch.einsum("bk,bhkv->bhv", q[:, t], levelled) + w[f"{b}.skip"][:, 0] * v[:, t])
    y = torch.stack(found, 1).flatten(2) * F.silu(gate)
    return linear(w, f"{b}.output", rms(w, f"{b}.norm", y, 1e-5))


def trapezoidal(w: Weights, b: str, x: Tensor) -> Tensor:
    """h[t] = a h[t - 1] + b B[t - 1] x[t - 1] + c B[t] x[t] of complex numbers, two channels each; a and b turn."""
    state, hidden = w[f"{b}.k_bias"].shape[-1], w[f"{b}.output.weight"].shape[1]
    mapped = linear(w, f"{b}.input", x)
    parts = (hidden, hidden, state, state, HEADS, HEADS, HEADS, mapped.shape[-1] - 2 * (hidden + state) - 3 * HEADS)
    gate, v, k, q, step, rate, share, angle = mapped.split(parts, -1)

    def complex_heads(name: str, x: Tensor) -> Tensor:
        each = rms(w, f"{b}.{name}_norm", x, 1e-5)[:, :, None] + w[f"{b}.{name}_bias"][:, 0]
        return torch.view_as_complex(each.unflatten(-1, (-1, 2)).contiguous())

    k, q, v = complex_heads("k", k), complex_heads("q", q), heads(v)
    dt, share = F.softplus(step + w[f"{b}.step_bias"]), share.sigmoid()
    turn = F.pad(dt[..., None] * torch.pi * angle[:, :, None].tanh(), (0, k.shape[-1] - angle.shape[-1]))
    kept = torch.polar(torch.exp(-dt * F.softplus(rate).clamp(min=1e-4))[..., None].expand(turn.shape), -turn)
    held, found, last = k.new_zeros(len(x), HEADS, k.shape[-1], v.shape[-1]), [], k.new_zeros(())
    for t in range(x.shape[1]):
        own = outer(k[:, t], v[:, t] + 0j)
        late, now = ((y * dt)[:, t, :, None, None] for y in (1 - share, share))
        held = kept[:, t, ..., None] * (held + late * last) + now * own
        found.append(read(held, q[:, t].conj()).real + w[f"{b}.skip"][:, 0] * v[:, t])
        last = own
    return linear(w, f"{b}.output", torch.stack(found, 1).flatten(2) * F.silu(gate))


def path(w: Weights, b: str, x: Tensor) -> Tensor:
    """Section 3: a query goes back through the products H[i] … H[j + 1], one after the other, to each key."""
    q, k, v = (mapped(w, f"{b}.{n}", x) for n in "qkv")
    unit_w = unit(heads(convolved(w, f"{b}.w_conv", linear(w, f"{b}.w_up", linear(w, f"{b}.w_down", x)))))
    beta = 2 * linear(w, f"{b}.strength", x).sigmoid()
    found = []
    for i in range(x.shape[1]):
        turned, scores = q[:, i], []
        for j in range(i, -1, -1):
            scores.append((turned * k[:, j]).sum(-1) * q.shape[-1] ** -0.5)
            along = (turned * unit_w[:, j]).sum(-1, keepdim=True)
            turned = turned - beta[:, j, :, None] * along * unit_w[:, j]
        weights = torch.stack(scores[::-1], 1).softmax(1)
        found.append((weights[..., None] * v[:, : i + 1]).sum(1))
    return linear(w, f"{b}.out", torch.stack(found, 1).flatten(2))


def forgetting(w: Weights, b: str, x: Tensor, pro: bool) -> Tensor:
    """Equations 5 and 6, and section 3.3 for "Pro": the products of gates between, query by query."""

    def normed(name: str, x: Tensor) -> Tensor:
        return x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-6) * w[f"{b}.{name}_norm.gain"][:, 0] if pro else x

    def shifted(name: str) -> Tensor:
        if not pro:
            return mapped(w, f"{b}.{name}", x)
        y, share = mapped(w, f"{b}.{name}.map", x), linear(w, f"{b}.{name}.share", x).sigmoid()[..., None]
        return torch.stack([(1 - share[:, t]) * y[:, t] + (share[:, t] * y[:, t - 1] if t else 0) for t in range(n)], 1)

    n = x.shape[1]
    q, k, v = normed("q", mapped(w, f"{b}.q", x)), normed("k", shifted("k")), shifted("v")
    gates = linear(w, f"{b}.scores.forget", x).sigmoid()
    found = []
    for i in range(n):
        scores = [
            (q[:, i] * k[:, j]).sum(-1) * q.shape[-1] ** -0.5 + gates[:, j + 1 : i + 1].log().sum(1)
            for j in range(i + 1)
        ]
        found.append((torch.stack(scores, 1).softmax(1)[..., None] * v[:, : i + 1]).sum(1))
    y = normed("y", torch.stack(found, 1)).flatten(2)
    return linear(w, f"{b}.out", y * linear(w, f"{b}.gate", x).sigmoid() if pro else y)


def decoder(w: Weights, tokens: Tensor, mixer: Callable[[Weights, str, Tensor], Tensor], eps: float = 1e-6) -> Tensor:
    """A norm before each branch, a gated feed-forward, embedding and head, which may be one."""
    x = w["token_embedding.weight"][tokens]
    for b in (f"blocks.{i}" for i in range(LAYERS) if f"blocks.{i}.ffn.up.weight" in w):
        x = x + mixer(w, f"{b}.attention", rms(w, f"{b}.attention_norm", x, eps))
        h = rms(w, f"{b}.ffn_norm", x, eps)
        h = F.silu(linear(w, f"{b}.ffn.gate", h)) * linear(w, f"{b}.ffn.up", h)
        x = x + linear(w, f"{b}.ffn.down", h)
    return rms(w, "norm", x, eps) @ w.get("head.weight", w["token_embedding.weight"]).T


def rwkv6(w: Weights, tokens: Tensor) -> Tensor:
    """Finch, equations 14 to 23: what a token is told by the one before it, and a bonus for itself."""

    def time_mixing(b: str, x: Tensor) -> Tensor:
        before = F.pad(x, (0, 0, 1, -1))
        narrow = torch.lerp(x, before, w[f"{b}.first_mix"]) @ w[f"{b}.mix_down.weight"].T
        parts = narrow.tanh().chunk(5, -1)
        wx, kx, vx, rx, gx = (x + (before - x) * (w[f"{b}.mix"][i] + parts[i] @ w[f"{b}.mix_up"][i]) for i in range(5))
        d = w[f"{b}.fading"] + linear(w, f"{b}.fade_up", linear(w, f"{b}.fade_down", wx).tanh())
        r, k, v = (heads(linear(w, f"{b}.{n}", t), 3) for n, t in (("r", rx), ("k", kx), ("v", vx)))
        kept = heads(torch.exp(-torch.exp(d)), 3)
        state, found = x.new_zeros(len(x), 3, 8, 8), []
        for t in range(x.shape[1]):
            own = outer(k[:, t], v[:, t])
            found.append(read(state + w[f"{b}.bonus"][:, 0, :, None] * own, r[:, t]))
            state = kept[:, t, :, :, None] * state + own
        y = F.layer_norm(torch.stack(found, 1), (8,), eps=64e-5).flatten(2)
        y = y * w[f"{b}.norm.weight"] + w[f"{b}.norm.bias"]
        return linear(w, f"{b}.out", y * F.silu(linear(w, f"{b}.gate", gx)))

    def channel_mixing(b: str, x: Tensor) -> Tensor:
        kx, rx = (torch.lerp(x, F.pad(x, (0, 0, 1, -1)), mix) for mix in w[f"{b}.mix"])
        h = linear(w, f"{b}.down", torch.relu(linear(w, f"{b}.up", kx)) ** 2)
        return linear(w, f"{b}.gate", rx).sigmoid() * h

    x = layer_norm(w, "embedding_norm", w["token_embedding.weight"][tokens])
    for b in ("blocks.0", "blocks.1"):
        x = x + time_mixing(f"{b}.attention", layer_norm(w, f"{b}.attention_norm", x))
        x = x + channel_mixing(f"{b}.ffn", layer_norm(w, f"{b}.ffn_norm", x))
    return linear(w, "head", layer_norm(w, "norm", x))


EQUATIONS: dict[str, Callable[[Weights, Tensor], Tensor]] = {
    "gated_deltanet:gated_deltanet_1_3b": lambda w, x: decoder(w, x, deltanet),
    "gla:gla_1_3b": lambda w, x: decoder(w, x, gated_linear),
    "hgrn2:hgrn2_1_3b": lambda w, x: decoder(w, x, expanded),
    **{
        f"delta_product:{name}": lambda w, x, more=more: decoder(w, x, lambda *given: product(*given, *more))
        for name, more in {
            "delta_product_2": (2, 2.0),
            "delta_product_3": (3, 2.0),
            "gated_delta_product_2": (2, 2.0, True),
            "delta_net_340m": (1, 1.0),
        }.items()
    },
    "comba:comba_1_3b": lambda w, x: decoder(w, x, comba, 1e-5),
    "path_attention:path_760m": lambda w, x: decoder(w, x, path),
    "forgetting_transformer:fox_pro_760m": lambda w, x: decoder(w, x, lambda *given: forgetting(*given, pro=True)),
    "forgetting_transformer:fox_llama_760m": lambda w, x: decoder(w, x, lambda *given: forgetting(*given, pro=False)),
    "log_linear_attention:log_linear_mamba2": lambda w, x: decoder(w, x, log_linear, 1e-5),
    "mamba3:mamba3_1_5b": lambda w, x: decoder(w, x, trapezoidal, 1e-5),
    "rwkv6:rwkv6_1_6b": rwkv6,
}


def drawn(name: str) -> tuple[nn.Module, Weights]:
    """A tiny model in which every weight matters, and its weights."""
    module, generator = zoo.module(name).eval(), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for path, p in module.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if "norm" in path and path.endswith(("weight", "gain")):
                p.copy_(1 + 0.2 * noise)
            elif p.dim() == 2 and path.endswith("weight"):
                p.copy_(noise * (0.5 if "embedding" in path else p.shape[1] ** -0.5))
            else:
                p.add_(0.2 * noise)
    return module, dict(module.named_parameters())


@pytest.mark.parametrize("time", [1, 63, 65, 130])
@pytest.mark.parametrize("name", EQUATIONS)
def test_logits_are_those_of_the_equations(name: str, time: int) -> None:
    module, w = drawn(name)
    x = torch.randint(VOCAB, (2, time), generator=torch.Generator().manual_seed(time))
    with torch.no_grad():
        close(module(x), EQUATIONS[name](w, x))


@pytest.mark.parametrize("name", EQUATIONS)
def test_gradients_are_those_of_the_equations(name: str) -> None:
    module, w = drawn(name)
    x = torch.randint(VOCAB, (2, 65), generator=torch.Generator().manual_seed(1))
    found, wanted = (torch.autograd.grad(y.tanh().sum(), [*w.values()]) for y in (module(x), EQUATIONS[name](w, x)))
    largest = max(float(g.abs().max()) for g in wanted)
    for path, own, g in zip(w, found, wanted, strict=True):
        assert float((own - g).abs().max()) < 1e-4 * (float(g.abs().max()) + 1e-3 * largest), path


@pytest.mark.parametrize("name", EQUATIONS)
def test_steps_and_onnxruntime_agree_with_the_forward_pass(name: str) -> None:
    """A prompt of one chunk of positions and a part of the next, then steps."""
    report = archdsl.verify(zoo.graph(name), batch=2, seq=82)
    assert report.agrees
    assert name.startswith("path") or ({*report.decode} & {"steps"} and {*report.torch_decode} >= {"prefill", "steps"})
