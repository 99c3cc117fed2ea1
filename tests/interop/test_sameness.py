"""Two graphs are the same whatever their weights are called and however axes are cut and moved; and not otherwise."""

from __future__ import annotations

import pytest

from archdsl.frontend.load import load
from archdsl.interop.sameness import Form
from archdsl.passes.flatten import flatten

SPEC = "model m(x: [batch, time, 24]) -> [...] {{\n  {}\n}}\n"


def form(body: str) -> Form:
    return Form(flatten(load("m.arch", text=SPEC.format(body.replace("; ", "\n  ")), model="m")))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("return x -> split_heads(4)", "return x -> unflatten(-1, 4, 6) -> transpose(1, 2)"),
        ("return x -> split_heads(4)", "return x -> unflatten(2, 4, 6) -> permute(0, 2, 1, 3)"),
        ("return x -> split_heads(4)", 'return x -> rearrange("b t (h d) -> b h t d", h: 4)'),
        ("return x -> unflatten(-1, 4, 6) -> flatten(2) -> unflatten(-1, 4, 6)", "return x -> unflatten(-1, 4, 6)"),
        ("return x -> unflatten(-1, 4, 6) -> flatten(2) -> unflatten(-1, 6, 4)", "return x -> unflatten(-1, 6, 4)"),
        (
            "return x -> split_heads(4)",
            "return x -> unflatten(-1, 4, 6) -> transpose(1, 2) -> flatten(1, 2) -> unflatten(1, 4, time)",
        ),
        ("return x -> split_heads(4) -> merge_heads", "return x -> split_heads(4) -> transpose(1, 2) -> flatten(2)"),
        ("return x -> split_heads(4) -> merge_heads -> silu", "return x -> silu"),
        ("return x -> transpose(0, 1) -> transpose(0, 1) -> silu", "return x -> silu"),
        (
            "return x -> split_heads(4) -> rmsnorm",
            "return x -> unflatten(-1, 4, 6) -> rmsnorm as n -> transpose(1, 2)",
        ),
        ("return x -> unflatten(-1, 4, 6) -> silu", "return x -> silu -> unflatten(-1, 4, 6)"),
        ("a, b, c = x -> chunk(3); return a * b + c", "a, b, c = x -> split(8, 8, 8); return c + b * a"),
        (
            "return (x -> linear(5) as a) + (x -> linear(5) as b)",
            "return (x -> linear(5) as c) + (x -> linear(5) as d)",
        ),
        ("return (x -> silu) + x", "return x + (x -> silu)"),
    ],
)
def test_the_same(one: str, other: str) -> None:
    pairs = form(one).paired(form(other))
    assert pairs is not None
    assert len({*pairs.values()}) == len(pairs)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("return x -> split_heads(4)", "return x -> split_heads(6)"),
        ("return x -> split_heads(4)", "return x -> unflatten(-1, 6, 4) -> permute(0, 3, 1, 2)"),
        ("return x -> split_heads(4) -> rmsnorm", "return x -> rmsnorm -> split_heads(4)"),
        ("return x -> split_heads(4) -> rmsnorm", "return x -> unflatten(-1, 6, 4) -> rmsnorm -> permute(0, 3, 1, 2)"),
        ("return x -> transpose(1, 2) -> softmax", "return x -> softmax -> transpose(1, 2)"),
        ("return x -> softmax", "return x -> softmax(axis: 1)"),
        ("a, b = x -> chunk(2); return a", "a, b = x -> chunk(2); return b"),
        ("a, b = x -> split(8, 16); return a", "a, b, c = x -> chunk(3); return b"),
        ("return x - (x -> silu)", "return (x -> silu) - x"),
        ("return x -> conv1d(24, kernel: 3, padding: causal)", "return x -> conv1d(24, kernel: 3, padding: same)"),
        ("return x -> cast(float32)", "return x"),
        ("let f = shared(linear(24)); return x -> f -> f", "return x -> linear(24) as a -> linear(24) as b"),
    ],
)
def test_not_the_same(one: str, other: str) -> None:
    assert form(one).paired(form(other)) is None


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ("return x -> silu", "return x -> gelu", "computes `gelu` where the model computes `silu`"),
        ("return x -> softmax", "return x -> softmax(axis: 1)", "computes `softmax` with another axis"),
        ("return x -> linear(5)", "return x -> linear(5, bias: false)", "computes `linear` with another bias"),
        ("return x -> silu", "return x", "computes an input where the model computes `silu`"),
        ("return x", "return x -> silu", "computes `silu` where the model computes an input"),
        (
            "return x -> transpose(1, 2)",
            "return x",
            "computes an input where the model computes a tensor with its axes moved",
        ),
        (
            "return x -> split_heads(4)",
            "return x -> split_heads(6)",
            "computes a tensor with its axes moved, another than the model",
        ),
        (
            "a, b = x -> chunk(2); return a",
            "a, b = x -> chunk(2); return b",
            "computes a part of a tensor, another than the model",
        ),
        ("return x * 2", "return x * 3", "computes the same of other inputs"),
    ],
)
def test_what_differs_is_said(one: str, other: str, said: str) -> None:
    assert form(one).difference(form(other)) == said
