"""ONNX graphs in the form that programs of others read: bodies, masks, and what onnx's own evaluator makes of them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
import torch
from decode_tools import widen
from onnx.reference import ReferenceEvaluator
from onnx_tools import distance, onnx_bytes, run
from zoo import tiny

import archdsl
from archdsl.backends.onnx.targets import GraphOptions
from archdsl.backends.onnx.write import write

READ_BY_ALL = ["mixtral:mixtral_8x7b", "ntm:ntm_copy", "mamba:mamba_130m", "deepseek_v3:deepseek_v3"]


def proto_of(name: str, **more: int) -> tuple[onnx.ModelProto, torch.nn.Module]:
    torch.manual_seed(0)
    model = tiny.graph(name, **more)
    module = archdsl.to_torch(model).eval()
    widen(module)
    return onnx.load_from_string(onnx_bytes(model, module)), module


def bodies(graph: onnx.GraphProto, operator: str) -> Iterator[tuple[onnx.NodeProto, onnx.GraphProto]]:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                if node.op_type == operator:
                    yield node, attribute.g
                yield from bodies(attribute.g, operator)


def all_bodies(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    for body in (a.g for node in graph.node for a in node.attribute if a.HasField("g")):
        yield body
        yield from all_bodies(body)


@pytest.mark.parametrize("name", READ_BY_ALL)
def test_the_evaluator_of_onnx_gives_what_pytorch_gives(name: str) -> None:
    """Many experts are one loop, which the evaluator runs too."""
    proto, module = proto_of(name, **({"experts": 20} if name.startswith("mixtral") else {}))
    inputs = tiny.inputs(tiny.graph(name))
    with torch.no_grad():
        wanted = module(**inputs)
    found = ReferenceEvaluator(proto).run(None, {k: x.numpy() for k, x in inputs.items()})
    for x, y in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert distance(np.asarray(x), y) < tiny.TOLERANCE


@pytest.mark.parametrize("name", ["ntm:ntm_copy", "mamba:mamba_130m"])
def test_a_scan_runs_along_axis_0_and_reads_nothing_but_its_inputs_and_weights(name: str) -> None:
    graph = proto_of(name)[0].graph
    scans = [*bodies(graph, "Scan")]
    assert scans
    weights = {x.name for x in graph.initializer}
    for node, body in scans:
        assert {a.name for a in node.attribute} == {"body", "num_scan_inputs"}
        own = {x.name for x in body.input} | {x for n in body.node for x in n.output}
        assert {x for n in body.node for x in n.input if x} <= own | weights


def test_the_answers_of_many_experts_are_one_tensor() -> None:
    graph = proto_of("mixtral:mixtral_8x7b", experts=20)[0].graph
    ((_, body), *_) = bodies(graph, "Loop")
    kinds = {n.op_type for n in [*graph.node, *body.node]}
    assert not {k for k in kinds if "Sequence" in k}


@pytest.mark.parametrize("name", ["bert:bert_base", "llama3:llama3_8b"])
def test_what_all_layers_compute_alike_stands_once(name: str) -> None:
    """The padding mask with all its queries, and the tables of rotary positions: a layer more adds products, norms and
    the like alone."""
    two, three = (Counter(n.op_type for n in proto_of(name, layers=n)[0].graph.node) for n in (2, 3))
    assert not {"Expand", "Shape", "Concat", "Cos", "Range", "Unsqueeze"} & {*(three - two)}


@pytest.mark.parametrize("name", ["gpt2:gpt2", "llama3:llama3_8b", "mamba:mamba_130m", "ntm:ntm_copy", "t5:t5_small"])
def test_a_weight_is_transposed_beside_the_product_that_reads_it(name: str) -> None:
    """And not at the head of the graph; in bodies likewise."""
    graph = proto_of(name)[0].graph
    weights = {x.name for x in graph.initializer}
    found = 0
    for nodes in (graph.node, *(body.node for body in all_bodies(graph))):
        transposed = {n.output[0]: n for n in nodes if n.op_type == "Transpose" and n.input[0] in weights}
        for before, node in itertools.pairwise(nodes):
            if node.op_type == "MatMul" and node.input[1] in transposed:
                assert transposed.pop(node.input[1]) == before
                found += 1
    assert found


def test_a_tensor_that_is_given_twice_is_two_outputs() -> None:
    text = """
model twice(x: [batch, time, 4]) {
  y = exp(x)
  return y, y, x, x
}
"""
    model = archdsl.load(text=text)
    module = archdsl.to_torch(model).eval()
    x, data = torch.randn(1, 2, 4), onnx_bytes(model, module)
    assert len({o.name for o in onnx.load_from_string(data).graph.output}) == 4
    for found, wanted in zip(run(data, {"x": x}), module(x), strict=True):
        assert distance(found, wanted) < tiny.TOLERANCE


HEADS = """
block heads(after: block)(x: [batch, time, 32]) -> [batch, time, 32] {
  q, k = x -> linear(64) -> chunk(2)
  y = sdpa(q -> split_heads(4), k -> split_heads(4), x -> linear(32) -> split_heads(4), mask: causal)
  return x + (y -> after)
}
block plain(y: [batch, heads, time, dim]) -> [...] { return y -> merge_heads }
block twice(y: [batch, heads, time, dim]) -> [...] { return (y -> merge_heads) + ((y * 2) -> merge_heads) }
block moved(y: [batch, heads, time, dim]) -> [...] { return y -> permute(0, 2, 3, 1) -> flatten(2) }
block merged(y: [batch, heads, time, dim]) -> [...] {
  return y -> transpose(1, 2) -> flatten(0, 1) -> flatten(1) -> unflatten(0, batch, time)
}
block repeated(x: [batch, time, 32]) -> [batch, time, 32] {
  k = x -> linear(16) -> split_heads(2) -> repeat(2, axis: 1)
  return x + (sdpa(x -> split_heads(4), k, x -> linear(32) -> split_heads(4), mask: causal) -> merge_heads)
}
model m(tokens: token[batch, time]) {
  x = tokens -> embedding(40, 32) -> heads(after: plain) -> heads(after: twice) -> heads(after: moved)
  return x -> heads(after: merged) -> repeated -> linear(40)
}
"""


@pytest.mark.parametrize("target", ["portable", "ort-cpu"])
def test_heads_stay_where_they_are_if_nothing_else_reads_them(target: str) -> None:
    """The heads of one attention alone are put back as they were; all compute what PyTorch computes."""
    model = archdsl.load(text=HEADS)
    graph = write(model, GraphOptions(target=target)).model.graph
    ranks = [len(n.inputs[0].shape or ()) for n in graph if n.op_type == "Attention"]
    assert ranks == ([3, 4, 4, 4, 4] if target == "portable" else [])
    assert archdsl.verify(model, batch=2, seq=7, target=target).agrees
