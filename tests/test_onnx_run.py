"""Running graphs: weights of few bits, `archdsl run --backend onnx`, `archdsl verify`, and `compile --to onnx`."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from cli_tools import Done, Run
from test_onnx_files import SPEC
from zoo.sizes import tables

from archdsl.api import load, to_onnx
from archdsl.backends.onnx.quantize import BITS, dequantized, in_rows, quantized, routers, shapes
from archdsl.backends.onnx.step import write_steps
from archdsl.backends.onnx.store import Storage, save
from archdsl.backends.onnx.targets import GraphOptions
from archdsl.backends.onnx.write import Written, write
from archdsl.diagnostics import ArchError
from archdsl.ir.graph import Model
from archdsl.passes.flatten import flatten
from archdsl.report.tables import plain_text, verify_view
from archdsl.run import onnx
from archdsl.run import verify as verification
from archdsl.run.onnx import draw_inputs, open_session, run_session
from archdsl.run.verify import difference, verify

NOT_A_NUMBER = """\
model m(width = 4)(x: [batch, width]) -> [batch, width] {
  y = x -> linear(width)
  return log(-1 - y * y)
}
"""
EXPERTS = """\
block layer(x: [batch, time, width]) -> [batch, time, width] {
  x += x -> rmsnorm -> mha(heads: 2, mask: causal)
  x += x -> rmsnorm -> moe(experts: 4, top_k: 2, expert: swiglu(hidden: 40), shared: mlp(hidden: 24, act: silu))
}

model mixture(layers = 2) {
  vocab:   48
  context: 32
  width:   24
  blocks:  layers * layer
  norm:    layernorm
  head:    lm
}
"""
MANY = EXPERTS.replace("experts: 4", "experts: 20")
EVEN = MANY.replace("width:   24", "width:   32").replace("hidden: 40", "hidden: 64")  # sizes that blocks of 32 fill
HEADS = {
    "one after the other": ("permute(0, 2, 1, 3)", "permute(0, 2, 1, 3)"),
    "interleaved": ("permute(0, 3, 1, 2)", "permute(0, 2, 3, 1)"),
    "interleaved before alone": ("permute(0, 3, 1, 2)", "permute(0, 2, 1, 3)"),
    "interleaved behind alone": ("permute(0, 2, 1, 3)", "permute(0, 2, 3, 1)"),
}
"""How heads are cut off of [batch, time, width], and put together again."""
OUTER = """\
model paired(x: [batch, time, 16], padding: padding[batch, time]) {
  y = where(padding -> unsqueeze(-1), x -> linear(16), 0)
  return y, y -> mean(-1) as average
}
"""


def options(**given: Any) -> dict[str, Any]:
    graph = {name: given.pop(name) for name in ("dtype", "target", "quantize", "keep") if name in given}
    return {
        "options": GraphOptions(**graph),
        "weights": None,
        "seed": 0,
        "batch": 2,
        "time": 7,
        "device": "cpu",
        **given,
    }


# --- few bits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("width", [5, 32, 70, 96])
def test_a_number_moves_by_half_a_step_at_most(width: int, dtype: str, bits: int) -> None:
    rows = np.random.default_rng(0).standard_normal((6, width)).astype(np.float32)
    rows[1] = 0
    rows[2] = np.abs(rows[2]) + 3  # no zero among them, and still it has a code
    parts = quantized(rows, bits, dtype)
    assert tuple(p.shape for p in parts) == shapes(rows.shape, bits)
    back = dequantized(rows, bits, dtype)
    blocks = [rows[:, i : i + 32] for i in range(0, width, 32)]
    steps = [(np.maximum(b.max(1), 0) - np.minimum(b.min(1), 0)) / (2**bits - 1) for b in blocks]
    step = np.repeat(np.stack(steps, 1), 32, 1)[:, :width]
    # A half for the code; another for the zero point, at the ends of the range; the scale's own rounding.
    slack = {"float32": 1e-5, "float16": 2**-11, "bfloat16": 2**-8}[dtype] * 2**bits
    assert (np.abs(back - rows) <= (1 + slack) * step + 1e-7).all()
    assert np.abs(back - rows).mean() <= (0.3 + slack) * step.mean()
    assert (back[1] == 0).all()


def test_zero_points_are_more_exact_than_symmetry() -> None:
    draws = np.random.default_rng(0)
    for rows in (draws.standard_normal((64, 256)), draws.uniform(-1, 1, (64, 256))):
        for bits in BITS.values():
            blocks = rows.reshape(64, -1, 32)
            extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[..., None], -1)
            scale = -extreme / 2 ** (bits - 1)
            codes = np.clip(np.rint(blocks / scale), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
            symmetric = np.square(codes * scale - blocks).mean()
            assert np.square(dequantized(rows, bits, "float32") - rows).mean() < symmetric


RECURRENT = """model m(tokens: token[batch, time]) {
  x = tokens -> embedding(64, 32)
  y = scan h: [batch, 32] = 0 for x_t in x {
    h = tanh((h -> linear(32)) + (x_t -> linear(32)))
    emit h
  }
  return y -> linear(64)
}"""


def test_pieces_become_whole_rows() -> None:
    numbers = np.arange(7 * 30)
    pieces = np.split(numbers, [1, 2, 50, 51, 140])
    for at_once in (1, 40, 64, 10_000):
        found = list(in_rows(iter(pieces), 30, at_once))
        assert (np.concatenate(found) == numbers.reshape(7, 30)).all()
    assert len(list(in_rows(iter(pieces), 30, 40))) > 1


@pytest.mark.parametrize("quantize", ["int4", "int8"])
@pytest.mark.parametrize(
    "text", [SPEC, EXPERTS, MANY, EVEN, RECURRENT], ids=["dense", "experts", "many experts", "at once", "scan"]
)
def test_onnxruntime_reads_few_bits_as_they_are_meant(text: str, quantize: str) -> None:
    model = load(text=text)
    report = verify(model, **options(target="ort-cpu", quantize=quantize, tolerance=2e-5, decode=False))
    assert report.agrees, report
    (moved,) = (d.relative for d in report.rounding.values())
    # Of twenty experts another may be chosen.
    assert 1e-4 < moved < (0.05 if quantize == "int8" and text not in (MANY, EVEN) else 0.5)


@pytest.mark.parametrize("text", [SPEC, EXPERTS], ids=["dense", "experts"])
def test_on_the_cpu_the_inputs_of_products_are_rounded_too(text: str, tmp_path: Path) -> None:
    """Its kernels for eight bits are for such inputs only, and for matrices that are constants of the graph."""
    levels, found, inputs = [], [], draw_inputs(load(text=text), 2, 9, 0)
    for target, exact in (("ort-cpu", False), ("ort-cpu", True), ("ort-cuda", False)):
        made = write(load(text=text), GraphOptions(target=target, quantize="int8", exact=exact))
        nodes = [n for n in ir.traversal.RecursiveGraphIterator(made.model.graph) if n.op_type == "MatMulNBits"]
        levels.append({"accuracy_level" in n.attributes for n in nodes})
        makers = [x.producer() for n in nodes for x in n.inputs[1:] if x is not None]
        assert {p.op_type for p in makers if p is not None} <= {"Squeeze", "Reshape"}
        if target == "ort-cpu":
            files = save({tmp_path / "m.onnx": made}, load(text=text), Storage(seed=0))
            assert files.weights is not None
            found.append(run_session(open_session(made, files.weights, "cpu"), inputs)["output"])
    assert levels == [{True}, {False}, {False}]
    distance = np.abs(found[0] - found[1]).max() / np.abs(found[1]).max()
    assert 1e-4 < distance < 0.05


def experts_of(made: Written) -> tuple[set[str], int]:
    """The activations of the operators for experts of a graph, and how many products of few bits there are besides."""
    nodes = [*ir.traversal.RecursiveGraphIterator(made.model.graph)]
    names = {n.attributes.get_string("activation_type", "") for n in nodes if n.op_type == "QMoE"}
    return names, sum(n.op_type == "MatMulNBits" for n in nodes)


@pytest.mark.parametrize("quantize", ["int4", "int8"])
@pytest.mark.parametrize(
    ("expert", "activation"),
    [
        ("swiglu(hidden: 64)", "swiglu"),
        ("swiglu(hidden: 32, bias: true)", "swiglu"),
        ("mlp(hidden: 64, act: relu)", "relu"),
        ("mlp(hidden: 96, act: gelu_tanh, bias: true)", "gelu"),
        ("mlp(hidden: 64, act: silu)", "silu"),
    ],
)
def test_experts_of_few_bits_are_one_operator(expert: str, activation: str, quantize: str, tmp_path: Path) -> None:
    """Its inputs are rounded to int8, or with four bits need not be: then it is exact."""
    model = load(text=EVEN.replace("swiglu(hidden: 64)", expert))
    inputs, found = draw_inputs(model, 2, 9, 0), {}
    for name, exact in (("rounded", False), ("exact", True)):
        made = write(model, GraphOptions(target="ort-cpu", quantize=quantize, exact=exact))
        at_once = name == "rounded" or quantize == "int4"
        assert experts_of(made)[0] == ({activation} if at_once else set())
        files = save({tmp_path / f"{name}.onnx": made}, model, Storage(seed=0))
        assert files.weights is not None
        found[name] = run_session(open_session(made, files.weights, "cpu"), inputs)["output"]
    assert np.isfinite(found["rounded"]).all()
    assert 1e-4 < np.abs(found["rounded"] - found["exact"]).mean() / np.abs(found["exact"]).mean() < 0.1
    assert verify(model, **options(target="ort-cpu", quantize=quantize, tolerance=2e-5, decode=False)).agrees


@pytest.mark.parametrize(
    ("expert", "keep"),
    [
        ("geglu(hidden: 64)", ()),  # a gate that the operator does not know
        ("swiglu(hidden: 40)", ()),  # a size that blocks do not fill
        ("swiglu(hidden: 64)", ("*.down.*",)),  # a matrix that is kept
        ("swiglu(hidden: 64)", ("*.experts.*",)),  # all of them
    ],
)
def test_other_experts_of_few_bits_stand_in_a_loop(expert: str, keep: tuple[str, ...]) -> None:
    model = load(text=EVEN.replace("swiglu(hidden: 64)", expert))
    made = write(model, GraphOptions(target="ort-cpu", quantize="int4", keep=keep))
    assert experts_of(made)[0] == set()
    assert any(n.op_type == "Loop" for n in made.model.graph)
    assert verify(model, **options(target="ort-cpu", quantize="int4", keep=keep, tolerance=2e-5, decode=False)).agrees


def test_experts_of_few_bits_in_half_precision() -> None:
    report = verify(load(text=EVEN), **options(target="ort-cpu", quantize="int4", dtype="float16"))
    assert report.agrees, report
    assert experts_of(write(load(text=EVEN), GraphOptions(target="ort-cpu", quantize="int4", dtype="float16")))[0] == {
        "swiglu"
    }


def test_what_is_quantized() -> None:
    model = load(text=EXPERTS)
    made = write(model, GraphOptions(target="ort-cpu", quantize="int4"))
    few = {re.sub(r"\.\d+\.", ".*.", p) for p in made.quantized}
    rest = {re.sub(r"\.\d+\.", ".*.", p) for p in made.weights}
    assert few == {
        *(f"blocks.*.mha.{n}.weight" for n in ("q", "k", "v", "out")),
        *(f"blocks.*.moe.experts.{n}.weight" for n in ("gate", "up", "down")),
        *(f"blocks.*.moe.shared.{n}.weight" for n in ("up", "down")),
        *("head.weight", "token_embedding.weight"),
    }
    assert not few & rest
    assert "norm.weight" in rest
    assert routers(flatten(model)) == {f"blocks.{i}.moe.router.gate.weight" for i in range(2)}
    assert "blocks.*.moe.router.gate.weight" in rest
    tied = write(load(text=SPEC), GraphOptions(target="ort-cpu", quantize="int4"))
    assert "token_embedding.weight" in tied.quantized  # rows and head read the same numbers
    assert "token_embedding.weight" not in tied.weights
    kept = write(load(text=SPEC), GraphOptions(target="ort-cpu", quantize="int4", keep=["token_embedding.*"]))
    assert "token_embedding.weight" in kept.weights
    initializers = {x.name for x in made.model.graph.initializers.values()}
    assert not initializers & set(made.quantized), "a matrix of few bits is not stored whole too"


def test_what_a_router_is_made_of_is_a_router() -> None:
    """Experts and a recurrence whose results choose experts; those that act on the output otherwise are none."""
    text = """
block expert(x: [..., width]) -> [..., width] {
  return x -> linear(width, bias: false) as a
}

model m(x: float[batch, time, 8]) -> float[batch, time, 8] {
  first, at = x -> linear(2) as first -> softmax -> topk(1)
  near = experts(x, first, at, expert, 2) as near
  state = scan h: [batch, 8] = 0 for y in near {
    h = (y -> linear(8) as step) + h
    emit h
  }
  share, chosen = state -> linear(4) as second -> softmax -> topk(2)
  return experts(x -> linear(8) as map, share, chosen, expert, 4) as far
}
"""
    found = routers(flatten(load(text=text)))
    assert found == {f"{name}.weight" for name in ("first", "near.a", "step", "second")}


def test_matrices_within_a_scan_are_no_routers() -> None:
    model = load(text=RECURRENT)
    assert routers(flatten(model)) == frozenset()
    few = write(model, GraphOptions(target="ort-cpu", quantize="int4")).quantized
    assert {*few} == {"embedding.weight", "linear.weight"}, "those of a scan keep their type"


def test_what_is_kept() -> None:
    model = load(text=EXPERTS)
    made = write(
        model, GraphOptions(target="ort-cpu", quantize="int4", keep=["head.*", "token_embedding.*", "blocks.0.*"])
    )
    assert {"head.weight", "token_embedding.weight"} <= {*made.weights}
    assert made.quantized
    assert all(p.startswith("blocks.1.") for p in made.quantized)
    with pytest.raises(ArchError, match=r"E0504\]: `--keep haed\.\*`"):
        write(model, GraphOptions(target="ort-cpu", quantize="int4", keep=["head.*", "haed.*"]))


def test_nothing_to_quantize_is_an_error() -> None:
    text = "model m(x: [batch, time, 8]) { return x -> layernorm }"
    with pytest.raises(ArchError, match=r"E0504\]: the model has no weight matrix"):
        write(load(text=text), GraphOptions(target="ort-cpu", quantize="int8"))


def test_few_bits_are_few_bytes(tmp_path: Path) -> None:
    sizes = {}
    for quantize in (None, "int8", "int4"):
        where = tmp_path / f"{quantize}.onnx"
        made = to_onnx(text=SPEC.replace("48", "1024"), output=where, target="ort-cpu", quantize=quantize, seed=0)
        assert made.weights is not None
        sizes[quantize] = made.weights.stat().st_size
    assert sizes["int4"] < sizes["int8"] < sizes[None]


# --- verify -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["portable", "ort-cpu", "ort-cuda"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("text", [SPEC, EXPERTS, MANY, OUTER], ids=["dense", "experts", "many experts", "inputs"])
def test_pytorch_and_onnxruntime_agree(text: str, dtype: str, target: str) -> None:
    report = verify(load(text=text), **options(dtype=dtype, target=target, decode=False))
    assert report.agrees, report
    assert all(0 <= d.relative <= report.tolerance for d in report.outputs.values())
    assert {d.dtype for d in report.outputs.values()} == {dtype}


def test_few_experts_stand_one_by_one_and_many_in_a_loop() -> None:
    def operators(text: str) -> set[str]:
        return {node.op_type for node in write(load(text=text), GraphOptions()).model.graph}

    assert {"If"} == operators(EXPERTS) & {"If", "Loop"}
    assert {"Loop"} == operators(MANY) & {"If", "Loop"}


@pytest.mark.parametrize("target", ["portable", "ort-cpu"])
def test_heads_stay_where_they_are(target: str) -> None:
    nodes = list(write(load(text=SPEC), GraphOptions(target=target)).model.graph)
    moved = [n for n in nodes if n.op_type == "Transpose" and len(n.attributes["perm"].value) == 4]
    assert not moved
    assert all(n.attributes["num_heads"].value in (2, 4) for n in nodes if n.op_type == "RotaryEmbedding")
    assert sum(n.op_type == "RotaryEmbedding" for n in nodes) == 2 * 2


def test_a_step_copies_no_cache() -> None:
    graph = write_steps(load(text=SPEC), GraphOptions())["model"].model.graph
    kept = [x for x in graph.outputs if x.name.startswith("present.")]
    assert len(kept) == 2 * 2
    assert {x.producer().op_type for x in kept} == {"Concat"}


def test_weights_of_a_file_are_the_ones_that_are_run(tmp_path: Path) -> None:
    from archdsl.api import init_weights

    model = load(text=SPEC)
    init_weights(model, tmp_path / "w.safetensors", seed=5, dtype="float32")
    drawn, read = (verify(model, **options(seed=5, weights=w)) for w in (None, tmp_path / "w.safetensors"))
    assert read.outputs == drawn.outputs
    # and of another type than the file's
    assert verify(model, **options(dtype="float16", weights=tmp_path / "w.safetensors")).agrees


def test_a_wrong_graph_disagrees(monkeypatch: pytest.MonkeyPatch) -> None:
    right = onnx.run_session
    monkeypatch.setattr(verification, "run_session", lambda *a: {k: v * 1.01 for k, v in right(*a).items()})
    report = verify(load(text=SPEC), **options())
    assert not report.agrees
    assert report.outputs["output"].relative == pytest.approx(0.01, rel=1e-3)
    assert verify(load(text=SPEC), **options(tolerance=0.02)).agrees


def test_numbers_that_are_nan_on_both_sides_are_counted() -> None:
    a, b = np.array([1.0, np.nan, np.nan]), np.array([1.0, np.nan, 2.0])
    assert (difference(a, a).nan, difference(a, a).relative) == (2, 0)
    assert (difference(a, b).nan, difference(a, b).relative) == (1, np.inf)


@pytest.mark.slow
def test_verify_says_what_is_nan() -> None:
    report = verify(load(text=NOT_A_NUMBER), **options(decode=False))
    (said,) = report.outputs.values()
    assert said.nan == np.prod(said.shape)
    assert "numbers are NaN on both sides, and are not compared" in plain_text(*verify_view(report))


def test_differences() -> None:
    a = np.array([1.0, -4.0, np.inf, np.nan])
    assert difference(a, a).absolute == 0
    moved = difference(a + np.array([0.5, 0, 0, 0]), a)
    assert (moved.absolute, moved.relative) == (0.5, 0.125)
    assert difference(np.array([np.nan]), np.array([1.0])).relative == np.inf
    assert difference(np.array([np.inf]), np.array([-np.inf])).absolute == np.inf
    assert difference(np.array([1, 2, 3, 5]), np.array([1, 2, 3, 4])).relative == 0.25
    assert difference(np.zeros((0, 2)), np.zeros((0, 2))).relative == 0
    with pytest.raises(ValueError, match="shapes differ"):
        difference(np.zeros(2), np.zeros(3))


def test_inputs_are_of_several_lengths() -> None:
    model = load(text=OUTER)
    drawn = draw_inputs(model, 8, 20, 0, lengths=True)
    lengths = drawn["padding"].sum(1)
    assert len(set(lengths.tolist())) > 1
    assert lengths.min() >= 1
    assert (np.sort(~drawn["padding"], axis=1) == ~drawn["padding"]).all(), "what is real comes first"
    assert draw_inputs(model, 8, 20, 0)["padding"].all()
    assert all((drawn[k] == v).all() for k, v in draw_inputs(model, 8, 20, 0, lengths=True).items())


@pytest.mark.parametrize(("said", "threads"), [("1", 1), ("2", 2), ("", 0), ("0", 0), ("2,1", 0), ("9" * 5000, 0)])
def test_as_many_threads_as_the_environment_says(
    said: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`OMP_NUM_THREADS`, as PyTorch reads it; 0 leaves it to onnxruntime."""
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    made = write(load(text="model m(x: [batch, 4]) { return relu(x) }"), GraphOptions())
    session = open_session(made, tmp_path / "none", "cpu")
    assert session.get_session_options().intra_op_num_threads == threads


def test_bfloat16_is_float32_outside(tmp_path: Path) -> None:
    import onnx_ir as ir

    from archdsl.backends.onnx.store import serialized

    made = write(
        load(text="model m(x: [batch, 4]) { return x -> cast(float32) -> cast_like(x) }"),
        GraphOptions(dtype="bfloat16"),
    )
    onnx._outside_in_float32(made)
    assert {x.dtype for x in (*made.model.graph.inputs, *made.model.graph.outputs)} == {ir.DataType.FLOAT}
    (tmp_path / "none").touch()
    session = onnx.open_session(made, tmp_path / "none", "cpu")
    x = np.float32([[1, 1 / 3, -2e9, 1e-30]])
    (found,) = onnx.run_session(session, {"x": x}).values()
    assert (found == torch.from_numpy(x).bfloat16().float().numpy()).all()
    assert serialized(made)
    step = write_steps(load(text=SPEC), GraphOptions(dtype="bfloat16"))["model"]
    onnx._outside_in_float32(step)
    graph = step.model.graph
    kept = {x.name: x.dtype for x in (*graph.inputs, *graph.outputs) if "." in str(x.name)}
    assert len(kept) == 8, "keys and values of two layers, those before and those after"
    assert {*kept.values()} == {ir.DataType.BFLOAT16}
    assert graph.outputs[0].dtype == ir.DataType.FLOAT


# --- step by step -----------------------------------------------------------------------------------------------------

LATENT = """\
block layer(x: [batch, time, width]) -> [batch, time, width] {
  h = x -> rmsnorm
  x += h -> mla(heads: 2, kv_rank: 16, nope_dim: 32, rope_dim: 8, v_dim: 32, q_rank: 32, mask: causal, position: rope)
  x += x -> rmsnorm -> swiglu(hidden: 40)
}

model latent {
  vocab:   48
  context: 32
  width:   32
  blocks:  2 * layer
  head:    lm
}
"""
RECURRENT = """\
model recurrent(tokens: token[batch, time]) -> [batch, time, 48] {
  return tokens -> embedding(48, 16) -> lstm(16) -> linear(48)
}
"""
ENCODED = """\
block reader(x: [batch, time, width]) -> [batch, time, width] {
  return x + (x -> rmsnorm -> mha(heads: 2))
}
block writer(x: [batch, time, width], memory: [batch, source, width]) -> [batch, time, width] {
  x += x -> rmsnorm -> mha(heads: 2, mask: causal)
  x += mha(heads: 2)(x -> rmsnorm, memory) as cross
  return x
}
model encoded(sounds: [batch, frames, 16], tokens: token[batch, time]) -> [batch, time, 48] {
  memory = sounds -> reader as encoder
  y = writer(tokens -> embedding(48, 16), memory)
  return y -> linear(48) as head
}
"""
LOOKING = "model looking(x: [batch, time, 16]) -> [batch, time, 16] { return x + (x -> mha(heads: 2)) }\n"
PARTED = """\
model parted(tokens: token[batch, time]) -> [batch, time, 48] {
  assert time % 4 == 0
  return tokens -> embedding(48, 16) -> mha(heads: 2, mask: causal) -> linear(48)
}
"""


@pytest.mark.parametrize(("dtype", "target"), [("float32", "portable"), ("float16", "ort-cpu")])
@pytest.mark.parametrize(
    "text", [SPEC, EXPERTS, LATENT, RECURRENT, ENCODED], ids=["dense", "experts", "latent", "recurrent", "encoder"]
)
def test_decoding_agrees_with_pytorch(text: str, dtype: str, target: str) -> None:
    report = verify(load(text=text), **options(dtype=dtype, target=target, time=9))
    assert report.agrees, report
    assert report.no_decode is None
    assert {n: d.shape[1] for n, d in report.decode.items()} == {"prefill": 5, "steps": 4, "left": 9, "right": 9}
    assert all(0 <= d.relative <= report.tolerance for d in report.decode.values())
    assert report.no_torch_decode is None
    of_torch = {n: d.shape[1] for n, d in report.torch_decode.items()}
    assert of_torch == {"prefill": 5, "steps": 4, "static": 9, "left": 4, "right": 4}


@pytest.mark.parametrize("quantize", ["int4", "int8"])
def test_decoding_reads_few_bits_as_they_are_meant(quantize: str) -> None:
    """Also where a step keeps what keys and values are made from."""
    for text in (EXPERTS, EVEN, LATENT):
        report = verify(load(text=text), **options(target="ort-cpu", quantize=quantize, tolerance=2e-5))
        assert report.agrees, report
        assert report.decode


@pytest.mark.parametrize(("time", "batch"), [(1, 2), (2, 1), (3, 3), (20, 3)])
def test_a_prompt_and_the_tokens_after_it(time: int, batch: int) -> None:
    report = verify(load(text=SPEC), **options(time=time, batch=batch))
    assert report.agrees
    assert report.decode["prefill"].shape == [batch, time - time // 2, 64]
    assert ("steps" in report.decode) == (time > 1)
    assert ("left" in report.decode) == ("right" in report.decode) == (time > 2)
    assert report.torch_decode.keys() == report.decode.keys() | {"static"}


@pytest.mark.parametrize("wrong", ["steps", "left", "right"])
def test_a_wrong_step_disagrees(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from archdsl.run.onnx_decoder import Decoder

    right = Decoder.run

    def run(self: Decoder, inputs: Any, chunks: Any, mask: Any = None) -> Any:
        found = right(self, inputs, chunks, mask)
        kind = "steps" if mask is None else "right" if mask[-1, 0] else "left"
        if kind == wrong:
            found[0][-1, -1] *= 1.5
        return found

    monkeypatch.setattr(Decoder, "run", run)
    report = verify(load(text=SPEC), **options())
    assert not report.agrees
    assert {n for n, d in report.decode.items() if d.relative > report.tolerance} == {wrong}
    assert all(d.relative <= report.tolerance for d in report.outputs.values())


@pytest.mark.parametrize(
    ("was", "becomes", "wrong"),
    [
        ("(0 if self.first else self.start) + ", "0 * (0 if self.first else self.start) + ", {"steps", "static"}),
        ("self.mask = self.keys <= self.positions[:, None, :, None]", "pass", {"static"}),
        ("None if shortest == longest else lengths", "None", {"left", "right"}),
        ("tokens = tokens.gather(1, real.argsort(dim=1, descending=True, stable=True))", "pass", {"left"}),
        ("cache.update(k, v)", "cache.update(2 * k, v)", {"prefill", "steps", "static"}),
    ],
)
def test_a_wrong_step_of_pytorch_disagrees(
    was: str, becomes: str, wrong: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from archdsl.backends import torch as lowering

    right = lowering.emit

    def emit(model: Model, *sections: Any) -> str:
        source = right(model, *sections)
        assert not sections or source.count(was) == 1
        return source.replace(was, becomes)

    monkeypatch.setattr(lowering, "emit", emit)
    report = verify(load(text=SPEC), **options(time=12, tolerance=1e-5))
    assert not report.agrees
    assert {n for n, d in report.torch_decode.items() if d.relative > report.tolerance} >= wrong
    assert all(d.relative <= report.tolerance for d in (*report.outputs.values(), *report.decode.values()))


def test_a_step_of_pytorch_that_fails_disagrees(monkeypatch: pytest.MonkeyPatch) -> None:
    from archdsl.run.torch_decoder import TorchDecoder

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("The size of tensor a must match\nthe size of tensor b")

    monkeypatch.setattr(TorchDecoder, "stream", fail)
    report = verify(load(text=SPEC), **options())
    assert not report.agrees
    assert report.torch_decode.keys() == {"prefill", "steps", "static"}
    assert report.no_torch_decode == (
        "the emitted steps failed: RuntimeError: The size of tensor a must match the size of tensor b"
    )


def test_padding_that_is_read_as_a_tensor_decodes() -> None:
    report = verify(load(text=OUTER), **options())
    assert report.agrees, report.no_torch_decode


@pytest.mark.parametrize(
    "text",
    [
        "model m(self: token[batch, time], lambda: [batch, time, 8]) { return (self -> embedding(9, 8)) + lambda }",
        "model m(x: token[batch, time], input: [batch, 1, 8]) { return (x -> embedding(9, 8)) + input }",
    ],
    ids=["not Python's", "once"],
)
def test_inputs_of_any_name_are_given(text: str) -> None:
    from archdsl.run.smoke import run

    given = {k: v for k, v in options().items() if k != "options"}
    assert run(load(text=text), **given, dtype="float32").outputs["output"].shape == [2, 7, 8]
    report = verify(load(text=text), **options())
    assert report.agrees
    assert report.torch_decode.keys() >= {"prefill", "steps", "static"}


@pytest.mark.parametrize("other", ["y = x * 2", "y = x -> linear(8) as other"])
@pytest.mark.parametrize("turn", range(3))
def test_modules_of_training_alone_keep_their_numbers(turn: int, other: str) -> None:
    """In the turn of a loop that has one of them, which ONNX leaves out."""
    model = load(
        text=f"""model m(x: [batch, 8]) {{
          for i in 3 {{
            if i == {turn} {{
              if training {{ y = x -> linear(8) as step }} else {{ {other} }}
              x = y
            }} else {{ x = x -> linear(8) as step }}
          }}
          return x
        }}"""
    )
    assert verify(model, **options()).agrees
    paths = {w.path for node in flatten(model).nodes for w in getattr(node, "weights", {}).values()}
    assert {p for p in paths if p.startswith("step.")} == {
        f"step.{i}.{name}" for i in {0, 1, 2} - {turn} for name in ("weight", "bias")
    }


def test_what_does_not_decode_says_why() -> None:
    whole = verify(load(text=LOOKING), **options())
    assert whole.agrees
    assert whole.decode == {}
    assert whole.no_decode is not None
    assert "step by step" in whole.no_decode
    assert (whole.torch_decode, whole.no_torch_decode) == ({}, whole.no_decode)
    unasked = verify(load(text=SPEC), **options(decode=False))
    assert (unasked.decode, unasked.no_decode) == ({}, onnx.NOT_ASKED)
    assert (unasked.torch_decode, unasked.no_torch_decode) == ({}, onnx.NOT_ASKED)
    assert unasked.outputs == verify(load(text=SPEC), **options()).outputs


def test_rows_that_a_model_does_not_take_are_not_padded() -> None:
    report = verify(load(text=PARTED), **options(time=8))
    assert report.agrees
    assert list(report.decode) == ["prefill", "steps"]
    assert list(report.torch_decode) == ["prefill", "steps", "static"]


# --- the device -------------------------------------------------------------------------------------------------------


def demanded(device: str, dtype: str = "float32") -> str:
    with pytest.raises(ArchError) as problem:
        onnx.demand_runtime(device, dtype)
    (found,) = problem.value.diagnostics
    return f"{found.code} {found.message}"


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert demanded("abacus").startswith("E0502")
    assert demanded("cuda:x").startswith("E0502")
    assert demanded("cpu:1").startswith("E0502")
    assert demanded("cpu", "bfloat16").startswith("E0503")

    def no_driver(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", no_driver)
    assert "no driver of CUDA" in demanded("cuda")
    monkeypatch.setattr("ctypes.CDLL", lambda name: None)
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    assert "knows no CUDA" in demanded("cuda")
    assert capfd.readouterr() == ("", "")


def test_missing_libraries_of_cuda_are_named_without_noise(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    made = write(load(text="model m(x: [batch, 4]) { return x * 2 }"), GraphOptions())
    (tmp_path / "none").touch()
    if torch.cuda.is_available():
        assert onnx.open_session(made, tmp_path / "none", "cuda").get_providers()[0].startswith("CUDA")
        return
    with pytest.raises(ArchError, match=r"E0502\]: onnxruntime cannot use `cuda`"):
        onnx.open_session(made, tmp_path / "none", "cuda")
    assert capfd.readouterr() == ("", "")


def test_a_model_that_does_not_fit_is_refused_before_it_is_drawn() -> None:
    with pytest.raises(ArchError, match=r"E0503\]: `llama3_405b` has"):
        onnx.run(load("llama3_405b"), **options())


# --- the commands -----------------------------------------------------------------------------------------------------


@pytest.fixture
def command(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Done]:
    """Run a command line in this process, in a folder with `tiny.arch`."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.arch").write_text(SPEC)
    return lambda line: run(*shlex.split(line))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--to torch -o m.py", "experts: on CUDA the CPU waits"),
        ("--target portable -o m.onnx", "`--target ort-cuda` has one operator"),
        ("--target ort-cuda --dtype float16 -o m.onnx", ""),
        ("--target ort-cpu -o m.onnx", ""),
    ],
)
def test_compile_says_what_waits_on_cuda(command: Callable[[str], Done], options: str, said: str) -> None:
    sizes = " ".join(f"--set {name}={value}" for name, value in tables()["mixtral:mixtral_8x7b"].items())
    status, _, err = command(f"compile mixtral {sizes} {options}")
    assert status == 0
    assert said in err
    assert ("on CUDA" in err) == bool(said)


def test_compile_writes_a_graph_and_says_what_it_lacks(command: Callable[[str], Done]) -> None:
    status, out, err = command("compile tiny.arch --to onnx -o new --set layers=3 --dtype float16")
    assert (status, out) == (0, "")
    said = re.fullmatch(r"archdsl: new/model\.onnx has no weights yet: `archdsl (.+)` puts them where it looks\n", err)
    assert said
    assert command(said[1]) == (0, "", "")
    assert command("compile tiny.arch --to onnx -o new/ --set layers=3 --dtype float16") == (0, "", "")
    from archdsl.backends.onnx.store import Checkpoint
    from archdsl.weights.safetensors import saved

    Checkpoint(Path("new/model.safetensors")).demand(saved(load("tiny.arch", set={"layers": 3})))
    assert command("compile tiny.arch --to onnx -o one.onnx --seed 2") == (0, "", "")
    assert {p.name for p in Path().glob("one*")} == {"one.onnx", "one.safetensors"}


def test_compile_says_what_is_quantized(command: Callable[[str], Done]) -> None:
    line = "compile tiny.arch --to onnx -o q.onnx --seed 0 --target ort-cpu --quantize int8 --keep 'blocks.0.*'"
    status, out, err = command(line)
    assert (status, out) == (0, "")
    assert re.match(r"archdsl: int8: 8 weight matrices, [\d,]+ of [\d,]+ parameters; in float32: blocks\.", err)
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "line",
    [
        "compile tiny.arch --to onnx",
        "compile tiny.arch --to onnx -o -",
        "compile tiny.arch --to onnx -o model.pb",
        "compile tiny.arch --to onnx -o missing/there/",
        "compile tiny.arch --to onnx -o new/ --weights none",
        "compile tiny.arch --to onnx -o new/ --store inline",
        "compile tiny.arch --to onnx -o m.onnx --seed 1 --weights w",
        "compile tiny.arch --to onnx -o m.onnx --seed 1 --keep 'head.*'",
        "compile tiny.arch --to onnx -o m.onnx --store inline",
        "compile tiny.arch --to onnx -o m.onnx --target ort-tpu",
        "compile tiny.arch --to onnx -o m.onnx --quantize int3",
        "compile tiny.arch --to torch --dtype float16",
        "compile tiny.arch --to torch --seed 1",
        "compile tiny.arch --to torch --store safetensors",
        "run tiny.arch --target ort-cpu",
        "run tiny.arch --quantize int4",
        "run tiny.arch --no-decode",
        "run tiny.arch --backend onnx --device abacus",
        "run tiny.arch --backend onnx --dtype bfloat16",
        "run tiny.arch --backend onnx --quantize int4",
        "run tiny.arch --backend onnx --keep x",
        "run tiny.arch --backend onnx --weights none",
        "verify tiny.arch --tolerance -1",
        "verify tiny.arch --seq 33",
        "verify deepseek_v3",
    ],
)
def test_wrong_command_lines(command: Callable[[str], Done], line: str) -> None:
    status, out, err = command(line)
    assert (status, out) == (2, "")
    assert err.strip()
    assert "Traceback" not in err
    assert [p.name for p in Path().iterdir()] == ["tiny.arch"]


def test_run_in_onnxruntime(command: Callable[[str], Done]) -> None:
    status, out, err = command("run tiny.arch --backend onnx --batch 2 --seq 5 --target ort-cpu --json")
    report = json.loads(out)
    assert (status, err) == (0, "")
    assert report["inputs"] == {"tokens": {"dtype": "int64", "shape": [2, 5]}}
    assert report["outputs"] == {"output": {"dtype": "float32", "shape": [2, 5, 64]}}
    assert report["providers"] == ["CPUExecutionProvider"]
    whole = {"write", "weights", "load", "first", "forward"}
    assert set(report["milliseconds"]) == {*whole, "prefill", "token"}
    assert (report["prompt"], report["no_decode"]) == (3, None)
    status, out, _ = command("run tiny.arch --backend onnx")
    assert status == 0
    assert "float32 on cpu, target portable" in out
    assert re.search(r"time +prefill +[\d.]+ ms, 16 tokens\ntime +token +[\d.]+ ms\n$", out)
    status, out, _ = command("run tiny.arch --backend onnx --no-decode --json")
    report = json.loads(out)
    assert (status, set(report["milliseconds"]), report["prompt"]) == (0, whole, None)


def test_verify_says_yes_or_no(command: Callable[[str], Done]) -> None:
    status, out, err = command("verify tiny.arch --seq 9")
    assert (status, err) == (0, "")
    assert out.endswith("PyTorch and onnxruntime agree: tolerance 0.0001\n")
    status, out, err = command("verify tiny.arch --seq 9 --tolerance 1e-12 --json")
    report = json.loads(out)
    assert (status, err, report["agrees"]) == (1, "", False)
    assert report["outputs"]["output"]["shape"] == [2, 9, 64]
    assert {n: d["shape"] for n, d in report["decode"].items()} == {
        "prefill": [2, 5, 64],
        "steps": [2, 4, 64],
        "left": [2, 9, 64],
        "right": [2, 9, 64],
    }
    assert (report["no_decode"], report["no_torch_decode"]) == (None, None)
    assert report["torch_decode"].keys() == {"prefill", "steps", "static", "left", "right"}
    status, out, err = command("verify tiny.arch --seq 9 --no-decode")
    assert (status, "prefill" in out, "decoded" in out) == (0, False, False)
    Path("looking.arch").write_text(LOOKING)
    status, out, err = command("verify looking.arch --seq 9")
    assert (status, err) == (0, "")
    assert "\nnot decoded: `looking` cannot be decoded step by step: " in out
    status, out, err = command("verify tiny.arch --seq 9 --target ort-cpu --quantize int4")
    assert (status, err) == (0, "")
    assert "rounding" in out


BY_HEADS = """\
block layer(heads = 2)(x: [batch, time, width]) -> [batch, time, width] {
  q = x -> linear(width) as q -> split_heads(heads) -> flatten(0, 1)
  k = x -> linear(width) as k -> split_heads(heads) -> flatten(0, 1)
  v = x -> linear(width) as v -> split_heads(heads) -> flatten(0, 1)
  y = sdpa(q, k, v, mask: causal) -> unflatten(0, batch, heads) -> merge_heads -> linear(width) as out
  return x + y
}
model by_heads { vocab: 50  context: 32  width: 8  blocks: 2 * layer  norm: layernorm  head: lm }
"""


def test_caches_of_batch_times_heads_are_decoded() -> None:
    """[batch * heads, time, features], written by hand: the first cache is as large as the plan says."""
    report = verify(load(text=BY_HEADS), **options(batch=3, time=9))
    assert report.agrees, report
    assert report.decode.keys() == {"prefill", "steps"}
    assert "its first axis is not that of the batch" in str(report.no_torch_decode)


def test_rows_hold_several_documents(command: Callable[[str], Done]) -> None:
    text = """model m(tokens: token[batch, time], doc: documents[batch, time]) {
      x = tokens -> embedding(9, 8)
      x = x -> mha(heads: 2, mask: causal & documents(doc))
      return x -> linear(9)
    }"""
    Path("documents.arch").write_text(text)
    given = draw_inputs(load("documents.arch"), 8, 32, 0, lengths=True)["doc"]
    steps = np.diff(given, axis=-1)
    assert {*steps.ravel().tolist()} == {0, 1}
    assert (steps.sum(axis=-1) > 0).any()
    report = json.loads(command("verify documents.arch --seq 12 --json").out)
    assert report["agrees"]
    assert report["decode"].keys() == {"prefill", "steps", "left", "right"}


def test_a_model_beyond_its_context_is_told_so(command: Callable[[str], Done]) -> None:
    status, _, err = command("verify tiny.arch --seq 40")
    assert status == 2
    assert "error[E0503]" in err
    assert "context" in err


@pytest.mark.parametrize(
    ("chosen", "tied"),
    [
        ("best, at = topk(x -> linear(16) -> floor, 4)", ["topk"]),
        ("values, at = sort(x -> linear(64) -> floor, descending: true)", ["sort"]),
        ("at = argsort(x -> linear(64) -> floor)", ["argsort"]),
        ("best, at = topk(x -> linear(16), 4)", []),
        ("at = argmax(x -> linear(64) -> floor)", []),
    ],
)
def test_of_equal_values_that_of_the_lower_index_is_compared(chosen: str, tied: list[str]) -> None:
    report = verify(load(text=f"model m(x: [batch, time, 8]) {{ {chosen}  return at }}"), **options(time=9))
    assert report.agrees
    assert report.ties == tied


@pytest.mark.parametrize("name", HEADS)
def test_heads_lie_in_the_width_as_the_spec_says(name: str) -> None:
    cut, joined = HEADS[name]
    heads = "\n".join(f"{n} = x -> linear(16) as {n} -> unflatten(2, 4, 4) -> {cut}" for n in "qkv")
    text = f"""model m(x: [batch, time, 8]) -> [batch, time, 16] {{
      {heads}
      return sdpa(q, k, v, mask: causal) -> {joined} -> flatten(2, 3)
    }}"""
    assert verify(load(text=text), **options(target="ort-cpu", decode=False)).agrees
