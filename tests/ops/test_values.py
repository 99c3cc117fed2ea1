"""What primitives compute, against plain PyTorch written another way; and `rearrange` against its definition."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from test_contract import bounds_of, claimed
from torch import Tensor

import archdsl
from archdsl.api import to_torch
from archdsl.ops.elementwise import FUNCTIONS

X = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))
IDS = torch.arange(12).reshape(2, 6) % 5


def run(inputs: str, expression: str, *tensors: Tensor) -> Tensor:
    model = archdsl.load(text=f"model m({inputs}) {{ {expression} }}")
    result: Tensor = to_torch(model).eval()(*tensors)
    return result


def shifted(x: Tensor, by: int, fill: float = 0) -> Tensor:
    out = torch.full_like(x, fill)
    for t in range(x.size(1)):
        if 0 <= t - by < x.size(1):
            out[:, t] = x[:, t - by]
    return out


def by_series(slope: Callable[[float], float]) -> Callable[[Tensor], Tensor]:
    """The integral of a slope from 0, by the trapezoidal rule."""

    def integral(x: float, steps: int = 2000) -> float:
        inner = sum(slope(x * i / steps) for i in range(1, steps))
        return x / steps * (inner + (slope(0.0) + slope(x)) / 2)

    return lambda x: torch.tensor([integral(v) for v in x.double().ravel().tolist()]).reshape(x.shape).float()


MEANT: list[tuple[str, Callable[[Tensor], Tensor]]] = [
    ("x - 2 * x / 4 + x ** 2", lambda x: x - x / 2 + x * x),
    ("-x ** 2", lambda x: -(x * x)),
    ("2 ** -x", lambda x: torch.exp(-x * math.log(2))),
    ("(x - 1) - (x - 2)", torch.ones_like),
    ("x / (x / 2)", lambda x: torch.full_like(x, 2.0)),
    ("(x // 1) + (x % 1)", lambda x: x),
    ("sign(x) * abs(x)", lambda x: x),
    ("where((x > 0) & ~(x > 1) | (x < -1), 0, x)", lambda x: x - x * ((x > 0) * (x <= 1) + (x < -1))),
    ("rsqrt(square(x)) * abs(x)", torch.ones_like),
    ("cumsum(x, axis: 1, reverse: true)", lambda x: x.sum(1, keepdim=True) - x.cumsum(1) + x),
    (
        "logcumsumexp(300 * x, axis: 1)",
        lambda x: torch.stack([(300 * x[:, : t + 1]).logsumexp(1) for t in range(6)], 1),
    ),
    ("round(4 * x)", lambda x: torch.tensor(np.rint((4 * x).numpy()))),
    ("reciprocal(x) * x", torch.ones_like),
    (
        "clamp(low: -0.5, high: 0.5)(x)",
        lambda x: torch.minimum(torch.maximum(x, torch.tensor(-0.5)), torch.tensor(0.5)),
    ),
    ("minimum(x, 0.5) + maximum(x, 0.5)", lambda x: x + 0.5),
    ("x -> relu_squared", lambda x: (x * (x > 0)) ** 2),
    ("x -> quick_gelu", lambda x: x / (1 + torch.exp(-1.702 * x))),
    ("x -> gelu", lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2),
    ("x -> gelu_tanh", lambda x: x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
    ("x -> mish", lambda x: x * torch.tanh(torch.log1p(torch.exp(x)))),
    ("x -> hard_swish", lambda x: x * (x / 6 + 0.5).clamp(0, 1)),
    ("x -> hard_sigmoid", lambda x: (x / 6 + 0.5).clamp(0, 1)),
    ("x -> softsign", lambda x: x / (1 + x.abs())),
    ("x -> elu(0.5)", lambda x: torch.where(x > 0, x, 0.5 * (torch.exp(x) - 1))),
    ("x -> leaky_relu(0.2)", lambda x: torch.where(x > 0, x, 0.2 * x)),
    ("x -> prelu(0.1)", lambda x: torch.where(x > 0, x, 0.1 * x)),
    ("x -> glu", lambda x: x[..., :4] * torch.sigmoid(x[..., 4:])),
    ("x -> glu(axis: 1)", lambda x: x[:, :3] * torch.sigmoid(x[:, 3:])),
    ("x -> var", lambda x: ((x - x.mean(-1, keepdim=True)) ** 2).mean(-1)),
    ("x -> logsumexp(axis: [1, 2])", lambda x: torch.log(torch.exp(x).sum((1, 2)))),
    ("exp(x -> log_softmax(axis: 1))", lambda x: torch.exp(x) / torch.exp(x).sum(1, keepdim=True)),
    ("x -> cumsum(axis: 1)", lambda x: torch.stack([x[:, : t + 1].sum(1) for t in range(6)], 1)),
    ("x -> l2_normalize(axis: 1)", lambda x: x / (x * x).sum(1, keepdim=True).sqrt()),
    ("x -> merge_heads", lambda x: torch.cat([x[0], x[1]], -1)),
    ("x -> transpose(0, 2) -> permute(2, 1, 0)", lambda x: x),
    ("concat(x[:, 4:], x[:, :4], axis: 1)", lambda x: x.roll(2, 1)),
    ("stack(x, -x)", lambda x: torch.cat((x.unsqueeze(1), -x.unsqueeze(1)), 1)),
    ("x -> pad(1, 2, value: 3)", lambda x: torch.cat((torch.full((2, 1, 8), 3.0), x, torch.full((2, 2, 8), 3.0)), 1)),
    ("x -> shift", lambda x: shifted(x, 1)),
    ("x -> shift(2, fill: 7)", lambda x: shifted(x, 2, 7)),
    ("x -> shift(-3)", lambda x: shifted(x, -3)),
    ("x -> roll(-1)", lambda x: torch.cat((x[:, 1:], x[:, :1]), 1)),
    ("x -> flip", lambda x: torch.stack([x[:, t] for t in reversed(range(6))], 1)),
    ("x -> repeat(2)", lambda x: torch.stack((x, x), 2).reshape(2, 12, 8)),
    ("x -> tile(2)", lambda x: torch.cat((x, x), 1)),
    ("x[:, 1] -> unsqueeze(1) -> expand(1, 3)", lambda x: torch.stack((x[:, 1],) * 3, 1)),
    ("x -> unflatten(-1, 2, 4) -> flatten(2)", lambda x: x),
    ("gather(x, argsort(x))", lambda x: x.sort(-1).values),
    ("x * cast(float)(indices(8))", lambda x: x * torch.arange(8.0)),
    ('einsum("b q d, b k d -> b q k", x, x)', lambda x: (x[:, :, None] * x[:, None]).sum(-1)),
    ('einsum("... q d, ... k d -> ... q k", x[:1], x)', lambda x: (x[:1, :, None] * x[:, None]).sum(-1)),
    ('einsum("... q d, ... k d -> ... q k", x, x[:1])', lambda x: (x[:, :, None] * x[:1, None]).sum(-1)),
    ("matmul(x, x -> transpose(1, 2))", lambda x: (x[:, :, None] * x[:, None]).sum(-1)),
    ("x * stop_gradient(x)", lambda x: x * x),
    ("abs(x) + square(x)", lambda x: (x * x) ** 0.5 + x**2),
    ("sqrt(square(x))", lambda x: torch.maximum(x, -x)),
    ("exp(x) * log(1 + square(x))", lambda x: math.e**x * torch.log1p(x * x)),
    ("square(sin(x)) + cos(2 * x)", lambda x: torch.cos(x) ** 2),
    ("erf(x)", by_series(lambda t: 2 / math.sqrt(math.pi) * math.exp(-t * t))),
    ("x -> tanh", lambda x: (torch.exp(2 * x) - 1) / (torch.exp(2 * x) + 1)),
    ("x -> sigmoid", lambda x: 1 / (1 + torch.exp(-x))),
    ("floor(x) + ceil(-x)", torch.zeros_like),
    ("floor(x)", lambda x: x - torch.remainder(x, 1)),
    ("x -> relu", lambda x: x * (x > 0)),
    ("x -> selu", lambda x: 1.0507009873554805 * torch.where(x > 0, x, 1.6732632423543772 * (torch.exp(x) - 1))),
    ("x -> silu", lambda x: x / (1 + torch.exp(-x))),
    ("x -> softplus", lambda x: torch.log(1 + torch.exp(x))),
    ("x -> log_sigmoid", lambda x: -torch.log(1 + torch.exp(-x))),
]


def test_every_function_is_among_them() -> None:
    named = {word for expression, _ in MEANT for word in re.findall(r"[a-z_]+", expression)}
    missing = {row.name for row in FUNCTIONS} - named
    assert not missing, f"say in MEANT what {', '.join(missing)} computes, in another way than its row"


@pytest.mark.parametrize(("expression", "meant"), MEANT, ids=[m[0] for m in MEANT])
def test_it_computes_what_is_meant(expression: str, meant: Callable[[Tensor], Tensor]) -> None:
    torch.testing.assert_close(run("x: [2, 6, 8]", f"return {expression}", X), meant(X))


def test_places_are_picked() -> None:
    text = "v, p = x -> topk(3) return v - gather(x, p)"
    assert not run("x: [2, 6, 8]", text, X).any()
    text = "v, p = x -> sort return scatter(zeros(2, 6, 8), p, v)"
    assert torch.equal(run("x: [2, 6, 8]", text, X), X)
    ids = run("ids: int[2, 6]", "return one_hot(5)(ids) -> argmax", IDS)
    assert torch.equal(ids, IDS)
    table = run("table: [5, 8], ids: int[2, 6]", "return table[ids]", X[0, :5], IDS)
    assert torch.equal(table, torch.stack([torch.stack([X[0, i] for i in row]) for row in IDS]))
    added = run(
        "x: [2, 5], ids: int[2, 6], v: [2, 6]", "return scatter_add(x, ids, v)", torch.zeros(2, 5), IDS, X[..., 0]
    )
    for b, i in ((b, i) for b in range(2) for i in range(5)):
        torch.testing.assert_close(added[b, i], X[b, :, 0][IDS[b] == i].sum())


def test_no_gradient_passes_stop_gradient() -> None:
    x = X.clone().requires_grad_()
    run("x: [2, 6, 8]", "return x * stop_gradient(x)", x).sum().backward()
    torch.testing.assert_close(x.grad, X)


@pytest.mark.parametrize("seed", range(60))
def test_rearrange_is_cut_move_merge(seed: int) -> None:
    draw = random.Random(seed)
    sizes = {name: draw.randint(2, 3) for name in "abcde"[: draw.randint(2, 5)]}

    def grouped(names: list[str]) -> list[list[str]]:
        groups: list[list[str]] = [[]]
        for name in names:
            if groups[-1] and draw.random() < 0.6:
                groups.append([])
            groups[-1].append(name)
        for _ in range(draw.randint(0, 1)):
            groups.insert(draw.randint(0, len(groups)), [])
        return groups

    def written(groups: list[list[str]]) -> str:
        return " ".join("1" if not g else g[0] if len(g) == 1 else f"({' '.join(g)})" for g in groups)

    names = list(sizes)
    left = grouped(names)
    moved = draw.sample(names, len(names)) if draw.random() < 0.8 else names
    right = grouped(moved)
    # Of each group one size is left out.
    left_out = {draw.choice(g) for g in left if g}
    given = [n for g in left if len(g) > 1 for n in g if n not in left_out]
    options = "".join(f", {n}: {sizes[n]}" for n in given)
    shape = [math.prod(sizes[n] for n in g) for g in left]
    x = torch.arange(math.prod(shape)).reshape(shape).float()
    text = f'(x: {shape}) {{ return (x -> rearrange("{written(left)} -> {written(right)}"{options})) + 0 }}'
    model = archdsl.load(text=f"model m{text}")
    found = to_torch(model)(x)
    cut = x.reshape([sizes[n] for n in names]).permute([names.index(n) for n in moved])
    assert torch.equal(found, cut.reshape([math.prod(sizes[n] for n in g) for g in right]))
    # Every number tells the place it came from.
    for axes in bounds_of(claimed(model, *model.block.graph.outputs, *model.block.graph.inputs), found):
        for bound, place in zip(axes, np.unravel_index(found.long().numpy(), shape), strict=True):
            assert (bound >= torch.from_numpy(place)).all()


@pytest.mark.parametrize(
    ("scaling", "parameters"),
    [
        ("yarn(factor: 4, original: 8)", {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}),
        (
            "yarn(factor: 4, original: 8, mscale: 0)",
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "attention_factor": 1.0},
        ),
        (
            "longrope(short: [1, 1, 1.5, 2], long: [1, 2, 3, 4], original: 16, factor: 2)",
            {
                "rope_type": "longrope",
                "short_factor": [1.0, 1.0, 1.5, 2.0],
                "long_factor": [1.0, 2.0, 3.0, 4.0],
                "factor": 2.0,
                "original_max_position_embeddings": 16,
            },
        ),
    ],
)
def test_a_rope_that_is_applied_sharpens_what_it_turns(scaling: str, parameters: dict[str, object]) -> None:
    """Nothing else multiplies the scores of equations: what it is in attention's `position` slot would be lost."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    config = LlamaConfig(hidden_size=16, num_attention_heads=2, max_position_embeddings=32)
    config.rope_parameters = {"rope_theta": 500.0, **parameters}
    q = torch.randn(2, 2, 7, 8, generator=torch.Generator().manual_seed(1))
    cos, sin = LlamaRotaryEmbedding(config)(q, torch.arange(7)[None])
    found = run("q: [batch, 2, time, 8]", f"return q -> rope(theta: 500, scaling: {scaling})", q)
    assert torch.allclose(found, apply_rotary_pos_emb(q, q, cos, sin)[0], atol=1e-5)


@pytest.mark.parametrize("options", ["", ", fraction: 0.5"])
@pytest.mark.parametrize(("said", "written", "mscale"), [("", "", 1), ("1", "", 1), ("2", " * 2", 2), ("m", " * ", 1)])
def test_a_product_with_an_mscale_of_1_is_not_written(options: str, said: str, written: str, mscale: int) -> None:
    """That with a number of the Config is, which may be set to another."""
    more = f", mscale: {said}" if said else ""
    position = f"rope(scaling: yarn(factor: 4, original: 8{more}){options})"
    text = f"model m(m = 1)(q: [2, 4, 8]) {{ return sdpa(q, q, q, position: {position}) }}"
    assert f"0.1{written}" in (source := archdsl.torch_source(text=text))
    assert ("0.1 * math.log(4) + 1" in source) == (not written)
    block = "block f(m)(q: [batch, time, 8]) { return sdpa(q, q, q, position: %s) }"
    called = f"model m(m = 1)(q: [2, 4, 8]) {{ return q -> f(m: {said or 1}) }} {block % position}"
    assert ("0.1 * math.log(4) + 1" in archdsl.torch_source(text=called)) == (not written)
    q = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(1))
    made = run("q: [2, 4, 8]", f"return sdpa(q, q, q, position: {position.replace('scale: m', 'scale: 1')})", q)
    torch.testing.assert_close(to_torch(archdsl.load(text=text))(q), made)
    plain = run("q: [2, 4, 8]", f"return q -> rope(scaling: yarn(factor: 4, original: 8, mscale: 0){options})", q)
    grown = 0.1 * mscale * math.log(4) + 1
    turned = torch.cat((plain[..., :4] * grown, q[..., 4:]), dim=-1) if options else plain * grown
    expected = torch.nn.functional.scaled_dot_product_attention(turned, turned, q)
    torch.testing.assert_close(made, expected)


@pytest.mark.parametrize("rows", [1, 64, 500])
def test_a_triangular_system_keeps_its_digits(rows: int) -> None:
    """What stands on the diagonal and above is not read; keys that resemble each other, as in delta rules."""
    keys = torch.nn.functional.normalize(torch.randn(2, rows, 8) + torch.randn(2, 1, 8), dim=-1)
    matrix, b = keys @ keys.mT, torch.randn(2, rows, 3)
    found = run(f"l: [2, {rows}, {rows}], b: [2, {rows}, 3]", "return solve(l, b)", matrix, b)
    exact = torch.linalg.inv(matrix.double().tril(-1) + torch.eye(rows)) @ b.double()
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)
