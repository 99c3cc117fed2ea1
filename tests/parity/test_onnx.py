"""The tiny twins of known architectures in onnxruntime: at once, step by step, and with onnxruntime's own operators."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from decode_tools import differences, first_output, inputs_for, module_of
from onnx_tools import distance, onnx_bytes, run

import archdsl
from archdsl.diagnostics import ArchError
from archdsl.frontend import load
from archdsl.frontend.modules import models
from archdsl.passes.step import stepped

HERE = Path(__file__).parent
CASES = [
    (path, name)
    for folder in ("specs", "unusual")
    for path in sorted((HERE / folder).glob("*.arch"))
    for name in models(load.module_of(load.find_spec(path)))
]
NOT_STEPPED = {
    *("axial", "clip", "conformer", "convnext", "deberta", "dinov2", "dit", "electra", "fnet"),
    *("funnel", "hierarchical", "modernbert", "perceiver", "swin", "unet", "vae"),
}
"""Those whose places see later ones, or whose output follows no sequence."""
SIZES = {"batch": 2, "time": 8, "frames": 8}
# GroupQueryAttention takes several rows one token at a time, once there are any before.
CHUNKS = {"portable": (4, 1, 1, 2), "ort-cpu": (4, 1, 1, 1)}


@pytest.mark.slow
@pytest.mark.parametrize(("path", "name"), CASES, ids=[f"{p.stem}-{n}" for p, n in CASES])
def test_onnxruntime_gives_what_pytorch_gives(path: Path, name: str) -> None:
    """The whole sequence at once; and step by step with each target, all outputs and those of the last position."""
    model = archdsl.load(path, model=name)
    module = module_of(model)
    inputs = inputs_for(model, SIZES)
    found = run(onnx_bytes(model, module), inputs)
    assert distance(found[0], torch.from_numpy(first_output(module, inputs))) < 1e-4
    if path.stem in NOT_STEPPED:
        with pytest.raises(ArchError, match="E0504"):
            stepped(model)
        return
    for target, chunks in CHUNKS.items():
        apart = differences(model, chunks, module, last=True, target=target)
        assert all(d < (1e-5 if "last" in what else 1e-4) for what, d in apart.items()), (target, apart)
