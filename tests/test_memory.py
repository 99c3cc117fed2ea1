"""Bytes of weights, gradients, the optimizer's states and of what a decoder keeps, against the tensors themselves."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
import torch
from cli_tools import run
from decode_tools import behind_memory, decoder, inputs_for, module_of
from rows import POSITIONS
from torch_versions import since
from zoo import sizes as zoo_sizes
from zoo.sizes import sample, tables
from zoo.tiny import graph, inputs, module

import archdsl
from archdsl.api import to_torch
from archdsl.backends.torch import Extras, emit
from archdsl.diagnostics import ArchError
from archdsl.estimates.dtypes import Dtype
from archdsl.estimates.memory import KeptMemory, Memory, Optimizer, estimate
from archdsl.ir.graph import Model
from archdsl.ir.masks import Mask, ahead, behind, both, complement, either
from archdsl.passes.step import stepped
from archdsl.run.load import load_source

BATCH, TIME = 2, 16


def memory(model: Model, **options: Any) -> Memory:
    return estimate(model, batch=BATCH, seq=TIME, **options)


def tiny(text: str) -> Model:
    return archdsl.load(text=text)


# --- weights, gradients, states ---------------------------------------------------------------------------------------

# What is rare: shared and tied weights, experts, convolutions, recurrences, buffers of every kind, running statistics.
MODELS = (
    "gpt2:gpt2",
    "llama3:llama3",
    "deepseek_v3:deepseek_v3",
    "albert:albert_base",
    "t5:t5_small",
    "conformer:conformer_l",
    "mamba:mamba_130m",
    "rnn_lm:lstm_lm_small",
    "performer:performer",
)
BUFFERS = """
  model m(width = 8)(x: [batch, time, width]) {
    buffer steps: [width] = indices(width) / width
    buffer directions: [width, width] = normal(1)
    param gain: [width] = ones
    x = x * gain + steps
    return matmul(x -> linear(width), directions)
  }"""


def named(name: str) -> tuple[Model, torch.nn.Module]:
    if name in tables():
        return graph(name), module(name)
    model = tiny(name)
    return model, to_torch(model)


def size(tensors: Any) -> int:
    return sum(t.nbytes for t in tensors)


@pytest.mark.parametrize("name", [*MODELS, pytest.param(BUFFERS, id="buffers")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_gradients_and_buffers_are_the_module_s(name: str, dtype: Dtype) -> None:
    model, made = named(name)
    given = inputs(model)
    # Before the types are changed: not every op has a backward in bfloat16 on the CPU, and a gradient has its weight's.
    found = made(**given)
    sum(o.float().sum() for o in (found if isinstance(found, tuple) else (found,)) if o.requires_grad).backward()
    made = made.to(getattr(torch, dtype))
    said = memory(model, dtype=dtype)
    assert said.weights == size(made.parameters())
    assert said.buffers == size(made.buffers())
    assert said.gradients == size(p.grad for p in made.parameters() if p.grad is not None)
    assert said.model_states == said.weights + said.buffers + said.gradients + said.optimizer


def optimized(made: torch.nn.Module, name: Optimizer) -> list[torch.optim.Optimizer]:
    """The optimizers of PyTorch, after one step with gradients."""
    weights = list(made.parameters())
    matrices: set[int] = set()
    if name == "muon":
        apart = {id(m.weight) for m in made.modules() if isinstance(m, torch.nn.Embedding)}
        apart |= {id(p) for n, p in made.named_parameters() if n == "head.weight" or not n.endswith("weight")}
        matrices = {id(p) for p in weights if p.dim() == 2} - apart
    rest = [p for p in weights if id(p) not in matrices]
    makers: dict[str, Any] = {
        "sgd": lambda: torch.optim.SGD(rest, lr=0.1),
        "sgd-momentum": lambda: torch.optim.SGD(rest, lr=0.1, momentum=0.9),
        "adam": lambda: torch.optim.Adam(rest),
        "adamw": lambda: torch.optim.AdamW(rest),
        "adafactor": lambda: torch.optim.Adafactor(rest),
        "muon": lambda: torch.optim.AdamW(rest),
    }
    found = [makers[name]()]
    if matrices:
        found.append(torch.optim.Muon([p for p in weights if id(p) in matrices]))
    for p in weights:
        p.grad = torch.full_like(p, 1e-3)
    for optimizer in found:
        optimizer.step()
    return found


def states(optimizers: list[torch.optim.Optimizer]) -> dict[tuple[str, str], int]:
    """Bytes by name and type of every state tensor, each once."""
    found: dict[tuple[str, str], int] = {}
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    place = key, str(value.dtype).removeprefix("torch.")
                    found[place] = found.get(place, 0) + value.nbytes
    return found


IN_TORCH = [
    pytest.param(name, marks=since(2, 9, "it has Muon") if name == "muon" else ())
    for name in get_args(Optimizer)
    if name != "adamw8bit"
]


@pytest.mark.parametrize("optimizer", IN_TORCH)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["gpt2:gpt2", "llama3:llama3", "deepseek_v3:deepseek_v3", "conformer:conformer_l"])
def test_states_are_those_of_torch_s_optimizers(name: str, dtype: Dtype, optimizer: Optimizer) -> None:
    model, made = graph(name), module(name).to(getattr(torch, dtype))
    said = memory(model, dtype=dtype, optimizer=optimizer)
    expected = states(optimized(made, optimizer))
    assert {(s.name, s.dtype): s.bytes for s in said.by_state} == expected
    assert said.optimizer == sum(expected.values())


@pytest.mark.parametrize("optimizer", IN_TORCH)
def test_a_float32_copy_has_the_states(optimizer: Optimizer) -> None:
    """The optimizer is given the copies: its states are theirs."""
    model, copy = graph("llama3:llama3"), module("llama3:llama3")
    said = memory(model, dtype="bfloat16", optimizer=optimizer, master_weights=True)
    expected = states(optimized(copy, optimizer)) | {("master_weights", "float32"): size(copy.parameters())}
    assert {(s.name, s.dtype): s.bytes for s in said.by_state} == expected
    assert said.weights == said.gradients == size(copy.to(torch.bfloat16).parameters())


def test_sixteen_bytes_a_parameter() -> None:
    """Of Adam in mixed precision (Rajbhandari et al., 2020), but for a step a tensor; a copy of float32 weights would
    be no gain."""
    model = graph("gpt2:gpt2")
    steps = 4 * len(list(module("gpt2:gpt2").parameters()))
    count = archdsl.estimate("gpt2").params.total
    mixed = archdsl.memory("gpt2", dtype="bfloat16", master_weights=True)
    assert mixed.weights + mixed.gradients == 4 * count
    assert mixed.optimizer - 12 * count == next(s.bytes for s in mixed.by_state if s.name == "step")
    plain, copied = (memory(model, master_weights=m) for m in (False, True))
    assert plain.optimizer == copied.optimizer == 8 * plain.weights // 4 + steps


def test_eight_bits() -> None:
    """A table of 1000 x 16 in codes, with a scale for each 256 of them; a gain of 16 in float32."""
    model = tiny("""
      model m(width = 16)(tokens: token[batch, time]) {
        x = tokens -> embedding(1000, width)
        return x -> rmsnorm
      }""")
    said = memory(model, optimizer="adamw8bit")
    table, gain, scales = 16_000, 16, 63
    assert {(s.name, s.dtype): s.numbers for s in said.by_state} == {
        ("exp_avg", "uint8"): table,
        ("exp_avg_sq", "uint8"): table,
        ("absmax", "float32"): 2 * scales,
        ("exp_avg", "float32"): gain,
        ("exp_avg_sq", "float32"): gain,
        ("codes", "float32"): 512,
    }
    assert said.optimizer == 2 * table + 4 * (2 * scales + 2 * gain + 512)
    small = memory(graph("gpt2:gpt2", width=8), optimizer="adamw8bit")
    assert {s.dtype for s in small.by_state} == {"float32"}


# --- decoding ---------------------------------------------------------------------------------------------------------


class Recorder:
    """A session that remembers what it gave last."""

    def __init__(self, session: Any) -> None:
        self.session, self.last = session, []

    def run(self, inputs: Any) -> Any:
        outputs = self.session.run(inputs)
        self.last = [x.numpy() for x in outputs.values()]
        return outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)


def passed(model: Model, dtype: Dtype) -> tuple[list[int], int]:
    """Bytes of the tensors that a step hands to the next, after TIME - 2, TIME - 1 and TIME places; and of those that
    every step is given."""
    made = decoder(model, module_of(model), dtype=dtype)
    step = made.step = Recorder(made.step)
    once = made.encoder = None if made.encoder is None else Recorder(made.encoder)
    sizes = {s.name: BATCH if s.name == "batch" else TIME for s in model.symbols}
    given = {name: t.numpy() for name, t in inputs_for(model, sizes).items()}
    found = []
    for chunks in ((TIME - 2,), (TIME - 2, 1), (TIME - 2, 1, 1)):
        made.run(given, chunks)
        found.append(sum(x.nbytes for x in step.last[1:]))
    if once is None:
        return found, 0
    assert {*once.outputs} <= {*step.inputs}
    return found, sum(x.nbytes for x in once.last)


def check_decoding(model: Model, dtype: Dtype = "float32") -> None:
    (two_before, before, now), once = passed(model, dtype)
    said = memory(model, dtype=dtype)
    assert said.decode_state == now + once
    assert sum(k.bytes for k in said.kept if k.kind == "once") == once
    assert sum(k.bytes for k in said.kept if k.kind != "once") == now
    assert said.decode_state_per_token is not None
    assert now - before == before - two_before == BATCH * said.decode_state_per_token


DECODERS = (
    "gpt2:gpt2",
    "llama3:llama3",
    "deepseek_v3:deepseek_v3",
    "t5:t5_small",
    "mamba:mamba_130m",
    "performer:performer",
    "rnn_lm:lstm_lm_small",
    "wavenet:wavenet",
    "ntm:ntm_copy",
    "seq2seq_attention:seq2seq",
)


@pytest.mark.parametrize("name", ["deepseek_v3:deepseek_v3", "t5:t5_small", "mamba:mamba_130m", "ntm:ntm_copy"])
def test_decode_state_of_a_narrow_type(name: str) -> None:
    check_decoding(graph(name), "float16")


@pytest.mark.parametrize("layer", ["mha(heads: 2, mask: causal)", "gru(8)", "mha(heads: 2, mask: causal & window(4))"])
def test_decode_state_of_places_in_front(layer: str) -> None:
    check_decoding(behind_memory(layer))


def test_pytorch_keeps_once_what_a_caller_has_appended() -> None:
    """A block two calls further in takes the new positions and all of what is appended above."""
    model = tiny(
        """block decayed(u: [batch, time, 4], v: [batch, time, 4]) -> [batch, time, 4] {
          t = indices(time)
          w = where(unsqueeze(t, 0) <= unsqueeze(t, 1), exp(-0.3 * (unsqueeze(t, 1) - unsqueeze(t, 0))), 0)
          return u + matmul(w -> cast(float), v)
        }
        block inner(x: [batch, time, 4]) -> [batch, time, 4] { return decayed(x, x) }
        block outer(x: [batch, time, 4]) -> [batch, time, 4] { return inner(x) }
        model m(tokens: token[batch, time]) {
          x = tokens -> embedding(16, 4)
          return (decayed(x, x) + outer(x)) -> linear(16)
        }"""
    )
    stepping = load_source(emit(model, Extras(frozenset({"generate"}))))()
    cache = stepping.forward.__globals__["Cache"](TIME)
    stepping(torch.zeros(BATCH, TIME, dtype=torch.long), cache=cache)
    assert sum(x.nbytes for entry in cache.entries for x in entry) == memory(model).decode_state


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*sample(), *DECODERS}))
def test_the_zoo(name: str) -> None:
    """Weights and buffers; the decode state is what a step is passed, compared for one of each kind, or is refused as
    the step is."""
    model, made = graph(name), module(name)
    for dtype in ("float32", "bfloat16"):
        made = made.to(getattr(torch, dtype))
        said = memory(model, dtype=dtype)
        assert (said.weights, said.buffers) == (size(made.parameters()), size(made.buffers()))
    said = memory(model)
    if said.decode_state is not None:
        if name in DECODERS or zoo_sizes.every:
            check_decoding(model)
        return
    assert name not in DECODERS
    with pytest.raises(ArchError) as refused:
        stepped(model)
    assert said.no_decode_state == refused.value.diagnostics[0].message
    assert (said.decode_state_per_token, said.kept) == (None, [])


def by_name(said: Memory) -> dict[str, KeptMemory]:
    return {k.name: k for k in said.kept}


def test_a_type_is_the_activations_own() -> None:
    """A state in float32 stays so; all else halves."""
    wide, narrow = (by_name(memory(graph("mamba:mamba_130m"), dtype=d)) for d in ("float32", "bfloat16"))
    assert wide["state"].dtype == narrow["state"].dtype == "float32"
    assert wide["state"].bytes == narrow["state"].bytes
    assert wide["conv"].bytes == 2 * narrow["conv"].bytes
    assert {k.per_token for k in wide.values()} == {0}


def test_published_sizes() -> None:
    """Bytes a token in bfloat16: Llama 3 8B 128 KiB (32 layers of 8 heads of 128, keys and values), DeepSeek-V3 576
    numbers a layer (DeepSeek-AI, 2024, section 2.1.1)."""
    for name, numbers in (("llama3_8b", 32 * 2 * 8 * 128), ("deepseek_v3", 61 * 576), ("gpt2", 12 * 2 * 768)):
        said = archdsl.memory(name, seq=1024, dtype="bfloat16")
        assert said.decode_state_per_token == 2 * numbers
        assert said.decode_state == 1024 * 2 * numbers


WINDOWED = """
  block layer(mask: mask)(x: [batch, time, width]) { x += x -> mha(heads: 2, mask: mask) }
  model m(width = 8) {
    vocab: 16
    context: 64
    width: width
    blocks: layer(mask: causal & window(4)) + layer(mask: causal) + layer(mask: causal & chunked(6))
    head: lm
  }"""


def test_windows() -> None:
    """A ring would hold as many places as a window; the caches of the step hold them all."""
    said = memory(tiny(WINDOWED))
    assert [(k.name, k.window) for k in said.kept] == [
        (name, window) for window in (4, None, 6) for name in ("key", "value")
    ]
    each = BATCH * 8 * 4
    assert [k.bytes for k in said.kept] == [TIME * each] * 6
    assert [k.windowed_bytes for k in said.kept] == [places * each for places in (4, 4, TIME, TIME, 6, 6)]
    short = estimate(tiny(WINDOWED), seq=3)
    assert [k.windowed_bytes for k in short.kept] == [k.bytes for k in short.kept]


CAUSAL, WINDOW, CHUNKED, DILATED = (POSITIONS[rule] for rule in ("causal", "window", "chunked", "dilated"))
MASKS = (
    *POSITIONS.values(),
    *(both(CAUSAL, mask) for mask in POSITIONS.values()),
    both(WINDOW, CHUNKED),
    either(WINDOW, DILATED),
    either(CAUSAL, WINDOW),
    both(CAUSAL, complement(WINDOW)),
    both(CAUSAL, either(CHUNKED, POSITIONS["prefix"])),
)


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_how_far_a_mask_sees(mask: Mask) -> None:
    """The furthest key behind and ahead that any query gets a share of; with no bound behind, the first of all."""
    places = 40
    made = to_torch(
        tiny(f"model m(x: [batch, time, 4], v: [batch, time, {places}]) {{ return sdpa(x, x, v, mask: {mask}) }}")
    )
    shares = made(torch.zeros(1, places, 4), torch.eye(places)[None])[0]
    query, key = shares.nonzero().T
    back, forth = int((query - key).max()), int((key - query).max())
    bound = behind(mask)
    assert mask.drawn or back == (places - 1 if bound is None else bound)
    later = ahead(mask)
    assert later is None or forth == later or (forth < later and (mask.parts or mask.drawn))


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_tells_what_the_function_does() -> None:
    options = ("--dtype", "bfloat16", "--optimizer", "muon", "--master-weights", "--batch", "3", "--seq", "100")
    status, text = run("estimate", "llama3_8b", *options, "--json")
    how: dict[str, Any] = {"dtype": "bfloat16", "optimizer": "muon", "master_weights": True}
    expected = archdsl.memory("llama3_8b", batch=3, seq=100, **how)
    assert status == 0
    assert json.loads(text)["memory"] == expected.model_dump()
    status, text = run("estimate", "llama3_8b", *options)
    assert status == 0
    for number in (expected.weights, expected.optimizer, expected.model_states, expected.decode_state):
        assert f"{number:,}" in text
    assert "FLOPs" in text


def test_defaults_are_those_of_the_context() -> None:
    status, text = run("estimate", "gpt2", "--json")
    assert status == 0
    said = json.loads(text)["memory"]
    assert said == archdsl.memory("gpt2").model_dump()
    assert (said["dtype"], said["algorithm"], said["seq"]) == ("float32", "adamw", 1024)


def test_only_what_is_asked_for_is_shown() -> None:
    assert "Memory" not in run("estimate", "gpt2", "--batch", "2")[1]
    shown = run("estimate", "gpt2", "--optimizer", "sgd")[1]
    assert "Memory" in shown
    assert "FLOPs" not in shown


def test_a_model_that_does_not_decode_says_why() -> None:
    assert "no KV cache: `bert_base` cannot be decoded" in run("estimate", "bert_base", "--dtype", "float16")[1]


@pytest.mark.parametrize(
    "options", [("--dtype", "int8"), ("--optimizer", "lion"), ("--optimizer", "sgd", "--seq", "1025")]
)
def test_what_is_refused(options: tuple[str, ...]) -> None:
    assert run("estimate", "gpt2", *options)[0] == 2


def test_a_loss_in_chunks_of_what_has_no_logits_is_refused() -> None:
    model = archdsl.load(text="model m(x: [batch, 8]) { return x -> linear(8) }")
    with pytest.raises(ArchError, match=r"E0526.*`m` has no cross-entropy over its positions: it reads no tokens"):
        estimate(model, loss="chunked")
    assert estimate(model, loss="chunked", step=False).weights == 4 * (64 + 8)


def test_a_length_that_the_model_refuses() -> None:
    with pytest.raises(ArchError) as refused:
        archdsl.memory("gpt2", seq=1025)
    assert refused.value.diagnostics[0].code == "E0503"


def test_a_result_of_one_axis_is_measured_too() -> None:
    """What is saved is what the second layer reads: 8 numbers of each of 3 rows."""
    text = "model m(x: [batch, 8]) -> [batch] { return x -> linear(8) -> linear(1) -> sum(axis: -1) }"
    found = archdsl.memory(text=text, batch=3, measure=True)
    assert found.measured is not None
    assert found.measured.saved == found.activations == 3 * 8 * 4
