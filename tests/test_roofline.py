"""Times at best: FLOPs and bytes of kernels by count, the bound against published runs, and what is told of it."""

from __future__ import annotations

import json
import runpy
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
from cli_tools import run

import archdsl
from archdsl.diagnostics import ArchError
from archdsl.estimates.flops import estimate as count
from archdsl.estimates.hardware import Device, device
from archdsl.estimates.kernels import Kernel, kernels
from archdsl.estimates.machines import MachinesReport
from archdsl.estimates.mesh import Mesh, parse_mesh
from archdsl.estimates.roofline import PUBLISHED_MFU, Cluster, Roofline, _Roofline, estimate
from archdsl.estimates.sharding import StepPlan, shard
from archdsl.ir.graph import Model
from archdsl.ir.weights import weights
from archdsl.passes.checkpoint import Checkpoint
from archdsl.passes.flat_step import unroll_step
from archdsl.passes.flatten import flatten
from archdsl.passes.step import stepped
from archdsl.report.tables import plain_text, roofline_view
from archdsl.resources import zoo_files

MODELS = (
    "gpt2",
    "llama3_8b",
    "mistral_7b",
    "deepseek_v2_lite",
    "mixtral_8x7b",
    "t5_small",
    "bert_base",
    "mamba_130m",
    "lstm_lm_small",
    "conformer_l",
    "vit_b16",
    "performer",
)


def times(spec: str | Model, name: str = "h100_sxm", mesh: str = "dp=1", **how: Any) -> Roofline:
    model = archdsl.load(spec) if isinstance(spec, str) else spec
    ask = {k: how.pop(k) for k in ("batch", "seq", "fused", "mfu", "tokens", "price") if k in how}
    machine = Cluster(device(name), **{k: how.pop(k) for k in ("node", "network") if k in how})
    return estimate(model, machine, StepPlan(parse_mesh(mesh), **{"dtype": "bfloat16", **how}), **ask)


# --- kernels ----------------------------------------------------------------------------------------------------------


def found(spec: str, **how: Any) -> tuple[list[Kernel], Any]:
    model = archdsl.load(spec)
    flops = count(model, batch=2, seq=how.pop("seq", None)).flops
    return kernels(flatten(model), flops.sizes, "bfloat16", **how), flops


def step_kernels(model: Model, sizes: Mapping[str, int]) -> list[Kernel]:
    """Those of one step of decoding."""
    step = unroll_step(stepped(model))
    return kernels(step.step, sizes, "bfloat16", step=step)


@pytest.mark.parametrize("spec", [m for m in MODELS if m in {e.name for e in archdsl.list_zoo()}])
def test_kernels_do_the_model_s_flops(spec: str) -> None:
    ours, flops = found(spec)
    assert sum(k.flops for k in ours) == flops.forward
    assert sum(k.backward_flops for k in ours) == pytest.approx(flops.backward, rel=1e-3)
    plain, _ = found(spec, fused=False)
    assert sum(k.flops for k in plain) == flops.forward
    assert sum(k.bytes for k in plain) >= sum(k.bytes for k in ours) > 0
    if flops.decode_step is not None:
        model = archdsl.load(spec)
        step = step_kernels(model, flops.sizes)
        assert sum(k.flops for k in step) == flops.decode_step


def test_all_of_the_models_are_there() -> None:
    assert set(MODELS) <= {e.name for e in archdsl.list_zoo()}


def test_bytes_of_a_layer() -> None:
    """Two thousand places of Llama's feed-forward block: by hand."""
    ours, _ = found("llama3_8b", seq=2048)
    rows, width, hidden = 2 * 2048, 4096, 14_336
    by_op = {(k.path, k.op): k.bytes for k in ours}
    assert by_op["blocks.3.ffn.gate", "linear"] == 2 * (rows * (width + hidden) + width * hidden)
    assert by_op["blocks.3.ffn.down", "linear"] == 2 * (rows * (width + hidden) + width * hidden)
    # Of `silu(gate) * up` the two factors are read and the product is written.
    assert by_op["blocks.3.ffn", "silu"] + by_op["blocks.3.ffn", "times"] == 2 * rows * 3 * hidden
    plain, _ = found("llama3_8b", seq=2048, fused=False)
    by_op = {(k.path, k.op): k.bytes for k in plain}
    assert by_op["blocks.3.ffn", "silu"] + by_op["blocks.3.ffn", "times"] == 2 * rows * 5 * hidden
    # No scores: queries, keys, values and results.
    assert by_op["blocks.3.attention", "sdpa"] == 2 * rows * (2 * 4096 + 2 * 1024)
    assert by_op["token_embedding", "embedding"] == pytest.approx(rows * (8 + 2 * 2 * width))


def test_a_step_reads_weights_and_caches() -> None:
    model = archdsl.load("llama3_8b")
    sizes = {"batch": 4, "time": 4096}
    step = step_kernels(model, sizes)
    params = archdsl.estimate("llama3_8b").params
    cache = 4 * 4096 * 32 * 2 * 1024 * 2
    weights = 2 * (params.total - params.embedding)
    assert sum(k.bytes for k in step) == pytest.approx(weights + cache, rel=0.01)
    # A window is all that is read of a longer cache.
    near, far = (
        sum(
            k.bytes
            for k in kernels(
                unroll_step(stepped(m)).step, {"batch": 1, "time": t}, "bfloat16", step=unroll_step(stepped(m))
            )
            if k.op == "sdpa"
        )
        for m in [archdsl.load("mistral_7b")]
        for t in (4096, 16_384)
    )
    assert far == pytest.approx(near, rel=0.01)


def test_a_step_reads_the_experts_that_are_chosen() -> None:
    model = archdsl.load("mixtral_8x7b")

    def read(batch: int) -> float:
        step = kernels(
            unroll_step(stepped(model)).step, {"batch": batch, "time": 64}, "bfloat16", step=unroll_step(stepped(model))
        )
        return sum(k.bytes for k in step if ".experts" in k.path and k.op == "linear")

    experts = 2 * 32 * 8 * 3 * 4096 * 14_336
    assert read(1) == pytest.approx(experts * 2 / 8, rel=0.01)
    assert read(4) == pytest.approx(experts * (1 - (6 / 8) ** 4), rel=0.01)
    assert read(256) == pytest.approx(experts, rel=0.03)


def test_a_loss_in_chunks_computes_the_head_again() -> None:
    """Beside the layers, if these are; the model's own FLOPs are the same."""
    head = count(archdsl.load("gpt2"), batch=4, seq=64).flops.recomputation.head
    for checkpoint in get_args(Checkpoint):
        chunked, fused = (
            times("gpt2", batch=4, seq=64, checkpoint=checkpoint, loss=loss).training for loss in ("chunked", "fused")
        )
        assert chunked.flops - fused.flops == head > 0
        assert chunked.again > fused.again
        assert chunked.utilization * chunked.seconds == pytest.approx(fused.utilization * fused.seconds)


# --- published --------------------------------------------------------------------------------------------------------

# Korthikanti et al., 2022, tables 3 and 5: layers, width, heads, tp, pp, pieces, micro-batch, micro-batches; seconds of
# a step with full recomputation and with theirs, on A100s of 80 GB, and the model's FLOPs of the peak with theirs.
MEGATRON = {
    "22B": (48, 6144, 64, 8, 1, 1, 4, 1, 1.42, 1.10, 41.5),
    "175B": (96, 12_288, 96, 8, 8, 3, 1, 64, 18.13, 13.75, 51.4),
    "530B": (105, 20_480, 128, 8, 35, 3, 1, 280, 49.05, 37.83, 56.0),
    "1T": (128, 25_600, 160, 8, 64, 1, 1, 512, 94.42, 71.49, 56.3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MEGATRON)
def test_megatron_is_slower_and_no_other_than_bound(name: str) -> None:
    layers, width, heads, tp, pp, pieces, rows, parts, full, theirs, mfu = MEGATRON[name]
    # Megatron-LM shards the matrix that the embedding and the LM head share; one that is shared is whole here.
    text = zoo_files()["megatron"].read_text(encoding="utf-8").replace("tied: true", "tied: false")
    sizes = {"layers": layers, "width": width, "heads": heads, "context": 2048}
    model = archdsl.load(text=text, model="megatron_8_3b", set=sizes)
    machine = Cluster(device("a100_sxm_80gb"))

    def bound(sequence_parallel: bool, checkpoint: Any, attention: Any) -> Roofline:
        plan = StepPlan(
            Mesh(tp=tp, pp=pp),
            micro_batches=parts,
            interleave=pieces,
            sequence_parallel=sequence_parallel,
            checkpoint=checkpoint,
            loss="eager",
            attention=attention,
            dtype="bfloat16",
            master_weights=True,
            gradient_dtype="float32",
        )
        return estimate(model, machine, plan, batch=rows * parts, seq=2048)

    more, less = bound(False, "full", "eager").training, bound(True, "none", "fused").training
    assert 0.5 < more.seconds / full < 0.8
    assert 0.45 < less.seconds / theirs < 0.8
    # What they gain by recomputing less the bound knows too; what waits for links it does not.
    assert more.seconds / less.seconds == pytest.approx(full / theirs, rel=0.15)
    flops = count(model, batch=rows * parts, seq=2048).flops.conventions["dense"].training
    assert 100 * flops / theirs / (tp * pp * 312e12) == pytest.approx(mfu, rel=0.01)


@pytest.mark.slow
def test_no_published_run_is_faster_than_the_bound() -> None:
    """`benchmarks/training_runs.json`: 105 of them, on up to 64 machines, each of which was in its devices' memory. Of
    those of a model on one card, laid out alike, the fastest is asked; the script asks all."""
    script = Path(__file__).resolve().parent.parent / "benchmarks" / "training_runs.py"
    found = runpy.run_path(str(script))
    rows = sorted(found["runs"](), key=lambda row: row["mfu"])
    assert len(rows) == 105
    reached = rows[-1]["mfu"], rows[0]["mfu"]
    assert (100 * PUBLISHED_MFU[0], 100 * PUBLISHED_MFU[1]) == pytest.approx(reached, abs=0.01)
    fastest = {tuple(row[name] for name in ("model", "device", "sharding", "checkpointing")): row for row in rows}
    for row in fastest.values():
        ours = found["predicted"](row)
        model = found["model"](row["seq"], **row["sizes"])
        assert archdsl.estimate(model).params.total == row["params"]
        assert row["step_seconds"] >= ours.training.seconds
        assert ours.fits
        flops = count(model, batch=row["global_batch"], seq=row["seq"]).flops.conventions["dense"].training
        mfu = flops / row["step_seconds"] / (ours.peak * row["devices"])
        assert 100 * mfu == pytest.approx(row["mfu"], rel=0.04)


# Tokens, devices' hours, and the layout as far as it is published, of a family that was trained alike the least and the
# largest: LLaMA and Llama 2 (Touvron et al., 2023), Llama 3 (Dubey et al., 2024), BLOOM (Le Scao et al., 2022),
# GLM-130B (Zeng et al., 2022), DeepSeek-V3 (2024).
RUNS: dict[str, tuple[str, str, float, int, int, dict[str, Any]]] = {
    "llama_7b": ("a100_sxm_80gb", "dp=2048", 1e12, 82_432, 2048, {"zero": 3}),
    "llama_65b": ("a100_sxm_80gb", "dp=2048", 1.4e12, 1_022_362, 2048, {"zero": 3}),
    "llama2_70b": ("a100_sxm_80gb", "dp=512", 2e12, 1_720_320, 4096, {"batch": 1024, "zero": 3}),
    "llama3_8b": ("h100_sxm", "dp=512", 15e12, 1_460_000, 8192, {"zero": 2}),
    "llama3_70b": ("h100_sxm", "dp=64,tp=8", 15e12, 7_000_000, 8192, {"batch": 512, "zero": 2}),
    "llama3_405b": (
        "h100_sxm",
        "dp=128,tp=8,pp=16",
        15.6e12,
        30_840_000,
        8192,
        {"batch": 2048, "micro_batches": 16, "zero": 2, "sequence_parallel": True},
    ),
    "bloom_176b": (
        "a100_sxm_80gb",
        "dp=8,tp=4,pp=12",
        366e9,
        1_082_990,
        2048,
        {"batch": 2048, "micro_batches": 128, "zero": 1, "checkpoint": "full"},
    ),
    "glm_130b": (
        "a100_sxm_40gb",
        "dp=24,tp=4,pp=8",
        400e9,
        1_105_920,
        2048,
        {"batch": 4224, "micro_batches": 176, "zero": 1, "checkpoint": "full"},
    ),
    "deepseek_v3": (
        "h100_sxm",
        "dp=128,pp=16,ep=64",
        14.8e12,
        2_664_000,
        4096,
        {"batch": 15_360, "micro_batches": 120, "zero": 1, "compute": "float8", "stages": (*[4] * 15, 1)},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_published_hours_are_more_than_the_bound(name: str) -> None:
    device_, mesh, tokens, hours, seq, how = RUNS[name]
    budget = times(name, device_, mesh, tokens=int(tokens), seq=seq, master_weights=True, **how).budget
    assert budget is not None
    assert 1 < hours / budget.device_hours < 7


# Inference in float16 on A100s, of NVIDIA's table (TensorRT-LLM v0.6.1): the milliseconds to the first token of one
# prompt, and tokens per second of a batch that is prefilled and then decoded.
FIRST_TOKENS = {
    ("gptj_6b", "tp=1"): ((128, 12), (2048, 129)),
    ("llama_7b", "tp=1"): ((128, 16), (2048, 133)),
    ("llama2_70b", "tp=4"): ((128, 47), (2048, 377)),
}
SERVED = (
    ("llama_7b", 384, 128, 128, 5586),
    ("llama_7b", 60, 128, 2048, 1928),
    ("llama_7b", 52, 2048, 128, 591),
    ("gptj_6b", 512, 128, 128, 6374),
)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mesh"), FIRST_TOKENS)
def test_published_first_tokens_come_later_than_the_bound(name: str, mesh: str) -> None:
    for seq, milliseconds in FIRST_TOKENS[name, mesh]:
        found = times(name, "a100_sxm_80gb", mesh, dtype="float16", seq=seq, batch=1)
        assert found.prefill is not None
        assert 1.4 < milliseconds / 1e3 / found.prefill.seconds < 2.6


@pytest.mark.slow
@pytest.mark.parametrize(("name", "batch", "read", "written", "tokens"), SERVED)
def test_published_servers_are_slower_than_the_bound(
    name: str, batch: int, read: int, written: int, tokens: float
) -> None:
    prefill = times(name, "a100_sxm_80gb", dtype="float16", seq=read, batch=batch).prefill
    # A step takes as long as its cache, which grows evenly: the one half-way is their mean (2,048: the contexts).
    half = min(read + written // 2, 2048)
    step = times(name, "a100_sxm_80gb", dtype="float16", seq=half, batch=batch).decode
    assert prefill is not None
    assert step is not None
    bound = batch * written / (prefill.seconds + written * step.seconds)
    assert 1.2 < bound / tokens < 1.35


# In float8 on H100s (TensorRT-LLM 1.0), tokens per second of as many sequences as are in memory.
FULL = (
    ("llama3_8b", 1, 128, 128, 28_312),
    ("llama3_8b", 1, 128, 2048, 22_714),
    ("llama3_8b", 1, 2048, 128, 3450),
    ("llama3_8b", 1, 2048, 2048, 9305),
    ("llama3_8b", 1, 20_000, 2000, 1351),
    ("llama3_70b", 2, 128, 128, 6651),
    ("llama3_405b", 8, 128, 128, 4340),
)
FLOAT8: dict[str, Any] = {"weights": "float8", "cache": "float8", "compute": "float8"}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "tp", "read", "written", "tokens"), FULL)
def test_published_full_servers_are_slower_than_the_bound(
    name: str, tp: int, read: int, written: int, tokens: float
) -> None:
    model = archdsl.load(name, set={"context": 32_768})
    size = {f.name: int(f.value) for f in model.config}
    card = device("h100_sxm")
    free = tp * card.usable - archdsl.estimate(model).params.total
    batch = int(free // (2 * size["layers"] * size["kv_heads"] * size["width"] // size["heads"] * (read + written / 2)))
    at_first = times(model, mesh=f"tp={tp}", seq=read, batch=batch, **FLOAT8)
    half = times(model, seq=read + written // 2, batch=batch, **FLOAT8) if written > read else at_first
    assert at_first.decode is not None
    assert half.decode is not None
    bound = batch * written / (at_first.prefill.seconds + written * half.decode.seconds)
    assert 1.2 < bound / tokens < 1.9


def test_published_steps_of_one_batch_are_slower_than_the_bound() -> None:
    """Mixtral over the hidden channels of its experts, milliseconds a token of 8 sequences (128 after 32 tokens); and
    one user's Llama 3 70B, with 5,000 tokens read."""
    eight = times("mixtral_8x7b", "h200_sxm", "tp=2", batch=8, seq=96)
    assert eight.decode is not None
    assert 1.6 < 14.98e-3 / eight.decode.seconds < 1.8
    alone = times("llama3_70b", mesh="tp=2", batch=1, seq=5000, **FLOAT8)
    assert alone.decode is not None
    assert 1.7 < 18.6e-3 / alone.decode.seconds < 1.8
    assert 1.8 < 0.407 / alone.prefill.seconds < 1.9


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "compute", "tokens"), [(8, None, 6667), (128, None, 6514), (8, "float8", 8532)])
def test_published_training_is_slower_than_the_bound(devices: int, compute: Any, tokens: float) -> None:
    """Llama 3.1 8B with FSDP, tokens per second of an H100 with HBM2e (torchtitan), which recompute less than all."""
    card = Cluster(device("h100_sxm").model_copy(update={"bandwidth": 2.4e12}))
    for checkpoint in ("none", "full"):
        how: Any = {"dtype": "bfloat16", "compute": compute, "checkpoint": checkpoint, "loss": "eager"}
        plan = StepPlan(Mesh(dp=devices), zero=3, **how)
        found = estimate(archdsl.load("llama3_8b"), card, plan, batch=2 * devices, seq=8192).training
        assert 1.9 < found.tokens_per_second / devices / tokens < 3.3


# --- what follows -----------------------------------------------------------------------------------------------------


def test_times_are_the_longer_of_two() -> None:
    found = times("llama3_8b", batch=1, seq=2048)
    for phase in (found.training, found.prefill, found.decode):
        assert phase is not None
        assert phase.seconds == pytest.approx(phase.compute_bound + phase.memory_bound + phase.links)
        assert phase.seconds >= phase.flops / found.peak * (1 - 1e-9)
        assert phase.seconds >= phase.bytes / found.bandwidth * (1 - 1e-9)
        assert 0 < phase.utilization < 1
    assert found.decode is not None
    assert found.decode.compute_bound == 0
    assert found.training.compute_bound > 2 * found.training.memory_bound
    assert found.decode.tokens_per_second == pytest.approx(1 / found.decode.seconds)
    assert found.prefill.tokens_per_second == pytest.approx(2048 / found.prefill.seconds)
    large = times("llama3_8b", batch=1, seq=8192)
    assert (found.fits, large.fits) == (True, False)
    assert times("gpt2").fits
    # A prefill has logits of one position alone, and what leads to them behind the last attention.
    whole = sum(row.forward for row in found.by_op)
    assert 0.88 * whole < found.prefill.seconds < 0.94 * whole
    assert found.no_decode is None
    assert times("bert_base", seq=128).decode is None


def test_more_of_everything_is_faster() -> None:
    names = ("t4", "a100_sxm_80gb", "h100_sxm", "h200_sxm", "b200_sxm")
    found = [times("gpt2", name, dtype="float16", seq=512) for name in names]
    for slow, fast in pairwise(found):
        assert fast.training.seconds <= slow.training.seconds
        assert fast.decode is not None
        assert slow.decode is not None
        assert fast.decode.seconds <= slow.decode.seconds


def test_replicas_hide_what_they_send() -> None:
    one = times("llama3_8b", batch=4, seq=2048)
    eight = times("llama3_8b", mesh="dp=8", batch=32, seq=2048)
    assert eight.training.seconds == pytest.approx(one.training.seconds, rel=1e-3)
    assert eight.training.tokens_per_second == pytest.approx(8 * one.training.tokens_per_second, rel=1e-3)
    # Over a slow network nothing hides it: all but what is computed meanwhile is waited for.
    slow = times("llama3_8b", mesh="dp=16", batch=64, seq=2048, network=1e9)
    sent = 2 * 2 * archdsl.estimate("llama3_8b").params.total * 8 / 16 / 8 / 1e9
    assert slow.training.links == pytest.approx(sent - one.training.seconds, rel=1e-3)


def test_networks_are_those_of_devices() -> None:
    """What a device's file says, and `--network` instead; none that nobody knows."""
    rates = {name: device(name).network for name in ("a100_sxm_80gb", "h100_sxm", "l4")}
    assert [n.bandwidth if n is not None else None for n in rates.values()] == [25e9, 50e9, None]
    slow, fast, said = (
        times("llama3_8b", name, "tp=8", seq=2048, node=4, **how)
        for name, how in (("a100_sxm_80gb", {}), ("h100_sxm", {}), ("a100_sxm_80gb", {"network": 50e9}))
    )
    assert (slow.links.between, fast.links.between, said.links.between) == (25e9, 50e9, 50e9)
    with pytest.raises(ArchError, match="names no network") as caught:
        times("gpt2", "l4", "dp=16", batch=16)
    assert "--network" in caught.value.diagnostics[0].help
    assert times("gpt2", "l4", "dp=8", batch=8).links.between is None


def test_links_within_a_machine_and_between() -> None:
    near = times("llama3_8b", mesh="tp=8", seq=2048)
    far = times("llama3_8b", mesh="tp=8", seq=2048, node=4, network=1e9)
    # Of an all-reduce of P bytes each card sends 2 P · 4 / 8 / 4.
    talk = shard(archdsl.load("llama3_8b"), StepPlan(Mesh(tp=8), dtype="bfloat16"), seq=2048).communication
    sent = sum(c.payload * (2 if c.collective == "all-reduce" else 1) for c in talk) / 8
    assert far.training.seconds == pytest.approx(sent / 1e9)
    assert near.training.links == 0
    assert near.links.within == 450e9
    assert near.decode is not None
    alone = times("llama3_8b", seq=2048)
    assert alone.decode is not None
    assert alone.decode.seconds / 8 < near.decode.seconds < alone.decode.seconds / 6


def test_stages_wait_for_each_other() -> None:
    found = times("llama3_8b", mesh="pp=4", micro_batches=4, seq=1024, optimizer="sgd", loss="fused")
    each = (found.training.seconds - found.training.bubble - found.training.optimizer) / 4
    # A micro-batch goes through all stages once, each of which works on it as one device would.
    one = times("llama3_8b", seq=1024, optimizer="sgd", loss="fused").training
    assert each + found.training.bubble == pytest.approx(one.seconds - one.optimizer)
    assert each > found.training.bubble / 3
    more = times("llama3_8b", mesh="pp=4", micro_batches=32, seq=1024, loss="fused")
    assert more.training.utilization > 1.5 * found.training.utilization


def test_recomputation_takes_a_forward() -> None:
    plain, again = (times("llama3_8b", seq=2048, checkpoint=how, loss="fused").training for how in ("none", "full"))
    assert again.seconds - plain.seconds == pytest.approx(again.again)
    head = 2 * 2048 * 4096 * 128_256
    assert again.flops - plain.flops == pytest.approx(count(archdsl.load("llama3_8b")).flops.forward - head)


@pytest.mark.parametrize(
    ("spec", "layers", "width"), [("gpt2", 12, 768), ("llama3_8b", 32, 4096), ("qwen3_0_6b", 28, 16 * 128)]
)
def test_selective_recomputation_leaves_products_with_weights(spec: str, layers: int, width: int) -> None:
    """Attention and what lies between projections is computed again, as under full recomputation; projections are
    not. Nothing outside layers is."""
    model, seq = archdsl.load(spec), 1024
    kinds: tuple[Checkpoint, ...] = ("none", "selective", "full")
    plain, selective, full = (times(model, seq=seq, checkpoint=how, loss="fused").training for how in kinds)
    attention = layers * 4 * width * seq * (seq + 1) // 2
    assert selective.flops - plain.flops == attention
    projections = [w.shape for w in weights(model) if w.path.startswith("blocks.") and len(w.shape) == 2]
    assert full.flops - selective.flops == sum(2 * seq * a * b for a, b in projections)
    h100 = device("h100_sxm")
    seconds = sum(
        max(2 * seq * a * b / h100.peak["bfloat16"], 2 * (a * b + seq * (a + b)) / h100.bandwidth)
        for a, b in projections
    )
    assert full.again - selective.again == pytest.approx(seconds, rel=0.01)  # biases are read, too
    assert plain.again < selective.again - plain.again
    for how, found in (("selective", selective), ("full", full)):
        half = archdsl.load(spec, set={"layers": layers // 2})
        of_half = [times(half, seq=seq, checkpoint=k, loss="fused").training.again for k in ("none", how)]
        assert found.again - plain.again == pytest.approx(2 * (of_half[1] - of_half[0]), rel=0.01)  # but for its ends


@pytest.mark.parametrize(
    ("kind", "axis", "devices", "seconds"),
    [
        # Eight devices in each of four machines: within one 7/8 of 32 GB go over links of 0.45 TB/s, or a quarter of
        # a card's 0.05 TB/s bring the other three.
        ("all-gather", "dp", 32, max(32e9 * 7 / 8 / 450e9, 32e9 * 3 / 4 / 8 / 50e9)),
        ("all-reduce", "dp", 32, 2 * 32e9 * 3 / 4 / 8 / 50e9),
        # Where the switch sums, each device sends its tensor once.
        ("all-reduce", "dp", 8, 32e9 * 7 / 8 / 450e9),
        ("all-to-all", "ep", 32, 32e9 * 24 / 32 / 50e9),
        ("send", "pp", 2, 32e9 / 50e9),
    ],
)
def test_collectives_over_machines(kind: Any, axis: str, devices: int, seconds: float) -> None:
    """Of 32 GB, on H100s."""
    plan = StepPlan(Mesh(dp=32, ep=8), dtype="bfloat16")
    ours = _Roofline(archdsl.load("mixtral_8x7b"), Cluster(device("h100_sxm")), plan, None, 64, True, None)
    assert ours.sending([(kind, axis, devices, 32e9)]) == pytest.approx(seconds)


def test_what_is_expected() -> None:
    """At a part of the peak of all devices, attention counted whole; never less than the bound."""
    found = times("gpt2", mesh="dp=8", batch=64, mfu=0.4, tokens=10**9, price=2.0)
    flops = count(archdsl.load("gpt2"), batch=64).flops.conventions["dense"].training
    assert found.expected.seconds == pytest.approx((flops / (0.4 * 8 * 989.4e12),) * 2)
    assert found.budget is not None
    least, most = found.budget.expected
    assert least == most
    assert least.seconds == pytest.approx(1e9 * found.expected.seconds[0] / (64 * 1024))
    assert least.price == pytest.approx(2 * 8 * least.seconds / 3600)
    assert least.price > (found.budget.price or 0)
    fastest, slowest = times("gpt2", mesh="dp=8", batch=64).expected.seconds
    assert fastest < found.expected.seconds[0] < slowest
    far = times("gpt2", mesh="dp=64", batch=64, network=1e9, mfu=0.9)
    assert far.expected.seconds == (far.training.seconds,) * 2


def test_few_bits_are_read_and_computed_sooner() -> None:
    plain = times("llama3_8b", batch=8, seq=8192)
    less = times("llama3_8b", batch=8, seq=8192, weights="int8", cache="float8", compute="float8")
    assert plain.decode is not None
    assert less.decode is not None
    assert less.decode.bytes == pytest.approx(plain.decode.bytes / 2, rel=0.02)
    assert less.peak == pytest.approx(2 * plain.peak, rel=1e-3)
    # Attention is computed in the model's type.
    core = sum(row.forward for row in plain.by_op if row.op == "sdpa")
    assert sum(row.forward for row in less.by_op if row.op == "sdpa") == core
    one, other = (next(r.forward for r in found.by_op if r.path.endswith("gate")) for found in (plain, less))
    assert other == pytest.approx(one / 2, rel=1e-3)
    with pytest.raises(ArchError, match="no peak in float8"):
        times("llama3_8b", "a100_sxm_80gb", compute="float8")


def test_a_budget() -> None:
    found = times("llama3_8b", mesh="dp=16", batch=64, seq=2048, tokens=10**12, price=2.5)
    budget = found.budget
    assert budget is not None
    assert budget.seconds == pytest.approx(1e12 / found.training.tokens_per_second)
    assert budget.device_hours == pytest.approx(16 * budget.seconds / 3600)
    assert budget.energy_kwh == pytest.approx(0.7 * budget.device_hours)
    assert budget.price == pytest.approx(2.5 * budget.device_hours)
    own = Device(name="own", vendor="me", memory_gib=9, bandwidth=1e12, peak={"float32": 1e13}, source="measured")
    found = estimate(archdsl.load("gpt2"), Cluster(own), StepPlan(), tokens=10**9)
    assert found.budget is not None
    assert (found.budget.energy_kwh, found.budget.price) == (None, None)


@pytest.mark.parametrize("body", ["x", "x -> flip(1)"])
@pytest.mark.parametrize("mesh", [None, "dp=2", "cp=2"])
def test_a_model_that_computes_nothing_takes_no_time(body: str, mesh: str | None) -> None:
    model = archdsl.load(text=f"model m(x: [batch, time, 8]) -> [batch, time, 8] {{ return {body} }}")
    with pytest.raises(ArchError, match=r"E0503.*a step of `m` computes nothing that takes time"):
        archdsl.estimate(model, accelerator="h100_sxm", mesh=mesh, seq=8)
    if mesh is not None:
        report = archdsl.estimate(model, mesh=mesh, seq=8)
        assert isinstance(report, MachinesReport)
        assert report.sharding.memory.weights == 0


def test_a_file_without_the_peak_of_some_kernels_has_its_lowest_for_them() -> None:
    """What a model in bfloat16 casts to float32 is computed in that."""
    peaks: dict[Any, float] = {"bfloat16": 1e9, "float8": 2e9}
    own = Device(name="own", vendor="me", memory_gib=900, bandwidth=1e20, peak=peaks, source="measured")
    plan = StepPlan(dtype="bfloat16")
    text = "model m(x: [batch, time, 16]) {{ return x -> cast({}) -> exp }}"
    models = [archdsl.load(text=text.format(kind)) for kind in ("bfloat16", "float32")]
    low, wide = (estimate(model, Cluster(own), plan, seq=8) for model in models)
    note = "the device's file has no peak in float32: its lowest is taken"
    assert (note in low.notes, note in wide.notes) == (False, True)
    assert note in " ".join(plain_text(*roofline_view(wide)).split())
    assert low.training.seconds > 0
    assert wide.training.seconds == pytest.approx(low.training.seconds)


def test_inference_of_fewer_sequences_than_replicas_is_remarked() -> None:
    model = archdsl.load("gpt2", set={"layers": 1})
    notes = [estimate(model, Cluster(device("h100_sxm")), StepPlan(Mesh(cp=2)), batch=b, seq=64).notes for b in (1, 2)]
    said = "inference: a batch of 1 does not fill 2 replicas"
    assert [said in found for found in notes] == [True, False]


def test_refused() -> None:
    own = Device(name="own", vendor="me", memory_gib=9, bandwidth=1e12, peak={"float32": 1e13}, source="measured")
    model = archdsl.load("gpt2")
    for plan, said, help_ in (
        (StepPlan(dtype="bfloat16"), "no peak in bfloat16", "--dtype float32"),
        (StepPlan(Mesh(dp=2)), "no link", "--machine 1 --network 25e9"),
    ):
        with pytest.raises(ArchError) as raised:
            estimate(model, Cluster(own), plan)
        found = raised.value.diagnostics[0]
        assert found.code == "E0517"
        assert said in found.message
        assert help_ in found.help
    assert estimate(model, Cluster(own, node=1, network=1e9), StepPlan(Mesh(dp=2))).devices == 2


# --- the command ------------------------------------------------------------------------------------------------------


def test_command() -> None:
    asked = (
        "gpt2",
        "--accelerator",
        "h100_sxm",
        "--devices",
        "8",
        "--dtype",
        "bfloat16",
        "--tokens",
        "300B",
        "--price",
        "2",
    )
    status, out = run("estimate", *asked)
    assert status == 0
    assert out.startswith("gpt2 on 8 × NVIDIA H100 SXM5 (dp = 8): bfloat16, adamw, chunked loss; batch size 8, ")
    assert "element-wise ops fused" in out
    assert "roofline: a lower bound" in out
    assert "300,000,000,000 tokens: " in out
    assert "% MFU, attention counted whole (published runs" in out
    assert "a price of" in out
    status, out = run("estimate", *asked, "--json", "--not-fused")
    found = json.loads(out)["roofline"]
    assert (status, found["devices"], found["fused"], found["mesh"]["dp"]) == (0, 8, False, 8)
    assert found["says"].startswith("roofline: a lower bound")
    assert found["budget"]["price"] > 0
    assert run("estimate", "gpt2", "--accelerator", "h1000")[0] == 2
    assert "E0517" in run("estimate", "gpt2", "--accelerator", "t4", "--dtype", "bfloat16")[1]


def test_command_says_what_a_measured_step_uses() -> None:
    """By a step's seconds or by tokens a second it is the same, of the devices' peak."""
    asked = ("gpt2", "--accelerator", "h100_sxm", "--devices", "8", "--batch", "64", "--flops", "dense")
    status, out = run("estimate", *asked, "--step-time", "0.1")
    assert status == 0
    flops = count(archdsl.load("gpt2"), batch=64).flops.conventions["dense"].training
    mfu = 100 * flops / 0.1 / (8 * 989.4e12)
    assert f"measured: 655,360 tokens/s, {mfu:.1f} % MFU (dense)" in out
    other = json.loads(run("estimate", *asked, "--tokens-per-second", "655360", "--json")[1])["flops"]["utilization"]
    assert (100 * other["mfu"], other["convention"]) == (pytest.approx(mfu), "dense")
    for options in (("--step-time", "1"), ("--peak", "1e15"), ("--step-time", "1", "--tokens-per-second", "1")):
        assert run("estimate", "gpt2", *options)[0] == 2


def test_command_takes_a_device_of_ones_own(tmp_path: Path) -> None:
    own = {
        "name": "Own",
        "vendor": "me",
        "memory_gib": 12,
        "bandwidth": 5e11,
        "peak": {"float32": 2e13},
        "source": "me",
    }
    path = tmp_path / "own.json"
    path.write_text(json.dumps(own))
    status, out = run("estimate", "gpt2", "--accelerator", path)
    assert status == 0
    assert "gpt2 on Own: float32" in out


@pytest.mark.parametrize(
    ("name", "dtype", "accelerator", "scores", "said"),
    [
        ("llama3_8b", "bfloat16", "a100_sxm_80gb", 0, ""),
        ("llama3_8b", "float32", "a100_sxm_80gb", 32 * 1024**2, "flash: float32; efficient: heads that share keys"),
        ("llama3_8b", "float16", "v100_sxm_32gb", 32 * 1024**2, "flash: sm70; efficient: heads that share keys"),
        ("llama3_8b", "float32", "mi300x", 0, ""),  # nothing is known of it
        ("gpt2", "float16", "t4", 0, ""),
        (
            "conformer_s",
            "bfloat16",
            "h100_sxm",
            4 * 256**2,
            "cudnn: sizes of heads; flash: a mask; efficient: sizes of heads",
        ),
    ],
)
def test_scores_are_counted_where_no_fused_kernel_takes_attention(
    name: str, dtype: Any, accelerator: str, scores: int, said: str
) -> None:
    """In float32: those of all layers in training, of one at a time in a prefill."""
    sizes: dict[str, Any] = {"batch": 1, "seq": 1024, "dtype": dtype}
    found = archdsl.estimate(name, accelerator=accelerator, **sizes)
    plain = archdsl.estimate(name, mesh="dp=1", **sizes)
    assert isinstance(found, MachinesReport)
    assert isinstance(plain, MachinesReport)
    assert found.roofline is not None
    notes = [note for note in found.roofline.notes if "scores" in note]
    assert len(notes) == bool(said)
    assert all(said in note for note in notes)
    layers = next(int(f.value) for f in archdsl.load(name).config if f.name == "layers")
    assert found.sharding.memory.activations - plain.sharding.memory.activations == 4 * layers * scores
    more, before = (next(n.bytes for n in report.needs if n.phase == "prefill") for report in (found, plain))
    assert 0 <= more - before <= 4 * scores
    assert (more > before) == (scores > 1024**2)  # those of a Conformer are few beside its front
