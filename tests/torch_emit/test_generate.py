"""Emitted steps of decoding: they give what the whole sequence gives, and `generate` what a loop over it gives."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from decode_tools import differences, inputs_for, torch_differences, widen
from near import distance
from parity.test_onnx import CASES
from parity.test_onnx import NOT_STEPPED as TWINS_NOT_STEPPED
from torch import Tensor, nn
from zoo.sizes import sample
from zoo.test_onnx import NOT_STEPPED
from zoo.tiny import graph

import archdsl
from archdsl.backends.torch import Extras, emit
from archdsl.diagnostics import ArchError
from archdsl.ir.graph import Model
from archdsl.passes.sequence import DecodedSequence
from archdsl.run.load import load_source
from archdsl.run.torch_decoder import TorchDecoder
from torch_emit.emitted import module, spec

TOLERANCE = 1e-5
GENERATE = Extras(frozenset({"generate", "cpu"}))
BY_ONNX = ("path_attention:",)
"""Whose scores are read at other queries too: onnxruntime computes them all anew in each step, PyTorch has no steps."""
DECODERS = [n for n in sample() if not n.startswith(BY_ONNX) and not any(re.match(p, n) for p in NOT_STEPPED)]
TWINS = [(path, name) for path, name in CASES if path.stem not in TWINS_NOT_STEPPED]

SMALL = """
block layer() {
  attention: gqa(heads: 4, kv_heads: 2)
  mask:      causal
  position:  rope
  ffn:       swiglu(hidden: 64)
  norm:      rmsnorm
  placement: pre
}
model small(layers = 2) {
  vocab:   50
  context: 64
  width:   32
  blocks:  layers * layer()
  norm:    rmsnorm
  head:    lm
}
"""


def compiled(model: Model, seed: int = 0) -> nn.Module:
    """The emitted module, with weights wide enough that every one of them is seen."""
    module: nn.Module = load_source(emit(model, GENERATE))().eval()
    torch.manual_seed(seed)
    widen(module)
    return module


def state_of(module: nn.Module, *args: Any, **options: Any) -> Any:
    return type(module).forward.__globals__["Cache"](*args, **options)


def by_steps(
    module: nn.Module, model: Model, inputs: dict[str, Tensor], chunks: Sequence[int], static: bool = False
) -> Tensor:
    """The first outputs of all steps, one after another along time."""
    return TorchDecoder(model, module).run(inputs, chunks, static=static)[0]


def whole(module: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        found = module(**inputs)
    return found if isinstance(found, Tensor) else found[0]


def continued(module: nn.Module, tokens: Tensor, count: int) -> Tensor:
    """Prompts and `count` further tokens, each the likeliest after the whole."""
    for _ in range(count):
        tokens = torch.cat((tokens, whole(module, {"tokens": tokens})[:, -1:].argmax(-1)), 1)
    return tokens


def close(found: Tensor, expected: Tensor) -> None:
    assert distance(found, expected, least=1.0) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", DECODERS)
def test_steps_give_what_the_whole_gives(name: str) -> None:
    """In chunks, token by token, with a KV cache of fixed size, and for rows padded on either side."""
    model = graph(name)
    module = compiled(model)
    inputs = inputs_for(model, {"batch": 2, "time": 8, "frames": 8, DecodedSequence.of(model).time.name: 8})
    expected = whole(module, inputs)
    close(by_steps(module, model, inputs, (4, 1, 1, 2)), expected)
    close(by_steps(module, model, inputs, (1,) * 8), expected)
    close(by_steps(module, model, inputs, (4, 1, 1, 2), static=True), expected)
    if hasattr(module, "generate"):
        padding_changes_nothing(module, TorchDecoder(model, module), inputs)


def padding_changes_nothing(module: Any, decoder: TorchDecoder, inputs: dict[str, Tensor]) -> None:
    """A shorter prompt continues as it does alone, padded on the left or on the right."""
    (name_of_tokens,) = decoder.new
    tokens = inputs[name_of_tokens]
    others = {decoder.names[n]: inputs[n] for n in decoder.once}
    long, short = tokens[:1], tokens[1:, :5]
    alone = [module.generate(t, 4, **{n: x[i : i + 1] for n, x in others.items()}) for i, t in enumerate((long, short))]
    padding = torch.zeros(1, 3, dtype=torch.long)
    for row, padded in ((torch.cat((padding, short), 1), slice(0, 3)), (torch.cat((short, padding), 1), slice(5, 8))):
        real = torch.ones(2, 8, dtype=torch.bool)
        real[1, padded] = False
        found = module.generate(torch.cat((long, row)), 4, attention_mask=real, **others)
        assert torch.equal(found, torch.cat(alone))


@pytest.mark.slow
@pytest.mark.parametrize(("path", "name"), TWINS, ids=[n for _, n in TWINS])
def test_steps_of_the_tiny_twins(path: Path, name: str) -> None:
    model = archdsl.load(path, model=name)
    module = compiled(model)
    inputs = inputs_for(model, {"batch": 2, "time": 8, "frames": 8, DecodedSequence.of(model).time.name: 8})
    for static in (False, True):
        close(by_steps(module, model, inputs, (4, 1, 1, 2), static), whole(module, inputs))


@cache
def small() -> SimpleNamespace:
    model = archdsl.load(text=SMALL)
    return SimpleNamespace(model=model, module=compiled(model))


def prompts(rows: int = 2, time: int = 6) -> Tensor:
    return torch.randint(50, (rows, time), generator=torch.Generator().manual_seed(1))


def test_greedy_generation_is_that_of_a_loop_over_the_whole() -> None:
    module, tokens = small().module, prompts()
    expected = continued(module, tokens, 12)
    assert torch.equal(module.generate(tokens, 12), expected[:, 6:])


def test_sampling_follows_a_seed_and_its_options() -> None:
    module, tokens = small().module, prompts()
    options = {"temperature": 0.8, "top_k": 20, "top_p": 0.95}
    first = module.generate(tokens, 8, seed=3, **options)
    assert torch.equal(first, module.generate(tokens, 8, seed=3, **options))
    assert not torch.equal(first, module.generate(tokens, 8, seed=4, **options))
    greedy = module.generate(tokens, 8)
    assert torch.equal(module.generate(tokens, 8, temperature=1.0, top_k=1), greedy)
    for least in (1e-6, 1e-300):
        assert torch.equal(module.generate(tokens, 8, temperature=1.0, top_p=least), greedy)


def test_sampling_draws_by_probability() -> None:
    sample = type(small().module).forward.__globals__["sample"]
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]]).expand(20_000, 4)
    generator = torch.Generator().manual_seed(0)
    drawn = sample(logits, 1.0, None, None, generator).bincount(minlength=4) / 20_000
    assert torch.allclose(drawn, logits[0].softmax(-1), atol=0.02)
    few = sample(logits, 1.0, 3, 0.7, generator).bincount(minlength=4)
    assert few[0] > 0
    assert few[1] > 0
    assert few[2:].sum() == 0  # the two likeliest make up more than 0.7


def test_a_stream_ends_where_every_row_has_come_to_a_stop() -> None:
    module, tokens = small().module, prompts()
    free = module.generate(tokens, 12)
    stop = int(free[0, 3])
    at = [(row == stop).nonzero()[0].item() if (row == stop).any() else 11 for row in free]
    found = module.generate(tokens, 12, stop=[stop])
    assert found.size(1) == max(at) + 1
    for row, expected, end in zip(found, free, at, strict=True):
        assert torch.equal(row[: end + 1], expected[: end + 1])
        assert set(row[end + 1 :].tolist()) <= {stop}


MASK = torch.tensor([[False, True, True], [True, True, False]])
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    # What `generate` cannot do with its arguments, and what it says.
    "less than nothing": ({"max_new_tokens": -1}, "max_new_tokens=-1"),
    "below zero": ({"temperature": -0.5}, "temperature=-0.5"),
    "no number": ({"temperature": float("nan")}, "temperature=nan"),
    "from none": ({"temperature": 1.0, "top_k": 0}, "top_k=0"),
    "of no probability": ({"temperature": 1.0, "top_p": 0.0}, "top_p=0.0"),
    "of more than all": ({"temperature": 1.0, "top_p": 1.5}, "top_p=1.5"),
    "empty prompts": ({"tokens": torch.ones(2, 0, dtype=torch.long)}, "a token in each row"),
    "no prompts": ({"tokens": torch.ones(0, 3, dtype=torch.long)}, "a token in each row"),
    "no batch": ({"tokens": torch.ones(3, dtype=torch.long)}, r"tokens \[3\]"),
    "a row of padding": ({"attention_mask": MASK[:1] & torch.tensor([[True], [False]])}, "a token in each row"),
    "a mask that is shorter": ({"attention_mask": MASK[:, :2]}, r"mask \[2, 2\]"),
    "a mask of one row": ({"attention_mask": MASK[:1]}, r"mask \[1, 3\]"),
    "a mask of pairs": ({"attention_mask": MASK[:, None] & MASK[:, :, None]}, r"mask \[2, 3, 3\]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_arguments_that_are_refused(case: str) -> None:
    options, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        small().module.generate(**{"tokens": torch.ones(2, 3, dtype=torch.long), "max_new_tokens": 2, **options})


ASKED = """
block kth(scores: [batch, queries, keys]) -> [batch, queries, 1] {
  best, at = topk(scores, 3)
  return best[..., 2:]
}
block head(x: [batch, time, width]) -> [batch, time, 50] {
  ASSERTION
  return x -> linear(50)
}
model m(width = 8)(tokens: token[batch, time]) -> [batch, time, 50] {
  x = tokens -> embedding(50, width)
  k = x -> linear(width) as keys
  scores = where(unsqueeze(indices(time), 0) > unsqueeze(indices(time), 1), -inf, einsum("b i d, b j d -> b i j", x, k))
  SCORES
  return matmul(softmax(where(scores < least, -inf, scores)), x -> linear(width) as values) -> head
}
"""
LENGTHS = {  # The assertion, what is asked of the scores, the shortest prompt and what is said of a shorter one.
    "a top-k": ("", "least = scores -> kth", 3, "as `minimum.3, time.` is"),
    "a top-k of the model's own": (
        "",
        "best, at = topk(scores, 4)  least = best[..., 3:]",
        4,
        "as `minimum.4, time.` is",
    ),
    "a block that keeps nothing": ('assert 2 <= time, "two at least"', "least = scores -> kth", 3, "time"),
    "an assertion alone": ('assert 2 <= time, "two at least"', "least = sum(x, keep: true) - 9", 2, "two at least"),
}


@pytest.mark.parametrize("case", LENGTHS)
def test_a_least_length_is_asked_of_all_positions_so_far(case: str) -> None:
    assertion, scores, shortest, message = LENGTHS[case]
    model = spec(ASKED.replace("ASSERTION", assertion).replace("SCORES", scores))
    assert max(torch_differences(model).values()) < TOLERANCE
    made = module(model, "generate")
    assert made.generate(torch.ones(1, shortest, dtype=torch.long), 2).shape == (1, 2)
    with pytest.raises(AssertionError, match=message):
        made.generate(torch.ones(1, shortest - 1, dtype=torch.long), 2)


LAYERS_OF_ONE = """
block near(q: [batch, heads, time, head_dim], k: [batch, heads, source, head_dim]) -> [heads, time, source] {
  param weight: [8, heads] = normal(1)
  return weight[minimum(abs(unsqueeze(indices(time), 1) - indices(source)), 7)] -> permute(2, 0, 1)
}
block distance(x: [batch, time, width]) -> [2, time, time] {
  d = unsqueeze(indices(time), axis: 1) - unsqueeze(indices(time), axis: 0)
  return d -> cast(float) -> unsqueeze(-1) -> linear(2) -> permute(2, 0, 1)
}
block biased(bias: block)(x: [batch, time, width]) -> [batch, time, width] {
  q = x -> linear(width) as q -> split_heads(2)
  k = x -> linear(width) as k -> split_heads(2)
  return sdpa(q, k, k, x -> bias, mask: causal) -> merge_heads
}
block around(f: block)(x: [batch, time, width]) -> [batch, time, width] {
  x += x -> f
  x += x -> mlp(hidden: 16)
}
model m(width = 16, vocab = 50)(tokens: token[batch, time]) -> [batch, time, vocab] {
  let one = shared(HANDED)
  x = tokens -> embedding(vocab, width)
  for layer in 2 * around(f: FUNCTION) { x = x -> layer }
  return x -> linear(vocab)
}
"""
HANDED = {
    "attention": ("mha(heads: 2, mask: causal)", "one"),
    "a recurrence": ("gru(16)", "one"),
    "a position": ("near", "mha(heads: 2, mask: causal, position: one)"),
    "a bias": ("distance", "biased(one)"),
}


@pytest.mark.parametrize("case", HANDED)
def test_layers_are_handed_one_block_that_keeps_something(case: str) -> None:
    handed, function = HANDED[case]
    model = spec(LAYERS_OF_ONE.replace("HANDED", handed).replace("FUNCTION", function))
    assert max(*torch_differences(model).values(), *differences(model).values()) < TOLERANCE


def test_no_further_tokens() -> None:
    module, tokens = small().module, prompts()
    assert module.generate(tokens, 0).shape == (2, 0)
    assert module.generate(tokens, 0).dtype == tokens.dtype
    assert [*module.stream(tokens, 0)] == []


def test_a_temperature_near_zero_is_greedy() -> None:
    module, tokens = small().module, prompts()
    for temperature in (1e-40, 1e-7, 1e-5):
        assert torch.equal(module.generate(tokens, 4, temperature=temperature), module.generate(tokens, 4))


def test_a_mask_of_numbers_may_hide_tokens_anywhere() -> None:
    module, tokens = small().module, prompts()
    mask = torch.tensor([[0, 3, 0, 3, 3, 0], [1, 1, 1, 0, 2, 2]])
    found = module.generate(tokens, 4, attention_mask=mask)
    for row, real, shown in zip(tokens, mask, found, strict=True):
        assert torch.equal(shown, module.generate(row[real > 0][None], 4)[0])


@pytest.mark.parametrize("static", [False, True])
def test_lengths_that_a_cache_is_told_stay_as_they_are(static: bool) -> None:
    module, tokens, lengths = small().module, prompts(), torch.tensor([6, 4])
    cache = state_of(module, 12, lengths, static)
    with torch.no_grad():
        for new in (tokens, tokens[:, :1], tokens[:, 1:3]):
            module(new, cache=cache)
    assert lengths.tolist() == [6, 4]
    assert cache.start.tolist() == [[9], [7]]


def test_padding_that_all_prompts_share_takes_no_room() -> None:
    module, tokens = small().module, prompts()
    padded = F.pad(tokens, (40, 40))  # more than the context
    found = module.generate(padded, 4, attention_mask=F.pad(torch.ones_like(tokens), (40, 40)))
    assert torch.equal(found, module.generate(tokens, 4))


def test_a_stream_yields_as_it_goes() -> None:
    module, tokens = small().module, prompts()
    stream = module.stream(tokens, 5)
    first = next(stream)
    assert first.shape == (2,)
    assert torch.equal(torch.stack([first, *stream], 1), module.generate(tokens, 5))


def test_a_compiled_step_is_compiled_once() -> None:
    from torch._dynamo.testing import CompileCounter

    module, tokens = small().module, prompts()
    counter = CompileCounter()
    state = state_of(module, 32, static=True)
    torch._dynamo.reset()
    with torch.no_grad():
        logits = module(tokens, cache=state)[:, -1]
        step = torch.compile(module, backend=counter, fullgraph=True)
        found = []
        for _ in range(8):
            found.append(logits.argmax(-1))
            logits = step(found[-1][:, None], cache=state)[:, -1]
    assert counter.frame_count == 1
    assert torch.equal(torch.stack(found, 1), module.generate(tokens, 8))


def test_compiled_steps_compute_as_those_that_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 by oneDNN, packed or not; what was compiled for one generation serves the next, and another module."""
    from torch._dynamo.testing import CompileCounterWithBackend

    module, tokens = small().module, prompts()
    packed = type(module).forward.__globals__["prepacked"](module, tokens.size(0))
    expected = module.generate(tokens, 6)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda step, **_: compile(step, backend=counter))
    for again in (False, True):
        for i, each in enumerate((module, packed), 1):
            assert torch.equal(each.generate(tokens, 6, compiled=True), expected)
            assert counter.frame_count == (2 if again else i)
    for traced in counter.graphs:
        called = [str(n.target) for n in traced.graph.nodes if n.op == "call_function"]
        assert not any("linear" in name for name in called)
        assert sum("few_rows" in name for name in called) == sum(isinstance(m, nn.Linear) for m in module.modules())


@pytest.mark.parametrize("compiled_too", [False, True])
def test_experts_of_few_rows_compute_as_those_of_many(compiled_too: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By oneDNN, one after another; more rows, gradients and other types go the usual
    way."""
    spec = SMALL.replace("swiglu(hidden: 64)", "moe(experts: 5, top_k: 2, expert: swiglu(hidden: 16))")
    module: Any = compiled(archdsl.load(text=spec))
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    called: list[int] = []
    names = type(module).forward.__globals__
    twins = [m for m in names["for_decoding"](module).modules() if type(m) is names["DecodingGroupedLinear"]]
    assert len(twins) == 2 * 3
    forward = names["GroupedLinear"].forward
    monkeypatch.setattr(names["GroupedLinear"], "forward", lambda s, x, g: called.append(len(x)) or forward(s, x, g))
    tokens = prompts(2, 20)
    expected = continued(module, tokens, 5)
    called.clear()
    assert torch.equal(module.generate(tokens, 5, compiled=compiled_too), expected[:, 20:])
    assert called == [2 * 20 * 2] * 6  # the prompt
    x, ends = torch.randn(3, twins[0].weight.size(2)), torch.tensor([0, 2, 2, 3, 3], dtype=torch.int32)
    assert twins[0](x, ends).requires_grad
    with torch.no_grad():
        close(twins[0](x, ends), forward(twins[0], x, ends))
        assert twins[0].bfloat16()(x.bfloat16(), ends).dtype == torch.bfloat16


def test_an_exported_step_is_made_of_operators_of_pytorch() -> None:
    linear = type(small().module).forward.__globals__["linear"]

    class Head(nn.Module):
        def forward(self, x: Tensor, weight: Tensor) -> Tensor:
            return cast(Tensor, linear(x, weight))

    with torch.no_grad():
        exported = torch.export.export(Head(), (torch.randn(1, 8), torch.randn(6, 8)))
    assert {n.target for n in exported.graph.nodes if n.op == "call_function"} == {torch.ops.aten.linear.default}


@pytest.mark.parametrize("name", ["gpt2:gpt2", "mixtral:mixtral_8x7b", "deepseek_v2:deepseek_v2_lite", "albert_like"])
def test_prepacked_weights_give_the_same(name: str) -> None:
    shared = SMALL.replace("* layer()", "* shared(layer())").replace("model small", "model albert_like")
    made = compiled(archdsl.load(text=shared) if name == "albert_like" else graph(name))
    for rows, dtype in ((1, torch.float32), (3, torch.float32), (1, torch.bfloat16), (3, torch.bfloat16)):
        module, tolerance = made.to(dtype), 1e-5 if dtype == torch.float32 else 2e-2
        packed = type(module).forward.__globals__["prepacked"](module, rows)
        tokens = prompts(rows, 5) % module.config.vocab
        for size in (5, 1):
            with torch.no_grad():
                expected, found = (m(tokens[:, :size], cache=state_of(module, 8)).float() for m in (module, packed))
            assert distance(found, expected) < tolerance
        assert not any(type(m) is nn.Linear for m in packed.modules())
        assert any(type(m) is nn.Linear for m in module.modules())
        assert {p.data_ptr() for p in packed.parameters()} == {p.data_ptr() for p in module.parameters()}
        assert packed.state_dict().keys() == module.state_dict().keys()


def test_generating_goes_through_the_modules_as_they_are_now() -> None:
    """On a CPU other linear maps compute, around the same weights: hooks are called, and what has changed counts."""
    fresh = compiled(archdsl.load(text=SMALL))
    module: Any = compiled(archdsl.load(text=SMALL))
    tokens, seen = prompts(), []
    handle = module.blocks[0].attention.q.register_forward_hook(lambda _, given, made: seen.append(made.shape))
    before = module.generate(tokens, 4)
    assert [s[1] for s in seen] == [tokens.size(1), 1, 1, 1]
    handle.remove()
    with torch.no_grad():
        for p in (*module.parameters(), *fresh.parameters()):
            p.mul_(-0.5)
    assert torch.equal(module.generate(tokens, 4), fresh.generate(tokens, 4))
    assert not torch.equal(module.generate(tokens, 4), before)
    assert not seen[4:]
    assert all(type(m) is not type(module).forward.__globals__["DecodingLinear"] for m in module.modules())

    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    module.head.__class__, module.blocks[1] = Doubled, torch.compile(module.blocks[1], backend="eager")
    twin = type(module).forward.__globals__["for_decoding"](module)
    with torch.no_grad():
        close(twin(tokens), 2 * whole(fresh, {"tokens": tokens}))


@pytest.mark.parametrize("shape", [(8,), (3, 8), (0, 1, 8), (2, 1, 8), (5, 2, 8), (2, 3, 1, 8)], ids=str)
def test_linear_maps_of_few_rows(shape: tuple[int, ...]) -> None:
    linear = type(small().module).forward.__globals__["linear"]
    x = torch.randn(shape)
    for weight in (
        torch.randn(6, 8),
        torch.randn(8, 6).t(),
        torch.randn(12, 16)[::2, ::2],
        nn.Parameter(torch.ones(6, 8)),
    ):
        for bias in (None, torch.randn(6)):
            for given in (x, x.transpose(0, -2) if x.dim() > 1 else x):
                with torch.no_grad():
                    torch.testing.assert_close(linear(given, weight, bias), F.linear(given, weight, bias))
            if isinstance(weight, nn.Parameter):
                assert linear(x, weight, bias).requires_grad
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert linear(x, torch.randn(6, 8)).dtype == torch.bfloat16
    with torch.no_grad():
        assert linear(x.bfloat16(), torch.randn(6, 8).bfloat16()).dtype == torch.bfloat16


WINDOW = SMALL.replace("causal", "causal & window(4)").replace("model small", "model windowed")


def test_a_window_keeps_no_more_places_than_it_shows() -> None:
    module, tokens = compiled(archdsl.load(text=WINDOW)), prompts(time=11)
    expected = continued(module, tokens, 9)
    state = state_of(module, 20)
    with torch.no_grad():
        logits = [module(tokens[:, :7], cache=state), module(tokens[:, 7:11], cache=state)]
        logits += [module(expected[:, i : i + 1], cache=state) for i in range(11, 20)]
    close(torch.cat(logits, 1), whole(module, {"tokens": expected}))
    kept = [t for group in state.entries for t in group if t.dim() == 4]
    assert {t.size(-2) for t in kept} == {4 + 1}  # and a slot for what is not kept
    assert torch.equal(module.generate(tokens, 9), expected[:, 11:])


@pytest.mark.parametrize("side", ["left", "right"])
def test_windows_of_rows_of_different_lengths(side: str) -> None:
    module, tokens = compiled(archdsl.load(text=WINDOW)), prompts(time=12)
    alone = torch.cat((module.generate(tokens[:1], 8), module.generate(tokens[1:, :5], 8)))
    padding, real = torch.zeros(1, 7, dtype=torch.long), torch.ones(2, 12, dtype=torch.bool)
    parts = (padding, tokens[1:, :5]) if side == "left" else (tokens[1:, :5], padding)
    real[1] = torch.cat([(p != 0) if p is not padding else torch.zeros(1, 7, dtype=torch.bool) for p in parts], 1)[0]
    real[1, 7:] |= side == "left"
    real[1, :5] |= side == "right"
    assert torch.equal(module.generate(torch.cat((tokens[:1], torch.cat(parts, 1))), 8, attention_mask=real), alone)


LAYERS = """
block layer(mask: mask) {
  attention: gqa(heads: 4, kv_heads: 2)
  mask:      mask
  position:  rope
  ffn:       swiglu(hidden: 64)
  norm:      rmsnorm
}
block sized(window) {
  attention: gqa(heads: 4, kv_heads: 2)
  mask:      causal & window(window)
  position:  rope
  ffn:       swiglu(hidden: 64)
  norm:      rmsnorm
}
model layers(near = 4, wide = 6) {
  let short = layer(mask: causal & window(near))
  let long = layer(mask: causal & window(wide))
  let full = layer(mask: causal)

  vocab:   50
  context: 64
  width:   32
  blocks:  BLOCKS
  norm:    rmsnorm
  head:    lm
}
"""
BLOCKS = [
    "2 * (short + full)",
    "2 * (full + short)",
    "full + short + long",
    "long + full + 2 * short",
    "2 * (layer(mask: causal & window(2 * near)) + layer(mask: causal & window(near + 1)))",
    "2 * (layer(mask: causal & window(3)) + full)",
    "[sized(window: near * (i + 1)) for i in 3]",
    "[layer(mask: if i % 2 == 0 then causal & window(near) else causal) for i in 4]",
    "sized(window: near) + full + short + sized(window: 5)",
]


@pytest.mark.parametrize("blocks", BLOCKS)
def test_windows_are_those_of_another_config(blocks: str) -> None:
    """One file steps through layers that see more, less or all: what they keep follows from its Config."""
    text = LAYERS.replace("BLOCKS", blocks)
    source = emit(archdsl.load(text=text), Extras(frozenset({"generate"})))
    assert "def step" not in source
    cls = load_source(source)
    fields = {n: v for n, v in vars(vars(sys.modules[cls.__module__])["Config"]()).items() if n in ("near", "wide")}
    for near, wide in ((4, 6), (3, 9), (7, 5)):
        other = {"near": near, "wide": wide}
        torch.manual_seed(0)
        module = cls(vars(sys.modules[cls.__module__])["Config"](**{n: other[n] for n in fields})).eval()
        widen(module)
        twin = archdsl.to_torch(archdsl.load(text=text, set=other)).eval()
        twin.load_state_dict(module.state_dict())
        for time in (2, 11):
            tokens = prompts(time=time)
            expected = continued(twin, tokens, 9)
            assert torch.equal(module.generate(tokens, 9), expected[:, time:])


STACKS = """
block layer(heads) {
  attention: gqa(heads: heads, kv_heads: 1)
  mask:      causal
  position:  rope
  ffn:       swiglu(hidden: 2 * width)
  norm:      rmsnorm
}
block tower(depth, heads)(x: [batch, time, width]) -> [batch, time, width] {
  for i in depth { x = x -> layer(heads: heads) as blocks }
  return x -> rmsnorm as norm
}
model towers(first = 1, second = 3, third = 2, width = 16, heads = 4)
            (tokens: token[batch, time]) -> [batch, time, 50] {
  x = tokens -> embedding(50, width) -> tower(depth: first, heads: heads) as one
  x = x -> tower(depth: second, heads: 2) as two -> tower(depth: third, heads: heads) as three
  return x -> linear(50) as head
}
"""


def test_stacks_of_other_depths_are_one_class() -> None:
    """Whose step keeps as many layers as each has, whatever the Config."""
    source = emit(archdsl.load(text=STACKS), Extras(frozenset({"generate"})))
    assert source.count("class Tower") == 2  # with the model's own
    cls, tokens = load_source(source), prompts()
    for depths in ((1, 3, 2), (2, 1, 4), (3, 2, 1)):
        other = dict(zip(("first", "second", "third"), depths, strict=True))
        module = cls(vars(sys.modules[cls.__module__])["Config"](**other)).eval()
        widen(module)
        twin = archdsl.to_torch(archdsl.load(text=STACKS, set=other)).eval()
        twin.load_state_dict(module.state_dict())
        assert torch.equal(module.generate(tokens, 6), continued(twin, tokens, 6)[:, tokens.size(1) :])


SHARED = """
block reader(heads)(x: [batch, time, width], k: [batch, heads, time, dim], v: [batch, heads, time, dim])
                   -> [batch, time, width] {
  q = x -> linear(width) as q -> split_heads(heads)
  return x + (sdpa(q, k, v, mask: causal) -> merge_heads -> linear(width) as out)
}
model common_keys(width = 32, heads = 4, vocab = 50)(tokens: token[batch, time]) -> [batch, time, vocab] {
  x = tokens -> embedding(vocab, width) as token_embedding
  k = x -> linear(width) as k -> split_heads(heads)
  v = x -> linear(width) as v -> split_heads(heads)
  for i in 3 { x = reader(heads: heads)(x, k, v) as layers }
  y = x -> linear(vocab) as head
  assert causal(y)
  return y
}
"""


def test_keys_that_several_layers_read_are_kept_once() -> None:
    module, tokens = compiled(archdsl.load(text=SHARED)), prompts()
    expected = continued(module, tokens, 5)
    assert torch.equal(module.generate(tokens, 5), expected[:, 6:])
    state = state_of(module, 6)
    module(tokens, cache=state)
    assert len(state.entries) == 2


SUMMED_UP = """
block read(tokens: token[batch, time]) -> (logits: [batch, time, 64], last: [batch, 16]) {
  x = tokens -> embedding(64, 16) -> mha(heads: 2, mask: causal)
  return x -> linear(64), x -> max(axis: 1)
}
model m(vocab = 64)(tokens: token[batch, time]) -> (logits: [batch, time, 64], last: [batch, 16]) {
  logits, last = tokens -> read
  return logits, last
}
"""


@pytest.mark.parametrize("name", ["palm:palm_8b", "mistral:mistral_7b", "t5:t5_small", "mamba:mamba_130m"])
def test_a_cache_has_nothing_that_is_not_read(name: str) -> None:
    source = emit(graph(name), GENERATE)
    parsed = ast.parse(source)
    (made,) = (n for n in parsed.body if isinstance(n, ast.ClassDef) and n.name == "Cache")
    one = (ast.Name, ast.Attribute)
    kept = [n for n in ast.walk(made) if isinstance(n, ast.Assign) and isinstance(n.targets[0], one)]
    own = {ast.unparse(n.targets[0]).removeprefix("self."): {*ast.walk(n)} for n in kept}
    read = [n for n in ast.walk(parsed) if isinstance(n, one) and isinstance(n.ctx, ast.Load)]
    for called, itself in own.items():
        assert any(called == ast.unparse(n).rpartition(".")[2] for n in read if n not in itself), called


@pytest.mark.parametrize("name", ["mamba:mamba_130m", "rwkv7:rwkv7_0_1b", "gated_deltanet:gated_deltanet_1_3b"])
@pytest.mark.parametrize("static", [False, True])
def test_states_hold_no_more_of_a_prompt_than_they_are(name: str, static: bool) -> None:
    """The last position of all as a view would keep the others, in every layer."""
    module = compiled(graph(name))
    state = state_of(module, 9, static=static)
    with torch.no_grad():
        module(torch.ones(1, 8, dtype=torch.long), cache=state)
    kept = [t for entry in state.entries for t in entry]
    assert [t.untyped_storage().nbytes() for t in kept] == [t.nbytes for t in kept]


def test_a_result_that_no_step_reads_is_not_computed() -> None:
    text = emit(archdsl.load(text=SUMMED_UP), GENERATE)
    assert "if cache is None else None" in text
    module, tokens = compiled(archdsl.load(text=SUMMED_UP)), prompts()
    expected = tokens
    with torch.no_grad():
        for _ in range(5):
            expected = torch.cat((expected, module(expected)[0][:, -1:].argmax(-1)), 1)
    assert torch.equal(module.generate(tokens, 5), expected[:, 6:])


@pytest.mark.slow
def test_a_mask_is_read_at_all_positions_and_at_the_new_ones() -> None:
    """A block that reads both is given the whole: of that it takes the queries of each row. No other is made."""
    model = graph("path_attention:path_760m")
    found = torch_differences(model)
    assert max(found.values()) < TOLERANCE, found
    assert {"left", "right"} <= found.keys()
    text = emit(model, GENERATE)
    assert text.count("mask[cache.positions][:, None]") == 1
    assert text.count("    mask = key <= query\n") == 1


def test_what_keys_are_projections_of_is_read_at_all_positions_beside_them() -> None:
    text = """model m(tokens: token[batch, time]) {
  x = tokens -> embedding(97, 4)
  p = einsum("b q d, b k d -> b q k", x -> linear(4), x)
  p = where(unsqueeze(indices(time), 0) <= unsqueeze(indices(time), 1), p, -inf)
  y = matmul(softmax(p), x) + (x -> gqa(heads: 8, kv_heads: 1, head_dim: 8, mask: causal))
  return y -> linear(97)
}"""
    found = torch_differences(archdsl.load(text=text))
    assert max(found.values()) < TOLERANCE, found


def test_what_is_computed_once_within_a_loop_reads_what_is_computed_once_before_it() -> None:
    """Its inputs are called as a step's own parameters are."""
    text = """model m(h = 2, layer = 2, width = 8)(at: token[batch, frames], cache: token[batch, time]) {
  memory = at -> embedding(11, width) as first
  for i in layer { memory = memory + (memory -> mha(heads: h, mask: full)) }
  x = cache -> embedding(11, width) as second
  for i in layer {
    x = x + (1 - i / 7) * (x -> mha(heads: h, mask: causal))
    k = memory -> linear(width) as k -> split_heads(h)
    x = x + (sdpa(x -> linear(width) as q -> split_heads(h), k, k, mask: full) -> merge_heads)
  }
  return x -> linear(11) as head
}"""
    report = archdsl.verify(archdsl.load(text=text), seq=16)
    assert report.agrees
    assert report.no_torch_decode is None


def test_a_model_that_sees_later_places_is_refused() -> None:
    with pytest.raises(ArchError, match="E0504"):
        emit(graph("bert:bert_base"), GENERATE)


def test_a_plain_file_is_the_same_without_the_section() -> None:
    model = small().model
    assert "Cache" not in emit(model)
    assert "class Cache" in emit(model, GENERATE)


OWN_NAMES = (
    *("stream", "cache", "step", "logits", "generator", "lengths", "last", "stops", "ended", "token", "i"),
    *("attention_mask", "seed", "stop", "temperature"),
)
NAMED = """
model m(vocab = 16, width = 8)({0}: token[batch, time]) -> [batch, time, vocab] {{
  x = {0} -> embedding(vocab, width) as generate
  x += x -> mha(heads: 2, mask: causal) as stream
  assert causal(x)
  return x -> linear(vocab)
}}
"""


@pytest.mark.parametrize("name", OWN_NAMES)
def test_names_of_the_methods_are_names_of_inputs_too(name: str) -> None:
    made = module(spec(NAMED.format(name)), "generate").eval()
    tokens = torch.randint(16, (2, 5))
    longer = tokens
    for _ in range(3):
        longer = torch.cat([longer, made(longer)[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(made.generate(tokens, 3), longer[:, 5:])


PAIRED = """
block net(heads: size)(d: [q, k]) -> [heads, q, k] {
  return unsqueeze(d, -1) -> mlp(hidden: 8, bias: true) -> linear(heads) -> rearrange("q k h -> h q k")
}
block layer(x: [batch, time, width], far: [time, time]) -> [batch, time, width] {
  let half = width / 2
  param c: [2, 1, 1] = ones
  param e: [8, half] = normal(0.3)
  param table: [16, 16] = normal(0.3)
  q = x -> linear(width) -> split_heads(2)
  k = x -> linear(width) -> split_heads(2)
  v = x -> linear(width) -> split_heads(2)
  i = unsqueeze(indices(time), -1)
  j = indices(time)
  s = einsum("b h q d, b h k d -> b h q k", q, k) / 3.0
  z = einsum("b q d, b k d -> b q k", x -> linear(width), x)
  EQUATIONS
  return x + y + (x -> mlp(hidden: 8))
}
model m(width = 16)(tokens: token[batch, time]) -> [batch, time, 50] {
  assert time <= 16
  x = tokens -> embedding(50, width)
  far = 0.2 * cast_like(unsqueeze(indices(time), -1) - indices(time), x)
  for n in 2 { x = layer(x, far) as blocks }
  y = x -> linear(50) as head
  assert causal(y)
  return y
}
"""
HEADS = 'y = einsum("b h q k, b h k d -> b h q d", softmax(where(j <= i, s, -inf)), v) -> merge_heads -> linear(width)'
PAIRS = {
    "mask": f"s = where(i - j < 3, s, -1e4)  {HEADS}",
    "kerple": f"s = s - abs(c) * log(1 + abs(c) * abs(i - j))  {HEADS}",
    "fire": f"""d = cast_like(maximum(i - j, 0), x)
      s = s + net(log(1 + d) / log(2 + cast_like(i, x)), heads: 2)  {HEADS}""",
    "handed on and changed": f"for n in 2 {{ s = s + far  far = far + c }}  {HEADS}",
    "bias of sdpa": "y = sdpa(q, k, v, -c * log(1 + abs(i - j)), mask: causal & window(5)) -> merge_heads",
    "bias without heads": "y = sdpa(x -> linear(width), x, x -> linear(width), far, mask: causal)",
    "bias and alibi": "y = sdpa(q, k, v, sin(far), mask: causal, position: alibi) -> merge_heads",
    "cope": f"""seen = j <= i
      gates = where(seen, sigmoid(s), 0.0)
      count = clamp((gates -> sum(keep: true)) - cumsum(gates) + gates, low: 0, high: 7)
      part = count - floor(count)
      place = einsum("b h q d, n d -> b h q n", q, e)
      at = cast(floor(count), int)
      s = s + (1 - part) * (place -> gather(at)) + part * (place -> gather(minimum(at + 1, 7)))  {HEADS}""",
    "stick-breaking": """rest = where(j < i, log_sigmoid(-z), 0.0)
      w = where(j < i, exp(log_sigmoid(z) + (rest -> sum(keep: true)) - cumsum(rest)), 0.0)
      y = matmul(w, x -> linear(width))""",
    "hyena": """filter = unsqueeze(j / 16, -1) -> linear(8) -> sin -> linear(width)
      toeplitz = where(unsqueeze(j <= i, -1), filter[maximum(i - j, 0)], 0.0) -> cast_like(x)
      gate, h = x -> conv1d(2 * width, kernel: 3, padding: causal) -> split(width, width)
      y = gate * einsum("q k c, b k c -> b q c", toeplitz, h)""",
    "weights of positions": """w = where(j <= i, exp(table[:time, :time] - far), 0.0)
      y = einsum("q k, b k d -> b q d", w, x -> linear(width)) / (w -> sum(keep: true))""",
    "relative keys": f"""r = clamp(i - j, low: 0, high: 4) -> embedding(5, half)
      s = s + einsum("b h q d, q k d -> b h q k", q, r)  {HEADS}""",
    "rows and columns": f"""d = 4 * unsqueeze(j // 4, -1) - 4 * (j // 4) + unsqueeze(j % 4, -1) - j % 4 + 15
      s = s + (d -> embedding(31, 2) -> permute(2, 0, 1)) + 0.1 * cast_like(unsqueeze(j % 2, -1), x)  {HEADS}""",
    "the other way round": "y = matmul(where(i <= j, exp(far), 0.0) -> transpose(0, 1), x -> linear(width))",
    "sums over queries": f"s = s - 0.1 * cumsum(abs(far), axis: 0)  {HEADS}",
    "with heads and without": f"s = s * unsqueeze(softmax(where(j <= i, z, -inf)), 1)  {HEADS}",
    "groups of heads": """g = q -> unsqueeze(2)
      s = where(j <= i, einsum("b h g q d, b h k d -> b h g q k", g, k) - far, -inf)
      y = einsum("b h g q k, b h k d -> b q h g d", softmax(s), v) -> flatten(2)""",
    "handed on": f"s = s - far * far  {HEADS}",
    "one axis": f"""h = (x -> linear(2) -> transpose(1, 2)) + cumsum(sin(squeeze(c, -1) * j), axis: 1)
      v = v * unsqueeze(h, -1)  {HEADS}""",
    "training": f"""d = 0.1 * far
      if training {{ d = d -> dropout(0.2) }}
      s = s - 2 * d  {HEADS}""",
    "biases of keys": f"""b = sin(0.3 * cast_like(j, x))
      s = s + b + 0.1 * unsqueeze(b, -1)
      w = indices(time) -> embedding(16, half)
      v = v + unsqueeze(einsum("b q k, k d -> b q d", where(j <= i, z, 0.0), w), 1)
      r = sdpa(q, k, v, unsqueeze(b, 0) * c, mask: causal) -> merge_heads
      x = x + r  {HEADS}""",
    "queries and keys of one": f"""t = cast_like(j, x) + 0.5
      s = s - 0.1 * (unsqueeze(t, -1) - t) * unsqueeze(t % 2, -1) * 0.5  {HEADS}""",
}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_positions_that_a_spec_computes(name: str) -> None:
    """Both back ends step them: in chunks, with tensors of fixed sizes, in rows that are padded on either side."""
    model = archdsl.load(text=PAIRED.replace("EQUATIONS", PAIRS[name]))
    found = torch_differences(model)
    assert {"static", "left", "right", "left, static"} <= found.keys()
    assert max(*found.values(), *differences(model).values()) < TOLERANCE
    module, tokens = compiled(model), prompts()
    assert torch.equal(module.generate(tokens, 5), continued(module, tokens, 5)[:, 6:])
    with pytest.raises(AssertionError):
        module.generate(tokens, 11)  # of at most 16 positions


def test_what_pairs_pass_through_is_as_without_a_cache() -> None:
    source = emit(archdsl.load(text=PAIRED.replace("EQUATIONS", PAIRS["fire"])), Extras(frozenset({"generate"})))
    assert "def step" not in source
    taken = re.findall(r"class (\w+)\(nn.Module\).*?def forward\(self, ([^)]*)\)", source, re.DOTALL)
    assert dict(taken)["MLP"] == "x: Tensor"
    assert "cache.by_row(" in source


@pytest.mark.parametrize(
    ("equations", "message"),
    [
        ("y = matmul(where(j <= i, softmax(far), 0.0), x)", "the result of `softmax` changes with each position"),
        (f"s = s + cast_like((i - j) -> flip(1), x)  {HEADS}", "the result of `flip` changes with each position"),
        ("w = where(j <= i, z, -inf) -> unsqueeze(0)  y = matmul(softmax(w + far), x) -> squeeze(0)", "in a way"),
        (
            "h = q -> permute(1, 0, 2, 3)  y = sdpa(h, h, h, mask: causal) -> permute(1, 0, 2, 3) -> merge_heads",
            "first axis",
        ),
        (f"t = scan h: [time] = 0 for row in far {{ h = h + row  emit h }}  s = s + t  {HEADS}", "has no decode step"),
    ],
)
def test_pairs_that_no_step_makes_are_refused(equations: str, message: str) -> None:
    with pytest.raises(ArchError, match=f"E0504.*{message}"):
        emit(archdsl.load(text=PAIRED.replace("EQUATIONS", equations)), GENERATE)


WITHOUT_ROWS = {
    "heads among the rows": """y = x -> rearrange("b t (h d) -> (b h) t d", h: 2) -> gru(4)
          y = y -> rearrange("(b h) t d -> b t (h d)", h: 2)""",
    "rows at the end": "y = x -> permute(2, 1, 0) -> shift(2) -> cumsum(axis: 1) -> permute(2, 1, 0)",
    "one for all rows": """y = scan n: [1] = 0, h: [batch, 8] = 0 for x_t in x {
            n = n + 1
            h = h + (x_t - h) / n
            emit h
          }""",
}


@pytest.mark.parametrize("equations", WITHOUT_ROWS.values(), ids=WITHOUT_ROWS.keys())
def test_states_without_an_axis_of_rows_take_prompts_of_one_length(equations: str) -> None:
    model = archdsl.load(
        text=f"""model m(tokens: token[batch, time]) {{
          x = tokens -> embedding(97, 8)
          {equations}
          return y -> linear(97)
        }}"""
    )
    assert (torch_differences(model).keys(), differences(model).keys()) == ({"steps", "static"}, {"steps"})
    assert max((torch_differences(model) | differences(model)).values()) < TOLERANCE
    assert archdsl.verify(model, seq=8).agrees
    module, tokens = compiled(model), prompts()
    assert torch.equal(module.generate(tokens, 5), continued(module, tokens, 5)[:, 6:])
    real = torch.ones_like(tokens, dtype=torch.bool)
    real[1, :2] = False
    with pytest.raises(ValueError, match="prompts have to be of one length"):
        module.generate(tokens, 5, attention_mask=real)


def test_logits_along_another_axis_are_no_logits_of_tokens() -> None:
    model = archdsl.load(
        text="""model m(tokens: token[batch, time]) {
          x = tokens -> embedding(97, 8)
          x += x -> mha(heads: 2, mask: causal)
          return x -> linear(97) -> transpose(1, 2)
        }"""
    )
    assert not hasattr(compiled(model), "stream")
    assert max(torch_differences(model).values()) < TOLERANCE
    with pytest.raises(archdsl.ArchError, match=r"E0504.*does not go from tokens to logits of tokens"):
        archdsl.generate(model, prompt="1 2")


BESIDE = """model m(tokens: token[batch, time]) {
  param memory: [1, 2, 8] = normal(1)
  x = tokens -> embedding(11, 8)
  SECOND
  y = concat(memory -> expand(0, batch), x, axis: 1) -> mha(heads: 2, mask: causal) as far
  return (y[:, 2:] + x) -> linear(11)
}"""


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (
            "x += x -> mha(heads: 2, mask: causal) as near",
            "0 places stand in front of the sequence where `near` keeps positions, and 2 where `far` does",
        ),
        (
            "x = (concat(zeros(batch, 3, 8), x, axis: 1) + (indices(3 + time) -> embedding(64, 8)))[:, 3:]",
            "`indices` reads positions behind [2, 3] places in front of the sequence",
        ),
    ],
)
def test_places_in_front_that_differ_are_named(second: str, said: str) -> None:
    model = archdsl.load(text=BESIDE.replace("SECOND", second))
    with pytest.raises(ArchError, match=f"E0504.*{re.escape(said)}"):
        emit(model, GENERATE)
    assert max(differences(model).values()) < TOLERANCE


def test_several_axes_of_heads_are_refused() -> None:
    """A step's masks are [batch, 1, new, keys]."""
    text = """
    model m(width = 16, vocab = 16)(tokens: token[batch, time]) -> [batch, time, vocab] {
      x = tokens -> embedding(vocab, width)
      h = x -> rearrange("b t (g h d) -> b g h t d", g: 2, h: 2)
      h = sdpa(h, h, h, mask: causal)
      x = h -> rearrange("b g h t d -> b t (g h d)")
      assert causal(x)
      return x -> linear(vocab)
    }
    """
    assert torch.isfinite(module(spec(text))(torch.randint(16, (2, 5)))).all()
    with pytest.raises(ArchError, match="several axes of heads"):
        module(spec(text), "generate")


@pytest.mark.parametrize(
    ("name", "own"), [("gpt2", []), ("mistral_7b", []), ("mixtral_8x7b", []), ("deepseek_v3", ["LatentAttention"])]
)
def test_one_forward_takes_the_cache(name: str, own: list[str]) -> None:
    """Only where the mathematics differs is the step a method of its own."""
    classes = archdsl.torch_source(name, features=["generate", "loss", "cpu"], checkpoint="full").split("\nclass ")
    assert [c.partition("(")[0] for c in classes if "def step(" in c] == own
    assert "targets: Tensor | None = None, cache: Cache | None = None" in classes[-1]


def test_a_config_whose_kernels_keep_nothing() -> None:
    text = """
    block layer(kernel) { attention: conv1d(16, kernel: kernel, padding: causal)  ffn: mlp(hidden: 8)  norm: rmsnorm }
    model m(kernel = 3) { vocab: 17  context: 16  width: 16  blocks: 2 * layer(kernel)  norm: rmsnorm  head: lm }"""
    made = load_source(emit(archdsl.load(text=text), GENERATE))
    module = made(vars(sys.modules[made.__module__])["Config"](kernel=1)).eval()
    widen(module)
    tokens = torch.tensor([[3, 1, 4, 1]])
    for token in module.generate(tokens, 5).unbind(1):
        assert torch.equal(module(tokens)[:, -1].argmax(-1), token)
        tokens = torch.cat((tokens, token[:, None]), dim=1)


@pytest.mark.parametrize(
    "attention", ["mha(heads: 2)", "mla(heads: 1, kv_rank: 2, nope_dim: 3, rope_dim: 4, v_dim: 4)"]
)
@pytest.mark.parametrize("mask", ["causal & window(3)", "causal & window(width / 4)"])
def test_a_window_in_some_layers_that_is_no_field(attention: str, mask: str) -> None:
    """Layers of one class hand their attention the windows that they have, or none."""
    text = f"""
    block layer(i) {{
      attention: {attention}
      mask:      if i % 2 == 0 then causal else {mask}
      position:  rope
      ffn:       mlp(hidden: 8)
      norm:      rmsnorm
    }}
    model m(width = 12) {{
      vocab: 19  context: 16  width: width  norm: rmsnorm  head: lm
      blocks: 2 * [layer(i) for i in 2]
    }}"""
    model = archdsl.load(text=text)
    assert emit(model, GENERATE).count("class Layer(") == 1
    assert max(torch_differences(model).values()) < TOLERANCE


FLAT = "x = x -> flatten(0, 1) -> linear(16) as flat -> tanh -> unflatten(0, batch, time)"
TURNED = """mha(heads: 2, mask: causal, position: rope(scaling: longrope(short: [1, 1, 1.5, 2],
        long: [1, 2, 3, 4], original: {longest})))"""
STEPPED = {
    "sizes of the sequence behind attention": f"x = x -> mha(heads: 2, mask: causal)\n      {FLAT}",
    "such in a loop": f"x = x -> mha(heads: 2, mask: causal)\n      for i in 2 {{ {FLAT} }}",
    "such outside training": f"""
      x = x -> mha(heads: 2, mask: causal)
      if training {{ x = x -> dropout(0.5) }} else {{ {FLAT} }}""",
    "keys that two windows see": """
      k = x -> linear(16) as k -> split_heads(2)
      v = x -> linear(16) as v -> split_heads(2)
      q = x -> linear(16) as q -> split_heads(2)
      near = sdpa(q, k, v, mask: causal & window(2))
      x = (near + sdpa(2 * q, k, v, mask: causal & window(4))) -> merge_heads""",
    "Transformer-XL": "x = x -> mha(heads: 2, mask: causal, position: transformer_xl(width: 6))",
    "a mask that is turned round": "x = x -> mha(heads: 2, mask: causal & ~window(1))",
    "a part of a mask that hides nothing": "x = x -> mha(heads: 2, mask: causal & (full | window(3)))",
    "angles that depend on the length, of a short text": f"x = x -> {TURNED.format(longest=100)}",
    "angles that depend on the length, of a long text": f"x = x -> {TURNED.format(longest=3)}",
    "equations outside training": """
      if training { x = x -> dropout(0.5) } else { x = 2 * tanh(x) }
      x = x -> mha(heads: 2, mask: causal)""",
}


@pytest.mark.parametrize("body", STEPPED.values(), ids=STEPPED.keys())
def test_steps_are_those_of_the_whole(body: str) -> None:
    text = f"""model m(tokens: token[batch, time]) -> [batch, time, 20] {{
      x = tokens -> embedding(20, 16)
      {body}
      return x -> linear(20) as head
    }}"""
    model = archdsl.load(text=text)
    assert max(torch_differences(model, (4, 1, 1, 2, 1, 1)).values()) < TOLERANCE
    assert max(differences(model, (4, 1, 1, 2, 1, 1)).values()) < TOLERANCE


@pytest.mark.parametrize(
    ("call", "start"), [("shift", "zeros_like(x[:, :1])"), ("shift(fill: 0.5)", "full_like(x[:, :1], 0.5)")]
)
def test_a_shift_by_one_position_keeps_the_last(call: str, start: str) -> None:
    text = f"""
    block mixed(x: [batch, time, width]) -> [batch, time, width] {{ return x -> {call} -> linear(width) as next }}
    model m(tokens: token[batch, time]) -> [batch, time, 20] {{
      return tokens -> embedding(20, 16) -> mixed -> linear(20) as head
    }}"""
    model = archdsl.load(text=text)
    step = f"""
            last = cache.state(lambda: torch.{start})[0]
            h = torch.cat((last, x[:, :-1]), dim=1)
            cache.set_state(x[:, -1:])
"""
    assert step in emit(model, GENERATE)
    assert max(torch_differences(model, (4, 1, 1, 2, 1, 1)).values()) < TOLERANCE


@pytest.mark.parametrize(
    ("number", "lines"),
    [
        ("float32", ["sums = cumsum.unsqueeze(1) + h.cumsum(1)", "cache.set_state(sums[:, -1])"]),
        ("float", ["cumsum = cumsum.unsqueeze(1) + h.float().cumsum(1)", "sums = cumsum.type_as(h)"]),
    ],
)
def test_a_running_sum_is_named_once_where_its_state_is_of_its_type(number: str, lines: list[str]) -> None:
    text = f"""
    block summed(x: [batch, time, width]) -> [batch, time, width] {{
      sums = x -> linear(width) as terms -> cast({number}) -> cumsum(1)
      return cast(sin(sums) + sums / 8, float)
    }}
    model m(tokens: token[batch, time]) -> [batch, time, 20] {{
      return tokens -> embedding(20, 16) -> summed -> linear(20) as head
    }}"""
    model = archdsl.load(text=text)
    assert "\n".join(f"            {line}" for line in lines) in emit(model, GENERATE)
    assert max(torch_differences(model, (4, 1, 1, 2, 1, 1)).values()) < TOLERANCE
