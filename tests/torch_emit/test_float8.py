"""`--with float8`: products of linear layers in float8, forward and backward, in training."""

from __future__ import annotations

import copy
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archdsl

pytestmark = pytest.mark.skipif(not hasattr(F, "scaled_mm"), reason="torch < 2.10 has no float8 on every CPU")
TINY = {"layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "hidden": 96, "vocab": 96, "context": 64}


@pytest.fixture(scope="module")
def made() -> tuple[nn.Module, Any]:
    """A model, and its file."""
    torch.manual_seed(0)
    model = archdsl.to_torch("llama3_8b", set=TINY, features=["loss", "float8"])
    return model, sys.modules[type(model).__module__]


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in float64, rounded to float8 by one scale: what its bits say."""
    scale = x.abs().max().double() / torch.finfo(dtype).max
    return (x.double() / scale).to(dtype).double() * scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("a_type", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_a_product_is_that_of_the_rounded_numbers(made: tuple[nn.Module, Any], dtype: Any, a_type: Any) -> None:
    torch.manual_seed(1)
    a, b = (3e-5 * torch.randn(23, 48)).to(dtype), (700 * torch.randn(48, 32)).to(dtype)
    wanted = rounded(a, a_type) @ rounded(b, torch.float8_e4m3fn)
    found = made[1].float8_product(a, b, a_type)
    assert found.dtype == dtype
    assert (found.double() - wanted).norm() / wanted.norm() < 1e-2
    assert made[1].float8_product(torch.zeros_like(a), b, a_type).eq(0).all()


@pytest.mark.parametrize("bias", [True, False])
def test_gradients_are_those_of_a_linear_layer(made: tuple[nn.Module, Any], bias: bool) -> None:
    torch.manual_seed(1)
    plain = nn.Sequential(nn.Linear(64, 32, bias=bias))
    eighth = copy.deepcopy(plain)
    made[1].use_float8(eighth)
    assert type(eighth[0]).__name__ == "Float8Linear"
    x, grad = torch.randn(2, 16, 64), torch.randn(2, 16, 32)
    found = []
    for layer in (plain, eighth):
        given = x.clone().requires_grad_()
        layer(given).backward(grad)
        found.append([given.grad, *(p.grad for p in layer.parameters())])
    for exact, rough in zip(*found, strict=True):
        assert F.cosine_similarity(exact.flatten(), rough.flatten(), dim=0) > 0.995
        assert abs(rough.norm() / exact.norm() - 1) < 0.02


def test_what_does_not_fit_stays(made: tuple[nn.Module, Any]) -> None:
    """Sizes that are no multiples of 16, other classes, and a number of rows that is none."""
    layers = nn.Sequential(nn.Linear(24, 32), nn.Linear(32, 40), nn.Bilinear(16, 16, 16), nn.Linear(32, 32))
    made[1].use_float8(layers)
    assert [type(layer).__name__ for layer in layers] == ["Linear", "Linear", "Bilinear", "Float8Linear"]
    x = torch.randn(3, 5, 32)
    assert torch.equal(layers[3](x), F.linear(x, layers[3].weight, layers[3].bias))
    assert not torch.equal(layers[3](x[:, :1].expand(3, 16, 32)), layers[3](x)[:, :1].expand(3, 16, 32))


@pytest.mark.slow
@pytest.mark.parametrize("autocast", [False, True])
def test_a_model_learns_as_before(made: tuple[nn.Module, Any], autocast: bool) -> None:
    model, module = made
    plain, eighth = copy.deepcopy(model), copy.deepcopy(model)
    module.use_float8(eighth.blocks)
    assert {n for n, m in eighth.named_modules() if type(m).__name__ == "Float8Linear"} == {
        n for n, m in plain.named_modules() if type(m) is nn.Linear and n.startswith("blocks.")
    }
    assert eighth.state_dict().keys() == plain.state_dict().keys()
    tokens = torch.arange(33).repeat(4, 1) * torch.tensor([[1], [2], [3], [5]]) % 96
    losses = []
    for one in (plain, eighth):
        optimizer = torch.optim.AdamW(one.parameters(), lr=3e-3)
        for _ in range(40):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                loss = one(tokens[:, :-1], tokens[:, 1:])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[0] < 0.5
    assert abs(losses[1] - losses[0]) < 0.1


@pytest.mark.slow
def test_it_compiles_without_a_break(made: tuple[nn.Module, Any]) -> None:
    model, module = made
    eighth = copy.deepcopy(model)
    module.use_float8(eighth.blocks)
    tokens = torch.randint(96, (2, 17))
    wanted = eighth(tokens[:, :-1], tokens[:, 1:])
    wanted.backward()
    grads = {n: p.grad for n, p in eighth.named_parameters()}
    eighth.zero_grad()
    found = torch.compile(eighth, backend="aot_eager", fullgraph=True)(tokens[:, :-1], tokens[:, 1:])
    found.backward()
    assert found.item() == pytest.approx(wanted.item(), rel=1e-3)
    for name, p in eighth.named_parameters():
        assert F.cosine_similarity(p.grad.flatten(), grads[name].flatten(), dim=0) > 0.99, name  # type: ignore[union-attr]
