"""Primitives in ONNX beyond their examples: sizes left open, and what is special about some numbers."""

from __future__ import annotations

from functools import cache
from typing import Any

import onnx
import pytest
import torch
from onnx_tools import distance, onnx_bytes, run
from ops import test_run_time_sizes as sizes
from ops.test_contract import outputs_of
from torch import Tensor

import archdsl
from archdsl.api import to_torch
from archdsl.ir.dims import evaluate
from archdsl.ir.graph import Model
from archdsl.ops.registry import primitives

TOLERANCE = 2e-5
INF, NAN = float("inf"), float("nan")


def given(text: str, **inputs: Tensor) -> tuple[list[Any], list[Tensor]]:
    """What onnxruntime and PyTorch make of it."""
    _, module = model_of(text)
    return list(run(exported(text), inputs)), outputs_of(module, inputs)


@cache
def model_of(text: str) -> tuple[Model, Any]:
    torch.manual_seed(0)
    model = archdsl.load(text=f"model m{text}")
    return model, to_torch(model).eval()


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


@pytest.mark.parametrize(
    "use", ["fill(1 / time, time)", "zeros(time) + time / 3", "where(zeros(time) > 0, 0, time / 3)"]
)
def test_a_fraction_of_a_size_is_a_real_number(use: str) -> None:
    ours, theirs = given(f"(x: [batch, time, 8]) {{ return {use} }}", x=torch.zeros(1, 4, 8))
    expected = torch.full((4,), 1 / 4 if use.startswith("fill") else 4 / 3)
    torch.testing.assert_close(theirs[0], expected)
    torch.testing.assert_close(torch.from_numpy(ours[0]), expected)


@pytest.mark.parametrize("use", ["flatten(1)", "unflatten(-1, 2, 4)", "flatten(0, 1)", "unflatten(1, time / 2, 2)"])
def test_sizes_of_a_reshape_are_copied_or_follow_from_the_others(use: str) -> None:
    proto = onnx.load_from_string(exported(f"(x: [batch, time, 8]) {{ return x -> {use} }}"))
    assert [n.op_type for n in proto.graph.node] == ["Reshape", "Identity"]


def test_what_has_no_kernel_in_bfloat16_is_computed_in_float32() -> None:
    text = "(x: [batch, 8]) { v, i = x -> clamp(-1, 1) -> topk(3) return v, mean(x), x < 1, log_sigmoid(x) }"
    proto = onnx.load_from_string(onnx_bytes(*model_of(text), dtype="bfloat16"))
    types = {v.name: v.type.tensor_type.elem_type for v in onnx.shape_inference.infer_shapes(proto).graph.value_info}
    asked = {"Clip", "TopK", "ReduceMean", "Less", "Softplus"}
    found = {n.op_type: types[n.input[0]] for n in proto.graph.node if n.op_type in asked}
    assert found == dict.fromkeys(asked, onnx.TensorProto.FLOAT)


# --- numbers ----------------------------------------------------------------------------------------------------------

WHOLE = torch.tensor([-7, -6, -1, 0, 1, 5, 6, 7])
REAL = torch.tensor([-INF, -7.5, -6.0, -1e-3, -0.0, 0.0, 0.25, 6.0, 7.5, INF, NAN])


@pytest.mark.parametrize("op", ["//", "%"])
@pytest.mark.parametrize("divisor", [2, -2, 3, -5])
def test_whole_numbers_are_divided_rounding_down(op: str, divisor: int) -> None:
    equal(f"(ids: int[n]) {{ return ids {op} {divisor} }}", ids=WHOLE)
    by = torch.tensor([1, -1, divisor, 100])
    equal(f"(ids: int[n, 1], by: int[m]) {{ return ids {op} by }}", ids=WHOLE[:, None], by=by)


@pytest.mark.parametrize("op", ["//", "%"])
def test_real_numbers_are_divided_rounding_down(op: str) -> None:
    """By zero and by infinity too."""
    equal(f"(x: [n, 1], by: [m]) {{ return x {op} by }}", x=REAL[:, None], by=REAL)
    equal(f"(x: [n]) {{ return x {op} 0.1 }}", x=torch.tensor([-1.0, -0.3, 0.3, 0.7, 1.0, 12.3]))


@pytest.mark.parametrize("exponent", ["2", "3", "0.5", "-0.5", "-1", "-2", "-3", "4", "1.5", "0"])
def test_powers_of_real_numbers(exponent: str) -> None:
    equal(f"(x: [n]) {{ return x ** {exponent} }}", x=REAL)


def test_powers_of_whole_numbers() -> None:
    """Exact where they are whole; with exponents that may be below 0 they are real."""
    ids = torch.tensor([-3, -2, -1, 0, 1, 2, 3])
    for n in (0, 1, 2, 7, 39):
        equal(f"(ids: int[n]) {{ return ids ** {n} }}", ids=ids)
    equal("(ids: int[n]) { return ids ** n }", ids=ids)
    exponent = torch.tensor([-3, -2, -1, 0, 1, 2, 5])
    equal("(a: int[n, 1], b: int[m]) { return a ** b }", a=ids[:, None], b=exponent)
    for base in ("2", "-2", "0.5", "m"):
        equal(f"(b: int[m]) {{ return {base} ** b }}", b=exponent)
    for power in ("-1", "-2", "-0.5", "0.5", "(2 - n)", "(n / 2)"):
        equal(f"(ids: int[n]) {{ return ids ** {power} }}", ids=ids.abs() + 1)


@pytest.mark.parametrize(
    ("power", "dtype"),
    [
        ("2", "int"),
        ("0", "int"),
        ("n", "int"),
        ("-1", "float32"),
        ("(2 - n)", "float32"),
        ("ids", "float32"),
        ("x", "float"),
        ("0.5", "float32"),
    ],
)
def test_what_type_a_power_of_whole_numbers_has(power: str, dtype: str) -> None:
    model = archdsl.load(text=f"model m(ids: int[n], x: [n]) {{ return (ids + 1) ** {power} }}")
    assert [v.dtype for _, v in model.outputs] == [dtype]


@pytest.mark.parametrize("op", ["==", "!=", "<", "<=", ">", ">="])
def test_comparisons(op: str) -> None:
    yes = torch.tensor([True, False])
    equal(f"(x: [n, 1], y: [m]) {{ return x {op} y }}", x=REAL[:, None], y=REAL)
    equal(f"(ids: int[n], y: [n]) {{ return ids {op} y }}", ids=torch.tensor([1, 2, 3]), y=torch.tensor([1.0, 2.5, 2]))
    equal(f"(ids: int[n]) {{ return ids {op} 1.5 }}", ids=WHOLE)
    equal(f"(c: bool[n, 1], d: bool[n]) {{ return c {op} d }}", c=yes[:, None], d=yes)
    equal(f"(c: bool[n], ids: int[n]) {{ return c {op} ids }}", c=yes, ids=torch.tensor([1, 1]))
    equal(f"(c: bool[n]) {{ return c {op} 1 }}", c=yes)


ROWS = torch.tensor([[-INF, -INF, -INF], [-INF, 1.0, 2.0], [INF, 0.0, 1.0], [100.0, 100.0, -100.0]])


@pytest.mark.parametrize(
    "use", ["logsumexp", "logsumexp(keep: true)", "max", "min(-1)", "log_softmax", "sum", "clamp(0, 3)", "log_sigmoid"]
)
def test_infinities(use: str) -> None:
    equal(f"(x: [n, 3]) {{ return x -> {use} }}", x=ROWS)


def test_of_equals_the_first_comes_first() -> None:
    x = torch.tensor([[2.0, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    for use in ("argsort", "argsort(descending: true)"):
        ours, _ = given(f"(x: [n, 7]) {{ return x -> {use} }}", x=x)
        expected = x.sort(dim=-1, descending="descending" in use, stable=True).indices
        assert torch.equal(torch.from_numpy(ours[0]), expected)
    equal("(x: [n, 7]) { return argmax(x) }", x=x)
    equal("(ids: int[n]) { return argmax(ids) }", ids=torch.tensor([1, 4, 4, 2]))


def test_values_that_go_to_one_place_are_added() -> None:
    places = torch.tensor([[0, 0, 2, 0]])
    for kind, dtype in (("", torch.float32), ("int", torch.int64)):
        text = f"(x: {kind}[n, 3], places: int[n, 4], y: {kind}[n, 4]) {{ return scatter_add(x, places, y) }}"
        equal(text, x=torch.ones(1, 3, dtype=dtype), places=places, y=torch.tensor([[1, 2, 4, 8]], dtype=dtype))


def test_truth_values_are_scattered() -> None:
    equal(
        "(x: bool[n, 3], places: int[n, 2], y: bool[n, 2]) { return scatter(x, places, y) }",
        x=torch.tensor([[True, False, True]]),
        places=torch.tensor([[1, 2]]),
        y=torch.tensor([[True, False]]),
    )


def test_casts_of_odd_numbers() -> None:
    equal("(x: [n]) { return x -> cast(int) }", x=torch.tensor([-1.9, -0.5, 0.5, 1.9, 3.0]))
    equal("(x: [n]) { return x -> cast(bool) }", x=torch.tensor([-0.1, 0.0, -0.0, 1e-30, NAN]))


# --- attention of other shapes ----------------------------------------------------------------------------------------

ATTENTION = {
    "five axes": ("q: [batch, 3, 4, time, 8], k: [batch, 3, 2, time, 8]", "sdpa(q, k, k, mask: causal & window(3))"),
    "five axes with a bias": (
        "q: [batch, 3, 4, time, 8], b: [batch, 3, 4, time, time]",
        "sdpa(q, q, q, b, mask: causal)",
    ),
    "five axes with a bias of one": ("q: [batch, 3, 4, time, 8], b: [1, 3, 1, time, time]", "sdpa(q, q, q, b)"),
    "a softcap without heads": ("q: [batch, time, 8]", "sdpa(q, q, q, mask: causal, softcap: 2)"),
    "a softcap beside sinks": ("q: [batch, 4, time, 8], s: [4]", "sdpa(q, q, q, mask: causal, softcap: 2, sink: s)"),
    "a mask that is turned round": ("q: [batch, 4, time, 8]", "sdpa(q, q, q, mask: ~(causal & window(2)))"),
    "rope of two axes": ("q: [time, 8]", "q -> rope"),
    "rope of five axes": ("q: [batch, 3, 4, time, 8]", "q -> rope(dims: 6)"),
    "Transformer-XL with a scale": (
        "q: [batch, 4, time, 8]",
        "sdpa(q, q, q, mask: causal, position: transformer_xl, scale: 0.3)",
    ),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_of_other_shapes(name: str) -> None:
    inputs, expression = ATTENTION[name]
    text = f"({inputs}) {{ return {expression} }}"
    torch.manual_seed(0)
    sizes = {"batch": 2, "time": 5}
    shapes = {n: [int(evaluate(d.value, sizes)) for d in value.shape] for n, value in model_of(text)[0].inputs}
    (ours,), (theirs,) = given(text, **{n: torch.randn(shape) for n, shape in shapes.items()})
    assert distance(ours, theirs) < TOLERANCE


# --- sizes in order and as a list -------------------------------------------------------------------------------------

SEVERAL = {
    # Uses of options of several numbers, the option, and the numbers.
    "unflatten": ("return x -> unflatten(2, {})", "sizes", "2, 4"),
    "split": ("a, b = x -> split({})  return concat(b, a, axis: 2)", "sizes", "3, 5"),
    "permute": ("return x -> permute({})", "axes", "0, 2, 1"),
    "zeros": ("return x - zeros({})", "dims", "5, 8"),
    "fill": ("return x - fill(0.5, {})", "dims", "5, 8"),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_several_numbers_are_given_in_order_or_as_a_list(name: str) -> None:
    use, option, numbers = SEVERAL[name]
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    spelled = (numbers, f"[{numbers}]", f"{option}: [{numbers}]")
    found = [given(f"(x: [2, 5, 8]) {{ {use.format(text)} }}", x=x) for text in spelled]
    ((wanted,), _) = found[0]
    for (ours,), (theirs,) in found:
        assert (ours == wanted).all()
        assert (theirs.numpy() == wanted).all()


def test_those_are_all_that_take_several() -> None:
    kinds = {name: {h.kind for h in op.header.hypers or ()} for name, op in primitives().items() if op.examples}
    assert {name for name, found in kinds.items() if "sizes" in found} == {*SEVERAL, "ones"}


@pytest.mark.parametrize(
    "mask",
    ["queries(t)", "~queries(t)", "queries(t) | keys(t)", "queries(t) & keys(t)", "same(t)", "causal & queries(t)"],
)
def test_masks_that_read_a_tensor_at_the_queries(mask: str) -> None:
    kind = "int" if mask == "same(t)" else "bool"
    text = f"model m(x: float[batch, time, 8], t: {kind}[batch, time]) -> [batch, time, 8]"
    model = archdsl.load(text=f"{text} {{ return x -> mha(heads: 2, mask: {mask}) }}", allow_noncausal=True)
    torch.manual_seed(0)
    module = archdsl.to_torch(model).eval()
    t = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 1, 0, 1]])
    inputs = {"x": torch.randn(2, 5, 8), "t": t if kind == "int" else t.bool()}
    (found,) = run(onnx_bytes(model, module, names="spec"), inputs)
    assert distance(found, module(*inputs.values())) < 1e-5
