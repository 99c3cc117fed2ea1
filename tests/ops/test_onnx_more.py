"""Primitives in ONNX beyond their examples: sizes left open, half precision, and what is special about some numbers."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import onnx
import pytest
import torch
from onnx_tools import distance, onnx_bytes, run
from ops import test_run_time_sizes as sizes
from ops.test_contract import CASES, compiled, inputs_of, outputs_of
from torch import Tensor

import archdsl
from archdsl.api import module_from
from archdsl.ir.graph import Model
from archdsl.ir.op import Example

TOLERANCE = 2e-5
INF, NAN = float("inf"), float("nan")


def given(text: str, **inputs: Tensor) -> tuple[list[Any], list[Tensor]]:
    """What onnxruntime and PyTorch make of it."""
    model, module = model_of(text)
    return list(run(exported(text), inputs)), outputs_of(module, inputs)


@cache
def model_of(text: str) -> tuple[Model, Any]:
    torch.manual_seed(0)
    model = archdsl.load(text=f"model m{text}")
    return model, module_from(model).eval()


@cache
def exported(text: str) -> bytes:
    return onnx_bytes(*model_of(text))


def equal(text: str, **inputs: Tensor) -> None:
    for ours, theirs in zip(*given(text, **inputs), strict=True):
        assert str(ours.dtype) == str(theirs.dtype).removeprefix("torch.")
        torch.testing.assert_close(torch.from_numpy(ours), theirs, rtol=1e-6, atol=1e-7, equal_nan=True)


# --- sizes that only the running model knows --------------------------------------------------------------------------

MORE = [
    "x[:, :, 1]",
    "x[0, 2:, -2]",
    "x[-1, :, 2:4]",
    "x[:, time // 2]",
    "x[:, -(time // 2)]",
    "x[:, time // 2, 1:]",
    "x[..., 1:, 3]",
    "x -> every(2)",
    "x -> every(3, axis: -1)",
    "x -> flip(-1)",
    "x -> elu(time / 10)",
    "x -> leaky_relu(1 / time)",
    "x -> clamp(-1 / time, time / 8)",
    "fill(1 / time, time)",
    "ones(batch, 2 * time)",
    "one_hot(time)(indices(8) // 4)",
    "x > time / 8",
    "time == indices(8)",
    "time // (1 + indices(4))",
    "-indices(time) % 3",
    "-indices(time) // 3",
    "x % time",
    "x // (1 / time)",
    "exp(x) ** (time / 8)",
    "maximum(x, time / 24)",
    "where(x > 0, x, -time / 3)",
    "2 ** (x * time / 8)",
    "stack(x, 2 * x)",
    "stack(x, x, x, axis: -1)",
    "x -> logsumexp([0, 1])",
    "x -> logsumexp(1, keep: true)",
    "x -> var(1)",
    "x -> max([1, 2])",
    "x -> min(-2)",
    "x -> log_softmax(axis: 1)",
    "x -> argsort(axis: 1, descending: true)",
    "scatter(x, argsort(x, axis: 1), x, axis: 1)",
    "scatter_add(x, argsort(x, axis: 1) // 2, x, axis: 1)",
    "where(x > 0, x > 1, indices(8) > 3)",
    "x -> repeat(time)",
    "x -> repeat(2, axis: 0)",
    "x -> repeat(2, axis: -1)",
    "x -> tile(time, axis: 0)",
    "x -> unsqueeze(0) -> expand(0, batch)",
    "x -> unsqueeze(-1) -> expand(-1, time)",
    "x[:, :1] -> squeeze(1)",
    "x -> permute(2, 0, 1)",
    "x -> transpose(0, -1)",
    "x -> unflatten(-1, 2, 4) -> flatten(1, 2)",
    "x -> unflatten(-1, 2, 4) -> flatten(0, 1)",
    "x -> unflatten(-1, 2, 4) -> transpose(1, 2) -> flatten(0, 2)",
    "x -> unsqueeze(1) -> flatten(0, 2)",
    'x -> rearrange("b t d -> d (t b)")',
    'x -> rearrange("... d -> d ...")',
    'x -> rearrange("b (n p) (h e) -> (b h) n (p e)", p: 4, h: 2)',
    'x[:, :1] -> rearrange("b 1 (h e) -> b h 1 e", h: 2)',
    "x -> keep_groups(4, 2)",
    "x -> keep_groups(2, 1, score: max)",
    "(x > 0) -> sum(1)",
    "(x > 0) -> mean([0, 1])",
    "(x > 0) -> max(1)",
    "(x > 0) -> min(1, keep: true)",
    "(x > 0) < (x > 1)",
    "(x > 0) >= (x < 1)",
    "(x > 0) == (x > 1)",
    "(x > 0) != 1",
]
OPEN = [f"return {use}" for use in MORE] + [
    "a, b = x -> topk(time // 2, axis: 1) return a, b",
    "a, b = x -> topk(time // 4) return a, b",
    "a, b = (x > 0) -> sort(axis: 1, descending: true) return a, b",
    "a, b, c, d = x -> chunk(4, axis: 1) return a, d",
    "a, b, c = x -> split(2, time - 3, 1, axis: 1) return a, c",
]


@pytest.mark.parametrize("text", [*sizes.TEXTS, *OPEN])
def test_one_graph_serves_all_sizes(text: str) -> None:
    for batch, time in ((1, 4), (2, 8), (3, 12)):
        inputs = sizes.inputs(batch, time)
        ours, theirs = given(f"({sizes.INPUTS}) {{ {text} }}", **inputs)
        for y, z in zip(ours, theirs, strict=True):
            assert str(y.dtype) == str(z.dtype).removeprefix("torch.")
            assert distance(y, z) < TOLERANCE
