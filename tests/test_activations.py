"""The memory of a training step: what is measured on fake tensors against PyTorch's own storages, what is estimated
from the graph against closed forms and against what is measured."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from activation_tools import saved_bytes, step
from torch_versions import measured
from typer.testing import CliRunner
from zoo.sizes import sample
from zoo.tiny import BATCH, OTHER, TIME, graph, inputs

import archdsl
from archdsl.backends.torch import Extras, emit
from archdsl.cli import app
from archdsl.diagnostics import ArchError
from archdsl.estimates.activations import Measured, StepMemory, estimate
from archdsl.estimates.dtypes import Dtype
from archdsl.estimates.loss import CHUNK, Loss
from archdsl.estimates.memory import estimate as memory
from archdsl.ir.graph import Model
from archdsl.run.load import load_source
from archdsl.run.measure import measure, with_measured

DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")


# --- measured ---------------------------------------------------------------------------------------------------------

SOME = (
    "gpt2:gpt2",
    "llama3:llama3_8b",
    "t5:t5_small",
    "mixtral:mixtral_8x7b",
    "mamba:mamba_130m",
    "tagger:bilstm_tagger",
)
CHECKPOINTED: tuple[tuple[str, Dtype], ...] = (
    ("gpt2:gpt2", "float32"),
    ("llama3:llama3_8b", "bfloat16"),
    ("t5:t5_small", "bfloat16"),
    ("conformer:conformer_l", "float32"),
)
LAYOUT = ("graph_mamba:graph_mamba",)
"""Models of which a tensor has another order of axes in memory than fake tensors foresee, so that one copy more is
kept."""
CLOSE = 0.02
"""How far the peak may be from that of real tensors."""


def run_both(name: str, dtype: Dtype, checkpoint: Any = "none", time: int = TIME) -> Measured:
    """A step of a tiny model on fake tensors, and on real ones: saved bytes are equal, and peaks near."""
    model = graph(name)
    sizes = {s.name: {"batch": BATCH, "time": time}.get(s.name, OTHER) for s in model.symbols}
    found = measure(model, sizes, dtype=dtype, checkpoint=checkpoint, loss="eager", fixed=0)
    kind = getattr(torch, dtype)
    given = {k: v.to(kind) if v.is_floating_point() else v for k, v in inputs(model, time=time).items()}
    torch.manual_seed(0)
    made = load_source(emit(model, Extras(checkpoint=checkpoint)))().to(kind).train()
    if checkpoint == "none":
        real = saved_bytes(made, given)[1]
        assert found.saved == (pytest.approx(real, rel=0.002) if name in LAYOUT else real)
    _, most = step(made, given)
    assert found.peak - sum(t.nbytes for t in given.values()) == pytest.approx(most, rel=CLOSE)
    assert found.peak == max(found.forward, found.backward)
    return found


@measured
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SOME)
def test_what_is_measured_is_what_autograd_saves(name: str, dtype: Dtype) -> None:
    assert run_both(name, dtype).exact


@measured
@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in sample() if n not in SOME])
def test_the_zoo_saves_what_is_measured(name: str) -> None:
    run_both(name, "bfloat16", time=TIME // 2)  # loops over positions are run op by op


@measured
@pytest.mark.parametrize(("name", "dtype"), CHECKPOINTED)
def test_less_is_saved_where_more_is_computed_again(name: str, dtype: Dtype) -> None:
    none, selective, full = (run_both(name, dtype, r).saved for r in ("none", "selective", "full"))
    assert none > selective > full > 0


@measured
def test_targets_are_apart_from_an_input_of_that_name() -> None:
    model = graph("xlnet:xlnet_base")
    found = with_measured(memory(model, batch=BATCH, seq=TIME), model, "none")
    assert found.loss == "chunked"
    assert found.measured is not None


@measured
def test_the_report_names_kernels_that_hold_more() -> None:
    """Dropout in attention, a window, and RMS norms are what a CPU has no fused kernels for."""
    layer = "attention: mha(heads: 2)  ffn: mlp(hidden: 32)"
    cases = {
        "mask: causal  norm: layernorm": [],
        "mask: causal  norm: layernorm  dropout: 0.1": ["attention that keeps its scores"],
        "mask: causal & window(8)  norm: rmsnorm": ["RMS norms in parts", "attention with a dense mask"],
    }
    for slots, kernels in cases.items():
        spec = "model m { vocab: 64  context: 16  width: 32  blocks: 1 * layer  head: lm }"
        model = archdsl.load(text=f"block layer {{ {layer} {slots} }} {spec}")
        found = measure(model, {"batch": 1, "time": 16}, dtype="bfloat16", checkpoint="none", loss="chunked", fixed=0)
        assert sorted(found.kernels) == kernels


def test_what_numbers_decide_is_not_measured() -> None:
    """Rows of experts whose matrices have no whole lines of memory are cut apart at numbers."""
    inputs = "x: [batch, time, 6], w: [batch, time, 2], c: int[batch, time, 2]"
    model = archdsl.load(text=f"model m({inputs}) {{ return experts(mlp(hidden: 6), 5)(x, w, c) }}")
    with pytest.raises(ArchError, match="E0512"):
        measure(model, {"batch": 2, "time": 4}, dtype="float32", checkpoint="none", loss="eager", fixed=0)


# --- estimated: closed forms ------------------------------------------------------------------------------------------

PLAIN = """
block layer { attention: mha(heads: 4)  mask: causal  ffn: mlp(hidden: 512)  norm: layernorm  placement: pre DROPOUT }
model plain { vocab: 512  context: 64  width: 128  blocks: 4 * layer  norm: layernorm  head: lm }
"""
SBH = 64 * 2 * 128
"""Places, rows and width: what closed forms multiply."""
ROWS = 64 * 2 * 4
"""Float32 numbers of every row."""


def plain(checkpoint: Any = "none", dropout: str = "", **how: Any) -> StepMemory:
    model = archdsl.load(text=PLAIN.replace("DROPOUT", dropout))
    return estimate(model, **{"batch": 2, "seq": 64, "dtype": "bfloat16", "checkpoint": checkpoint} | how)


def of_layers(found: StepMemory) -> int:
    return next(row.bytes for row in found.by_block if row.path == "blocks.*")


def test_layers_save_what_korthikanti_et_al_say() -> None:
    """34 s b h a layer (2022, equation 2) without the scores, which a fused kernel does not keep, and 2 without the
    masks of two dropouts; beside it two numbers for each norm's rows and one for each query of four heads."""
    assert of_layers(plain()) == 4 * (32 * SBH + (2 * 2 + 4) * ROWS)
    assert of_layers(plain(dropout=" dropout: 0.1 ")) == 4 * (34 * SBH + (2 * 2 + 4) * ROWS)


def test_full_recomputation_keeps_the_inputs_of_layers() -> None:
    found, none = plain("full"), plain()
    assert of_layers(found) == 4 * 2 * SBH
    assert none.saved - of_layers(none) == found.saved - of_layers(found)
    # A layer's own come back one by one: beside all inputs there is room for one layer in the backward pass.
    events = {e.event: e for e in found.timeline}
    assert events["backward blocks.3"].peak - events["objective"].bytes > 0.8 * of_layers(none) / 4


def test_selective_recomputation_keeps_products_and_inputs() -> None:
    assert of_layers(plain("selective")) == 4 * (2 + 6 + 2 + 8 + 2) * SBH


def test_what_a_loss_holds() -> None:
    """One kernel keeps the logits, their gradient, and a number in float32 for each position; `F.cross_entropy` of
    logits in float32 three tensors as large as these. One chunk has the gradients of all hidden states beside that, and
    once its logits have one the head's weights have theirs."""
    assert plain(loss="fused").objective == 64 * 2 * (2 * 2 * 512 + 4)
    assert plain(loss="eager").objective == 64 * 2 * 12 * 512
    assert plain().objective == 64 * 2 * 12 * 512 + 64 * 2 * 128 * 2
    chunks = plain(batch=64).objective - 64 * 64 * 128 * 2
    head = 512 * 128 * 2
    assert chunks == 1024 * 12 * 512 + head
    assert plain().loss == "chunked"


def test_a_gradient_for_each_weight_is_there_in_the_end() -> None:
    found = plain(fixed=1000, gradients=5000, optimizer=77)
    end = found.timeline[-1]
    assert (end.event, end.bytes, end.peak - end.bytes) == ("optimizer step", 6000 + found.inputs, 77)
    model = archdsl.load(text=PLAIN.replace("DROPOUT", ""))
    weights = memory(model, dtype="bfloat16").gradients
    before = found.timeline[-2].bytes - 1000 - found.inputs
    assert before == weights


def test_the_timeline_has_every_layer() -> None:
    found = plain()
    events = [e.event for e in found.timeline]
    layers = [f"blocks.{i}" for i in range(4)]
    assert [e for e in events if e.startswith("forward blocks")] == [f"forward {x}" for x in layers]
    assert [e for e in events if e.startswith("backward blocks")] == [f"backward {x}" for x in reversed(layers)]
    assert events.index("forward blocks.3") < events.index("objective") < events.index("backward blocks.3")
    assert found.peak == max(e.peak for e in found.timeline)
    assert found.peak_at in events
    rows = {row.path: row for row in found.by_block}
    assert rows["model"].bytes == found.saved
    assert rows["blocks.*"].count == 4
    assert rows["blocks.*.attention"].bytes + rows["blocks.*.ffn"].bytes < rows["blocks.*"].bytes < found.saved


# --- estimated and measured -------------------------------------------------------------------------------------------

EQUAL = {"vit:vit_b16": 0.02, "mixer:mixer_s16": 0.02, "gptj:gptj_6b": 0.07}
"""Models of which a CPU's kernels keep what those of an accelerator do (no dropout in attention, no RMSNorm), and how
far the estimate may be from what is measured; of GPT-J, rotations are several ops."""


@measured
@pytest.mark.parametrize("checkpoint", ["none", "selective", "full"])
@pytest.mark.parametrize("name", EQUAL)
def test_the_estimate_is_near_what_is_measured(name: str, checkpoint: Any) -> None:
    found = memory(graph(name), batch=BATCH, seq=TIME, dtype="bfloat16", checkpoint=checkpoint)
    found = with_measured(found, graph(name), checkpoint)
    assert found.measured is not None
    assert found.activations == pytest.approx(found.measured.saved, rel=EQUAL[name])
    passes = max(e.peak for e in found.timeline if e.event != "optimizer step")
    assert passes == pytest.approx(found.measured.peak, rel=0.06)


WITHOUT_DROPOUT = """
block layer { attention: mha(heads: 4)  mask: causal  ffn: mlp(hidden: 512)  norm: layernorm  placement: pre }
model plain(tied = true) {
  vocab: 8192  context: 2048  width: 128  blocks: 2 * layer  norm: layernorm  head: lm(tied: tied)
}
"""


@measured
@pytest.mark.parametrize(("dtype", "tied"), [("bfloat16", "true"), ("bfloat16", "false"), ("float32", "true")])
@pytest.mark.parametrize("loss", get_args(Loss))
def test_the_estimate_of_a_loss_is_what_it_takes(loss: Loss, dtype: Dtype, tied: str) -> None:
    """Three chunks, the last one half filled: a large vocabulary's loss holds the most, or its head's gradients."""
    model = archdsl.load(text=WITHOUT_DROPOUT, set={"tied": tied})
    found = memory(model, batch=2, seq=1280, dtype=dtype, optimizer="sgd", checkpoint="full", loss=loss)
    found = with_measured(found, model, "full")
    assert found.measured is not None
    assert found.activations == pytest.approx(found.measured.saved, rel=0.005)
    assert found.peak == pytest.approx(found.measured.peak, rel=0.01)


def test_experts_of_each_layer_keep_their_rows() -> None:
    """Layers share the block of their experts, not the rows that these are sent."""
    few, more = (memory(archdsl.load("mixtral_8x7b", set={"layers": n}), seq=64) for n in (2, 3))
    layer = {b.path: b for b in few.step.by_block}["blocks.*"] if few.step is not None else None
    assert layer is not None
    assert (more.activations or 0) - (few.activations or 0) == layer.bytes / 2


@measured
def test_a_chunk_is_that_of_emitted_code() -> None:
    source = emit(archdsl.load(text=WITHOUT_DROPOUT), Extras(frozenset(["loss"])))
    function = vars(sys.modules[load_source(source).__module__])["chunked_cross_entropy"]
    assert inspect.signature(function).parameters["chunk"].default == CHUNK


@measured
def test_mamba2_keeps_no_states_of_all_positions() -> None:
    """In chunks of 64 positions, op by op, the emitted file keeps less than three times what one kernel would."""
    mixer = "mamba2_mixer(heads: 128, head_dim: 64, groups: 8, state: 128)"
    model = archdsl.load(text=f"model m(x: [batch, time, 4096]) {{ return x -> {mixer} }}")
    kept = measure(model, {"batch": 1, "time": 4096}, dtype="float32", checkpoint="none", loss="eager", fixed=0).saved
    assert kept < 3 * estimate(model, batch=1, seq=4096).saved


LINEAR = {
    "causal": "linear_attention(q, k, v)",
    "normalized": "linear_attention(q, k, v, normalize: true)",
    "decayed": "linear_attention(q, k, v, log_decay: g[..., 0])",
    "channels decayed": "linear_attention(q, k, v, log_decay: g)",
    "delta rule": "delta_rule(q, k, v, b)",
    "delta rule, decayed": "delta_rule(q, k, v, b, g[..., 0])",
    "delta rule, channels decayed": "delta_rule(q, k, v, b, g, read: q)",
}


@measured
@pytest.mark.parametrize("dtype", get_args(Dtype)[:2])
@pytest.mark.parametrize("form", LINEAR)
def test_linear_attention_keeps_what_its_chunks_are_made_of(form: str, dtype: Dtype) -> None:
    projected = " ".join(f"{name} = x -> linear(128) as {name} -> split_heads(2)" for name in "qkvg")
    text = f"{{ {projected} b = x -> linear(2) as b -> transpose(1, 2) return {LINEAR[form]} }}"
    model = archdsl.load(text=f"model m(x: [batch, time, 16]) {text}")
    lengths = {"batch": 1, "time": 2048}
    kept = measure(model, lengths, dtype=dtype, checkpoint="none", loss="eager", fixed=0).saved
    assert kept == pytest.approx(estimate(model, batch=1, seq=2048, dtype=dtype).saved, rel=0.07)


@pytest.mark.slow
@pytest.mark.parametrize("name", sample())
def test_every_model_has_an_estimate(name: str) -> None:
    found = {r: memory(graph(name), batch=BATCH, seq=TIME, checkpoint=r) for r in ("none", "selective", "full")}
    none = found["none"].step
    assert none is not None
    assert none.saved > 0
    assert none.by_block[0].bytes == none.saved
    for checkpoint in ("selective", "full"):
        step = found[checkpoint].step
        assert found[checkpoint].no_activations is not None if step is None else step.saved > 0
    if found["full"].step is not None:
        assert found["full"].step.saved < none.saved


# --- the report -------------------------------------------------------------------------------------------------------


def test_memory_holds_weights_and_states_in_its_peak() -> None:
    model = graph("gpt2:gpt2")
    adam, sgd = (memory(model, batch=2, seq=16, optimizer=o) for o in ("adamw", "sgd"))
    assert adam.peak is not None
    assert sgd.peak is not None
    assert adam.activations == sgd.activations
    assert adam.peak - sgd.peak == adam.optimizer
    assert memory(model, step=False).activations is None


def test_the_command_line_says_it() -> None:
    def said(*more: str) -> str:
        return CliRunner().invoke(app, ["estimate", "gpt2", "--set", "layers=2", "--seq", "64", *more]).stdout

    found = json.loads(said("--json"))["memory"]
    assert {"weights", "gradients", "optimizer", "activations", "peak", "decode_state", "timeline"} <= found.keys()
    assert found["step"]["saved"] == found["activations"]
    assert found["peak"] == max(e["peak"] for e in found["timeline"])
    assert found["measured"] is None
    assert json.loads(said("--json", "--checkpoint", "full"))["memory"]["activations"] < found["activations"]
    text = said("--measure")
    assert "saved for the backward pass; estimate" in text
    assert "MiB, exact" in text
    assert "blocks.0–1.attention" in text


def test_a_model_without_layers_has_nothing_to_compute_again(tmp_path: Path) -> None:
    path = tmp_path / "m.arch"
    path.write_text("model m(x: [batch, time, 8]) { return x -> linear(8) }")
    model: Model = archdsl.load(path)
    said = memory(model, checkpoint="full")
    assert said.activations is None
    assert said.no_activations is not None
    assert "layers" in said.no_activations
    shown = CliRunner().invoke(app, ["estimate", str(path), "--checkpoint", "full", "--dtype", "float32"])
    assert said.no_activations in " ".join(shown.output.split())
