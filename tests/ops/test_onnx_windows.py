"""Convolutions, poolings, norms, recurrences and running sums in ONNX: sizes left open, and half precision."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import onnx
import pytest
import torch
from onnx_tools import distance, onnx_bytes, run
from ops.test_contract import outputs_of
from torch import Tensor

import archdsl
from archdsl.api import to_torch
from archdsl.ir.dims import evaluate
from archdsl.ir.graph import Model, Value

USES = [
    "x -> conv1d(6, kernel: 3)",
    "x -> conv1d(6, kernel: 1, groups: 2)",
    "x -> conv1d(8, kernel: 4, groups: 8, padding: causal, bias: false)",
    "x -> conv1d(6, kernel: 4, stride: 2, dilation: 2)",
    "x -> conv1d(6, kernel: 2, stride: 3, padding: none)",
    "rows -> conv1d(4, kernel: 3)",
    "many -> conv1d(6, kernel: 3)",
    "x -> conv_transpose1d(6, kernel: 4, stride: 2)",
    "x -> conv_transpose1d(6, kernel: 5, stride: 2, padding: causal)",
    "x -> conv_transpose1d(6, kernel: 2, stride: 3, groups: 2)",
    "many -> conv_transpose1d(6, kernel: 3, stride: 2, padding: none)",
    "image -> conv2d(3, kernel: [3, 2], stride: [2, 1], padding: [1, 0])",
    "image -> conv2d(6, kernel: [2, 3], dilation: [2, 1], groups: 3, padding: same)",
    "image -> conv_transpose2d(3, kernel: [5, 2], stride: [2, 1], padding: causal)",
    "image -> conv_transpose2d(3, kernel: 4, stride: [2, 3], padding: same)",
    "x -> avg_pool1d(3, stride: 2, padding: 1)",
    "x -> max_pool1d(3, stride: 2, padding: 1)",
    "rows -> max_pool1d(2)",
    "image -> avg_pool1d(2, stride: 1)",
    "many -> avg_pool1d(2, stride: 1)",
    "image -> avg_pool2d([2, 3], stride: [1, 2], padding: [1, 0])",
    "image -> max_pool2d([2, 3], stride: [1, 2], padding: [1, 0])",
    "x -> batchnorm",
    "rows -> batchnorm",
    "image -> batchnorm(axis: 1)",
    "image -> batchnorm(eps: 1e-3)",
    "x -> groupnorm(2)",
    "rows -> groupnorm(2)",
    "image -> groupnorm(4)",
    "image -> groupnorm(3, axis: 1)",
    "x -> powernorm(eps: 1e-3)",
    "x -> l2_normalize",
    "x -> l2_normalize(axis: 1, eps: 3)",
    "x -> gru(6)",
    "x -> gru(6, bias: false, reverse: true)",
    "gru(6)(x, h)",
    "x -> lstm(6)",
    "x -> lstm(6, bias: false, reverse: true)",
    "lstm(6)(x, h, tanh(h))",
    "x -> rnn(6)",
    "rnn(6, act: relu, bias: false, reverse: true)(x, h)",
    "gru_cell(6)(w, h)",
    "gru_cell(6, bias: false)(x, s)",
    "rnn_cell(6)(x, s)",
    "rnn_cell(6, act: relu)(w, h)",
    "linear_recurrence(sigmoid(x), x)",
    "linear_recurrence(sigmoid(s), s, h)",
    "linear_recurrence(sigmoid(own), s, h)",
    "linear_recurrence(sigmoid(thin), deep)",
    "selective_scan(x, exp(x) * 0.1, -exp(table), few, few)",
    "selective_scan(x, exp(x) * 0.1, -exp(table), few, few, skip: gain)",
    "linear_attention(q, q * 0.5, q)",
    "linear_attention(exp(q), exp(0.5 * q), q, normalize: true)",
    "linear_attention(q, 2 * q, q, log_decay: -exp(decay))",
    "linear_attention(q, 2 * q, q, log_decay: -exp(by_head))",
    "linear_attention(exp(q), exp(q), q, log_decay: -exp(decay), normalize: true)",
    "linear_attention(q, 2 * q, q, log_decay: -exp(q))",
    "linear_attention(q, 2 * q, q, log_decay: where(decay > 0.5, -inf, -exp(decay)))",
    "linear_attention(exp(q), exp(q), q, log_decay: where(q > 0.5, -inf, -exp(q)), normalize: true)",
    "delta_rule(q, l2_normalize(q), q, sigmoid(decay))",
    "delta_rule(q, l2_normalize(q), q, sigmoid(decay), where(decay > 0.5, -inf, -exp(decay)))",
    "delta_rule(q, l2_normalize(q), q, sigmoid(decay), where(q > 0.5, -inf, -exp(q)), read: 0.5 * q)",
    "delta_rule(q, l2_normalize(stack(q, -q, axis: 3)), stack(q, q, axis: 3), sigmoid(stack(decay, decay, axis: 3)))",
    "solve(0.1 * matmul(q, q -> transpose(2, 3)), q)",
    "linear_attention(q, q * 0.5, q, causal: false)",
    "linear_attention(exp(q), exp(q), q, causal: false, normalize: true)",
    "x -> cumsum(axis: 1)",
    "x -> cumsum(axis: 1, reverse: true)",
    "logcumsumexp(30 * x, axis: 1)",
    "x -> cumprod(axis: 1)",
    "x -> cumprod",
    "rows -> cumprod(axis: 0)",
    "real -> cumsum(axis: 1)",
    "real -> cumprod(axis: 1)",
    "ids -> cumprod",
    "x -> shift(2)",
    "x -> shift(-1, fill: 0.5)",
    "real -> shift(fill: 1)",
    "ids -> shift(-2, fill: 7)",
    "ids -> shift(fill: 7)",
    "x -> roll",
    "x -> roll(-1)",
    "x -> roll(7)",
    "x -> roll(time + 2)",
    "x -> roll(-11, axis: 2)",
    "x -> pad(1, 2, value: -0.5)",
    "x -> pad(time, axis: 2)",
    "x -> pad(after: time // 2)",
    "real -> pad(1, value: 1)",
    "ids -> pad(1, time, value: 3)",
    "ids -> pad(1, 2, axis: 0)",
    "x -> prelu(0.1)",
    "x -> glu",
    "image -> glu(axis: 3)",
    "x -> selection_bias",
    "sdpa(q, q, q, position: transformer_xl)",
    "sdpa(one, q, q, position: transformer_xl)",
    "sdpa(three, q, q, position: transformer_xl)",
    "x + sinusoid(time, 8)",
    "x + sinusoid(time, 8, interleaved: true, offset: 3)",
    "sinusoid(time, 2 * time, theta: 100)",
    'einsum("b q d, b k d -> b q k", x, x)',
    'einsum("... t d, d e -> ... e t", x, table)',
    'einsum("b h t ..., h ... -> b t", q, by_width)',
    'einsum("... d, ... d -> ...", q, one)',
    'einsum("b t t -> t b", einsum("b q d, b k d -> b q k", x, x))',
    "matmul(x, table)",
    "matmul(q, other)",
]
TWO = ["y, c = lstm_cell(6)(x, s, tanh(s))", "y, c = lstm_cell(6, bias: false)(w, h, h)"]
TEXTS = [f"return {use}" for use in USES] + [f"{use} return y, c" for use in TWO]
INPUTS = (
    "x: [batch, time, 8], s: [batch, time, 6], few: [batch, time, 3], own: [batch, time, 1], rows: [time, 8], "
    "image: [batch, 3, time, 8], many: [batch, 2, 3, time, 8], thin: [batch, time, 1, 4], deep: [batch, time, 3, 4], "
    "q: [batch, 2, time, 4], one: [batch, 2, 1, 4], three: [batch, 2, 3, 4], decay: [batch, 2, time], "
    "by_head: [2, 1], w: [batch, 8], h: [batch, 6], table: [8, 3], other: [4, 4], by_width: [2, 4], gain: [8], "
    "ids: int[batch, time], real: bool[batch, time]"
)
SIZES = [{"batch": 1, "time": 2}, {"batch": 3, "time": 7}, {"batch": 2, "time": 130}]
WITHOUT_BFLOAT16 = {
    *("AveragePool", "Conv", "ConvTranspose", "Cos", "CumSum", "Einsum", "GRU", "InstanceNormalization", "LSTM"),
    *("MaxPool", "Pad", "PRelu", "RNN", "ReduceL2", "Sin", "Trilu"),
}


@cache
def compiled(text: str, inputs: str = INPUTS) -> tuple[Model, Any]:
    """With weights and buffers that are not what they start as."""
    model = archdsl.load(text=f"model m({inputs}) {{ {text} }}")
    module = to_torch(model).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.1)
    return model, module


def drawn(value: Value, sizes: dict[str, int], generator: torch.Generator) -> Tensor:
    shape = [int(evaluate(d.value, sizes)) for d in value.shape]
    if value.is_bool:
        return torch.rand(shape, generator=generator) < 0.8
    if value.is_int:
        return torch.randint(5, shape, generator=generator)
    return 0.5 * torch.randn(shape, generator=generator)


def inputs_of(model: Model, sizes: dict[str, int]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: drawn(value, sizes, generator) for name, value in model.inputs}


def replaced(text: str, sizes: dict[str, int]) -> str:
    """Numbers for names of sizes."""
    return re.sub(r"\b(batch|time)\b", lambda m: str(sizes[m[0]]), text)


def compare(found: Sequence[Any], expected: Sequence[Tensor], tolerance: float) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert distance(ours, theirs) < tolerance


@pytest.mark.parametrize("text", TEXTS)
def test_sizes_are_open(text: str) -> None:
    """In float32 and float16; in bfloat16 no operator is asked for that has no kernel for it."""
    model, module = compiled(text)
    data = onnx_bytes(model, module)
    for sizes in SIZES:
        inputs = inputs_of(model, sizes)
        expected = outputs_of(module, inputs)
        found = run(data, inputs)
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.dtype == theirs.detach().numpy().dtype
        compare(found, expected, 2e-5)
    inputs = {k: t.half() if t.is_floating_point() else t for k, t in inputs_of(model, SIZES[1]).items()}
    expected = outputs_of(module, {k: t.float() if t.is_floating_point() else t for k, t in inputs.items()})
    compare(run(onnx_bytes(model, module, dtype="float16"), inputs), expected, 1e-2)
    graph = onnx.shape_inference.infer_shapes(onnx.load_from_string(onnx_bytes(model, module, dtype="bfloat16"))).graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}
    types |= {t.name: t.data_type for t in graph.initializer}
    for node in graph.node:
        if node.op_type in WITHOUT_BFLOAT16:
            assert all(types[name] != onnx.TensorProto.BFLOAT16 for name in node.input if name), node.op_type


@pytest.mark.parametrize("text", TEXTS)
def test_sizes_are_fixed(text: str) -> None:
    """The same with numbers for sizes, which some forms are shorter for."""
    for sizes in ({"batch": 2, "time": 5}, {"batch": 1, "time": 64}, {"batch": 2, "time": 81}):
        model, module = compiled(*(replaced(s, sizes) for s in (text, INPUTS)))
        inputs = inputs_of(model, {})
        compare(run(onnx_bytes(model, module), inputs), outputs_of(module, inputs), 2e-5)


def test_a_recurrence_is_as_exact_as_steps_however_long() -> None:
    model, module = compiled("return linear_recurrence(x, h)", "x: [batch, time, 2], h: [batch, time, 2]")
    data = onnx_bytes(model, module)
    for time in (1, 2, 3, 4, 5, 8, 9, 10, 999, 1000, 1024, 1025):
        inputs = inputs_of(model, {"batch": 2, "time": time})
        inputs["x"] = inputs["x"].sigmoid() + 0.5
        state, states = torch.zeros(2, 2), []
        for t in range(time):
            state = inputs["x"][:, t].double() * state + inputs["h"][:, t].double()
            states.append(state)
        compare(run(data, inputs), [torch.stack(states, 1)], 2e-5)


def test_weights_of_recurrent_layers_are_in_the_layout_of_torch() -> None:
    model, module = compiled("return x -> lstm(6)")
    proto = onnx.load_from_string(onnx_bytes(model, module))
    shapes = {t.name: list(t.dims) for t in proto.graph.initializer}
    for name, weight in module.named_parameters():
        assert shapes[name] == list(weight.shape)
    assert [n.op_type for n in proto.graph.node].count("LSTM") == 1
