"""Primitives over axes whose size only the running model knows."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import cache
from typing import Any

import pytest
import torch
from test_contract import nothing_else_is_read, outputs_of
from torch import Tensor

import archdsl
from archdsl.api import to_torch
from archdsl.ir.dims import evaluate
from archdsl.ir.graph import Model
from archdsl.ir.op import Example

USES = [
    "x[:, 1:]",
    "x[:, :-1]",
    "x[:, -4:]",
    "x[:, time // 2:]",
    "x[:, -time // 2:]",
    "x[:, time - 1]",
    "x[:, -1]",
    "x[:, :time - 1]",
    "table[:time]",
    "table[indices(time)]",
    "concat(x, x[:, 1:], axis: 1)",
    "(x -> pad(4))[:, 4:]",
    "(concat(x, x, axis: 1))[:, :time]",
    "x -> pad(1, 2)",
    "x -> pad(time, axis: 1)",
    "x -> shift(2)",
    "x -> roll(-1)",
    "x -> flip",
    "x -> repeat(3)",
    "x -> tile(2)",
    "x -> unsqueeze(1) -> expand(1, 3)",
    "x -> unsqueeze(1) -> expand(1, time)",
    "x -> transpose(1, 2) -> flatten(1)",
    "x -> flatten(0, 1)",
    "x -> unflatten(1, time / 4, 4)",
    "x -> unflatten(1, 2, time / 2)",
    "x -> unflatten(1, [2, 3 * time / 2 - time])",
    "x -> repeat(time / 2 - 1)",
    'x -> rearrange("b (n p) d -> b n (p d)", p: 4)',
    'x -> rearrange("b (n p) d -> b (p n) d", n: 2)',
    'x -> rearrange("b (n sizes) d -> b n (sizes d)", sizes: 4)',  # called like the option
    'x -> rearrange("b t (h d) -> (b t) h d", h: 2)',
    'x -> rearrange("b n (p d) -> b (n p) d", p: 2)',
    "(x -> transpose(1, 2)) * indices(time)",
    "x / time",
    "x * (indices(8) + time)",
    "x + zeros(time, 8)",
    "fill(0.5, batch, time, 2)",
    "one_hot(8)(indices(time) % 8) + x",
    "x -> sum(1)",
    "x -> cumsum(axis: 1)",
    "x -> softmax(axis: 1)",
    "x -> mean([0, 1])",
    "argmax(x, axis: 1)",
    "matmul(x, x -> transpose(1, 2))",
    'einsum("b q d, b k d -> b q k", x, x)',
    "gather(x, argsort(x, axis: 1), axis: 1)",
    "where(indices(time) < time / 2, 1, 0)",
]
TWO = [
    "a, b = x -> chunk(2, axis: 1)",
    "a, b = x -> split(1, time - 1, axis: 1)",
    "a, b = x -> split(time // 2, time - time // 2, axis: 1)",
    "a, b = x -> split(sizes: [time / 2, time - time / 2], axis: 1)",
    "a, b = x -> topk(2, axis: 1)",
    "a, b = x -> sort(axis: 1)",
]
CONSTANTS = [
    "buffer w: [time, 2] = [1, 2] return w",
    "buffer w: [time, 2] = [1, 0.5] return w",
    "buffer w: [batch, time] = indices(time) / time return w",
    "buffer w: [batch, 2, 3] = [[1, 2, 3], [4, 5, 6]] return w",
]
TEXTS = [*(f"return {use}" for use in USES), *(f"{use} return a, b" for use in TWO), *CONSTANTS]
INPUTS = "x: [batch, time, 8], table: [32, 8]"
EXAMPLE = Example("")


@cache
def compiled(text: str) -> tuple[Model, Any]:
    model = archdsl.load(text=f"model m({INPUTS}) {{ {text} }}")
    return model, to_torch(model).eval()


def inputs(batch: int, time: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {"x": torch.randn(batch, time, 8, generator=generator), "table": torch.randn(32, 8, generator=generator)}


@pytest.mark.parametrize("text", TEXTS)
def test_shapes_follow_the_sizes(text: str) -> None:
    model, module = compiled(text)
    for batch, time in ((1, 4), (2, 8), (3, 12)):
        found = outputs_of(module, inputs(batch, time))
        for (_, value), y in zip(model.outputs, found, strict=True):
            sizes = {"batch": batch, "time": time}
            assert list(y.shape) == [evaluate(d.value, sizes) for d in value.shape]


@pytest.mark.parametrize("text", TEXTS)
def test_nothing_is_read_that_is_not_claimed(text: str) -> None:
    model, module = compiled(text)
    nothing_else_is_read(model, module, inputs(2, 8), EXAMPLE)


@pytest.mark.slow
def test_one_graph_for_all_sizes() -> None:
    """Everything at once: under torch.compile without a break, and exported with sizes left open."""
    names = [f"y_{i}" for i in range(len(USES))]
    lines = [f"{name} = {use}" for name, use in zip(names, USES, strict=True)]
    lines += [use.replace("a, b", f"a_{i}, b_{i}") for i, use in enumerate(TWO)]
    names += [f"{n}_{i}" for i in range(len(TWO)) for n in "ab"]
    _, module = compiled(f"{' '.join(lines)} return {', '.join(names)}")
    wanted = outputs_of(module, inputs(2, 8))
    quick = torch.compile(module, backend="aot_eager", fullgraph=True, dynamic=True)
    for y, z in zip(wanted, outputs_of(quick, inputs(2, 8)), strict=True):
        torch.testing.assert_close(y, z)
    batch = torch.export.Dim("batch", min=2, max=64)
    quarter = torch.export.Dim("quarter", min=1, max=8)
    program = torch.export.export(
        module,
        (),
        inputs(2, 8),
        dynamic_shapes={"x": {0: batch, 1: 4 * quarter}, "table": {}},
    )
    for y, z in zip(outputs_of(module, inputs(3, 12)), outputs_of(program.module(), inputs(3, 12)), strict=True):
        torch.testing.assert_close(y, z)


@pytest.mark.parametrize(
    "number",
    ["(time - 9) // 2", "(3 - time) // 4", "(time - 9) % 4", "(3 - time) % 5", "(time // 3 * 5 - 2 * time) // 2"],
)
def test_quotients_of_numbers_below_0_are_rounded_down(number: str) -> None:
    """In Python, in the module and in onnxruntime, added to real and to whole numbers."""
    for kind in ("", "int"):
        text = f"model m(x: {kind}[batch, time, 4]) {{ return x + 50 + ({number}) }}"
        module = to_torch(archdsl.load(text=text))
        for time in range(2, 12):
            x = torch.zeros(1, time, 4, dtype=torch.int64 if kind else torch.float32)
            assert module(x).flatten()[0] == 50 + eval(number, {"time": time})
            assert archdsl.verify(text=text, batch=1, seq=time, decode=False).agrees


NUMBERS = [
    *("floor(time / 2.5)", "ceil(time / 2.5)", "time // 2.5", "floor((time + 0.5) / 2)", "floor(time * 0.3)"),
    *("floor(1 / time * 49)", "ceil(7 / time)", "floor(-1 / time)", "floor(time / 0.1)", "floor(sqrt(time) / 2)"),
    *("sign(time - 7)", "3 - sign(time - 8)", "sign(log(time) - 1) + 0.5", "sign(-time)", "abs(time - 9)"),
    *("ceil(log(time) * 2)", "floor(log(time))", "abs(log(time) - 3)", "maximum(time, 5)", "minimum(time / 2, 2.5)"),
    *("maximum(log(time), 1.5)", "exp(time / 20)", "tanh(time / 10)", "sin(time)", "cos(time)", "time / 4 * 2"),
    *("2.5 * floor(time / 2.5)", "floor(time / (batch + 1)) / 2", "2 ** -time", "time ** 0.5"),
    *("(time / 3) ** 2", "1 / log(time + 1) ** 2", "(time + 1) / (batch + 1)", "minimum(time // 2, 4) * 2"),
    *("ceil(sqrt(time)) - 1", "floor(maximum(time / 2, sqrt(time)))"),
]
SIZES = [
    *("time / 4 * 2", "(time / 2) ** 2", "time * 0.5", "time / 0.5", "time * 1.5", "time / 2 + time / 2"),
    *("(time + 2) / 2 - 1", "20 - time / 2", "time - time / 2", "3 * (time / 2 + 1)", "2 * (time / 4)", "time / 3 / 2"),
    *("floor(time / 2.5)", "ceil(49 / time)", "minimum(time, 5)", "maximum(time // 2, 5)", "floor(sqrt(time))"),
]


def in_python(number: str, **sizes: int) -> Any:
    """What a number comes to, of fractions that are exact."""
    exact = re.sub(r"\d+(\.\d+)?", r'F("\g<0>")', number)
    functions = {name: getattr(math, name) for name in ("floor", "ceil", "log", "exp", "tanh", "sin", "cos", "sqrt")}
    functions |= {"abs": abs, "minimum": min, "maximum": max, "sign": lambda x: (x > 0) - (x < 0), "F": Fraction}
    return eval(exact, functions | {name: Fraction(size) for name, size in sizes.items()})


def test_numbers_of_sizes_are_exact() -> None:
    """In the module and in onnxruntime they are what Python makes of fractions."""
    wanted = ", ".join(f"x * ({number})" for number in NUMBERS)
    text = f"model m(x: [batch, time, 1]) {{ return {wanted} }}"
    module = to_torch(archdsl.load(text=text))
    for time in (1, 5, 7, 8, 49):
        found = outputs_of(module, {"x": torch.ones(2, time, 1, dtype=torch.float64)})
        for number, y in zip(NUMBERS, found, strict=True):
            assert y.flatten()[0] == pytest.approx(float(in_python(number, batch=2, time=time)), rel=1e-12), number
        assert archdsl.verify(text=text, batch=2, seq=time, decode=False).agrees


def test_sizes_that_are_quotients_are_exact() -> None:
    for size in SIZES:
        text = f"model m(x: [batch, time, 1]) {{ return ones({size}, 2) * x[0, 0, 0] }}"
        module = to_torch(archdsl.load(text=text, allow_noncausal=True))
        for time in (6, 12):
            if in_python(size, time=time) % 1 == 0:
                assert module(torch.ones(1, time, 1)).size(0) == in_python(size, time=time), size


def test_a_size_of_the_running_model_is_an_argument_of_a_block_that_does_not_name_it() -> None:
    text = "block f(n: number)(x: [..., 8]) -> [...] { return x / n }\n"
    text += "model m(x: [batch, time, 8]) { return x -> f(n: time) }"
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(to_torch(archdsl.load(text=text))(x), x / 5)
    assert archdsl.verify(text=text, batch=2, seq=5, decode=False).agrees


@pytest.mark.parametrize(
    ("use", "said"),
    [
        ("x -> unflatten(1, 2, time - time / 2)", "time must be a multiple of 2"),
        ("x[:, : 3 * time / 2 - time]", "time must be a multiple of 2"),
        ("x -> repeat(time / 2 - 1)", "time - 2 must be a multiple of 2"),
    ],
)
def test_what_a_length_must_be_is_said_as_short_as_it_goes(use: str, said: str) -> None:
    _, module = compiled(f"return {use}")
    with pytest.raises(AssertionError, match=re.escape(said)):
        module(**inputs(2, 7))


@pytest.mark.parametrize(
    ("use", "time", "length"),
    [
        ("x[:, : (time + 1) / 3]", 8, 3),
        ("x -> pad((time - 2) / 4, axis: 1)", 6, 7),
        ("zeros((3 * time - 1) / 5, 2)", 7, 4),
        ("(x -> pad((time + 1) / 3, axis: 1))[:, : (time + 2) / 7 + time / 4]", 68, 27),
        ("zeros((time + 1) / 3 * (time - 2) / 2, 2)", 8, 9),
    ],
)
def test_lengths_that_are_no_multiples(use: str, time: int, length: int) -> None:
    _, module = compiled(f"return {use}")
    (found,) = outputs_of(module, inputs(2, time))
    assert found.shape[-2] == length
