"""Encoders, encoder-decoders and attentions of their own: published counts, one step of training, and the numbers of an
implementation that shares no code with the emitted one: `transformers` where it has the architecture, else the paper's
equations written here."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from parity.reference import randomise
from parity.zoo_cases import permuted
from torch import Tensor, nn

import archdsl
from zoo import tiny
from zoo.equations import Weights, layer_norm, linear, sines
from zoo.tiny import close
from zoo.tiny_encoders import TINY

pytestmark = pytest.mark.slow


# --- counts -----------------------------------------------------------------------------------------------------------

# As `transformers` counts its class for the released configuration, unless said otherwise.
PUBLISHED = {
    # MarianMTModel, whose frozen tables of sines are left out; 37,000 tokens.
    "transformer:transformer_base": 63_082_496,
    "transformer:transformer_big": 214_245_376,
    # BertForPreTraining and the classes of fine-tuning.
    "bert:bert_base": 110_106_428,
    "bert:bert_large": 336_226_108,
    "bert:bert_sequence_classifier": 109_483_778,
    "bert:bert_large_sequence_classifier": 335_143_938,
    "bert:bert_token_classifier": 108_898_569,
    "bert:bert_large_token_classifier": 334_101_513,
    "bert:bert_span_classifier": 108_893_186,
    "bert:bert_large_span_classifier": 334_094_338,
    "roberta:roberta_base": 124_697_433,
    "roberta:roberta_large": 355_412_057,
    # AlbertForMaskedLM.
    "albert:albert_base": 11_221_680,
    "albert:albert_large": 16_795_824,
    "albert:albert_xlarge": 54_821_040,
    "albert:albert_xxlarge": 206_368_944,
    # XLNetLMHeadModel; the encoder alone has no vector for hidden tokens, which is as wide as the model.
    "xlnet:xlnet_base": 116_750_336,
    "xlnet:xlnet_large": 360_300_800,
    "xlnet:xlnet_base_encoder": 116_750_336 - 768,
    "xlnet:xlnet_large_encoder": 360_300_800 - 1024,
    "t5:t5_small": 60_506_624,
    "t5:t5_base": 222_903_552,
    "t5:t5_large": 737_668_096,
    "t5:t5_3b": 2_851_598_336,
    "t5:t5_11b": 11_307_321_344,
    # The released ones have a head of their own: vocab * width more than the class, which ties it.
    "t5:t5_v1_1_small": 76_961_152,
    "t5:t5_v1_1_base": 247_577_856,
    "t5:t5_v1_1_large": 783_150_080,
    "t5:t5_v1_1_xl": 2_849_757_184,
    "t5:t5_v1_1_xxl": 11_135_332_352,
    "switch:switch_base_8": 619_339_008,
    "switch:switch_base_128": 7_415_217_408,
    "switch:switch_large_128": 26_309_291_008,
    # 24 + 24 layers of width 4096 with 64 heads of 64, every second one with 128 gated experts of 10,240.
    "switch:switch_xxl": 394_543_476_736,
    "switch:switch_c": 1_571_308_972_448,
    # RobertaForMaskedLM and the projections: 128 * 512 once, for 12 layers, twice for 12, twice for 12 * 12 heads.
    "linformer:linformer": 124_697_433 + 128 * 512,
    "linformer:linformer_key_value": 124_697_433 + 12 * 128 * 512,
    "linformer:linformer_headwise": 124_697_433 + 2 * 12 * 128 * 512,
    "linformer:linformer_unshared": 124_697_433 + 2 * 12 * 12 * 128 * 512,
    "reformer:reformer_enwik8": 149_182_722,
    "reformer:reformer_crime_and_punishment": 2_748_224,
    # 36 layers of 4 (512**2 + 512) + 2 * 512 * 1024 + 1024 + 512 and two norms; a last norm; 30 tokens. Features are
    # no parameters.
    "performer:performer": 36 * (4 * (512**2 + 512) + 2 * 512 * 1024 + 1024 + 512 + 4 * 512) + 2 * 512 + 30 * 512,
    "performer:performer_bidirectional": 75_716_608,
    # BigBirdForMaskedLM without the pooler that it does not use.
    "bigbird:bigbird_base": 128_111_286 - (768**2 + 768),
    "bigbird:bigbird_large": 360_225_974 - (1024**2 + 1024),
    # The paper says 59M, 152M and 95M: layers of 7 width**2 (half-wide queries, keys and feed-forward) or 12 width**2,
    # 13 width biases and gains (10.5 where half of them are narrow: 3 for the attention's), embeddings and a head.
    "sparse_transformer:sparse_transformer_cifar10": 128 * (7 * 256**2 + 10 * 256) + (2 * 256 + 2 * 32 + 3 + 2) * 256,
    "sparse_transformer:sparse_transformer_imagenet64": 48 * (12 * 512**2 + 13 * 512) + (512 + 128 + 3 + 2) * 512,
    "sparse_transformer:sparse_transformer_enwik8": 30 * (12 * 512**2 + 13 * 512) + (512 + 96 + 128 + 2) * 512,
    # BERT-base without segments and the norm of its embedding, and with 6 tokens more, which have a bias each.
    **dict.fromkeys(
        (
            "norms:post_layernorm",
            "norms:branch_layernorm",
            "norms:post_batchnorm",
            "norms:post_powernorm",
            "norms:post_deepnorm",
        ),
        109_514_298 - 4 * 768 + 6 * 769,
    ),
    # A last norm; no biases in 24 norms and none in the last; 24 norms more.
    "norms:pre_layernorm": 109_515_840 + 2 * 768,
    "norms:pre_rmsnorm": 109_515_840 - 24 * 768 + 768,
    "norms:sandwich_layernorm": 109_515_840 + 2 * 768 + 24 * 2 * 768,
}
ACTIVE = {
    "switch:switch_base_8": 222_977_280,
    "switch:switch_base_128": 224_083_200,
    "switch:switch_large_128": 740_813_824,
    "switch:switch_xxl": 11_016_318_976,
    "switch:switch_c": 1_728_326_048,
}
"""What one token meets, where experts are chosen."""


# --- orders -----------------------------------------------------------------------------------------------------------


def test_xlnet_predicts_a_token_from_those_before_it_in_order_alone() -> None:
    module = tiny.module("xlnet:xlnet_large").eval()
    x, segments, order, targets = permuted(torch.Generator().manual_seed(1))[1]
    with torch.no_grad():
        before = module(x, segments, order, targets)
        for n in range(5):
            other = torch.where(order == n, (x + 1) % 97, x)
            moved = (module(other, segments, order, targets) - before).abs().amax((0, 2)) > 1e-6
            assert moved.tolist() == [p > n for p in range(5)]


# --- against the papers' equations ------------------------------------------------------------------------------------


def drawn(name: str, **more: int) -> tuple[nn.Module, Weights]:
    """A tiny module in which every weight matters, and its weights and buffers by name."""
    module = tiny.module(name, **more).eval()
    directions = {n: b.clone() for n, b in module.named_buffers() if n.endswith((".turn", ".normals"))}
    randomise(module, 0, 0.9)
    module.load_state_dict(directions, strict=False)
    return module, {**dict(module.named_parameters()), **dict(module.named_buffers())}


def cut(x: Tensor, heads: int) -> Tensor:
    return torch.stack(x.chunk(heads, dim=-1), dim=1)


def merged(x: Tensor) -> Tensor:
    return torch.cat(x.unbind(1), dim=-1)


def attended(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None = None) -> Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
    if seen is not None:
        scores = scores.masked_fill(~seen, -math.inf)
    return scores.softmax(-1) @ v


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def masked_lm(w: Weights, x: Tensor, eps: float = 1e-12) -> Tensor:
    x = layer_norm(w, "head.norm", F.gelu(linear(w, "head.dense", x)), eps)
    return x @ w["token_embedding.weight"].T + w["head.bias"]


@pytest.mark.parametrize("sharing", ["", "_key_value", "_headwise", "_unshared"])
def test_linformer(sharing: str) -> None:
    """Equation 7: softmax(Q (E K)^T / sqrt(d)) F V, with E and F shared as section 4 says."""
    name = f"linformer:linformer{sharing}"
    module, w = drawn(name)
    found = tiny.inputs(tiny.graph(name))["tokens"]
    time, heads = found.size(1), 4
    x = w["token_embedding.weight"][found] + w["position.weight"][2 : 2 + time] + w["segment_embedding.weight"][0]
    x = layer_norm(w, "embedding_norm", x)
    for i in range(2):
        p = f"blocks.{i}"
        q, k, v = (cut(linear(w, f"{p}.attention.{n}", x), heads) for n in "qkv")
        e = w["e.weight"] if sharing == "" else w[f"{p}.attention.keys.weight"]
        f = w[f"{p}.attention.values.weight"] if sharing in ("_headwise", "_unshared") else e
        y = merged(attended(q, e[..., :time] @ k, f[..., :time] @ v))
        x = layer_norm(w, f"{p}.attention_norm", x + linear(w, f"{p}.attention.out", y))
        y = linear(w, f"{p}.ffn.down", F.gelu(linear(w, f"{p}.ffn.up", x)))
        x = layer_norm(w, f"{p}.ffn_norm", x + y)
    close(module(found, torch.zeros_like(found)), masked_lm(w, x, 1e-5))


@pytest.mark.parametrize("causal", [True, False])
def test_performer(causal: bool) -> None:
    """Section 2: D^-1 (Q' (K')^T V) with the positive features of lemma 1, the matrix of weights written out."""
    name = "performer:performer" if causal else "performer:performer_bidirectional"
    module, w = drawn(name)
    found = tiny.inputs(tiny.graph(name))["tokens"]
    time, heads, head_dim = found.size(1), 4, 8
    x = w["token_embedding.weight"][found] + sines(time, 32)
    for i in range(2):
        p = f"blocks.{i}"
        parts = [f"{p}.attention.kernel.random_directions{n}" for n in ("", "_2")]
        turns = [w[f"{part}.turn"] for part in parts]
        for turn in turns:
            torch.testing.assert_close(turn @ turn.T, torch.eye(head_dim), atol=1e-5, rtol=0)
        directions = torch.cat(
            [t * w[f"{part}.normals"].norm(dim=1, keepdim=True) for t, part in zip(turns, parts, strict=True)]
        )
        h = layer_norm(w, f"{p}.attention_norm", x)
        q, k, v = (cut(linear(w, f"{p}.attention.{n}", h), heads) for n in "qkv")
        a, b = (
            t @ directions.T / head_dim**0.25 - t.square().sum(-1, keepdim=True) / (2 * head_dim**0.5) for t in (q, k)
        )
        weights = ((a - a.amax(-1, keepdim=True)).exp() + 1e-6) @ (b.exp() + 1e-6).transpose(-1, -2)
        weights = weights.tril() if causal else weights
        y = merged(weights @ v / (weights.sum(-1, keepdim=True) + 1e-6))
        x = x + linear(w, f"{p}.attention.out", y)
        h = layer_norm(w, f"{p}.ffn_norm", x)
        x = x + linear(w, f"{p}.ffn.down", F.gelu(linear(w, f"{p}.ffn.up", h)))
    close(module(found), layer_norm(w, "norm", x) @ w["token_embedding.weight"].T)


def test_features_of_the_performer_estimate_softmax_attention() -> None:
    module = tiny.module("performer:performer_bidirectional", features=1024).eval()
    attention = module.blocks[0].attention
    x = torch.randn(2, 12, 32, generator=torch.Generator().manual_seed(3))
    q, k, v = (cut(getattr(attention, n)(x), 4) for n in "qkv")
    wanted = attention.out(merged(attended(q, k, v)))
    assert float((attention(x) - wanted).detach().norm() / wanted.detach().norm()) < 0.1


def sparse_patterns(pattern: str, time: int, stride: int, summary: int) -> tuple[Tensor, ...]:
    """Section 4.3, place by place: which keys j the query i sees, for each kind of layer."""

    def strided(i: int, j: int) -> tuple[bool, ...]:
        return (max(0, i - stride) <= j <= i, j <= i and (i - j) % stride == 0)

    def fixed(i: int, j: int) -> tuple[bool, ...]:
        near, far = j // stride == i // stride, j % stride in range(stride - summary, stride)
        return (j <= i and (near or far),)

    rule = strided if pattern == "strided" else fixed
    found = torch.tensor([[rule(i, j) for j in range(time)] for i in range(time)])
    return tuple(found.unbind(-1))


@pytest.mark.parametrize("task", ["cifar10", "imagenet64", "enwik8"])
def test_sparse_transformer(task: str) -> None:
    name = f"sparse_transformer:sparse_transformer_{task}"
    module, w = drawn(name)
    found = tiny.inputs(tiny.graph(name))["tokens"]
    time, heads = found.size(1), TINY[name]["heads"]
    place = torch.arange(time)
    x = w["token_embedding.weight"][found]
    if task == "enwik8":
        grid = {"row": place // 4, "column": place % 4}
        masks, inner = sparse_patterns("fixed", time, 4, 2), "attention.mha"
    else:
        grid = {"row": place // 9, "column": place // 3 % 3, "colour": place % 3}
        masks, inner = sparse_patterns("strided", time, 4, 0), "attention"
    for axis, where in grid.items():
        x = x + w[f"position.{axis}.weight"][where]
    for i in range(2):
        p = f"blocks.{i}"
        h = layer_norm(w, f"{p}.attention_norm", x)
        q, k, v = (cut(linear(w, f"{p}.{inner}.{n}", h), heads) for n in "qkv")
        assert q.size(-1) == v.size(-1) // (2 if task == "cifar10" else 1)
        x = x + linear(w, f"{p}.{inner}.out", merged(attended(q, k, v, masks[i % len(masks)])))
        h = layer_norm(w, f"{p}.ffn_norm", x)
        x = x + linear(w, f"{p}.ffn.down", quick_gelu(linear(w, f"{p}.ffn.up", h)))
    close(module(found), linear(w, "head", layer_norm(w, "norm", x)))


def test_places_of_a_sparse_transformer_see_every_earlier_one_in_two_layers() -> None:
    for pattern in ("strided", "fixed"):
        masks = sparse_patterns(pattern, 16, 4, 1)
        first, second = (masks[0], masks[-1])
        reached = (second.float() @ first.float() > 0) | (first.float() @ second.float() > 0)
        assert torch.equal(reached, torch.ones(16, 16).tril().bool())


def test_bigbird_sees_its_window_the_global_places_and_some_random_ones() -> None:
    """Section 2: what each query sees, from the gradients of one layer of attention."""
    seen = {}
    for seed in (0, 1):
        module = archdsl.to_torch(
            text=f"""model one(width = 8)(x: [batch, time, width], memory: [batch, time, width]) {{
              return mha(heads: 2, mask: window(2) | global(3) | random(4, {seed}))(x, memory) as attention
            }}"""
        )
        torch.manual_seed(0)
        x, memory = torch.randn(1, 32, 8), torch.randn(1, 32, 8, requires_grad=True)
        y = module(x, memory)
        grads = [torch.autograd.grad(y[0, q].sum(), memory, retain_graph=True)[0][0] for q in range(32)]
        seen[seed] = torch.stack([g.abs().amax(-1) > 1e-7 for g in grads])
    q, k = torch.arange(32)[:, None], torch.arange(32)
    sure = ((q - k).abs() < 2) | (q < 3) | (k < 3)
    for found in seen.values():
        assert found[sure].all()
        others = (found & ~sure).sum(-1)[3:]
        assert others.max() <= 4
        assert others.float().mean() > 2, "most random keys are none of the others"
    assert not torch.equal(seen[0], seen[1])


NORMS: dict[str, Callable[[Weights, str, Tensor, bool], Tensor]] = {}


def _norm(name: str) -> Callable[[Any], Any]:
    def note(f: Any) -> Any:
        NORMS[name] = f
        return f

    return note


@_norm("layernorm")
def _layernorm(w: Weights, name: str, x: Tensor, training: bool) -> Tensor:
    return layer_norm(w, name, x)


@_norm("rmsnorm")
def _rmsnorm(w: Weights, name: str, x: Tensor, training: bool) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * w[f"{name}.weight"]


@_norm("batchnorm")
def _batchnorm(w: Weights, name: str, x: Tensor, training: bool) -> Tensor:
    mean = x.mean((0, 1)) if training else w[f"{name}.running_mean"]
    var = (x - mean).square().mean((0, 1)) if training else w[f"{name}.running_var"]
    return (x - mean) / (var + 1e-5).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]


@_norm("powernorm")
def _powernorm(w: Weights, name: str, x: Tensor, training: bool) -> Tensor:
    square = x.square().mean((0, 1)) if training else w[f"{name}.running_square"]
    return x / (square + 1e-5).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", [n for n in TINY if n.startswith("norms:")])
def test_norms(name: str, training: bool) -> None:
    """x + f(norm x), norm(x + f x), x + norm(f x), x + norm(f(norm x)); DeepNorm's skip weighs (2 * layers) ** 0.25."""
    placement, _, kind = name.removeprefix("norms:").partition("_")
    alpha, norm = (4**0.25, NORMS["layernorm"]) if kind == "deepnorm" else (1.0, NORMS[kind])
    module, w = drawn(name)
    for buffer in (b for n, b in module.named_buffers() if "running_square" in n or "running_var" in n):
        buffer.copy_(1 + 0.5 * torch.rand(buffer.shape, generator=torch.Generator().manual_seed(4)))
    found = tiny.inputs(tiny.graph(name))
    ids, real = found["tokens"], found["padding"]

    def sublayer(x: Tensor, path: str, f: Callable[[Tensor], Tensor]) -> Tensor:
        if placement == "post":
            return norm(w, f"{path}_norm", alpha * x + f(x), training)
        h = norm(w, f"{path}_norm", x, training) if placement in ("pre", "sandwich") else x
        h = f(h)
        return x + (norm(w, f"{path}_post_norm", h, training) if placement in ("branch", "sandwich") else h)

    def attention(h: Tensor) -> Tensor:
        q, k, v = (cut(linear(w, f"{p}.attention.{n}", h), 4) for n in "qkv")
        return linear(w, f"{p}.attention.out", merged(attended(q, k, v, real[:, None, None, :])))

    def ffn(h: Tensor) -> Tensor:
        return linear(w, f"{p}.ffn.down", F.gelu(linear(w, f"{p}.ffn.up", h)))

    x = w["token_embedding.weight"][ids] + w["position.weight"][: ids.size(1)]
    for i in range(2):
        p = f"blocks.{i}"
        x = sublayer(sublayer(x, f"{p}.attention", attention), f"{p}.ffn", ffn)
    if "norm.weight" in w:
        x = norm(w, "norm", x, training)
    wanted = masked_lm(w, x)
    close(module.train(training)(ids, real), wanted)


@pytest.mark.parametrize("name", ["switch:switch_base_8", "switch:switch_xxl"])
def test_a_switch_layer(name: str) -> None:
    """Section 2: p_i(x) E_i(x) for the expert i of the highest probability, and a loss alpha N sum_i f_i P_i."""
    module, w = drawn(name)
    p, x = "encoder.1.ffn", torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(5))
    probability = (x @ w[f"{p}.router.gate.weight"].T).softmax(-1)
    best = probability.argmax(-1)
    wanted = torch.empty_like(x)
    for place in torch.cartesian_prod(torch.arange(2), torch.arange(7)).tolist():
        at = tuple(place)
        up, down = (w[f"{p}.experts.{n}.weight"][best[at]] for n in ("up", "down"))
        h = up @ x[at]
        if name.endswith("xxl"):
            h = F.gelu(w[f"{p}.experts.gate.weight"][best[at]] @ x[at], approximate="tanh") * h
        else:
            h = h.relu()
        wanted[at] = probability[at][best[at]] * (down @ h)
    losses: dict[str, Tensor] = {}
    close(module.encoder[1].ffn(x, losses), wanted)
    share = F.one_hot(best.flatten(), 4).float().mean(0)
    close(losses["balance"], 0.01 * 4 * (share * probability.flatten(0, 1).mean(0)).sum())
