"""Primitives over axes whose size only the running model knows."""

from __future__ import annotations

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
