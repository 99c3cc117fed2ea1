"""Operators that `ort-cuda` uses in half precision, here in float32, in which the CPU provider has them, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import onnx_ir as ir
import pytest
import torch
from decode_tools import differences, first_output, inputs_for, module_of
from onnx_tools import distance, onnx_bytes, run
from zoo.tiny import graph

import archdsl
from archdsl.backends.onnx.step import write_steps
from archdsl.backends.onnx.targets import ALL, TARGETS, GraphOptions
from archdsl.backends.onnx.write import write
from archdsl.ir.graph import Model
from archdsl.run.verify import verify

TOLERANCE = 1e-4
LAYER = """
block layer() {
  attention: gqa(heads: 4, kv_heads: 2)
  mask:      causal
  position:  rope
  ffn:       swiglu(hidden: 64)
  norm:      rmsnorm
  placement: pre
}
model small {
  vocab:   50
  context: 64
  width:   64
  blocks:  2 * layer()
  norm:    rmsnorm
  head:    lm
}
"""


@pytest.fixture(autouse=True)
def in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    half = TARGETS["ort-cuda"]
    monkeypatch.setitem(TARGETS, "ort-cuda", replace(half, operators=dict.fromkeys(half.operators, ALL)))


def small(**changes: str) -> Model:
    """The spec with lines of its layer changed."""
    lines = [
        f"  {name}: {changes.pop(name)}" if (name := line.strip().partition(":")[0]) in changes else line
        for line in LAYER.splitlines()
    ]
    assert not changes
    return archdsl.load(text="\n".join(lines))


def operators(nodes: Sequence[ir.Node]) -> Counter[str]:
    """How often each of the operators stands in a graph that this is about; attention `packed`, and `turned` by it."""
    found = Counter(n.op_type for n in nodes if n.op_type in ("GroupQueryAttention", "RotaryEmbedding", "MoE", "If"))
    for node in nodes:
        if node.op_type == "GroupQueryAttention":
            found["packed"] += node.inputs[1] is None
            found["turned"] += node.attributes.get_int("do_rotary", 0)
    return +found


def agree(model: Model) -> Counter[str]:
    """Checks that the model gives what PyTorch gives, at once and step by step; the operators of its step."""
    module = module_of(model)
    inputs = inputs_for(model, {"batch": 2, "time": 8})
    whole = run(onnx_bytes(model, module, target="ort-cuda"), inputs)[0]
    assert distance(whole, torch.from_numpy(first_output(module, inputs))) < TOLERANCE
    found = differences(model, (4, 1, 1, 1), target="ort-cuda")  # on the CPU, later rows come one token at a time
    assert max(found.values()) < TOLERANCE, found
    at_once = operators([*write(model, GraphOptions(target="ort-cuda")).model.graph])
    step = operators([*write_steps(model, GraphOptions(target="ort-cuda"))["model"].model.graph])
    assert at_once == step
    return step


PACKED_AND_TURNED = {"GroupQueryAttention": 2, "packed": 2, "turned": 2}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attention": "mha(heads: 4, bias: true)"},
        {"attention": "mha(heads: 4, fused: true)"},
        {"attention": "mqa(heads: 2)"},
        {"mask": "causal & window(3)"},
        {"attention": "gqa(heads: 4, kv_heads: 2, softcap: 5)"},
        {"attention": "gqa(heads: 2, kv_heads: 1, head_dim: 48)"},
        {"position": "rope(interleaved: true)"},
        {"attention": "gqa(heads: 2, kv_heads: 1)", "position": "rope(fraction: 0.5)"},
        {"position": "rope(scaling: yarn(factor: 4, original: 4))"},
    ],
    ids=str,
)
def test_attention_takes_one_tensor_and_turns_it(changes: dict[str, str]) -> None:
    assert agree(small(**changes)) == PACKED_AND_TURNED


@pytest.mark.parametrize(
    ("changes", "fused"),
    [
        ({}, 4),
        ({"norm": "layernorm"}, 4),
        ({"norm": "layernorm(bias: false)"}, 4),
        ({"norm": "rmsnorm(weight: false)"}, 4),
        ({"placement": "post"}, 4),
        ({"placement": "sandwich"}, 4),
        ({"norm": "rmsnorm(offset: true)"}, 1),
    ],
    ids=str,
)
def test_a_sum_and_the_norm_that_reads_it_are_one_operator(changes: dict[str, str], fused: int) -> None:
    """Unless what the norm is given, such as 1 + its weight, is computed behind the sum."""
    model = small(**changes)
    agree(model)
    nodes = [*write(model, GraphOptions(target="ort-cuda")).model.graph]
    assert sum(node.op_type.startswith("Skip") for node in nodes) == fused


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_weights_of_few_bits_stand_under_each_other_too(quantize: str) -> None:
    model = small()
    given: dict[str, Any] = {"weights": None, "seed": 0, "batch": 2, "time": 7, "device": "cpu"}
    options = GraphOptions(target="ort-cuda", quantize=quantize)
    report = verify(model, options, **given, tolerance=TOLERANCE)
    assert report.agrees, report
    nodes = [*write(model, GraphOptions(target="ort-cuda", quantize=quantize)).model.graph]
    assert operators(nodes) == PACKED_AND_TURNED
    assert sum(n.op_type == "MatMulNBits" for n in nodes) == 2 * (1 + 1 + 3) + 1


@pytest.mark.parametrize(("quantize", "width", "few"), [("int4", 64, True), ("int4", 96, False), ("int8", 96, True)])
def test_rows_whose_zero_points_would_be_misread_keep_their_type(quantize: str, width: int, few: bool) -> None:
    """CUDA's lookup in four bits goes on from row to row without the half byte that ends one."""
    model = archdsl.load(text=LAYER.replace("width:   64", f"width:   {width}"))
    nodes = [*write(model, GraphOptions(target="ort-cuda", quantize=quantize)).model.graph]
    assert sum(n.op_type == "GatherBlockQuantized" for n in nodes) == few


def test_attention_without_rotary_positions_takes_one_tensor() -> None:
    assert agree(small(position="none")) == {"GroupQueryAttention": 2, "packed": 2}


@pytest.mark.parametrize(
    ("changes", "turned_before"),
    [
        ({"attention": "gqa(heads: 4, kv_heads: 2, qk_norm: rmsnorm)"}, 4),  # a norm between
        ({"attention": "gqa(heads: 8, kv_heads: 2)"}, 4),  # heads of 8, which onnxruntime does not turn
        ({"position": "rope(fraction: 0.5)"}, 4),  # nor so few numbers
    ],
    ids=str,
)
def test_attention_takes_three_tensors_where_more_happens_to_them(changes: dict[str, str], turned_before: int) -> None:
    assert agree(small(**changes)) == {"GroupQueryAttention": 2, "RotaryEmbedding": turned_before}


@pytest.mark.parametrize(
    "experts",
    [
        "moe(experts: 5, top_k: 2, expert: swiglu(hidden: 32))",
        "moe(experts: 5, top_k: 2, expert: swiglu(hidden: 32, bias: true))",
        "moe(experts: 20, top_k: 3, expert: swiglu(hidden: 32))",
        "moe(experts: 5, top_k: 1, expert: mlp(hidden: 32, act: relu))",
        "moe(experts: 5, top_k: 2, expert: mlp(hidden: 32, act: gelu_tanh))",
        "moe(experts: 5, top_k: 2, expert: mlp(hidden: 32, act: silu, bias: true))",
    ],
)
def test_experts_are_one_operator(experts: str) -> None:
    assert agree(small(ffn=experts)) == {**PACKED_AND_TURNED, "MoE": 2}


@pytest.mark.parametrize(
    "experts",
    [
        "moe(experts: 5, top_k: 2, expert: geglu(hidden: 32))",  # a gate that the operator does not know
        "moe(experts: 5, top_k: 2, expert: mlp(hidden: 32, act: gelu))",  # not by tanh
        "moe(experts: 5, top_k: 2, expert: swiglu(hidden: 36))",  # a size that its kernels do not take
    ],
)
def test_other_experts_stand_one_by_one(experts: str) -> None:
    assert agree(small(ffn=experts)) == {**PACKED_AND_TURNED, "If": 2 * 5}


@pytest.mark.parametrize("name", ["gpt2:gpt2", "gptj:gptj_6b", "mixtral:mixtral_8x7b", "deepseek_v3:deepseek_v3"])
def test_models_that_are_known(name: str) -> None:
    assert agree(graph(name))
