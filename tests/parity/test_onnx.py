"""The tiny twins of known architectures in onnxruntime: at once, step by step, and with onnxruntime's own operators."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from decode_tools import differences, differences_at_the_last, first_output, inputs_for, module_of
from onnx_tools import distance, onnx_bytes, run

import archdsl
from archdsl.diagnostics import ArchError
from archdsl.frontend import load
from archdsl.frontend.modules import models
from archdsl.passes.decode import plan

HERE = Path(__file__).parent
CASES = [
    (path, name)
    for folder in ("specs", "unusual")
    for path in sorted((HERE / folder).glob("*.arch"))
    for name in models(load.module_of(load.find_spec(path)))
]
each_case = pytest.mark.parametrize(("path", "name"), CASES, ids=[f"{p.stem}-{n}" for p, n in CASES])
NOT_STEPPED = {
    *("axial", "clip", "conformer", "convnext", "deberta", "dinov2", "dit", "electra", "fnet"),
    *("funnel", "hierarchical", "modernbert", "perceiver", "swin", "unet", "vae"),
}
"""Those whose places see later ones, or whose output follows no sequence."""
STEPPED = [(path, name) for path, name in CASES if path.stem not in NOT_STEPPED]
SIZES = {"batch": 2, "time": 8, "frames": 8}

pytestmark = pytest.mark.slow


@each_case
def test_onnxruntime_gives_what_pytorch_gives(path: Path, name: str) -> None:
    model = archdsl.load(path, model=name)
    module = module_of(model)
    inputs = inputs_for(model, SIZES)
    found = run(onnx_bytes(model, module), inputs)
    assert distance(found[0], torch.from_numpy(first_output(module, inputs))) < 1e-4


@each_case
@pytest.mark.parametrize("target", ["portable", "ort-cpu"])
def test_decoding_gives_what_the_whole_gives(path: Path, name: str, target: str) -> None:
    model = archdsl.load(path, model=name)
    if path.stem in NOT_STEPPED:
        with pytest.raises(ArchError, match="E0504"):
            plan(model)
        return
    # GroupQueryAttention takes several rows one token at a time, once there are any before.
    chunks = (4, 1, 1, 2) if target == "portable" else (4, 1, 1, 1)
    found = differences(model, chunks, target=target)
    assert max(found.values()) < 1e-4, found


@pytest.mark.parametrize("target", ["portable", "ort-cpu"])
@pytest.mark.parametrize(("path", "name"), STEPPED, ids=[f"{p.stem}-{n}" for p, n in STEPPED])
def test_the_last_place_is_that_of_all(path: Path, name: str, target: str) -> None:
    chunks = (4, 1, 2) if target == "portable" else (4, 1, 1)
    found = differences_at_the_last(archdsl.load(path, model=name), chunks, target=target)
    assert max(found.values()) < 1e-5, found
