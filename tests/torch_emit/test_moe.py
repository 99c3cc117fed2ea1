"""Experts: products by group however they are computed, mixed precision, and the bias that balances their load."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from zoo import tiny as zoo

from torch_emit.emitted import close, gradients, module, names_of, same_gradients

MIXTRAL = "mixtral:mixtral_8x7b"
DEEPSEEK = "deepseek_v3:deepseek_v3"


def helper(name: str) -> Any:
    return names_of(module(MIXTRAL))[name]


def sorted_rows(counts: list[int], inputs: int = 6, outputs: int = 10) -> tuple[Tensor, Tensor, Tensor]:
    """Rows for each expert, weights, and where each expert's rows end."""
    generator = torch.Generator().manual_seed(sum(counts))
    x = torch.randn(sum(counts), inputs, generator=generator, requires_grad=True)
    weight = torch.randn(len(counts), inputs, outputs, generator=generator, requires_grad=True)
    return x, weight, torch.tensor(counts).cumsum(0).to(torch.int32)


def by_expert(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    parts = x.tensor_split(ends[:-1].long())
    return torch.cat([part @ matrix for part, matrix in zip(parts, weight, strict=True)])


@pytest.mark.parametrize("counts", [[3, 0, 5, 1], [0, 0, 0, 7], [1], [0, 1, 0], [16, 16, 16, 16], [40, 1, 1, 1, 1]])
@pytest.mark.parametrize("name", ["grouped_matmul", "blockwise_matmul"])
def test_products(name: str, counts: list[int]) -> None:
    """Whatever share of the rows each expert gets, values and gradients."""
    x, weight, ends = sorted_rows(counts)
    wanted = by_expert(x, weight, ends)
    found = helper(name)(x, weight, ends)
    close(found, wanted)
    weights = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1))
    for a, b in zip(
        torch.autograd.grad((found * weights).sum(), (x, weight)),
        torch.autograd.grad((wanted * weights).sum(), (x, weight)),
        strict=True,
    ):
        close(a, b)


def test_blocks_compute_less_than_every_expert_on_every_row() -> None:
    x, weight, ends = sorted_rows([30] * 8 + [16])
    with FlopCounterMode(display=False) as counter:
        helper("blockwise_matmul")(x, weight, ends)
    assert counter.get_total_flops() <= 1.6 * 2 * 256 * 6 * 10


@pytest.mark.slow
@pytest.mark.parametrize("name", [MIXTRAL, DEEPSEEK, "sparsely_gated_moe:moe_32"])
def test_compiled(name: str) -> None:
    """Without a break in the graph, in the type in which no grouped kernel is traced; and as much work as without."""
    inputs = zoo.inputs(zoo.graph(name))
    plain, made = module(name).eval(), module(name).eval()
    compiled = torch.compile(made, backend="aot_eager", fullgraph=True)
    wanted, found = plain(**inputs), compiled(**inputs)
    close(found, wanted)
    (wanted**2).mean().backward()
    (found**2).mean().backward()
    same_gradients(gradients(made), gradients(plain))


@pytest.mark.slow
def test_compiled_in_half_precision() -> None:
    """Widths of sixteen bytes take the grouped kernel."""
    plain, made = (module(MIXTRAL, width=32, hidden=64).bfloat16().eval() for _ in range(2))
    tokens = zoo.inputs(zoo.graph(MIXTRAL))["tokens"]
    close(torch.compile(made, backend="aot_eager", fullgraph=True)(tokens).float(), plain(tokens).float(), 0.03)


@pytest.mark.parametrize("name", [MIXTRAL, DEEPSEEK, "switch:switch_base_8", "sparsely_gated_moe:moe_32"])
def test_mixed_precision(name: str) -> None:
    """Under autocast experts compute in bfloat16 like any linear map: finite, and near float32."""
    inputs = zoo.inputs(zoo.graph(name))
    made, exact = module(name).eval(), module(name).eval()
    wanted = exact(**inputs)
    (wanted**2).mean().backward()
    seen: list[torch.dtype] = []
    kernel = names_of(made)["grouped_matmul"]

    def watched(*args: Any) -> Tensor:
        found: Tensor = kernel(*args)
        seen.append(found.dtype)
        return found

    names_of(made)["grouped_matmul"] = watched
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = made(**inputs).float()
    finally:
        names_of(made)["grouped_matmul"] = kernel
    assert set(seen) == {torch.bfloat16}
    # A token near a boundary of the router's may go to another expert: the mean tells what arithmetic does.
    assert float((found - wanted).detach().abs().mean()) <= 0.05 * float(wanted.detach().abs().mean())
    (found**2).mean().backward()
    for found_gradient, gradient in zip(gradients(made).values(), gradients(exact).values(), strict=True):
        assert found_gradient.isfinite().all()
        assert float((found_gradient - gradient).norm()) <= 0.3 * max(float(gradient.norm()), 0.02)


# --- the bias ---------------------------------------------------------------------------------------------------------


def routers(made: torch.nn.Module) -> list[Any]:
    return [m for m in made.modules() if type(m).__name__ == "SigmoidRouter"]


def test_load_is_counted_in_training_only() -> None:
    made = module(DEEPSEEK, "loss")
    tokens = zoo.inputs(zoo.graph(DEEPSEEK))["tokens"]
    made.eval().loss(tokens, tokens)
    assert all(int(r.balance.load.sum()) == 0 for r in routers(made))
    made.train().loss(tokens, tokens)
    made(tokens)
    assert [int(r.balance.load.sum()) for r in routers(made)] == 2 * [2 * tokens.numel() * 3]
    assert "load" not in " ".join(made.state_dict())


def test_update_follows_the_rule() -> None:
    """bias += speed · sign(mean load - load), and the count begins anew."""
    made = module(DEEPSEEK, "loss").train()
    tokens = zoo.inputs(zoo.graph(DEEPSEEK))["tokens"]
    made.loss(tokens, tokens).backward()
    loads = [r.balance.load.double() for r in routers(made)]
    assert any(float(load.std()) > 0 for load in loads)
    made.update_bias(0.25)
    for router, load in zip(routers(made), loads, strict=True):
        assert torch.equal(router.balance.bias, (0.25 * torch.sign(load.mean() - load)).float())
        assert int(router.balance.load.sum()) == 0


def test_loads_become_even() -> None:
    """With the router's weights as they are the bias alone brings the loads together."""
    made = module(DEEPSEEK, "loss", groups=1, top_groups=1).train()
    tokens = torch.randint(97, (16, 32), generator=torch.Generator().manual_seed(1))
    spread = []
    with torch.no_grad():
        for _ in range(60):
            made(tokens)
            spread.append(max(float(r.balance.load.max() / r.balance.load.double().mean()) for r in routers(made)))
            made.update_bias(0.005)
    assert spread[0] > 1.2
    assert spread[-1] < 1 + 0.5 * (spread[0] - 1)


@pytest.mark.slow
def test_load_is_counted_in_compiled_code_too() -> None:
    made = module(DEEPSEEK, "loss").train()
    tokens = zoo.inputs(zoo.graph(DEEPSEEK))["tokens"]
    torch.compile(made.loss, backend="aot_eager", fullgraph=True)(tokens, tokens).backward()
    assert [int(r.balance.load.sum()) for r in routers(made)] == 2 * [tokens.numel() * 3]


def test_models_without_a_bias_have_no_update() -> None:
    assert not hasattr(module(MIXTRAL, "loss"), "update_bias")
