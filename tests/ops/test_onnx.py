"""Every primitive in ONNX: its examples give what the emitted PyTorch gives, in onnxruntime, with open sizes too."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from archdsl.ir.op import Example
from archdsl.ir.op import Primitive
from archdsl.ops import registry
from onnx_tools import distance, onnx_bytes, run
from ops.test_contract import CASES, MADE, NAMES, compiled, inputs_of, outputs_of

TOLERANCE = 2e-5


@pytest.mark.parametrize("name", NAMES)
def test_a_primitive_says_how_it_is_written(name: str) -> None:
    op = registry.get(name)
    built = type(op).build is not Primitive.build and not type(op).weights
    assert op.operator or type(op).onnx is not Primitive.onnx or name in REPLACED, name


REPLACED = {"draw", "rope", "transformer_xl"}
"""Never a node of a graph that is run: others stand in its place."""


@pytest.mark.parametrize(("name", "example"), CASES)
def test_onnxruntime_gives_what_pytorch_gives(name: str, example: Example) -> None:
    model, module = compiled(example)
    inputs = inputs_of(model, example)
    expected = outputs_of(module, inputs)
    found = run(onnx_bytes(model, module), inputs)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.detach().numpy().dtype
        assert distance(ours, theirs) < TOLERANCE
