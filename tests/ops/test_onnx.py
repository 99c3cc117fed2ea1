"""Every primitive in ONNX: its examples give in onnxruntime what the emitted PyTorch gives."""

from __future__ import annotations

import pytest
import torch

from archdsl.ir.op import Example, Primitive
from archdsl.ops import registry
from onnx_tools import distance, onnx_bytes, run
from ops.test_contract import CASES, NAMES, compiled, inputs_of, outputs_of

TOLERANCE = 2e-5

REPLACED = {"draw", "rope"}
"""Never a node of a graph that is run: others stand in its place."""


@pytest.mark.parametrize("name", NAMES)
def test_a_primitive_says_how_it_is_written(name: str) -> None:
    op = registry.get(name)
    says = bool(op.operator) or type(op).onnx is not Primitive.onnx
    assert says != (name in REPLACED)


@pytest.mark.parametrize(("name", "example"), CASES)
def test_onnxruntime_gives_what_pytorch_gives(name: str, example: Example) -> None:
    model, module = compiled(example)
    inputs = inputs_of(model, example)
    expected = outputs_of(module, inputs)
    found = run(onnx_bytes(model, module), inputs)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert distance(ours, theirs) < TOLERANCE
