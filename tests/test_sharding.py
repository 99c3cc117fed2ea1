"""A training step on many devices: against published measurements, closed forms, and what autograd saves."""

from __future__ import annotations

import json
import runpy
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from activation_tools import saved_bytes
from torch_versions import measured
from typer.testing import CliRunner

import archdsl
from archdsl.api import to_torch
from archdsl.cli import app
from archdsl.diagnostics import ArchError
from archdsl.estimates.memory import estimate as memory
from archdsl.estimates.mesh import Mesh, parse_mesh
from archdsl.estimates.sharding import Sharding, Stage, Step, StepPlan, shard, under_way
from archdsl.ir.graph import Model
from archdsl.passes.flatten import FlatOp, flatten, weights_read
from archdsl.passes.partition import partition
from archdsl.resources import zoo_files

GIB = 1 << 30
FEWER = {"layers": 2, "pairs": 1, "dense_layers": 1, "sparse_layers": 1}


loaded = cache(archdsl.load)


def step(
    spec: str | Model, mesh: str = "dp=1", batch: int | None = None, seq: int | None = None, **how: Any
) -> Sharding:
    model = loaded(spec) if isinstance(spec, str) else spec
    return shard(model, StepPlan(parse_mesh(mesh), **how), batch=batch, seq=seq)


def sent(found: Sharding, axis: str, **what: Any) -> int:
    rows = [c for c in found.communication if c.axis == axis]
    return sum(c.sent for c in rows if all(getattr(c, k) == v for k, v in what.items()))


# --- published --------------------------------------------------------------------------------------------------------

# Korthikanti et al., 2022, table 3: layers, width, heads, tp, pp, pieces of each stage, micro-batch, micro-batches.
MEGATRON = {
    "22B": (48, 6144, 64, 8, 1, 1, 4, 1),
    "175B": (96, 12_288, 96, 8, 8, 3, 1, 64),
    "530B": (105, 20_480, 128, 8, 35, 3, 1, 280),
    "1T": (128, 25_600, 160, 8, 64, 1, 1, 512),
}
# Figure 1, GiB a device: weights, gradients and states (of the layers alone, gradients in float32); activations with
# everything kept, and with sequence parallelism and selective recomputation.
FIGURE_1 = {
    "22B": (45.5625, 59.25, 9.5625),
    "175B": (45.5625, 66.84375, 12.3515625),
    "530B": (31.640625, 114.0234375, 23.076171875),
    "1T": (32.958984375, 131.25, 26.5625),
}
# Figure 7, activations as percentages of those with everything kept: sequence parallelism, selective recomputation,
# both, and full recomputation.
FIGURE_7 = {
    "22B": (66.84, 49.42, 16.18, 7.64),
    "175B": (62.04, 56.53, 18.49, 8.71),
    "530B": (58.31, 62.04, 20.27, 9.42),
    "1T": (58.31, 62.04, 20.27, 9.42),
}


VOCAB = 51_200


def untied(**sizes: int) -> Model:
    """Megatron-LM with an LM head of its own: one that is the embedding's is whole on each rank."""
    text = zoo_files()["megatron"].read_text(encoding="utf-8").replace("tied: true", "tied: false")
    return archdsl.load(text=text, model="megatron_8_3b", set=sizes)


@cache
def of_megatron(name: str) -> Model:
    layers, width, heads, *_ = MEGATRON[name]
    return untied(layers=layers, width=width, heads=heads, context=2048)


@cache
def megatron(name: str, sequence_parallel: bool, checkpoint: Any) -> tuple[Stage, Stage]:
    """The first stage, and one in the middle. Their selective recomputation is what a fused kernel of attention does:
    scores are never kept."""
    *_, tp, pp, pieces, rows, parts = MEGATRON[name]
    plan = StepPlan(
        Mesh(tp=tp, pp=pp),
        micro_batches=parts,
        interleave=pieces,
        sequence_parallel=sequence_parallel,
        checkpoint="none" if checkpoint == "selective" else checkpoint,
        attention="fused" if checkpoint == "selective" else "eager",
        dtype="bfloat16",
        master_weights=True,
        gradient_dtype="float32",
    )
    found = shard(of_megatron(name), plan, batch=rows * parts, seq=2048)
    return found.stages[0], found.stages[pp // 2]


@pytest.mark.parametrize("name", MEGATRON)
def test_memory_is_that_of_megatron(name: str) -> None:
    first, middle = megatron(name, False, "none")
    states, all_of_it, little = FIGURE_1[name]
    # The paper's weights are those of layers; a stage in the middle has nothing else.
    _, width, _, tp, pp, *_ = MEGATRON[name]
    head = 18 * VOCAB * width // tp if pp == 1 else 0
    assert (middle.weights + middle.gradients + middle.optimizer - head) / GIB == pytest.approx(states, rel=0.025)
    assert first.activations / GIB == pytest.approx(all_of_it, rel=0.03)
    assert megatron(name, True, "selective")[0].activations / GIB == pytest.approx(little, rel=0.03)


@pytest.mark.parametrize("name", MEGATRON)
def test_savings_are_those_of_megatron(name: str) -> None:
    # Of layers alone: the paper leaves out what stands around them, which full recomputation does not spare. A model
    # of one stage has it, and little else is left there.
    kept = megatron(name, False, "none")[1].activations
    ways = ((True, "none"), (False, "selective"), (True, "selective"), (False, "full"))
    for (sequence_parallel, checkpoint), percent in zip(ways, FIGURE_7[name], strict=True):
        found = megatron(name, sequence_parallel, checkpoint)[1].activations
        alone = MEGATRON[name][4] == 1 and checkpoint == "full"
        assert 100 * found / kept == pytest.approx(percent, rel=0.09 if alone else 0.03)


# --- what autograd saves ----------------------------------------------------------------------------------------------

PLAIN = """
block layer {
  attention: ATTENTION
  mask:      causal
  POSITION
  ffn:       FFN
  norm:      layernorm
  placement: pre
}

model plain {
  vocab:   512
  context: 64
  width:   128
  blocks:  4 * layer
  norm:    layernorm
  head:    lm
}
"""
SAVED = {
    "mha, mlp": {"ATTENTION": "mha(heads: 4)", "FFN": "mlp(hidden: 512)", "POSITION": ""},
    "gqa, swiglu": {
        "ATTENTION": "gqa(heads: 4, kv_heads: 2)",
        "FFN": "swiglu(hidden: 352)",
        "POSITION": "position:  rope",
    },
    "mqa, geglu": {"ATTENTION": "mqa(heads: 4)", "FFN": "geglu(hidden: 352)", "POSITION": "position:  rope"},
}


@measured
@pytest.mark.parametrize("name", SAVED)
def test_activations_are_near_what_autograd_saves(name: str) -> None:
    text = PLAIN
    for slot, value in SAVED[name].items():
        text = text.replace(slot, value)
    model = archdsl.load(text=text)
    module = to_torch(model)
    _, real = saved_bytes(module, {"tokens": torch.randint(512, (2, 64))})
    found = step(model, batch=2, seq=64)
    # Where queries are turned first, PyTorch's kernel gives results in their order, and what merges heads is a copy.
    assert found.memory.activations == pytest.approx(real, rel=0.02 if "mha" in name else 0.06)


# --- closed forms -----------------------------------------------------------------------------------------------------


def test_one_device_holds_what_memory_says() -> None:
    for name in ("gpt2", "t5_small", "mixtral_8x7b", "mamba_130m"):
        model = archdsl.load(name)
        found = step(model, dtype="bfloat16", master_weights=True, optimizer="adamw")
        said = memory(model, dtype="bfloat16", master_weights=True, optimizer="adamw")
        assert found.memory.weights == said.weights + said.buffers
        assert (found.memory.gradients, found.memory.optimizer) == (said.gradients, said.optimizer)
        assert found.communication == []
        assert found.bubble == 0


def test_zero_is_that_of_its_paper() -> None:
    """Rajbhandari et al., 2020: 16 bytes a parameter are 4 + 12 / N, 2 + 14 / N and 16 / N (figure 1), and what is sent
    is twice the parameters, three times with stage 3 (section 7), where what is in no layer stays gathered."""
    n, devices = archdsl.estimate("gpt2_xl").params.total, 64
    shares = {0: 16.0, 1: 4 + 12 / devices, 2: 2 + 14 / devices, 3: 16 / devices}
    traffic = {0: 2, 1: 2, 2: 2, 3: 3}
    for zero, each in shares.items():
        found = step("gpt2_xl", f"dp={devices}", zero=zero, dtype="bfloat16", master_weights=True)
        states = found.memory.weights + found.memory.gradients + found.memory.optimizer
        assert states / n == pytest.approx(each, rel=1e-4)
        ring = (devices - 1) / devices
        stays = (50_257 + 1024 + 2) * 1600 if zero == 3 else 0  # embeddings and the last norm
        sent = 2 * (traffic[zero] * n - stays) * ring
        assert sum(found.sent.values()) == pytest.approx(sent, rel=1e-4 if zero == 3 else 1e-6)  # shards are padded
        assert (found.memory.gathered > 0) == (zero == 3)


def test_gradients_are_cut_in_each_micro_batch() -> None:
    once = step("gpt2", "dp=4", zero=2, micro_batches=1)
    often = step("gpt2", "dp=4", zero=2, micro_batches=3)
    assert sent(often, "dp", collective="reduce-scatter") == 3 * sent(once, "dp", collective="reduce-scatter")
    assert sent(often, "dp", collective="all-gather") == sent(once, "dp", collective="all-gather")
    sharing = (step("gpt2", "dp=4", zero=1, micro_batches=m) for m in (1, 3))
    assert len({sum(s.sent.values()) for s in sharing}) == 1


def test_tensor_parallelism_meets_four_times_a_layer() -> None:
    """Shoeybi et al., 2019: two all-reduces forwards and two backwards a layer, of batch · time · width numbers; one
    more each for the vocabulary."""
    layers, width, tp, rows = 72, 3072, 8, 4
    found = step(untied(), f"tp={tp}", batch=rows, dtype="bfloat16", micro_batches=2)
    one = rows * 1024 * width * 2
    for phase in ("forward", "backward"):
        calls = [c for c in found.communication if c.axis == "tp" and c.phase == phase and c.purpose != "logits"]
        assert [(c.collective, c.calls, c.payload) for c in calls] == [
            ("all-reduce", 2 * (2 * layers + 1), one * (2 * layers + 1))
        ]
        assert calls[0].sent == pytest.approx(2 * (tp - 1) / tp * calls[0].payload, abs=1)
    logits = [c for c in found.communication if c.purpose == "logits"]
    assert [(c.collective, c.payload) for c in logits] == [("all-gather", 2 * rows * 1024 * VOCAB)]
    # A head that is the embedding's is whole on each rank, and so are its logits.
    tied = step("megatron_8_3b", f"tp={tp}", batch=rows, dtype="bfloat16", micro_batches=2)
    assert sum(c.calls for c in tied.communication) == 2 * 4 * layers


def test_sequence_parallelism_sends_as_much_and_one_gather_more() -> None:
    """An all-reduce is a reduce-scatter and an all-gather (Korthikanti et al., 2022, section 4.2.2); what was cut
    before it was kept is gathered again."""
    plain = step("llama3_8b", "tp=8", seq=4096)
    spread = step("llama3_8b", "tp=8", seq=4096, sequence_parallel=True)
    once = 4096 * 4096 * 4 * (8 - 1) / 8
    assert sent(spread, "tp", collective="all-reduce") < 0.001 * once * 65
    # Logits stay sharded, of which each rank has all otherwise; three numbers of float32 for every token are summed.
    (loss,) = (c for c in spread.communication if "loss" in c.purpose)
    assert loss.payload == 12 * 4096
    moved = sent(spread, "tp") - sent(spread, "tp", phase="step") - loss.sent
    before = sent(plain, "tp") - sent(plain, "tp", purpose="logits")
    assert moved - before == pytest.approx(65 * once, rel=1e-6)
    assert spread.memory.activations < 0.5 * plain.memory.activations


def test_whole_tensors_are_there_while_ranks_exchange_them() -> None:
    """With sequence parallelism five linear layers of a layer read a gathered tensor, and two make sums of the whole
    sequence; so do the head and the embedding. Along `cp` attention reads all keys and values, of 2 of 8 heads."""
    model = archdsl.load("llama3_8b", set={"layers": 2})
    one = 2048 * 4096 * 4
    for mesh, spread, forward, backward in (
        ("tp=4", True, 2 * 7 + 2, 2 * 12 + 3),
        ("tp=4", False, 0, 0),
        ("cp=4", False, 2 * 2 / 4, 2 * 4 / 4),
    ):
        found = Step(model, StepPlan(parse_mesh(mesh), sequence_parallel=spread, loss="eager"), None, None)
        nodes, saving = found.graph.nodes, found.saving
        assert sum(map(saving.exchanged, nodes)) == forward * one
        assert sum(saving.exchanged(n, backward=True) for n in nodes) == backward * one
    # The gradient of what is gathered is as large, and the tensor itself is gathered once more.
    plan = StepPlan(Mesh(tp=64), sequence_parallel=True, micro_batches=2, checkpoint="full", loss="fused")
    wide = shard(archdsl.load("gpt3_6_7b", set={"layers": 2, "heads": 64}), plan, batch=32).memory
    states = wide.weights + wide.gradients + wide.optimizer
    assert 2 * 16 * one < wide.total - states - wide.activations < 2.5 * 16 * one


def test_parts_of_weights_add_up() -> None:
    total = archdsl.estimate("llama3_8b").params.total
    found = step("llama3_8b", "tp=4,pp=4", micro_batches=4)
    norms = 65 * 4096
    assert sum(4 * s.parameters for s in found.stages) == total + 3 * norms
    assert [s.layers for s in found.stages] == [8] * 4
    # A tied table is on the first stage and on the last, which add up its gradients.
    tied = step("gpt3_6_7b", "pp=4", micro_batches=4)
    table = 50_257 * 4096
    assert sum(s.parameters for s in tied.stages) == archdsl.estimate("gpt3_6_7b").params.total + table
    assert [c.payload for c in tied.communication if "share" in c.purpose] == [4 * table]


def test_pipelines_pass_the_residual_stream() -> None:
    found = step("llama3_8b", "pp=4", micro_batches=8, batch=16, seq=1024, dtype="bfloat16")
    one = 2 * 1024 * 4096 * 2
    inner = sorted((c.phase, c.sent) for c in found.communication if c.axis == "pp")
    assert set(inner) <= {("backward", 8 * one), ("forward", 8 * one)}
    assert found.bubble == 3 / (8 + 3)
    assert [s.in_flight for s in found.stages] == [4, 3, 2, 1]
    # An encoder's result goes on to every stage of the decoder.
    both = Step(archdsl.load("t5_small"), StepPlan(Mesh(pp=4), micro_batches=4), None, 128)
    stream, bias = 128 * 512 * 4, 8 * 128 * 128 * 4
    assert [both.crossing(i) for i in range(3)] == [stream + bias, 2 * stream + bias, 2 * stream + bias]


@pytest.mark.parametrize(
    ("spec", "mesh", "stages"),
    [
        ("llama3_405b", "tp=8,pp=16", [7, *[8] * 14, 7]),
        ("bloom_176b", "tp=4,pp=12", [5, *[6] * 10, 5]),
        ("glm_130b", "tp=4,pp=8", [8, *[9] * 6, 8]),
    ],
)
def test_published_stages(spec: str, mesh: str, stages: list[int]) -> None:
    """The embedding and the head count as a layer each; other numbers are given."""
    found = step(spec, mesh, micro_batches=2, seq=256)
    assert [s.layers for s in found.stages] == stages
    even = step(spec, mesh, micro_batches=2, seq=256, stages=tuple(reversed(stages)))
    assert even == found
    other = step(
        spec, mesh, micro_batches=2, seq=256, stages=(1, sum(stages) - len(stages) + 1, *[1] * (len(stages) - 2))
    )
    assert other.memory.stage == 1


@pytest.mark.parametrize("number", range(11))
def test_peaks_are_near_published_ones(number: int) -> None:
    """Of `benchmarks/training_memory.py`: what an allocator reserved, as near as it says there."""
    script = runpy.run_path(str(Path(__file__).resolve().parent.parent / "benchmarks" / "training_memory.py"))
    assert len(script["PUBLISHED"]) == 11
    name, mesh, plan, batch, seq, published, near = script["PUBLISHED"][number]
    found = Step(loaded(name), StepPlan(parse_mesh(mesh), **plan), batch, seq)
    assert script["reserved"](found) / GIB == pytest.approx(published, rel=near)


def test_every_other_layer_is_computed_again() -> None:
    whole, none = (step("gpt2", checkpoint=c, dtype="bfloat16").memory for c in ("full", "none"))
    half = step("gpt2", checkpoint="full", checkpoint_every=2, dtype="bfloat16").memory
    assert half.activations == (whole.activations + none.activations) / 2
    assert half.working == whole.working > 0 == none.working


def test_biases_of_heads_are_sharded() -> None:
    """ALiBi has none that is trained: each rank takes its heads', which an emitted plan does not."""
    found = step("bloom_176b", "tp=4", seq=256)
    assert any("biases of heads over tp" in note for note in found.notes)
    table = 250_880 * 14_336
    rest = archdsl.estimate("bloom_176b").params.total - table
    assert found.memory.parameters == pytest.approx(table + rest / 4, rel=0.001)


def test_pieces_under_way() -> None:
    """1F1B keeps p - s micro-batches; interleaved, the first stage keeps 1 + (p - 1) / (p v) times what it would with
    all its layers once (Korthikanti et al., 2022, section 4.2.3)."""
    mesh = Mesh(pp=8)
    assert [under_way(s, mesh, 1, 64) for s in (0, 3, 7)] == [[8], [5], [1]]
    assert under_way(0, mesh, 1, 2) == [2]
    assert under_way(0, mesh, 3, 64) == [8 + 7, 8, 8]
    assert under_way(7, mesh, 3, 64) == [8, 8, 1]
    plain = step("gpt3_6_7b", "pp=4", micro_batches=8, seq=256)
    woven = step("gpt3_6_7b", "pp=4", micro_batches=8, seq=256, interleave=2)
    assert woven.stages[1].activations / plain.stages[1].activations > 1
    assert woven.bubble == 3 / (2 * 8 + 3)


def test_experts() -> None:
    """Each token goes to its experts and back: 2 · k · tokens · width numbers forwards and backwards."""
    found = step("mixtral_8x7b", "dp=8,ep=8", seq=1024, dtype="bfloat16")
    one = 2 * 2 * 1024 * 4096 * 2
    for phase in ("forward", "backward"):
        rows = [c for c in found.communication if c.collective == "all-to-all" and c.phase == phase]
        assert [(c.calls, c.payload) for c in rows] == [(32, 32 * one)]
        assert rows[0].sent == pytest.approx(32 * one * 7 / 8, abs=1)
    params = archdsl.estimate("mixtral_8x7b").params
    experts = 32 * 8 * 3 * 4096 * 14_336
    assert found.memory.parameters == params.total - experts + experts // 8
    assert found.placed["expert"] == 96
    # With as many experts as replicas nobody else has them: only the rest is summed.
    assert sent(found, "dp", purpose="gradients") == pytest.approx(2 * 2 * (params.total - experts) * 7 / 8, abs=1)
    assert sent(found, "edp") == 0
    assert sent(step("mixtral_8x7b", "dp=16,ep=8", seq=64), "edp") > 0


def test_context_parallelism_moves_keys_and_values() -> None:
    found = step("llama3_8b", "cp=4", seq=4096, dtype="bfloat16")
    one = 2 * 4096 * 1024 * 2
    assert sum(c.payload for c in found.communication if c.axis == "cp" and c.phase == "forward") == 32 * one
    assert sum(c.payload for c in found.communication if c.axis == "cp" and c.phase == "backward") == 2 * 32 * one
    alone = step("llama3_8b", seq=1024, dtype="bfloat16")
    assert found.memory.activations == alone.memory.activations
    assert [c.devices for c in found.communication if c.axis == "dp·cp"] == [4]


def test_what_a_plan_cannot_shard_is_whole() -> None:
    """Latent attention, one head of keys, biases of heads: each rank has all of it, and nothing is sent."""
    for name in ("deepseek_v2_lite", "palm_8b", "bloom_560m"):
        found = partition(archdsl.load(name))
        assert not any("tp" in p.axes for path, p in found.placements.items() if ".attention." in path)
    entered = step("deepseek_v2_lite", "tp=4", seq=256)
    (note,) = (n for n in entered.notes if n.startswith("on every rank of tp: "))
    assert "blocks.*.attention (" in note
    assert "ffn.shared" not in note
    assert not any("every rank" in n for n in step("llama3_8b", "tp=8", seq=256).notes)
    calls = [c for c in entered.communication if c.axis == "tp" and c.phase == "backward"]
    # Into the first layer's feed-forward block together, into gate and up of 26 shared experts apart, whose input the
    # router reads too, and into the head; into the other experts, of which six are weighted for each token.
    payload = (80 * 2048 + 26 * 6) * 256 * 4
    assert [(c.collective, c.calls, c.payload) for c in calls] == [("all-reduce", 106, payload)]


def test_each_reader_of_a_residual_stream_reduces_its_gradients() -> None:
    """Where a norm stands behind the sum, other ops read what q, k and v read."""
    found = step("bert_base", "tp=4", batch=1, seq=128)
    calls = {c.phase: c.calls for c in found.communication if c.collective == "all-reduce"}
    # The pooler and the scores of the next sentence are a pair, too.
    assert calls == {"forward": 2 * 12 + 1, "backward": 4 * 12 + 1}


MIXTURES = ("mixtral_8x7b", "deepseek_v2_lite", "deepseek_v3", "switch_base_8", "moe_256")


def routed(model: Model) -> dict[str, int]:
    """The numbers of each weight of experts, by its path."""
    graphs = (g for n in flatten(model).nodes if isinstance(n, FlatOp) for g in n.blocks.values())
    return {path: prod(int(d) for d in w.weight.shape) for g in graphs for path, w in weights_read(g).items()}


@pytest.mark.parametrize("name", MIXTURES)
def test_hidden_channels_of_experts_are_sharded(name: str) -> None:
    """Each rank of `tp` has a shard of every expert, those of `ep` have some each; where `ep` does not divide `dp` the
    ranks of `tp` have other experts instead."""
    fields = {f.name for f in archdsl.load(name).config}
    model = archdsl.load(name, set={k: n for k, n in FEWER.items() if k in fields})
    experts = routed(model)
    placements = partition(model).placements
    assert all(placements[path].axes.keys() == {"ep", "tp"} for path in experts)
    for mesh, ranks in (("tp=2", 2), ("dp=4,tp=2,ep=4", 8), ("dp=4,ep=4", 4), ("tp=4,ep=4", 4)):
        found = Step(model, StepPlan(parse_mesh(mesh)), None, 64)
        held = [t.numbers for t, of_experts in found.tensors(found.weights_of(0).values()) if of_experts]
        assert sum(held) == sum(experts.values()) / ranks, mesh


def test_experts_over_tp() -> None:
    """What they read and give is all-reduced once each, however many experts a token has; where the ranks of `tp` have
    other experts each, they share the tokens."""
    one = 64 * 4096 * 4
    found = step("mixtral_8x7b", "tp=2", seq=64)
    sums = {c.purpose: c for c in found.communication if c.phase == "forward"}["sums out of sharded matrices"]
    assert (sums.calls, sums.payload) == (65, 65 * one)
    back = {c.purpose: c for c in found.communication if c.phase == "backward"}["gradients from sharded matrices"]
    assert (back.calls, back.payload) == (32 * 3 + 1, 65 * one + 32 * 64 * 2 * 4)  # the two weights of a token, too
    both, alone, across = (step("mixtral_8x7b", m, seq=64) for m in ("dp=4,tp=2,ep=4", "dp=4,ep=4", "tp=8,ep=8"))
    rows = [sum(c.payload for c in f.communication if c.collective == "all-to-all") for f in (both, alone, across)]
    assert rows[0] == rows[1] == 8 * rows[2]
    assert not any("experts over the ranks" in note for note in both.notes)
    assert any("experts over the ranks of tp" in note for note in across.notes)
    # With sequence parallelism, too: tokens are gathered before, and the sums scattered.
    spread = step("mixtral_8x7b", "tp=2", seq=64, sequence_parallel=True)
    assert spread.memory.parameters == found.memory.parameters
    assert spread.memory.activations < found.memory.activations


# --- what is refused --------------------------------------------------------------------------------------------------

REFUSED: tuple[tuple[str, str, dict[str, Any], str, str, str], ...] = (
    ("gpt2", "tp=8", {}, "E0515", "heads = 12", "16"),
    ("mamba_130m", "tp=2", {}, "E0516", "no weights", "linear layers"),
    ("llama3_8b", "tp=16", {}, "E0515", "kv_heads = 8", "1, 2, 4 or 8"),
    ("llama3_8b", "pp=5", {}, "E0515", "32 layers", "4 or 8; or `--stages 7,7,6,6,6`"),
    ("llama3_8b", "pp=4", {"stages": (8, 8, 8, 9)}, "E0515", "32 layers cannot be dealt out to 4 pieces", "8,8,8,8"),
    ("llama3_8b", "pp=8", {"interleave": 3, "micro_batches": 8}, "E0515", "24 pieces", "16 or 32"),
    ("llama3_8b", "pp=4", {"interleave": 2, "micro_batches": 6}, "E0515", "interleaved", "--micro-batches 8"),
    ("llama3_8b", "dp=4", {"batch": 6}, "E0515", "6 sequences", "--batch 8"),
    ("llama3_8b", "cp=3", {"seq": 1024}, "E0515", "sequence length of 1,024", "--seq 1026"),
    ("llama3_8b", "tp=8", {"seq": 1020, "sequence_parallel": True}, "E0515", "sequence length of 1,020", "--seq 1024"),
    ("mixtral_8x7b", "dp=3,ep=3", {}, "E0515", "8 experts", "1, 2, 4 or 8"),
    ("llama3_8b", "dp=2,ep=2", {}, "E0516", "no experts", "leave `ep` out"),
    ("mamba_130m", "cp=2", {}, "E0516", "conv1d", "cp"),
    ("albert_base", "pp=2", {}, "E0516", "no stack of layers", "pp"),
    ("rnn_lm", "cp=2", {}, "E0516", "rnn", "cp"),
)


@pytest.mark.parametrize(("spec", "mesh", "how", "code", "said", "help_"), REFUSED)
def test_refused(spec: str, mesh: str, how: dict[str, Any], code: str, said: str, help_: str) -> None:
    with pytest.raises(ArchError) as raised:
        step(spec, mesh, **how)
    assert any(d.code == code and said in d.message and help_ in d.help for d in raised.value.diagnostics)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("s = scan h: [batch, 8] = 0 for t in y { h = h + t emit h } return s", "a recurrence reads other positions"),
        ("return y -> shift(1)", "`shift` reads other positions"),
        ("return y -> b", "`flip` at `b` reads other positions"),
        ("return y -> mlp(hidden: 16) -> cumsum(axis: 1)", "`cumsum` reads other positions"),
    ],
)
def test_positions_that_are_mixed_without_attention(body: str, said: str) -> None:
    block = "block b(x: [batch, time, 8]) -> [batch, time, 8] { return x -> flip(1) }\n"
    text = f"{block}model m(x: [batch, time, 8]) -> [batch, time, 8] {{ y = x -> linear(8) {body} }}"
    with pytest.raises(ArchError) as raised:
        archdsl.estimate(text=text, mesh="cp=2", batch=1, seq=8)
    (found,) = raised.value.diagnostics
    assert (found.code, found.message.startswith(said)) == ("E0516", True), found.message
    assert archdsl.estimate(text=text, mesh="dp=2", batch=2, seq=8).params.total


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tp", "`tp`"),
        ("tp=0", "at least 1"),
        ("tp=two", "`tp=two`"),
        ("tq=2", "no axis `tq`"),
        ("tp=2,tp=4", "twice"),
        ("dp=4,ep=3", "ep = 3"),
        (f"dp={10**9}", "at most"),
    ],
)
def test_no_mesh(text: str, said: str) -> None:
    with pytest.raises(ArchError) as raised:
        parse_mesh(text)
    assert raised.value.diagnostics[0].code == "E0514"
    assert said in raised.value.diagnostics[0].message


# --- the command ------------------------------------------------------------------------------------------------------


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["estimate", *arguments], prog_name="archdsl")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_command() -> None:
    status, out = run("llama3_8b", "--mesh", "dp=2,tp=4,pp=2", "--micro-batches", "4", "--dtype", "bfloat16", "--json")
    assert status == 0
    found = json.loads(out)
    assert found["sharding"]["devices"] == 16
    assert found["sharding"]["batch"] == found["flops"]["batch"] == 8
    assert found["roofline"] is None
    status, out = run("llama3_8b", "--mesh", "dp=2,tp=4,pp=2", "--micro-batches", "4", "--dtype", "bfloat16")
    assert status == 0
    said = "on 16 devices (dp = 2, tp = 4, pp = 2): bfloat16, adamw, chunked loss; batch size 8 (4 micro-batches of 1)"
    assert said in out
    assert "total" in out
    assert "20.0 %  of a step" in out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--zero", "1"), "--mesh"),
        (("--mesh", "dp=2", "--devices", "2"), "--accelerator"),
        (("--accelerator", "h100_sxm", "--price", "2"), "--tokens"),
        (("--mesh", "dp=2", "--zero", "4"), "--zero"),
        (("--mesh", "tp=2", "--zero", "2"), "one rank along `dp`"),
        (("--mesh", "dp=2", "--sequence-parallel"), "one rank along `tp`"),
        (("--mesh", "dp=2", "--interleave", "2"), "one rank along `pp`"),
        (("--accelerator", "h100_sxm", "--machine", "4"), "E0509"),
        (("--mesh", "dp=2", "--devices", "4", "--accelerator", "h100_sxm"), "E0514"),
        (("--mesh", "dp:2"), "E0514"),
    ],
)
def test_command_refuses(options: tuple[str, ...], said: str) -> None:
    status, out = run("gpt2", *options)
    assert status == 2
    assert said in out
