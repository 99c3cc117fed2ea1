"""Blocks between the steps of attention (`scores`, `normalize`, `weights`), compared with `sdpa` and with torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_tools
import pytest
import torch
from near import distance
from torch import Tensor, nn
from torch_emit.emitted import close, names_of, spec

import archdsl
from archdsl.api import check
from archdsl.backends.torch import emit
from archdsl.estimates.flops import estimate
from archdsl.ir.graph import Model
from archdsl.run.load import load_source

# --- a hook that does nothing -----------------------------------------------------------------------------------------

ATTENTION = {
    "plain": ("mha(heads: 4{})", "causal", "none"),
    "rope": ("mha(heads: 4, bias: true{})", "causal & window(3)", "rope"),
    "yarn": ("gqa(heads: 4, kv_heads: 2{})", "causal", "rope(scaling: yarn(factor: 4, original: 8))"),
    "alibi": ("gqa(heads: 4, kv_heads: 1, softcap: 3{})", "causal", "alibi"),
    "relative": ("mqa(heads: 4, scale: 0.3{})", "full", "relative_bias(buckets: 8, max_distance: 9)"),
    "relative and causal": ("mha(heads: 2{})", "causal", "relative_bias(buckets: 8, max_distance: 9)"),
    "transformer_xl": ("mha(heads: 4, scale: 0.3, value_dim: 5{})", "causal & padding", "transformer_xl"),
    "a block": ("mha(heads: 4, fused: true{})", "causal", "near"),
    "latent": ("mla(heads: 4, kv_rank: 8, nope_dim: 4, rope_dim: 4, v_dim: 6{})", "causal", "rope"),
    "normed": ("gqa(heads: 4, kv_heads: 4, qk_norm: rmsnorm{})", "prefix(3) | causal", "none"),
}


def model_of(attention: str, mask: str, position: str, *blocks: str, **settings: Any) -> Model:
    text = f"""{" ".join(blocks)}
    block near(q: [batch, heads, time, head_dim], k: [batch, heads, source, head_dim])
               -> [batch, heads, time, source] {{
      return -0.3 * einsum("b h q d, b h k d -> b h q k", q, k)
    }}
    block layer {{ attention: {attention} mask: {mask} position: {position} }}
    model m(width = 16) {{ vocab: 19 context: 12 width: width blocks: 2 * layer head: lm }}"""
    return archdsl.load(text=text, set=settings, allow_noncausal=True)


def made(model: Model, like: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(0)
    module = load_source(emit(model))().eval()
    for p in module.parameters():
        nn.init.normal_(p, std=0.3)
    if like is not None:
        module.load_state_dict(like.state_dict())
    return module


def given(model: Model, time: int = 9) -> list[Tensor]:
    tokens = torch.randint(19, (2, time), generator=torch.Generator().manual_seed(1))
    return [tokens, torch.arange(time) >= torch.tensor([[0], [4]])][: len([*model.inputs])]


@pytest.mark.parametrize("hook", ["scores", "weights", "normalize"])
@pytest.mark.parametrize("case", ATTENTION)
def test_a_hook_that_does_nothing_changes_nothing(case: str, hook: str) -> None:
    """Numbers in both back ends, whether it is causal, FLOPs, and another Config."""
    attention, mask, position = ATTENTION[case]
    plain = model_of(attention.format(""), mask, position)
    hooked = model_of(attention.format(f", {hook}: {'softmax' if hook == 'normalize' else 'identity'}"), mask, position)
    module = made(plain)
    again, inputs = made(hooked, module), given(plain)
    with torch.no_grad():
        wanted = module(*inputs)
        close(again(*inputs), wanted)
    if hook == "scores":
        fed = dict(zip((name for name, _ in hooked.inputs), inputs, strict=True))
        (found,) = onnx_tools.run(onnx_tools.onnx_bytes(hooked, again), fed)
        assert onnx_tools.distance(found, wanted) < 1e-4
        flops = [estimate(m, batch=2, seq=11).flops for m in (plain, hooked)]
        assert len({(f.forward, f.training, f.decode_step) for f in flops}) == 1
        other = names_of(again)["Config"](width=24)
        wide = made(model_of(attention.format(""), mask, position, width=24))
        other = type(again)(other).eval()
        other.load_state_dict(wide.state_dict())
        with torch.no_grad():
            close(other(*inputs), wide(*inputs))


# --- hooks of the literature ------------------------------------------------------------------------------------------

Attend = Callable[[Tensor, Tensor, dict[str, Tensor]], Tensor]
"""The weights of attention [batch, heads, query, key], of scores, of what is visible, and of the weights by name."""


def softmax(s: Tensor, seen: Tensor) -> Tensor:
    return torch.where(seen, s, -torch.inf).softmax(-1)


def top(s: Tensor, seen: Tensor, w: dict[str, Tensor]) -> Tensor:
    shown = torch.where(seen, s, -torch.inf)
    best = torch.zeros_like(s, dtype=torch.bool).scatter(-1, shown.topk(3).indices, True)
    return torch.where(best, shown, -torch.inf).softmax(-1)


def selective(s: Tensor, seen: Tensor, w: dict[str, Tensor]) -> Tensor:
    masked = torch.zeros_like(s[:, 0])
    time = s.shape[-1]
    for query in range(time):
        for earlier in range(query):
            for key in range(earlier):
                masked[:, query, key] += s[:, 0, earlier, key].relu()
    return softmax(s - masked[:, None], seen)


def forgetting(s: Tensor, seen: Tensor, w: dict[str, Tensor]) -> Tensor:
    gate = (w["x"] @ w["scores.c.weight"].T + w["scores.c.bias"]).sigmoid()
    bias = torch.zeros_like(s)
    for query in range(s.shape[-1]):
        for key in range(query):
            bias[:, :, query, key] = gate[:, key + 1 : query + 1].log().sum(1)
    return softmax(s + bias, seen)


HOOKS: dict[str, tuple[str, str, Attend]] = {
    "talking heads, before": (
        """block talk(s: [batch, heads, time, source]) {
             param mix: [heads, heads] = normal(0.3)
             return einsum("g h, b h q k -> b g q k", mix, s)
           }""",
        "scores: talk",
        lambda s, seen, w: softmax(torch.einsum("gh,bhqk->bgqk", w["scores.mix"], s), seen),
    ),
    "talking heads, after": (
        """block talk(w: [batch, heads, time, source]) {
             return w -> transpose(1, 3) -> linear(heads) -> transpose(1, 3)
           }""",
        "weights: talk",
        lambda s, seen, w: torch.where(
            seen,
            torch.einsum("gh,bhqk->bgqk", w["weights.linear.weight"], softmax(s, seen))
            + w["weights.linear.bias"][:, None, None],
            0.0,
        ),
    ),
    "talking heads, both": (
        """block talk(s: [batch, heads, time, source]) {
             param mix: [heads, heads] = normal(0.3)
             return einsum("g h, b h q k -> b g q k", mix, s)
           }""",
        "scores: talk, weights: talk",
        lambda s, seen, w: torch.einsum(
            "gh,bhqk->bgqk",
            w["weights.mix"],
            softmax(torch.einsum("gh,bhqk->bgqk", w["scores.mix"], s), seen),
        ),
    ),
    "the top k": (
        """block top(k: size)(s: [batch, heads, time, source]) {
             best, places = s -> topk(k)
             return where(s >= best[..., k - 1 : k], s, -inf) -> softmax
           }""",
        "normalize: top(k: 3)",
        top,
    ),
    "sigmoid": ("", "normalize: sigmoid", lambda s, seen, w: torch.where(seen, s.sigmoid(), 0.0)),
    "sigmoid with a bias": (
        "block sig(s: [batch, heads, time, source]) { return sigmoid(s - log(source)) }",
        "normalize: sig",
        lambda s, seen, w: torch.where(seen, (s - torch.tensor(s.shape[-1]).log()).sigmoid(), 0.0),
    ),
    "squared relu": (
        "block squared(s: [batch, heads, time, source]) { return relu_squared(s) / source }",
        "normalize: squared",
        lambda s, seen, w: torch.where(seen, s.relu() ** 2 / s.shape[-1], 0.0),
    ),
    "hard": (
        "block hard(s: [batch, heads, time, source]) { return cast(s >= max(s, keep: true), float) }",
        "normalize: hard",
        lambda s, seen, w: torch.nn.functional.one_hot(
            torch.where(seen, s, -torch.inf).argmax(-1), s.shape[-1]
        ).float(),
    ),
    "selective": (
        """block selective(mask: mask = full)(s: [batch, heads, time, source]) {
             picked = where(mask & ~window(1), relu(s[:, 0 : 1]), 0)
             return s - cumsum(picked, axis: 2) + picked
           }""",
        "scores: selective",
        selective,
    ),
    "softcap": (
        "block cap(limit: positive)(s: [batch, heads, time, source]) { return limit * tanh(s / limit) }",
        "scores: cap(limit: 2)",
        lambda s, seen, w: softmax(2 * torch.tanh(s / 2), seen),
    ),
    "forgetting": (
        """block forget(s: [batch, heads, time, source], x: [batch, time, width]) {
             c = x -> linear(heads) -> sigmoid -> log -> transpose(1, 2) -> cumsum
             return s + unsqueeze(c, 3) - unsqueeze(c, 2)
           }""",
        "scores: forget",
        forgetting,
    ),
    "by the values": (
        """block clear(w: [batch, heads, time, source], q: [batch, heads, time, head_dim],
                       v: [batch, kv_heads, source, head_dim]) {
             return w * unsqueeze(sum(v * v) < 9, 2) * unsqueeze(sum(q) > 0, 3)
           }""",
        "weights: clear",
        lambda s, seen, w: softmax(s, seen) * ((w["v"] ** 2).sum(-1) < 9)[:, :, None] * (w["q"].sum(-1) > 0)[..., None],
    ),
}


@pytest.mark.parametrize("case", HOOKS)
def test_hooks_of_the_literature(case: str) -> None:
    """The whole layer is computed again in torch, and onnxruntime agrees; the model is causal."""
    block, hooks, attend = HOOKS[case]
    text = f"""{block}
    model m(x: [batch, time, 12]) {{
      y = x -> mha(heads: 3, mask: causal, {hooks}) as a
      assert causal(y)
      return y
    }}"""
    model = spec(text)
    module = made(model)
    x = torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(2))
    own = {name.removeprefix("a."): p for name, p in module.named_parameters()}
    q, k, v = ((x @ own[f"{n}.weight"].T).unflatten(-1, (3, 4)).transpose(1, 2) for n in "qkv")
    own |= {"x": x, "q": q, "v": v}
    with torch.no_grad():
        weights = attend(q @ k.mT / 2, torch.ones(7, 7).tril() > 0, own)
        wanted = (weights @ v).transpose(1, 2).flatten(2) @ own["out.weight"].T
        close(module(x), wanted)
    (found,) = onnx_tools.run(onnx_tools.onnx_bytes(model, module), {"x": x})
    assert onnx_tools.distance(found, wanted) < 1e-5


WHOLE = {"talking heads, after", "sigmoid with a bias", "squared relu"}
"""What moves pairs about, or computes with the length of the sequence."""


@pytest.mark.parametrize("case", sorted(HOOKS.keys() - WHOLE))
def test_hooks_are_decoded_step_by_step(case: str) -> None:
    block, hooks, _ = HOOKS[case]
    model = model_of(f"gqa(heads: 2, kv_heads: 1, {hooks})", "causal & window(5)", "rope", block)
    report = archdsl.verify(model, seq=10)
    assert report.agrees
    assert "steps" in report.decode, report.no_decode
    assert case == "selective" or "steps" in report.torch_decode, report.no_torch_decode


def test_scores_of_the_layer_before() -> None:
    """What goes from layer to layer is a tensor of the model's own: the scores of RealFormer."""
    text = """block real(heads: size)(x: [batch, time, width], before: [batch, heads, time, time] = none) {
      q = x -> linear(width) -> split_heads(heads)
      k = x -> linear(width) -> split_heads(heads)
      v = x -> linear(width) -> split_heads(heads)
      scores = attention_scores(q, k, before)
      return matmul(softmax(scores, mask: causal), v) -> merge_heads, scores
    }
    model m(x: [batch, time, 8]) -> [batch, time, 8] {
      y, scores = x -> real(heads: 2)
      for i in 2 { y, scores = real(y, scores, heads: 2) }
      assert causal(y)
      return y
    }"""
    module, x = made(spec(text)), torch.randn(2, 5, 8)
    y, before = x, torch.zeros(())
    with torch.no_grad():
        for layer in (module.real, *module.real_2):
            q, k, v = (m(y).unflatten(-1, (2, 4)).transpose(1, 2) for m in (layer.q, layer.k, layer.v))
            before = q @ k.mT / 2 + before
            y = (softmax(before, torch.ones(5, 5).tril() > 0) @ v).transpose(1, 2).flatten(2)
        close(module(x), y)


REFUSED = {
    "mha(heads: 2, scores: 3)": ("E0203", "`scores` of `mha` is a block"),
    "mha(heads: 2, scores: flat)": ("E0301", "`flat` says nothing of its result"),
    "mha(heads: 2, weights: half)": ("E0301", ""),
    "mha(heads: 2, scores: needs)": ("E0205", "`needs` still needs its tensor `z`"),
    "mha(heads: 2, scores: identity, position: learned(9))": ("E0204", "does not act inside attention"),
    "mha(heads: 2, weights: identity, softcap: 0)": ("E0204", ""),
    "attend(x, x, x, scores: identity)": ("E0302", ""),
    "sdpa(x, x, x, weights: identity)": ("E0201", "`sdpa` has no option `weights`"),
}


@pytest.mark.parametrize("expression", REFUSED)
def test_what_is_said_of_a_wrong_hook(expression: str) -> None:
    code, message = REFUSED[expression]
    text = f"""block flat(s: [batch, heads, time, source]) {{ return s -> sum }}
    block half(s: [batch, heads, time, source]) -> [batch, one, time, source] {{ return s[:, 0 : 1] }}
    block needs(s: [batch, heads, time, source], z: [batch, time, width]) {{ return s }}
    model m(x: [batch, time, 8]) {{ return x -> {expression} }}"""
    (found,) = [
        d
        for d in check(text=text.replace("x -> attend", "attend").replace("x -> sdpa", "sdpa"))
        if d.code.startswith("E")
    ]
    assert found.code == code
    assert message in found.message


def test_dropout_behind_the_weights() -> None:
    """It acts in training alone."""
    module = made(model_of("mha(heads: 4, normalize: sigmoid, dropout: 0.5)", "causal", "rope"))
    inputs = given(model_of("mha(heads: 4)", "causal", "rope"))
    assert torch.equal(module(*inputs), module(*inputs))
    module.train()
    assert not torch.equal(module(*inputs), module(*inputs))


@pytest.mark.parametrize("case", ATTENTION)
def test_hooks_in_half_precision(case: str) -> None:
    """Whatever the position adds, a hook is given scores of the model's own type."""
    attention, mask, position = ATTENTION[case]
    one = """block one(s: [batch, h, time, source]) {
      param w: [h, 1] = ones
      return einsum("h a, b h q k -> b h q k", w, s)
    }"""
    plain, hooked = (model_of(attention.format(m), mask, position, one) for m in ("", ", scores: one"))
    module = made(plain)
    again, inputs = load_source(emit(hooked))().eval(), given(plain)
    again.load_state_dict(module.state_dict(), strict=False)
    with torch.no_grad():
        found, wanted = again.bfloat16()(*inputs), module(*inputs)
    assert found.dtype == torch.bfloat16
    close(found.float(), wanted, 0.05)


def test_tensors_are_offered_where_a_block_is_applied() -> None:
    """By the names that it takes beside its first, those that are there; a shared block gets them, too."""
    text = """block f(factor = 2)(x: [batch, time, 8], q: [batch, time, 8] = none) {
      y = factor * x
      if q != none { y += q }
      return y
    }
    block take(f: block)(x: [batch, time, 8], left: [batch, time, 8] = none) -> [batch, time, 8] {
      return x -> offer(f, x: 5 * x, q: left, factor: 3, unknown: x)
    }
    model m(x: [batch, time, 8], q: [batch, time, 8]) {
      let one = shared(f(factor: 4))
      return take(x, q, f: f), take(x, f: f), take(x, q, f: f(factor: 1)), take(x, q, f: one), take(x, f: tanh)
    }"""
    x, q = torch.randn(2, 2, 3, 8)
    found = made(spec(text))(x, q)
    for y, wanted in zip(found, (3 * x + q, 3 * x, x + q, 4 * x + q, x.tanh()), strict=True):
        assert distance(y, wanted) < 1e-6
    (problem,) = check(
        text="block f(x: [a, 8], q: [a, 8]) = relu model m(x: [a, 8]) { g = offer(relu, q: x) return g(x) }"
    )
    assert problem.code.startswith("E")
