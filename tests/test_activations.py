"""Activations saved for the backward pass, to the byte, and the peak of a step, against PyTorch's own storages."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from activation_tools import Alive, saved_bytes, step, tensors_of
from torch_versions import measured
from typer.testing import CliRunner
from zoo.tiny import BATCH, OTHER, TIME, graph, inputs, module, tables

import archdsl
from archdsl.api import module_from
from archdsl.backends.torch import Extras, emit
from archdsl.budget import activations
from archdsl.budget.activations import BACKENDS, estimate, inputs_of, outputs_of, saved
from archdsl.budget.memory import estimate as memory
from archdsl.cli import app
from archdsl.diagnostics import ArchError
from archdsl.eager import functions as f
from archdsl.eager import world
from archdsl.eager.engine import backward
from archdsl.eager.modules import ModuleList, cast
from archdsl.eager.stacks import fresh, stretches
from archdsl.eager.tensors import DTYPES, Session, Tensor
from archdsl.eager.world import model_of
from archdsl.ir.graph import Model
from archdsl.ir.op import Example
from archdsl.lower.load import load_source
from archdsl.ops import registry

pytestmark = measured
DTYPE_NAMES = ("float32", "bfloat16")


def typed(given: dict[str, torch.Tensor], dtype: str) -> dict[str, torch.Tensor]:
    return {k: v.to(getattr(torch, dtype)) if v.is_floating_point() else v for k, v in given.items()}


def predicted(model: Model, sizes: dict[str, int], dtype: str, wanted: bool = False) -> tuple[list[Tensor], int]:
    """Results without numbers, and the bytes saved for them; `wanted`: inputs want gradients too."""
    session = Session()
    with session.running():
        made = model_of(emit(model))
        cast(made, DTYPES[dtype])
        given = inputs_of(model, sizes, DTYPES[dtype])
        for t in given.values():
            t.requires_grad = wanted and t.dtype.is_floating_point
        session.fixed = False
        results = outputs_of(made, given)
        return results, sum(n for n, _, _ in saved(results).values())


# --- what is saved ----------------------------------------------------------------------------------------------------

DENSE = ("gpt2:gpt2", "llama3:llama3", "t5:t5_small", "bert:bert_base")


def alike() -> list[str]:
    """One model of those whose tiny copies are the same."""
    found: dict[str, str] = {}
    for name, settings in tables().items():
        found.setdefault(f"{name.partition(':')[0]} {sorted(settings.items())}", name)
    return [*found.values()]


def saves_what_autograd_saves(name: str, dtype: str) -> None:
    model = graph(name)
    sizes = {s.name: {"batch": BATCH, "time": TIME}.get(s.name, OTHER) for s in model.symbols}
    made = module(name).to(getattr(torch, dtype)).train()
    results, measured = saved_bytes(made, typed(inputs(model), dtype))
    found, said = predicted(model, sizes, dtype)
    assert [t.shape for t in found] == [t.shape for t in results]
    assert [repr(t.dtype) for t in found] == [str(t.dtype) for t in results]
    assert said == measured


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_transformers_save_what_autograd_saves(name: str, dtype: str) -> None:
    saves_what_autograd_saves(name, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in alike() if n not in DENSE])
@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_the_zoo_saves_what_autograd_saves(name: str, dtype: str) -> None:
    saves_what_autograd_saves(name, dtype)


EXAMPLES = [
    pytest.param(name, e, id=f"{name}-{i}")
    for name in sorted(registry.names())
    for i, e in enumerate(registry.get(name).examples)
]


CAPACITY = next(e for e in registry.get("experts").examples if "capacity" in e.expression)


def example_inputs(model: Model, example: Example) -> dict[str, torch.Tensor]:
    """Random numbers for an example."""
    generator = torch.Generator().manual_seed(0)
    given: dict[str, torch.Tensor] = {}
    for key, value in model.inputs:
        shape = [int(d) for d in value.shape]
        if value.is_float:
            given[key] = torch.randn(shape, generator=generator)
        elif value.is_bool:
            given[key] = torch.rand(shape, generator=generator) < 0.5
        else:
            given[key] = torch.randint(example.below, shape, generator=generator)
    return given


@pytest.mark.parametrize(("name", "example"), EXAMPLES)
def test_a_primitive_saves_what_autograd_saves(name: str, example: Example) -> None:
    """In both types, and where its inputs want gradients."""
    model = archdsl.load(text=f"model m({example.inputs}) {{ {example.statements} return {example.expression} }}")
    given = example_inputs(model, example)
    for dtype in DTYPE_NAMES:
        own = {k: t.clone().requires_grad_(t.is_floating_point()) for k, t in typed(given, dtype).items()}
        results, measured = saved_bytes(module_from(model).to(getattr(torch, dtype)).train(), own)
        found, said = predicted(model, {}, dtype, wanted=True)
        assert [t.shape for t in found] == [t.shape for t in results]
        assert [repr(t.dtype) for t in found] == [str(t.dtype) for t in results]
        # How many rows an expert with a capacity is left with, numbers decide.
        assert said == measured or (example is CAPACITY and said > measured)


# --- the peak ---------------------------------------------------------------------------------------------------------

WIDE = {"gpt2:gpt2": {"width": 64, "layers": 4}, "llama3:llama3_8b": {"width": 64, "layers": 3}}
CLOSE = 0.02
"""How far the predicted peak may be from the measured one."""


def check_peak(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    dtype: str,
    recompute: Any = "none",
    settings: dict[str, int] | None = None,
) -> None:
    """One step of a tiny model, of the file with its checkpoints where there are some."""
    model = graph(name, **(settings or {}))
    sizes = {s.name: {"batch": BATCH, "time": TIME}.get(s.name, OTHER) for s in model.symbols}
    torch.manual_seed(0)
    made = load_source(emit(model, Extras(checkpoint=recompute)))().to(getattr(torch, dtype)).train()
    fresh(made)  # masks that another test has left
    after, most = step(made, typed(inputs(model), dtype))
    monkeypatch.setattr(activations, "sizes_at", lambda *_: sizes)
    said = estimate(model, dtype=dtype, recompute=recompute)
    forward = next(e for e in said.timeline if e.event == "objective")
    # The targets are made by the step that is measured, and given in that of the estimate.
    own = sum(t.nbytes for t in typed(inputs(model), dtype).values())
    assert forward.bytes - own == pytest.approx(after, rel=0.002)
    assert said.peak - said.inputs == pytest.approx(most, rel=CLOSE)
    assert said.peak == max(e.peak for e in said.timeline)


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
@pytest.mark.parametrize(
    "name",
    [
        "gpt2:gpt2",
        "llama3:llama3_8b",
        "mixtral:mixtral_8x7b",
        "mamba:mamba_130m",
        "deep_rnn:ctc_1l_250h",
        "ntm:ntm_repeat_copy",
        "tagger:bilstm_tagger",
    ],
)
def test_the_peak_is_that_of_the_storages_alive(monkeypatch: pytest.MonkeyPatch, name: str, dtype: str) -> None:
    check_peak(monkeypatch, name, dtype, settings=WIDE.get(name))


CHECKPOINTED = ("gpt2:gpt2", "llama3:llama3_8b", "t5:t5_small", "bloom:bloom_560m", "conformer:conformer_l")


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("dtype", DTYPE_NAMES)
@pytest.mark.parametrize("name", CHECKPOINTED)
def test_the_peak_with_what_is_computed_again(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: str, recompute: Any
) -> None:
    check_peak(monkeypatch, name, dtype, recompute)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("name", alike())
def test_the_peak_of_the_zoo(monkeypatch: pytest.MonkeyPatch, name: str, recompute: Any) -> None:
    if memory(graph(name), backend="cpu-eager", recompute=recompute, seq=TIME).step is None:
        with pytest.raises(ArchError, match="E0527"):
            emit(graph(name), Extras(checkpoint=recompute))
        return
    for dtype in DTYPE_NAMES:
        with monkeypatch.context() as patch:
            check_peak(patch, name, dtype, recompute)


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("name", ["gpt2:gpt2", "llama3:llama3_8b", "conformer:conformer_l"])
def test_recomputation_is_that_of_the_emitted_checkpoints(name: str, recompute: Any) -> None:
    model = graph(name)
    made = load_source(emit(model, Extras(checkpoint=recompute)))().train()
    after, _ = step(made, inputs(model))
    said = estimate(model, batch=BATCH, seq=TIME, recompute=recompute)
    forward = next(e for e in said.timeline if e.event == "objective")
    # The targets are made by the step that is measured.
    assert forward.bytes - sum(t.nbytes for t in inputs(model).values()) == after
    assert said.saved < estimate(model, batch=BATCH, seq=TIME).saved


NESTED = """
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 64), nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))

class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Inner(), Inner()

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self.first, torch.sigmoid(x), use_reentrant=False)
        return checkpoint(self.second, torch.tanh(x), use_reentrant=False)

class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 8)
        self.outer = Outer()

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.outer, self.head(x), use_reentrant=False)
"""


def test_a_checkpoint_in_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activations, "emit", lambda *_, **__: NESTED)
    model = archdsl.load(text="model m(x: [batch, time, 8]) { return x -> relu }")
    after, most = step(load_source(NESTED)(), {"x": torch.randn(BATCH, TIME, 8)})
    said = estimate(model, batch=BATCH, seq=TIME)
    forward = next(e for e in said.timeline if e.event == "objective")
    assert forward.bytes - BATCH * TIME * 8 * 4 == after
    assert said.peak - said.inputs == most


# Under the mode that measures, torch takes another way (a product of all before, as if there were zeros), or adds a
# gradient to another out of place; how many tokens an expert has room for, only a run knows.
OTHERWISE = ("cumprod-", "minus-2", "experts-2")


@pytest.mark.parametrize(("name", "example"), [e for e in EXAMPLES if not str(e.id).startswith(OTHERWISE)])
def test_the_peak_of_a_primitive(name: str, example: Example) -> None:
    """Forwards and backwards, where its inputs want gradients."""
    model = archdsl.load(text=f"model m({example.inputs}) {{ {example.statements} return {example.expression} }}")
    for dtype in DTYPE_NAMES:
        own = {
            k: t.requires_grad_(t.is_floating_point()) for k, t in typed(example_inputs(model, example), dtype).items()
        }
        made = module_from(model).to(getattr(torch, dtype)).train()
        factors = [torch.ones(t.shape) for t in tensors_of(made(**own)) if t.requires_grad]
        if not factors:
            return
        with Alive([*made.parameters(), *made.buffers(), *own.values(), *factors]) as alive:
            results = [t for t in tensors_of(made(**own)) if t.requires_grad]
            losses = [sum((t.float() * w).sum() for t, w in zip(results, factors, strict=True))]
            del results
            forward, alive.most = alive.most, 0
            losses.pop().backward()
        session = Session()
        with session.running():
            made = model_of(emit(model))
            cast(made, DTYPES[dtype])
            given = inputs_of(model, {}, DTYPES[dtype])
            for t in given.values():
                t.requires_grad = t.dtype.is_floating_point
            fixed = [Tensor(w.shape, DTYPES["float32"]) for w in factors]
            session.fixed = False
            found = [t for t in outputs_of(made, given) if t.requires_grad]
            total: Any = 0
            for t, w in zip(found, fixed, strict=True):
                total = f.add(f.total(f.mul(f.cast(t, DTYPES["float32"]), w)), total)
            del found, t
            assert session.peak == pytest.approx(forward, rel=CLOSE)
            session.peak, totals = 0, [total]
            del total
            backward(totals.pop())
        assert session.peak == pytest.approx(alive.most, rel=CLOSE)


# --- the report -------------------------------------------------------------------------------------------------------


def test_blocks_add_up_and_the_timeline_has_every_layer() -> None:
    said = estimate(graph("gpt2:gpt2", layers=3), batch=2, seq=16)
    rows = {row.path: row for row in said.by_block}
    assert rows["model"].bytes == said.saved
    assert rows["blocks.*"].count == 3
    assert rows["blocks.*.attention"].bytes + rows["blocks.*.ffn"].bytes < rows["blocks.*"].bytes < said.saved
    events = [e.event for e in said.timeline]
    layers = [f"blocks.{i}" for i in range(3)]
    assert [e for e in events if e.startswith("forward blocks")] == [f"forward {x}" for x in layers]
    assert [e for e in events if e.startswith("backward blocks")] == [f"backward {x}" for x in reversed(layers)]
    assert events[-1] == "optimizer step"
    assert events.index("forward blocks.2") < events.index("objective") < events.index("backward blocks.2")
    assert said.peak_at in events


def test_gradients_are_all_there_in_the_end() -> None:
    """After the backward pass nothing is alive but what was there before, and a gradient for each weight."""
    model = graph("llama3:llama3_8b")
    said = estimate(model, batch=2, seq=16, fixed=1000, optimizer=77)
    assert said.timeline[-1].bytes == 1000 + said.inputs + memory(model).gradients
    assert said.timeline[-1].peak == said.timeline[-1].bytes + 77


def test_backends_say_whether_they_were_measured() -> None:
    model = graph("gpt2:gpt2")
    found = {b: estimate(model, batch=2, seq=16, dtype="bfloat16", backend=b) for b in BACKENDS}
    assert {b: (s.measured, s.exact) for b, s in found.items()} == {
        "cpu-eager": (True, True),
        "cuda-eager": (False, False),
        "compiled": (False, False),
    }
    assert found["cpu-eager"].saved > found["cuda-eager"].saved > found["compiled"].saved > 0
    assert all(e.bytes >= 0 for s in found.values() for e in s.timeline)


def test_memory_holds_weights_and_states_in_its_peak() -> None:
    model = graph("gpt2:gpt2")
    adam, sgd = (memory(model, batch=2, seq=16, optimizer=o, backend="cpu-eager") for o in ("adamw", "sgd"))
    assert adam.peak is not None
    assert sgd.peak is not None
    assert adam.activations == sgd.activations
    assert adam.peak - sgd.peak >= adam.optimizer
    assert memory(model).activations is None


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["estimate", *arguments])


def test_the_command_line_says_it() -> None:
    small = ("gpt2", "--set", "layers=2", "--batch", "2", "--seq", "64")
    found = json.loads(run(*small, "--json").stdout)["memory"]
    assert {"weights", "gradients", "optimizer", "activations", "peak", "decode_state", "timeline"} <= found.keys()
    assert found["step"]["saved"] == found["activations"]
    assert found["peak"] == max(e["peak"] for e in found["timeline"])
    assert found["step"]["measured"] is True
    again = json.loads(run(*small, "--json", "--recompute", "full", "--backend", "cuda-eager").stdout)["memory"]
    assert again["activations"] < found["activations"]
    assert again["step"]["measured"] is False
    text = run(*small, "--dtype", "bfloat16").stdout
    assert "activations" in text
    assert "cpu-eager, exact" in text
    assert "peak" in text
    assert "blocks.*.attention" in text


# --- what cannot be followed ------------------------------------------------------------------------------------------


def test_an_unknown_function_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(world.functional, "gelu")
    model = graph("gpt2:gpt2")
    with pytest.raises(ArchError) as caught:
        estimate(model, batch=2, seq=16)
    assert caught.value.diagnostics[0].code == "E0512"
    assert "`F.gelu`" in caught.value.diagnostics[0].message
    said = memory(model, batch=2, seq=16, backend="cpu-eager")
    assert said.activations is said.peak is said.step is None
    assert said.no_activations is not None
    assert "`F.gelu`" in said.no_activations
    assert said.weights == memory(model).weights


def test_a_branch_on_numbers_cannot_be_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
from torch import Tensor, nn

class Chooser(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x
"""
    monkeypatch.setattr(activations, "emit", lambda *_, **__: source)
    with pytest.raises(ArchError, match="numbers"):
        estimate(archdsl.load(text="model m(x: [batch, time, 8]) { return x -> relu }"))


def test_a_model_without_layers_has_nothing_to_compute_again() -> None:
    model = archdsl.load(text="model m(x: [batch, time, 8]) { return x -> linear(8) }")
    said = memory(model, backend="cpu-eager", recompute="full")
    assert said.activations is None
    assert said.no_activations is not None
    assert "layers" in said.no_activations


# --- stacks of equal layers -------------------------------------------------------------------------------------------


def told(model: Model, **settings: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    said = estimate(model, batch=BATCH, fixed=1000, optimizer=7, **settings)
    return said.model_dump(), [e.model_dump() for e in said.timeline]


def turns(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """How many layers of each list every run goes through, noted from now on."""
    seen: list[list[int]] = []
    follow = activations._Step.follow

    def noted(step: Any, made: Any, given: Any, stretches: Any = ()) -> Any:
        seen.append([len(m._modules) for m in made._modules.values() if isinstance(m, ModuleList)])
        return follow(step, made, given, stretches)

    monkeypatch.setattr(activations._Step, "follow", noted)
    return seen


def at_length(monkeypatch: pytest.MonkeyPatch, model: Model, **settings: Any) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(activations, "stretches", lambda *_: [])
        return told(model, **settings)


STACKS = {
    "llama3_405b": [[4], [5]],
    "gpt3_175b": [[8], [10]],
    "deepseek_v3": [[7], [8]],
    "switch_xxl": [[8, 8], [10, 10]],
}


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("name", STACKS)
def test_some_turns_tell_of_all(monkeypatch: pytest.MonkeyPatch, name: str, recompute: Any) -> None:
    """Equal layers are followed for some turns, and every figure is that of the whole stack."""
    model = archdsl.load(name)
    backend: Any = "compiled" if recompute == "selective" else "cpu-eager"
    seen = turns(monkeypatch)
    short = told(model, recompute=recompute, backend=backend, dtype="bfloat16")
    assert seen == STACKS[name]
    assert short == at_length(monkeypatch, model, recompute=recompute, backend=backend, dtype="bfloat16")


STACKED = """
import torch
from torch import Tensor, nn

class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(8, width)
        self.down = nn.Linear(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))

class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList({layers})

    def forward(self, x: Tensor) -> Tensor:
        {before}
        for {loop}:
            {body}
        return {result}
"""
PLAIN = {
    "layers": "Layer(16) for _ in range(24)",
    "before": "kept = []",
    "loop": "block in self.blocks",
    "body": "x = block(x)",
    "result": "x",
}
TURNS = {
    "equal": ({}, [[4], [5]]),
    "pairs": ({"layers": "Layer(16 + i % 2) for i in range(24)"}, [[8], [10]]),
    "two stretches": ({"layers": "Layer(16 + i // 12) for i in range(24)"}, [[8], [10]]),
    "what stands between": ({"layers": "Layer(9 if i == 12 else 16) for i in range(25)"}, [[9], [11]]),
    "grows": ({"layers": "Layer(16 + i) for i in range(24)"}, [[24]]),
    "numbered": (
        {"loop": "i, block in enumerate(self.blocks)", "body": "x = block(x) if i != 20 else torch.tanh(block(x))"},
        [[24]],
    ),
    "chosen": ({"result": "self.blocks[20](x)"}, [[24]]),
    "once more": ({"result": "x + sum(block(x) for block in self.blocks)"}, [[24]]),
    "kept": ({"body": "x = block(x); kept.append(x)", "result": "torch.cat(kept, -1)"}, [[4], [5], [24]]),
    "dense": ({"body": "kept.append(x); x = block(sum(kept))"}, [[4], [5], [24]]),
}


@pytest.mark.parametrize("case", TURNS)
def test_turns_that_differ_are_all_followed(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    changes, expected = TURNS[case]
    source = STACKED.format(**{**PLAIN, **changes})
    monkeypatch.setattr(activations, "emit", lambda *_, **__: source)
    model = archdsl.load(text="model m(x: [batch, time, 8]) { return x -> relu }")
    seen = turns(monkeypatch)
    short = told(model, seq=TIME)
    assert seen == expected
    assert short == at_length(monkeypatch, model, seq=TIME)


def test_layers_that_share_weights_in_twos_are_taken_in_twos() -> None:
    layers = "layer for a in range(12) for layer in (lambda one: (one, one))(Layer(16))"
    with Session().running():
        made = model_of(STACKED.format(**{**PLAIN, "layers": layers}))
        assert stretches(made, "for block in self.blocks:", 10) == []
        made = model_of(STACKED.format(**{**PLAIN, "layers": "[Layer(16)] * 24"}))
        assert [(s.period, s.turns) for s in stretches(made, "for block in self.blocks:", 10)] == [(1, 24)]


def test_one_layer_at_every_depth_is_followed_at_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    source = STACKED.format(**{**PLAIN, "layers": "[Layer(16)] * 24"})
    monkeypatch.setattr(activations, "emit", lambda *_, **__: source)
    model = archdsl.load(text="model m(x: [batch, time, 8]) { return x -> relu }")
    seen = turns(monkeypatch)
    short = told(model, seq=TIME)
    assert seen[-1] == [24]
    assert short == at_length(monkeypatch, model, seq=TIME)
