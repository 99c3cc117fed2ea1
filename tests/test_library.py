"""Blocks of the standard library, each beside a few lines of torch that say the same."""

from __future__ import annotations

from collections.abc import Callable

import onnx_tools
import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm, logsigmoid
from torch_emit.emitted import close, spec

import archdsl
from archdsl.backends.torch import emit
from archdsl.resources import library_files
from archdsl.run.load import load_source

Weights = dict[str, Tensor]
Said = Callable[[dict[str, Tensor], Weights], Tensor | tuple[Tensor, ...]]
X = "x: [batch, time, 12]"
SEEN = torch.ones(7, 7).tril() > 0


def heads(x: Tensor, count: int = 3) -> Tensor:
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def projected(x: Tensor, w: Weights) -> tuple[Tensor, ...]:
    return tuple(heads(x @ w[f"{n}.weight"].T) for n in "qkv")


def softmax(s: Tensor) -> Tensor:
    return torch.where(SEEN, s, -torch.inf).softmax(-1)


def attention(
    given: dict[str, Tensor],
    w: Weights,
    weights: Callable[[Tensor], Tensor] = softmax,
    norm: Callable[[Tensor, str], Tensor] = lambda x, name: x,
    gate: Callable[[Tensor], Tensor] = lambda y: y,
) -> Tensor:
    q, k, v = projected(given["x"], w)
    y = gate(weights(norm(q, "q") @ norm(k, "k").mT / 2) @ v)
    return y.transpose(1, 2).flatten(2) @ w["out.weight"].T


def mixed(s: Tensor, mix: Tensor) -> Tensor:
    return torch.stack([sum(mix[g, h] * s[:, h] for h in range(3)) for g in range(3)], 1)  # type: ignore[arg-type]


def top(s: Tensor) -> Tensor:
    shown = torch.where(SEEN, s, -torch.inf)
    return torch.where(shown >= shown.sort(-1, descending=True).values[..., 2:3], shown, -torch.inf).softmax(-1)


def with_sink(s: Tensor, sink: Tensor) -> Tensor:
    all_ = torch.cat((torch.where(SEEN, s, -torch.inf), sink.expand(*s.shape[:-1], 1)), -1)
    return all_.softmax(-1)[..., :-1]


def forgotten(s: Tensor, x: Tensor, w: Weights) -> Tensor:
    gate = logsigmoid(x @ w["scores.forget.weight"].T + w["scores.forget.bias"])  # [batch, time, heads]
    for query in range(7):
        for key in range(query):
            s[:, :, query, key] += gate[:, key + 1 : query + 1].sum(1)
    return softmax(s)


def rms(x: Tensor, gain: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain


def linear(x: Tensor, w: Weights, name: str) -> Tensor:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", torch.zeros(()))


def mlp(x: Tensor, w: Weights) -> Tensor:
    return linear(torch.nn.functional.gelu(linear(x, w, "inner.up")), w, "inner.down")


def realformer(g: dict[str, Tensor], w: Weights) -> tuple[Tensor, Tensor]:
    q, k, v = projected(g["x"], w)
    scores = q @ k.mT / 2 + g["before"]
    return (softmax(scores) @ v).transpose(1, 2).flatten(2) @ w["out.weight"].T, scores


def of_first_values(g: dict[str, Tensor], w: Weights) -> tuple[Tensor, Tensor]:
    q, k, v = projected(g["x"], w)
    y = softmax(q @ k.mT / 2) @ (w["share"] * v + (1 - w["share"]) * g["first"])
    return y.transpose(1, 2).flatten(2) @ w["out.weight"].T, v


def gru(g: dict[str, Tensor], w: Weights) -> Tensor:
    x, y = g["x"], g["y"]
    r = (linear(y, w, "reset_y") + linear(x, w, "reset_x")).sigmoid()
    z = (linear(y, w, "update_y") + linear(x, w, "update_x") - w["bias"]).sigmoid()
    return x + z * ((linear(y, w, "new_y") + linear(r * x, w, "new_x")).tanh() - x)


def hyper(g: dict[str, Tensor], w: Weights) -> Tensor:
    h = g["x"]
    y = mlp(sum(h[:, :, s] * w["read"][s] for s in range(3)), w)  # type: ignore[arg-type]
    mix = w["mix"] + torch.eye(3)
    return torch.stack([sum(h[:, :, s] * mix[s, r] for s in range(3)) + y * w["write"][r] for r in range(3)], 2)


def adaptive(g: dict[str, Tensor], w: Weights) -> Tensor:
    made = linear(torch.nn.functional.silu(g["c"]), w, "modulation")[:, None]
    shift, scale, gate = made[..., :12], made[..., 12:24], made[..., 24:]
    return g["x"] + gate * mlp(layer_norm(g["x"], (12,)) * (1 + scale) + shift, w)


def shifted(g: dict[str, Tensor], w: Weights) -> Tensor:
    x = g["x"].clone()
    x[:, 1:, :3], x[:, 0, :3] = g["x"][:, :-1, :3], 0
    return x


def mixture(g: dict[str, Tensor], w: Weights) -> Tensor:
    prior = linear(g["x"], w, "prior").softmax(-1)
    latent = linear(g["x"], w, "latent").tanh().unflatten(-1, (4, 12))
    return (prior[..., None] * linear(latent, w, "head").softmax(-1)).sum(-2).log()


def hooked(*hooks: str) -> str:
    return f"x -> mha(heads: 3, mask: causal, {', '.join(hooks)}) as a"


LIBRARY: dict[str, tuple[str, str, Said]] = {
    "talking_heads": (
        X,
        hooked("scores: talking_heads", "weights: talking_heads"),
        lambda g, w: attention(g, w, lambda s: mixed(softmax(mixed(s, w["scores.mix"])), w["weights.mix"])),
    ),
    "top_keys": (X, hooked("normalize: top_keys(k: 3)"), lambda g, w: attention(g, w, top)),
    "learned_sink": (
        X,
        hooked("normalize: learned_sink"),
        lambda g, w: attention(g, w, lambda s: with_sink(s, w["normalize.sink"])),
    ),
    "forgetting": (X, hooked("scores: forgetting"), lambda g, w: attention(g, w, lambda s: forgotten(s, g["x"], w))),
    "gated_values": (
        X,
        hooked("gate: gated_values"),
        lambda g, w: attention(g, w, gate=lambda y: y * heads(linear(g["x"], w, "gate.gate")).sigmoid()),
    ),
    "gated_heads": (
        X,
        hooked("gate: gated_heads"),
        lambda g, w: attention(g, w, gate=lambda y: y * linear(g["x"], w, "gate.gate").sigmoid().mT[..., None]),
    ),
    "per_head_norm": (
        X,
        hooked("qk_norm: per_head_norm"),
        lambda g, w: attention(g, w, norm=lambda x, name: rms(x, w[f"{name}_norm.gain"])),
    ),
    "residual_attention": (
        f"{X}, before: [batch, 3, time, time]",
        "residual_attention(3, mask: causal)(x, before) as a",
        realformer,
    ),
    "value_residual": (
        f"{X}, first: [batch, 3, time, 4]",
        "value_residual(3, mask: causal)(x, first) as a",
        of_first_values,
    ),
    "gru_gate": (f"{X}, y: [batch, time, 12]", "gru_gate(x, y) as a", gru),
    "hyper_connection": ("x: [batch, time, 3, 12]", "x -> hyper_connection(mlp(hidden: 20)) as a", hyper),
    "adaptive": (f"{X}, c: [batch, 5]", "adaptive(mlp(hidden: 20))(x, c) as a", adaptive),
    "scale_norm": (
        X,
        "x -> scale_norm as a",
        lambda g, w: w["gain"] * g["x"] / g["x"].square().sum(-1, keepdim=True).sqrt(),
    ),
    "dynamic_tanh": (
        X,
        "x -> dynamic_tanh as a",
        lambda g, w: w["weight"] * (w["alpha"] * g["x"]).tanh() + w["bias"],
    ),
    "token_shift": (X, "x -> token_shift(part: 0.25)", shifted),
    "mixture_of_softmaxes": (X, "x -> mixture_of_softmaxes(vocab: 9) as a", mixture),
}


@pytest.mark.parametrize("name", LIBRARY)
def test_a_block_says_what_its_paper_says(name: str) -> None:
    """Both back ends, with weights that are not their first values."""
    inputs, use, said = LIBRARY[name]
    model = spec(f"model m({inputs}) {{ return {use} }}")
    module = load_source(emit(model))().eval()
    generator = torch.Generator().manual_seed(4)
    for weight in module.parameters():
        torch.nn.init.uniform_(weight, 0.1, 0.9, generator=generator)
    sizes = {"batch": 2, "time": 7}
    given = {
        n: torch.randn([sizes.get(str(d), d.value) for d in v.shape], generator=generator)  # type: ignore[misc]
        for n, v in model.inputs
    }
    weights = {n.removeprefix("a."): p.detach() for n, p in module.named_parameters()}
    wanted, found = said(given, weights), module(*given.values())
    by_onnx = onnx_tools.run(onnx_tools.onnx_bytes(model, module), given)
    pairs = zip(*(v if isinstance(v, tuple) else (v,) for v in (found, wanted)), by_onnx, strict=True)
    for mine, theirs, other in pairs:
        close(mine, theirs)
        assert onnx_tools.distance(other, theirs) < 1e-5


@pytest.mark.parametrize("name", LIBRARY)
def test_a_block_is_short(name: str) -> None:
    (text,) = [
        part
        for path in library_files().values()
        for part in path.read_text(encoding="utf-8").split("\n\n")
        if f"block {name}(" in part
    ]
    declared = text[text.index(f"block {name}(") :].splitlines()
    assert next(i for i, line in enumerate(declared, 1) if line == "}") <= 12


CAUSAL = [
    n for n in LIBRARY if "mha" in LIBRARY[n][1] or n in ("gru_gate", "scale_norm", "dynamic_tanh", "token_shift")
]


@pytest.mark.parametrize("name", [n for n in CAUSAL if n != "gru_gate"])
def test_a_block_stands_in_layers_and_is_decoded(name: str) -> None:
    """In a model of layers, proved causal, in steps of both back ends."""
    use = LIBRARY[name][1].removeprefix("x -> ").removesuffix(" as a")
    text = f"""block layer(x: [batch, time, width]) -> [batch, time, width] {{ x += x -> rmsnorm -> {use} }}
    model m {{ vocab: 19 context: 12 width: 12 blocks: 2 * layer head: lm }}"""
    report = archdsl.verify(text=text, seq=10)
    assert report.agrees
    assert "steps" in report.decode, report.no_decode
    assert "steps" in report.torch_decode, report.no_torch_decode
