"""ONNX files: where the weights lie, that they are the model's, and that nothing is left half written."""

import ast
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
import torch
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnx_tools import session
from safetensors.torch import load_file, save_file
from zoo import tiny

import archdsl
from archdsl.api import init_weights, load, to_torch
from archdsl.backends.onnx import store
from archdsl.backends.onnx.targets import GraphOptions
from archdsl.backends.onnx.write import write
from archdsl.diagnostics import ArchError
from archdsl.packages import install
from archdsl.weights.safetensors import arrays

SPEC = """\
block layer(heads, kv_heads) {
  attention: gqa(heads: heads, kv_heads: kv_heads)
  mask:      causal
  position:  rope
  ffn:       swiglu(hidden: 48)
  norm:      rmsnorm
}

model tiny(layers = 2) {
  vocab:   64
  context: 32
  width:   32
  blocks:  layers * layer(heads: 4, kv_heads: 2)
  norm:    rmsnorm
  head:    lm(tied: true)
}
"""
TOKENS = np.arange(10, dtype=np.int64).reshape(2, 5)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def outputs(path: Path) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = session(path).run(None, {"input_ids": TOKENS})[0]
    return found


def in_torch(weights: str) -> np.ndarray[Any, Any]:
    module = to_torch(load(text=SPEC)).eval()
    module.load_state_dict({k: t.float() for k, t in load_file(weights).items()})
    with torch.no_grad():
        found: np.ndarray[Any, Any] = module(torch.from_numpy(TOKENS)).numpy()
    return found


def locations(path: Path) -> set[str]:
    graph = onnx.load(path, load_external_data=False).graph
    return {e.value for t in graph.initializer for e in t.external_data if e.key == "location"}


def files() -> list[str]:
    return sorted(str(p.relative_to(".")) for p in Path().rglob("*") if p.is_file())


# --- stores -----------------------------------------------------------------------------------------------------------


def test_drawn_weights_lie_beside_the_graph_for_both_back_ends() -> None:
    made = archdsl.to_onnx(text=SPEC, output="out/", seed=3)
    assert (made.graphs, made.weights) == ((Path("out/model.onnx"),), Path("out/model.safetensors"))
    assert files() == ["out/model.onnx", "out/model.safetensors"]
    init_weights(load(text=SPEC), Path("same.safetensors"), seed=3, dtype="float32")
    assert Path("same.safetensors").read_bytes() == Path("out/model.safetensors").read_bytes()
    np.testing.assert_allclose(outputs(made.graphs[0]), in_torch("out/model.safetensors"), atol=1e-5)
    onnx.checker.check_model("out/model.onnx", full_check=True)


def test_a_graph_alone_refers_to_what_init_will_write() -> None:
    made = archdsl.to_onnx(text=SPEC, output="tiny.onnx")
    assert files() == ["tiny.onnx"]
    assert (made.weights, made.has_weights) == (Path("tiny.safetensors"), False)
    init_weights(load(text=SPEC), Path("tiny.safetensors"), seed=1, dtype="float32")
    np.testing.assert_allclose(outputs(Path("tiny.onnx")), in_torch("tiny.safetensors"), atol=1e-5)
    assert archdsl.to_onnx(text=SPEC, output="tiny.onnx").has_weights


@pytest.mark.parametrize(("where", "left"), [("onnx_data", ["m.onnx", "m.onnx_data"]), ("inline", ["m.onnx"])])
def test_the_other_stores_hold_the_same(where: Any, left: list[str]) -> None:
    archdsl.to_onnx(text=SPEC, output="m.onnx", seed=3, store=where)
    assert files() == left
    assert locations(Path("m.onnx")) == set(left[1:])
    init_weights(load(text=SPEC), Path("w"), seed=3, dtype="float32")
    np.testing.assert_allclose(outputs(Path("m.onnx")), in_torch("w"), atol=1e-5)
    onnx.checker.check_model("m.onnx", full_check=True)


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_weights_of_few_bits_are_the_same_in_every_store(quantize: Any) -> None:
    found = {}
    for where in ("inline", "onnx_data"):
        options: dict[str, Any] = {"quantize": quantize, "target": "ort-cpu"}
        made = archdsl.to_onnx(text=SPEC, output=f"{where}.onnx", seed=3, store=where, **options)
        found[where] = outputs(made.graphs[0])
    assert locations(Path("inline.onnx")) == set()
    assert np.abs(found["inline"]).max() > 0
    np.testing.assert_array_equal(found["inline"], found["onnx_data"])


def test_a_checkpoint_beside_the_graph_is_referred_to_as_it_lies() -> None:
    init_weights(load(text=SPEC), Path("drawn"), seed=3, dtype="float32")
    state = load_file("drawn")
    Path("out").mkdir()
    save_file(dict(reversed(state.items())), "out/mine.safetensors", {"of": "mine"})  # another order, another header
    before = Path("out/mine.safetensors").read_bytes()
    archdsl.to_onnx(text=SPEC, output="out", weights="out/mine.safetensors")
    assert files() == ["drawn", "out/mine.safetensors", "out/model.onnx"]
    assert locations(Path("out/model.onnx")) == {"mine.safetensors"}
    assert Path("out/mine.safetensors").read_bytes() == before
    np.testing.assert_allclose(outputs(Path("out/model.onnx")), in_torch("drawn"), atol=1e-5)


@pytest.mark.parametrize("theirs", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("ours", ["float32", "float16", "bfloat16"])
def test_a_checkpoint_of_elsewhere_is_converted(ours: str, theirs: str) -> None:
    init_weights(load(text=SPEC), Path("drawn"), seed=3, dtype="float32")
    state = {k: t.to(getattr(torch, theirs)) for k, t in load_file("drawn").items()}
    Path("far").mkdir()
    save_file(state, "far/w.safetensors")
    archdsl.to_onnx(text=SPEC, output="m.onnx", weights="far/w.safetensors", dtype=ours)
    found = load_file("m.safetensors")
    assert list(found) == list(state)
    for name, tensor in state.items():
        assert torch.equal(found[name], tensor.float().to(getattr(torch, ours))), name
    assert locations(Path("m.onnx")) == {"m.safetensors"}


def test_a_link_is_not_followed_out_of_the_directory() -> None:
    init_weights(load(text=SPEC), Path("far.safetensors"), seed=3, dtype="float32")
    Path("out").mkdir()
    Path("out/near.safetensors").symlink_to(Path("far.safetensors").resolve())
    archdsl.to_onnx(text=SPEC, output="out/", weights="out/near.safetensors")
    assert locations(Path("out/model.onnx")) == {"model.safetensors"}
    assert outputs(Path("out/model.onnx")).shape == (2, 5, 64)


def test_a_tied_weight_is_one_tensor() -> None:
    archdsl.to_onnx(text=SPEC, output="m.onnx", seed=0)
    names = [t.name for t in onnx.load("m.onnx", load_external_data=False).graph.initializer]
    assert names.count("token_embedding.weight") == 1
    assert len(names) == len(set(names))
    assert set(load_file("m.safetensors")) <= set(names)


# --- what is refused --------------------------------------------------------------------------------------------------


def refused(code: str, **options: Any) -> ArchError:
    before = {p: Path(p).read_bytes() for p in files()}
    with pytest.raises(ArchError) as problem:
        archdsl.to_onnx(**{"text": SPEC, "output": "m.onnx", **options})
    assert [d.code for d in problem.value.diagnostics] == [code]
    assert {p: Path(p).read_bytes() for p in files()} == before
    return problem.value


@pytest.mark.parametrize(
    ("code", "options"),
    [
        ("E0504", {"store": "inline"}),
        ("E0504", {"store": "onnx_data"}),
        ("E0504", {"target": "ort-cpu", "dtype": "bfloat16"}),
        ("E0504", {"quantize": "int4", "seed": 0}),
        ("E0504", {"quantize": "int4", "target": "ort-cpu"}),
        ("E0504", {"output": "m.txt"}),
        ("E0503", {"weights": "none.safetensors"}),
    ],
    ids=str,
)
def test_what_cannot_be_written(code: str, options: dict[str, Any]) -> None:
    refused(code, **options)


def test_weights_of_another_model_are_refused() -> None:
    init_weights(load(text=SPEC, set={"layers": 1}), Path("w"), seed=0, dtype="float32")
    problem = refused("E0503", weights="w")
    assert any("blocks.1." in note for d in problem.diagnostics for note in d.notes)
    Path("w").write_bytes(b"nonsense")
    refused("E0503", weights="w")
    init_weights(load(text=SPEC), Path("w"), seed=0, dtype="float32")
    state = load_file("w")
    save_file({**state, "norm.weight": state["norm.weight"].long()}, "w")
    refused("E0503", weights="w")


def test_a_file_that_ends_too_soon_is_refused() -> None:
    init_weights(load(text=SPEC), Path("w"), seed=0, dtype="float32")
    Path("w").write_bytes(Path("w").read_bytes()[:-4])
    refused("E0503", weights="w")


def test_numbers_beyond_float16_are_refused() -> None:
    init_weights(load(text=SPEC), Path("w"), seed=0, dtype="float32")
    save_file({k: t + 1e6 if k == "norm.weight" else t for k, t in load_file("w").items()}, "w")
    problem = refused("E0503", weights="w", dtype="float16")
    assert "norm.weight" in str(problem.diagnostics[0].message)
    archdsl.to_onnx(text=SPEC, output="m.onnx", weights="w", dtype="bfloat16")


def test_the_checkpoint_is_never_overwritten() -> None:
    init_weights(load(text=SPEC), Path("m.safetensors"), seed=0, dtype="float32")
    refused("E0504", weights="m.safetensors", dtype="float16")
    refused("E0504", weights="m.safetensors", quantize="int8", target="ort-cpu")


def test_a_graph_of_more_than_2_gb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "LARGEST", 10_000)
    refused("E0504", store="inline", seed=0)


def test_a_graph_that_protobuf_cannot_write_is_too_large_or_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the package raises for more than 2 GB has no type of its own; of a small graph it is no such error."""
    written = write(load(text=SPEC), GraphOptions())
    store.inline(written, dict(arrays(load(text=SPEC), 0)))
    size = len(store.serialized(written))
    monkeypatch.setattr(store, "LARGEST", size - 1)
    with pytest.raises(ArchError, match=r"E0504\]: the graph would hold .* GB of numbers"):
        store.serialized(written)

    def at_opset(*_: Any) -> None:
        raise ValueError("some message")

    monkeypatch.setattr(store, "at_opset", at_opset)
    with pytest.raises(ArchError, match="E0504"):
        store.serialized(written)
    monkeypatch.setattr(store, "LARGEST", 100 * size)
    with pytest.raises(ValueError, match="some message"):
        store.serialized(written)


@pytest.mark.parametrize("fails_at", [1, 5])
@pytest.mark.parametrize("where", ["safetensors", "onnx_data", "inline"])
def test_a_broken_disk_leaves_the_old_files_whole(fails_at: int, where: Any) -> None:
    archdsl.to_onnx(text=SPEC, output="m.onnx", seed=0, store=where)
    before = {p: Path(p).read_bytes() for p in files()}
    told: list[str] = []

    def full(path: str, count: int) -> None:
        told.append(path)
        if len(told) == fails_at:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        archdsl.to_onnx(text=SPEC, output="m.onnx", seed=1, store=where, progress=full)
    assert {p: Path(p).read_bytes() for p in files()} == before


def test_progress_tells_every_weight() -> None:
    told: dict[str, int] = {}
    archdsl.to_onnx(text=SPEC, output="m.onnx", seed=0, progress=told.__setitem__)
    assert told == {k: t.numel() for k, t in load_file("m.safetensors").items()}


# --- bytes and imports ------------------------------------------------------------------------------------------------


def process(script: str, *arguments: str, **env: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_writing_needs_no_torch_and_counting_no_onnx() -> None:
    script = (
        "import sys, archdsl; archdsl.check(text=sys.argv[1]); archdsl.estimate(text=sys.argv[1]);"
        "print(*sorted(sys.modules.keys() & {'torch', 'onnx', 'onnx_ir', 'onnxruntime'}), sep=',');"
        "archdsl.to_onnx(text=sys.argv[1], seed=0); archdsl.to_onnx(text=sys.argv[1], weights='model.safetensors');"
        "print('torch' in sys.modules)"
    )
    assert process(script, SPEC).split("\n") == ["", "False", ""]


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import util

    found: Callable[..., Any] = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name, *a: None if name == "onnx_ir" else found(name, *a))
    problem = refused("E0502")
    assert problem.diagnostics[0].help == install("onnx")


# --- the graph --------------------------------------------------------------------------------------------------------


def test_nodes_are_called_by_their_place_and_all_are_needed() -> None:
    graph = write(load(text=SPEC), GraphOptions()).model.graph
    nodes = list(graph)
    names = [n.name for n in nodes]
    assert len(set(names)) == len(names)
    assert any(str(name).startswith("blocks.1.attention") for name in names)
    read = {id(x) for n in nodes for x in n.inputs} | {id(x) for x in graph.outputs}
    assert all(any(id(x) in read for x in n.outputs) for n in nodes)
    assert all(id(x) in read for x in graph.initializers.values())


@pytest.mark.parametrize("where", ["onnx_data", "inline"])
@pytest.mark.parametrize("target", ["portable", "ort-cpu"])
def test_quantizers_of_others_find_every_product(where: Any, target: Any) -> None:
    """Every linear layer is a MatMul of an initializer, but for the head that is tied to the embedding."""
    from onnxruntime.quantization import quantize_dynamic
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    model = load(text=SPEC)
    linears = 2 * 7
    for decode in (False, True):
        path = Path(f"{decode}/model.onnx")
        archdsl.to_onnx(model, path, seed=0, store=where, target=target, decode=decode)
        quantize_dynamic(path, "few.onnx", op_types_to_quantize=["MatMul"])
        found = [node.op_type for node in onnx.load("few.onnx").graph.node]
        assert found.count("MatMulInteger") + found.count("DynamicQuantizeMatMul") == linears
        made = MatMulNBitsQuantizer(onnx.load(path), block_size=16)
        made.process()
        assert [node.op_type for node in made.model.model.graph.node].count("MatMulNBits") == linears
    shared = archdsl.to_onnx(model, "shared/model.onnx", seed=0, target=target).graphs[0]
    assert np.array_equal(outputs(Path("False/model.onnx")), outputs(shared))


OLDER = ["gpt2:gpt2", "llama3:llama3_8b", "mixtral:mixtral_8x7b", "deepseek_v3:deepseek_v3", "t5:t5_base"]


@pytest.mark.slow
@pytest.mark.parametrize("opset", [21, 22, 23])
@pytest.mark.parametrize("name", OLDER)
def test_older_opsets_compute_the_same(name: str, opset: int) -> None:
    """What came later is written as what it is made of; the standard's checker takes it, whole and as a step."""
    model = tiny.graph(name)
    given = {name: x.numpy() for name, x in tiny.inputs(model).items()}
    found = []
    for which in (24, opset):
        path = archdsl.to_onnx(model, f"{which}.onnx", seed=0, opset=which, store="inline", names="spec").graphs[0]
        found.append(session(path).run(None, given)[0])
    assert np.abs(found[1] - found[0]).max() < 2e-6 * np.abs(found[0]).max()
    steps = archdsl.to_onnx(model, "step.onnx", seed=0, opset=opset, store="onnx_data", decode=True).graphs
    for graph in (Path(f"{opset}.onnx"), *steps):
        proto = onnx.load(graph)
        onnx.checker.check_model(proto, full_check=True)
        assert {i.version for i in proto.opset_import if not i.domain} == {opset}
        assert proto.ir_version <= (10 if opset < 23 else 11)
        operators = {node.op_type for node in proto.graph.node}
        assert not RemoveUnusedNodesPass()(onnx_ir.from_proto(proto)).modified
        assert opset > 22 or not operators & {"Attention", "RMSNormalization", "RotaryEmbedding"}


def test_an_opset_that_is_none() -> None:
    for more, code in (({"opset": 20}, "E0509"), ({"opset": 21, "target": "ort-cpu"}, "E0504")):
        with pytest.raises(ArchError, match=code):
            archdsl.to_onnx(load(text=SPEC), "m.onnx", seed=0, **more)  # type: ignore[arg-type]


def test_a_graph_says_what_makes_it_again() -> None:
    from typer.testing import CliRunner

    from archdsl.cli import app

    options = {"dtype": "float16", "target": "ort-cpu", "quantize": "int4", "keep": ["blocks.0.ffn.*"], "seed": 7}
    model = load("gpt2", set={"layers": 1, "width": 64, "heads": 2, "vocab": 96})
    archdsl.to_onnx(model, "one/", decode=True, eos_token_id=[5, 6], **options)  # type: ignore[arg-type]
    said = {m.key: m.value for m in onnx.load("one/model.onnx", load_external_data=False).metadata_props}
    assert {k: said[k] for k in ("dtype", "target", "quantization", "seed")} == {
        "dtype": "float16",
        "target": "ort-cpu",
        "quantization": "int4",
        "seed": "7",
    }
    command = shlex.split(said["command"])
    assert command[:2] == ["archdsl", "compile"]
    assert command[2].endswith("gpt2.arch:gpt2")
    done = CliRunner().invoke(app, ["compile", "gpt2:gpt2", *command[3:], "-o", "two/"])
    assert done.exit_code == 0, done.output
    assert {n: Path("two", n).read_bytes() for n in os.listdir("two") if n != "model.onnx"} == {
        n: Path("one", n).read_bytes() for n in os.listdir("one") if n != "model.onnx"
    }


def test_nodes_are_in_the_modules_that_pytorch_has() -> None:
    text = (
        SPEC.replace("blocks:", "blocks: tower() + ")
        + """
    block tower(x: [batch, time, width]) -> [batch, time, width] {
      for i in 2 { x = x -> layer(heads: 4, kv_heads: 2) as layers }
      return x -> rmsnorm as norm
    }"""
    )
    module = archdsl.to_torch(text=text)
    modules = {name for name, m in module.named_modules() if not isinstance(m, torch.nn.ModuleList)}
    archdsl.to_onnx(text=text, output="m.onnx")
    seen = set()
    for node in onnx.load("m.onnx", load_external_data=False).graph.node:
        said = {m.key: m.value for m in node.metadata_props}.get("pkg.torch.onnx.name_scopes")
        if said is not None:
            *scopes, _ = ast.literal_eval(said)
            path = node.name.rpartition("/")[0].split(".") if "/" in node.name else []
            assert scopes == ["", *(p for i in range(len(path)) if (p := ".".join(path[: i + 1])) in modules)]
            seen |= {*scopes}
    assert {"blocks.0", "blocks.0.layers.1", "blocks.0.layers.1.attention.q", "blocks.2.ffn"} <= seen


def test_nodes_say_which_modules_they_are_in() -> None:
    archdsl.to_onnx(text=SPEC, output="m.onnx")
    nodes = {n.name: n for n in onnx.load("m.onnx", load_external_data=False).graph.node}
    said = {m.key: m.value for m in nodes["blocks.1.attention.q/MatMul"].metadata_props}
    assert said == {
        "namespace": ": tiny/blocks.1: layer/blocks.1.attention: gqa/blocks.1.attention.q: linear/MatMul: MatMul",
        "pkg.torch.onnx.class_hierarchy": "['tiny', 'layer', 'gqa', 'linear', 'MatMul']",
        "pkg.torch.onnx.name_scopes": "['', 'blocks.1', 'blocks.1.attention', 'blocks.1.attention.q', 'MatMul']",
    }
