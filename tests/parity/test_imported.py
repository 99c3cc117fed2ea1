"""Checkpoints of `transformers`, one of a type, as they are imported: the results and gradients of their class.

A mapping only moves numbers, so it carries the reference's gradients, saved as if they were weights, to our names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from interop.cases import CASES
from near import distance
from safetensors.torch import load_file
from torch import Tensor, nn
from zoo import sizes

import archdsl
from archdsl.frontend.load import load
from archdsl.interop.compare import _inputs as inputs_of
from archdsl.interop.convert import convert_from, import_folder
from archdsl.ir.graph import Model
from parity.checks import (
    close_in_bfloat16,
    compiles_as_one_graph,
    exports_with_free_axes,
    objective,
    results,
)

pytestmark = pytest.mark.slow

NARROW = {
    *("gemma2", "gpt_oss", "llama4_text", "qwen3_next", "phi", "granite", "mpt", "modernbert", "deberta_v2", "fnet"),
    *("whisper", "convnext", "clip", "swin", "mamba2", "lfm2", "jamba", "recurrent_gemma", "rwkv"),
}
"""What computes otherwise than models of the zoo, which are all compared in bfloat16."""
PLAIN = {
    *("gpt_neox", "falcon", "qwen2", "olmo2", "opt", "stablelm", "nemotron", "qwen3_moe", "deepseek_v3", "electra"),
    *("bart", "dinov2", "cohere", "glm4", "ernie4_5_moe", "esm", "xlnet", "longt5", "beit", "siglip", "deit"),
}
"""What differs from those in details. `pytest --every` compares gradients of all other types, too: their results are
compared where they are imported."""
TYPES = {case.kind: name for name, case in reversed(CASES.items())}
NAMES = [name for name in TYPES.values() if sizes.every or name in NARROW | PLAIN]
EXPORTED = {"gemma2": 2, "deberta_v2": 2, "mamba2": 2, "clip": 1, "swin": 1}
"""One of each way of attending and of carrying a state that the zoo lacks, and how many axes of its inputs are free."""
COMPILED = ("gpt_oss", "qwen3_next", "recurrent_gemma", "rwkv")
"""What is like none that is exported, whose tracing fails at the same."""


def imported(name: str, folder: Path) -> tuple[Any, Model, nn.Module]:
    """The reference, and our model and module with its weights."""
    theirs = CASES[name].made()
    theirs.config.use_cache = False  # what is kept is written over, and has no gradients
    theirs.save_pretrained(folder / "theirs")
    import_folder(folder / "theirs", folder / "m.arch")
    model = load(folder / "m.arch")
    module = archdsl.to_torch(model).eval()
    module.load_state_dict(load_file(folder / "m.safetensors"))
    return theirs, model, module


@pytest.mark.parametrize("name", NAMES)
def test_results_and_gradients_are_those_of_the_reference(name: str, tmp_path: Path) -> None:
    theirs, model, module = imported(name, tmp_path)
    inputs = inputs_of(model, theirs)
    arguments = tuple(inputs.values())
    given = {k: x.long() if x.dtype == torch.bool else x for k, x in inputs.items()}
    found, left = results(module, arguments), [x for x in theirs(**given).to_tuple() if isinstance(x, Tensor)]
    expected = tuple(left.pop([x.shape for x in left].index(own.shape)) for own in found)
    tolerance = CASES[name].tolerance
    assert max(distance(o, e) for o, e in zip(found, expected, strict=True)) < tolerance

    objective(expected).backward()
    objective(found).backward()
    wanted = learned(theirs, model, tmp_path)
    largest = max(float(g.abs().max()) for g in wanted.values())
    for path, own in module.named_parameters():
        if path in wanted:
            size = float(wanted[path].abs().max())
            assert size > 1e-6 * largest or path.endswith("k.bias"), f"{path} does not move the result"
            gradient = torch.zeros_like(own) if own.grad is None else own.grad
            error = distance(gradient, wanted[path], size + 1e-3 * largest)
            assert error < 10 * tolerance, path
    if name in NARROW:
        close_in_bfloat16(module, arguments)


def learned(theirs: Any, model: Model, folder: Path) -> dict[str, Tensor]:
    """The gradients of the reference by our names, without those of tensors that are learned here alone. The reference
    holds them in place of its weights after that."""
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(p.grad if p.grad is not None else torch.zeros_like(p) if p.requires_grad else torch.nan)
        for buffer in theirs.buffers():
            buffer.copy_(torch.nan if buffer.is_floating_point() else buffer)
    theirs.save_pretrained(folder / "gradients")
    convert_from(model, folder / "gradients", folder / "gradients.safetensors")
    found = load_file(folder / "gradients.safetensors")
    return {path: g for path, g in found.items() if not g.isnan().all()}


@pytest.mark.parametrize("name", COMPILED)
def test_compiles_as_one_graph(name: str, tmp_path: Path) -> None:
    theirs, model, module = imported(name, tmp_path)
    compiles_as_one_graph(module, tuple(inputs_of(model, theirs).values()))


@pytest.mark.parametrize("name", EXPORTED)
def test_exports_with_free_axes(name: str, tmp_path: Path) -> None:
    theirs, model, module = imported(name, tmp_path)
    exports_with_free_axes(module, tuple(inputs_of(model, theirs).values()), EXPORTED[name])
