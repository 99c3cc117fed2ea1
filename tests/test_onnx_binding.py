"""What a step keeps for the next stays in onnxruntime, on its device: no cache becomes an array of the host."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import onnxruntime
import pytest
import stub_cuda
from decode_tools import decoder, inputs_for, module_of
from test_onnx_run import ENCODED

import archdsl
from archdsl.backends.onnx.targets import GraphOptions
from archdsl.backends.onnx.write import write
from archdsl.diagnostics import ArchError
from archdsl.run.binding import BoundSession
from archdsl.run.onnx import open_session


def test_outputs_of_a_step_are_inputs_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[BoundSession, dict[str, Any], dict[str, Any]]] = []
    right, taken, arrays = BoundSession.run, onnxruntime.OrtValue.numpy, 0

    def run(self: BoundSession, inputs: Any) -> Any:
        runs.append((self, dict(inputs), right(self, inputs)))
        return runs[-1][2]

    def numpy(self: Any) -> Any:
        nonlocal arrays
        arrays += 1
        return taken(self)

    monkeypatch.setattr(BoundSession, "run", run)
    monkeypatch.setattr(onnxruntime.OrtValue, "numpy", numpy)
    model = archdsl.load(text=ENCODED)
    inputs = {n: t.numpy() for n, t in inputs_for(model, {"batch": 2, "time": 6, "frames": 5}).items()}
    decoder(model, module_of(model)).run(inputs, (3, 1, 1, 1))
    (_, _, once), *steps = runs
    assert (len(steps), arrays) == (4, 4), "the first output of each step, and nothing else"
    for (_, _, before), (_, given, _) in pairwise(steps):
        caches = {n: x for n, x in given.items() if n.startswith("past_key_values.")}
        kept = once | {n.replace("present.", "past_key_values."): x for n, x in before.items()}
        assert len(caches) == 4, "of the sequence and of what the encoder gives"
        assert all(x is kept[n] for n, x in caches.items())
    for bound, given, found in runs:
        wanted = bound.session.run(None, {n: taken(given[n]) for n in bound.inputs})
        assert all((taken(x) == y).all() for x, y in zip(found.values(), wanted, strict=True))


def test_float32_on_cuda_is_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not TensorFloat32, which has ten bits of a number."""
    made = Mock()
    made.return_value.get_providers.return_value = ["CUDAExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "InferenceSession", made)
    model = archdsl.load(text=ENCODED)
    open_session(write(model, GraphOptions()), Path("weights"), "cuda:1")
    asked = dict(made.call_args.kwargs["providers"][:1])
    assert asked == {"CUDAExecutionProvider": {"device_id": "1", "use_tf32": "0"}}


ON_CUDA = """
import ctypes, sys
from archdsl.backends.onnx.targets import GraphOptions
from archdsl.run.onnx import run
from zoo.tiny import graph

given = {"weights": None, "seed": 0, "batch": 1, "time": 12, "device": "cuda"}
report = run(graph("llama3:llama3_8b"), GraphOptions("bfloat16", "ort-cuda"), **given)
print(report.providers[0], *report.outputs["output"].shape, ctypes.CDLL(sys.argv[1]).stub_bytes_to_host())
"""


@pytest.mark.slow
@pytest.mark.skipif(bool(stub_cuda.why_not()), reason=stub_cuda.why_not() or "built here")
def test_only_logits_are_copied_from_the_device(tmp_path: Path) -> None:
    """By onnxruntime's own CUDA provider, beside stub libraries that count: of whole sequences, which run six times,
    once, and once in each of two runs by steps. Those of bfloat16 are float32."""
    stub_cuda.built(tmp_path)
    (runtime,) = tmp_path.glob("libcudart.so.*[0-9]")
    paths = os.pathsep.join(p for p in sys.path if p)
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": paths}
    command = [sys.executable, "-c", ON_CUDA, str(runtime)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    provider, *numbers = done.stdout.split()
    batch, time, vocab, copied = map(int, numbers)
    assert (provider, copied) == ("CUDAExecutionProvider", 3 * batch * time * vocab * 4)


def test_outputs_are_bound_on_the_device_of_the_session() -> None:
    kept = object()
    binding = Mock(get_outputs=Mock(return_value=[kept]))
    session = Mock(
        get_inputs=lambda: [SimpleNamespace(name="x", type="tensor(float)")],
        get_outputs=lambda: [SimpleNamespace(name="y")],
        get_providers=lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"],
        get_provider_options=lambda: {"CUDAExecutionProvider": {"device_id": "1"}},
        io_binding=lambda: binding,
    )
    given = object()
    assert BoundSession(session).run({"x": given, "more": object()}) == {"y": kept}
    binding.bind_ortvalue_input.assert_called_once_with("x", given)
    binding.bind_output.assert_called_once_with("y", "cuda", 1)
    session.run_with_iobinding.assert_called_once_with(binding)


def test_a_graph_that_fails_is_a_diagnostic() -> None:
    session = Mock(run_with_iobinding=Mock(side_effect=RuntimeError("Error in execution: two\nlines")))
    session.configure_mock(get_inputs=list, get_outputs=list, get_providers=lambda: ["CPUExecutionProvider"])
    with pytest.raises(ArchError, match=r"E0503\]: onnxruntime could not run the graph: two lines"):
        BoundSession(session).run({})
    session.run_with_iobinding.side_effect = RuntimeError("Failed to allocate memory for requested buffer of size 64")
    with pytest.raises(ArchError, match="memory ran out: 64 bytes"):
        BoundSession(session).run({})


def test_what_is_no_failure_of_the_runtime_is_raised_as_it_is() -> None:
    session = Mock(run_with_iobinding=Mock(side_effect=KeyError("x")))
    session.configure_mock(get_inputs=list, get_outputs=list, get_providers=lambda: ["CPUExecutionProvider"])
    with pytest.raises(KeyError):
        BoundSession(session).run({})


def test_a_tensor_in_bfloat16_is_given_by_its_bits() -> None:
    session = Mock(get_providers=lambda: ["CPUExecutionProvider"], get_outputs=list)
    session.configure_mock(get_inputs=lambda: [SimpleNamespace(name="x", type="tensor(bfloat16)")])
    bits = np.array([0x3F80, 0xC000], np.uint16)  # 1 and -2
    made = BoundSession(session).tensor("x", bits)
    assert made.element_type() == onnx.TensorProto.BFLOAT16
    assert made.shape() == [2]
