"""What fits: one number for training, prefill and decoding, whoever asks."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest
from cli_tools import run

import archdsl
from archdsl.estimates.fit import fit
from archdsl.estimates.hardware import device, devices
from archdsl.estimates.machines import MachinesReport
from archdsl.estimates.memory import estimate as memory
from archdsl.estimates.mesh import parse_mesh
from archdsl.estimates.needs import Need, Workload, needs
from archdsl.estimates.sharding import Step, StepPlan
from archdsl.report.tables import answer_view, plain_text

GIB = 1 << 30


def asked(spec: str, mesh: str = "dp=1", batch: int | None = None, seq: int | None = None, **how: Any) -> list[Need]:
    return needs(Step(archdsl.load(spec), StepPlan(parse_mesh(mesh), **{"dtype": "bfloat16", **how}), batch, seq))


@pytest.mark.parametrize(("checkpoint", "loss"), [("none", None), ("selective", "fused"), ("full", "eager")])
@pytest.mark.parametrize("spec", ["gpt2", "t5_small", "mixtral_8x7b", "mamba_130m", "deepseek_v2_lite"])
def test_one_device_is_a_mesh(spec: str, checkpoint: Any, loss: Any) -> None:
    """The peak of the memory report, of a mesh of one device, and of `fit` are one number."""
    how: dict[str, Any] = {"dtype": "bfloat16", "optimizer": "muon", "master_weights": True, "checkpoint": checkpoint}
    how["loss"] = loss
    said = memory(archdsl.load(spec), batch=2, seq=256, **how)
    training, *rest = asked(spec, batch=2, seq=256, **how)
    assert training.bytes == said.peak
    assert said.step is not None
    assert training.at == said.step.peak_at
    decode = next((n for n in rest if n.phase == "decode"), None)
    assert decode is not None
    assert decode.bytes == said.weights + said.buffers + (said.decode_state_windowed or 0)
    prefill = next(n for n in rest if n.phase == "prefill")
    assert decode.bytes < prefill.bytes < training.bytes


def test_every_command_says_the_same() -> None:
    options = ("llama3_8b", "--accelerator", "h100_sxm", "--batch", "2", "--seq", "4096", "--optimizer", "adamw8bit")
    found = json.loads(run("estimate", *options, "--json")[1])
    training, _, decode = found["needs"]
    assert training["bytes"] == found["memory"]["peak"] == found["sharding"]["memory"]["total"]
    assert training["fits"] is found["roofline"]["fits"] is True
    assert found["memory"]["dtype"] == found["roofline"]["dtype"] == "bfloat16"
    status, out = run("estimate", *options)
    assert status == 0
    assert out.splitlines()[1] == "Training needs 73.8 GiB on one GPU and fits in 78.65"
    assert out.splitlines()[4].split()[:4] == ["training", "73.82", "GiB", "fits"]
    most = fit(
        "llama3_8b",
        vary=["batch"],
        memory=device("h100_sxm").usable,
        run=Workload(seq=4096, dtype="bfloat16", optimizer="adamw8bit"),
    )
    assert most.varied == {"batch": 2}
    assert most.memory is not None
    assert most.memory.bytes == training["bytes"]
    (kept,) = (n for n in asked("llama3_8b", batch=2, seq=4096) if n.phase == "decode")
    assert kept.bytes == decode["bytes"]


@pytest.mark.parametrize("loss", ["chunked", "fused", "eager"])
def test_a_batch_that_fits_is_of_the_loss(loss: Any) -> None:
    """`fit` finds the batch at which `estimate` says, with the same loss, that it is the last to fit."""
    how: dict[str, Any] = {"dtype": "bfloat16", "optimizer": "sgd", "checkpoint": "full", "loss": loss}
    found = archdsl.fit("llama3_8b", vary="batch", memory=80 * GIB, seq=4096, **how)
    assert found.memory is not None
    assert found.memory.loss == loss
    fitting, next_ = (archdsl.memory("llama3_8b", batch=found.varied["batch"] + n, seq=4096, **how) for n in (0, 1))
    assert fitting.peak == found.memory.bytes <= 80 * GIB < (next_.peak or 0)


def test_inference_is_checked() -> None:
    """256 GiB of cache, and weights: far more than a device has."""
    needed = {n.phase: n for n in asked("llama3_8b", batch=1024, seq=2048)}
    assert needed["decode"].terms["decode state"] == 256 * GIB
    weights = 2 * archdsl.estimate("llama3_8b").params.total
    assert needed["decode"].terms["weights"] == weights
    found = needs(Step(archdsl.load("llama3_8b"), StepPlan(dtype="bfloat16"), 1024, 2048), device("h100_sxm").usable)
    assert [n.fits for n in found] == [False, False, False]
    # Over tensor parallel ranks heads are cut, over stages layers, over replicas sequences.
    for mesh in ("tp=8", "pp=8", "dp=8", "dp=2,tp=2,pp=2"):
        (part,) = (n for n in asked("llama3_8b", mesh, batch=1024, seq=2048) if n.phase == "decode")
        assert part.terms["decode state"] == 32 * GIB


def test_caches_of_windows_are_rings() -> None:
    (short,) = (n for n in asked("mistral_7b", seq=4096) if n.phase == "decode")
    (long,) = (n for n in asked("mistral_7b", seq=32_768) if n.phase == "decode")
    assert long.terms["decode state"] == short.terms["decode state"] == 512 << 20


def test_weights_and_caches_of_few_bits() -> None:
    """Matrices and caches alone: embeddings and norms stay as they are; of int4, 32 numbers share 16 bits."""
    (full,) = (n for n in asked("llama3_8b", batch=4, seq=8192) if n.phase == "decode")
    (less,) = (n for n in asked("llama3_8b", batch=4, seq=8192, weights="int4", cache="float8") if n.phase == "decode")
    assert less.terms["decode state"] == full.terms["decode state"] / 2
    params = archdsl.estimate("llama3_8b").params
    norms = 65 * 4096
    matrices = params.total - params.embedding - norms
    assert less.terms["weights"] == 2 * (params.embedding + norms) + matrices * 4.5 / 8
    training = asked("llama3_8b", batch=4, seq=8192, weights="int4", cache="float8")[0]
    assert training == asked("llama3_8b", batch=4, seq=8192)[0]


def test_a_prefill_has_logits_of_one_position() -> None:
    (found,) = (n for n in asked("llama3_8b", batch=4, seq=8192) if n.phase == "prefill")
    assert found.terms["temporaries"] < 4 * 8192 * 128_256 * 2
    # What is alive at once of a block: its input, and twice the hidden size, at each position.
    assert found.terms["temporaries"] > 4 * 8192 * (4096 + 2 * 14_336) * 2


def test_later_stages_keep_fewer_micro_batches() -> None:
    step = Step(archdsl.load("llama3_8b"), StepPlan(parse_mesh("pp=4"), micro_batches=8, dtype="bfloat16"), None, 4096)
    stages = step.sharding.stages
    assert [s.in_flight for s in stages] == [4, 3, 2, 1]
    # A stage in the middle: weights, gradients that are there from the first micro-batch on, states, what is kept, and
    # the temporaries of one.
    middle = stages[1]
    held = middle.weights + middle.gradients + middle.optimizer + middle.activations
    assert held < middle.total < 1.1 * held


def test_a_policy_has_one_meaning() -> None:
    """`selective` keeps products with weights, in a report on one device as on a mesh, whatever attention keeps."""
    model = archdsl.load("gpt2")
    one = memory(model, batch=2, dtype="bfloat16", checkpoint="selective")
    for attention in ("fused", "eager"):
        plan = StepPlan(dtype="bfloat16", checkpoint="selective", attention=attention)
        assert Step(model, plan, 2, None).sharding.memory.activations == one.activations


def test_memory_that_can_be_used() -> None:
    """ECC in GDDR6 takes a sixteenth, the driver what `nvidia-smi` does not show, and the runtime 1 GiB unless a file
    says otherwise; a device of two dies is two."""
    usable = {name: d.usable / GIB for name, d in devices().items()}
    assert (usable["a10"], usable["l4"], usable["l40s"], usable["t4"]) == (21.5, 21.5, 44, 14)
    assert (usable["rtx_4090"], usable["mi250x"]) == (23, 63)
    shown = {name: usable[name] + 1 for name in ("h100_sxm", "h200_sxm", "b200_sxm")}
    assert shown == pytest.approx({"h100_sxm": 79.65, "h200_sxm": 140.4, "b200_sxm": 178.35})
    assert device("h100_sxm").model_copy(update={"reserve_gib": 3.5}).usable == int(76.15 * GIB)
    assert device("mi250x").peak["bfloat16"] == 383e12 / 2


RUNS: list[tuple[str, str]] = [
    ("llama3_8b", "--accelerator h100_sxm --batch 8 --seq 8192"),
    ("llama3_8b", "--accelerator h100_sxm --devices 8 --batch 32 --seq 4096"),
    (
        "llama3_8b",
        "--accelerator a100_sxm_80gb --mesh tp=4,pp=2 --batch 64 --micro-batches 4 --interleave 2 --seq 8192",
    ),
    ("llama3_8b", "--accelerator a10 --mesh dp=2,tp=4 --seq 8192 --loss eager --attention eager"),
    ("gpt2", "--accelerator t4 --batch 64 --checkpoint full --checkpoint-every 4"),
    ("gpt2_xl", "--accelerator rtx_4090 --batch 4 --dtype float32"),  # no network: at most a machine
    ("mamba_130m", "--accelerator l4 --batch 64"),
]


def changed(arguments: list[str], advised: list[str]) -> list[str]:
    """The arguments with the advised options in place of those that were given."""
    flags = {"--sequence-parallel"}
    options: dict[str, list[str]] = {}
    for given in (arguments, advised):
        left = iter(given)
        options |= {name: [] if name in flags else [next(left)] for name in left}
    return [word for name, value in options.items() for word in (name, *value)]


@pytest.mark.parametrize(("spec", "run_at"), RUNS)
def test_advised_options_bring_the_figure(spec: str, run_at: str) -> None:
    """The run that is advised needs what was said, and where it fits no option of it could be left as it was."""
    found = json.loads(run("estimate", spec, *run_at.split(), "--json")[1])
    training, other = found["needs"][0], found["advice"]
    assert not training["fits"]
    assert other["bytes"] < training["bytes"]
    again = json.loads(run("estimate", spec, *changed(run_at.split(), other["options"]), "--json")[1])
    assert again["needs"][0]["bytes"] == other["bytes"]
    assert again["needs"][0]["fits"] == other["fits"]
    for name in {"--checkpoint", "--zero", "--micro-batches"} & {*other["options"]} if other["fits"] else ():
        at = other["options"].index(name)
        fewer = [*other["options"][:at], *other["options"][at + 2 :]]
        status, out = run("estimate", spec, *changed(run_at.split(), fewer), "--json")
        assert status or not json.loads(out)["needs"][0]["fits"], name


@pytest.mark.parametrize(("spec", "run_at"), RUNS[::2])
def test_the_head_is_a_sentence_of_the_figures(spec: str, run_at: str) -> None:
    report = archdsl.estimate(spec, **keywords(run_at))
    assert isinstance(report, MachinesReport)
    assert report.roofline is not None
    assert report.advice is not None
    need, other = report.needs[0], report.advice
    head, said = plain_text(*answer_view(report)).splitlines()[:2]
    parts = re.fullmatch(
        r"Training needs ([\d,.]+) GiB on (?:each|one) GPU and does not fit in ([\d.]+): "
        r"[a-z ]+ (?:is|are) (?:up to )?([\d,.]+) of it; (?:even )?`(.*)` (?:brings it to|needs) ([\d,.]+)",
        said,
    )
    assert parts is not None
    size, usable, term, options, least = parts.groups()
    assert shlex.split(options) == other.options
    assert said.endswith(f"brings it to {least}") == other.fits
    numbers = (need.bytes, report.roofline.usable, max(need.terms.values()), other.bytes)
    for text, number in zip((size, usable, term, least), numbers, strict=True):
        assert float(text.replace(",", "")) == pytest.approx(number / GIB, rel=5e-3)
    assert f"batch size {report.sharding.batch}" in head


def keywords(arguments: str) -> dict[str, Any]:
    """The arguments of the command as those of the function."""
    words = arguments.replace("--", "").replace("-", "_").split()
    return {name: int(text) if text.isdecimal() else text for name, text in zip(words[::2], words[1::2], strict=True)}


@pytest.mark.parametrize(("accelerator", "more"), [("rtx_4090", False), ("mi300x", True)])
def test_more_devices_than_are_linked_are_not_advised(accelerator: str, more: bool) -> None:
    found = json.loads(run("estimate", "llama3_70b", "--accelerator", accelerator, "--seq", "1024", "--json")[1])
    assert not found["needs"][0]["fits"]
    assert ("--devices" in (found["advice"] or {"options": []})["options"]) == more


def test_what_fits_gets_no_advice() -> None:
    assert json.loads(run("estimate", "gpt2", "--accelerator", "h100_sxm", "--json")[1])["advice"] is None
    assert (
        run("estimate", "gpt2", "--mesh", "dp=2")[1]
        .splitlines()[1]
        .startswith("Training needs 2.56 GiB on each device: ")
    )


@pytest.mark.parametrize("spec", ["gpt2", "t5_small", "jamba"])
def test_what_else_estimate_says_is_said_and_works(spec: str) -> None:
    status, out = run("estimate", spec)
    last = out.splitlines()[-1]
    options = re.findall(r"(--\S+) ([^\s,]+)", last)
    assert status == 0
    assert len(options) >= 3
    for option in options:
        status, more = run("estimate", spec, *option)
        assert status == 0
        assert last not in more
