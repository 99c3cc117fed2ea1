"""Every primitive in ONNX: its examples give in onnxruntime what the emitted PyTorch gives."""

from __future__ import annotations

import onnx
import pytest
import torch
from onnx_tools import distance, onnx_bytes, run
from ops.test_contract import CASES, NAMES, compiled, inputs_of, outputs_of

from archdsl.ir.op import Example, Primitive
from archdsl.ops import registry

TOLERANCE = 2e-5

REPLACED = {"attention_scores", "draw", "identity", "rope", "rotate"}
"""Never a node of a graph that is run: others stand in its place."""


@pytest.mark.parametrize("name", NAMES)
def test_a_primitive_says_how_it_is_written(name: str) -> None:
    op = registry.get(name)
    says = bool(op.operator) or type(op).onnx is not Primitive.onnx
    assert says != (name in REPLACED)


DTYPES = {
    onnx.TensorProto.FLOAT: torch.float32,
    onnx.TensorProto.BFLOAT16: torch.bfloat16,
    onnx.TensorProto.INT64: torch.int64,
    onnx.TensorProto.BOOL: torch.bool,
}


def widened(data: bytes) -> tuple[bytes, list[torch.dtype]]:
    """The graph with results in float32 where they are bfloat16, which numpy does not hold, and their types before."""
    proto = onnx.load_from_string(data)
    types = [DTYPES[o.type.tensor_type.elem_type] for o in proto.graph.output]
    for output, dtype in zip(proto.graph.output, types, strict=True):
        if dtype == torch.bfloat16:
            name, output.name = output.name, f"{output.name}.wide"
            output.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
            proto.graph.node.append(onnx.helper.make_node("Cast", [name], [output.name], to=onnx.TensorProto.FLOAT))
    return proto.SerializeToString(), types


@pytest.mark.parametrize(("name", "example"), CASES)
def test_onnxruntime_gives_what_pytorch_gives(name: str, example: Example) -> None:
    """In float32; in float16, of the same inputs rounded; in bfloat16, which onnxruntime runs on CUDA alone, the types
    fit, which onnx checks."""
    model, module = compiled(example)
    inputs = inputs_of(model, example)
    expected = outputs_of(module, inputs)
    data, types = widened(onnx_bytes(model, module))
    assert types == [t.dtype for t in expected]
    for ours, theirs in zip(run(data, inputs), expected, strict=True):
        assert distance(ours, theirs) < TOLERANCE
    narrow = onnx.load_from_string(onnx_bytes(model, module, dtype="bfloat16")).graph.output
    wanted = [v.dtype in ("float", "bfloat16") for _, v in model.outputs]
    assert [o.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16 for o in narrow] == wanted
    if "bfloat16" not in example.expression:
        half = {k: t.half() if t.is_floating_point() else t for k, t in inputs.items()}
        wide = {k: t.float() if t.is_floating_point() else t for k, t in half.items()}
        found = run(onnx_bytes(model, module, dtype="float16"), half)
        for ours, theirs in zip(found, outputs_of(module, wide), strict=True):
            assert distance(ours, theirs) < 3e-3
