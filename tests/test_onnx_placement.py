"""Steps for `ort-cuda` stay on the device: onnxruntime's own CUDA provider places them, beside stub libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import onnx
import pytest
import stub_cuda
from onnx import TensorProto, helper
from stub_cuda import Placed
from zoo import sizes, tiny

import archdsl
from archdsl.backends.onnx.store import OnnxFiles
from archdsl.diagnostics import ArchError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(stub_cuda.why_not()), reason=stub_cuda.why_not() or "built here"),
]

TOO = ["gpt2", "llama3", "mixtral", "deepseek_v3", "t5", "mamba", "bloom", "mistral"]
"""Families that are placed in bfloat16, too."""
SAMPLE = {name.partition(":")[0] for name in sizes.sample()} | {*TOO}
FIRST = {name.partition(":")[0]: name for name in sorted(sizes.distinct(), reverse=True)}
FAMILIES = {family: name for family, name in FIRST.items() if family in SAMPLE} | {"gpt_oss": "gpt_oss:gpt_oss_20b"}
CUDNN = {"rnn_lm", "seq2seq_attention", "sparsely_gated_moe"}
"""Families with recurrent layers, which ask cuDNN, of which there is no stub."""
POOLING = {("show_attend_tell", "encoder")}
"""Graphs with MaxPool, which CUDA has up to opset 21; they run once, before the first step."""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda")
    stub_cuda.built(folder)
    return folder


def placed(paths: list[Path], libraries: Path) -> list[Placed]:
    """Where the nodes of each graph are."""
    command = [sys.executable, stub_cuda.__file__, *map(str, paths)]
    environment = os.environ | {"LD_LIBRARY_PATH": str(libraries)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [Placed(**json.loads(line)) for line in done.stdout.splitlines()]


def steps(families: Mapping[str, str], dtype: str, folder: Path) -> dict[tuple[str, str], tuple[Path, OnnxFiles]]:
    """The graphs of decoding of each family that has steps, by its name and what the graph is."""
    found = {}
    for family, name in families.items():
        path = folder / f"{family}.onnx"
        try:
            files = archdsl.to_onnx(
                tiny.graph(name), path, dtype=dtype, target="ort-cuda", decode=True, seed=0, store="inline"
            )
        except ArchError as problem:
            if problem.diagnostics[0].code != "E0504":
                raise
            continue
        found |= {(family, graph.stem.removeprefix(family).strip("_")): (graph, files) for graph in files.graphs}
    return found


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_steps_have_all_kernels_and_copy_once(dtype: str, libraries: Path, tmp_path: Path) -> None:
    """What is copied is the length of the sequence, after which rows of tables and sizes of masks are made; and, where
    no operator computes the experts, which of them have rows."""
    families = FAMILIES if dtype == "float16" else {family: FAMILIES[family] for family in TOO}
    graphs = steps({f: name for f, name in families.items() if f not in CUDNN}, dtype, tmp_path)
    assert len(graphs) >= len(TOO)
    assert dtype != "float16" or {family for (family, _), (_, files) in graphs.items() if files.by_expert} == {
        "gpt_oss"
    }
    places = placed([graph for graph, _ in graphs.values()], libraries)
    for (key, (_, files)), found in zip(graphs.items(), places, strict=True):
        assert found.cuda > 0, (key, found.error)
        if key in POOLING:
            assert found.missing == ["MaxPool"]
            continue
        assert found.missing == [], key
        assert (len(found.copies) <= 1) != bool(files.by_expert), (key, found.copies)


def test_the_judge_sees_a_missing_kernel_and_copies(libraries: Path, tmp_path: Path) -> None:
    """`ArgMax` of whole numbers has no kernel of CUDA."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["twice"]),
        helper.make_node("ArgMax", ["twice"], ["at"], axis=0, keepdims=0),
        helper.make_node("Add", ["at", "at"], ["y"]),
    ]
    given, made = (helper.make_tensor_value_info(n, TensorProto.INT64, s) for n, s in (("x", ["n"]), ("y", [])))
    model = helper.make_model(
        helper.make_graph(nodes, "planted", [given], [made]), opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    )
    path = tmp_path / "planted.onnx"
    onnx.save(model, path)
    (found,) = placed([path], libraries)
    assert found.missing == ["ArgMax"]
    assert len(found.copies) == 2
    assert found.cuda == 2 + len(found.copies)
