"""Experts: products by group however they are computed, mixed precision, and the bias that balances their load."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from activation_tools import saved_bytes
from flops_tools import counted, predicted
from onnx_tools import distance, onnx_bytes, run
from torch import Tensor
from torch_versions import measured
from zoo import tiny as zoo

import archdsl
from archdsl.dependence import causality
from archdsl.diagnostics import ArchError
from archdsl.ir.graph import Model
from archdsl.passes.flat_step import decode_step
from archdsl.run.measure import measure
from torch_emit import parallel_tools as parallel
from torch_emit.emitted import close, gradients, module, names_of, same_gradients, spec

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
def test_products(counts: list[int]) -> None:
    """Whatever share of the rows each expert gets, values and gradients."""
    x, weight, ends = sorted_rows(counts)
    wanted = by_expert(x, weight, ends)
    found = helper("grouped_mm")(x, weight, ends)
    close(found, wanted)
    weights = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1))
    for a, b in zip(
        torch.autograd.grad((found * weights).sum(), (x, weight)),
        torch.autograd.grad((wanted * weights).sum(), (x, weight)),
        strict=True,
    ):
        close(a, b)


@pytest.mark.slow
def test_compiled_in_half_precision() -> None:
    """Widths of sixteen bytes take the grouped kernel."""
    plain, made = (module(MIXTRAL, width=32, hidden=64).bfloat16().eval() for _ in range(2))
    tokens = zoo.inputs(zoo.graph(MIXTRAL))["tokens"]
    close(torch.compile(made, backend="aot_eager", fullgraph=True)(tokens).float(), plain(tokens).float(), 0.03)


@pytest.mark.parametrize("name", [MIXTRAL, DEEPSEEK, "switch:switch_base_8", "sparsely_gated_moe:moe_32"])
def test_mixed_precision(name: str) -> None:
    """Under autocast experts compute in bfloat16 like any linear map: finite, and near float32."""
    if name.startswith("sparsely_gated_moe") and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("torch has no LSTM in bfloat16 for this CPU")
    inputs = zoo.inputs(zoo.graph(name))
    made, exact = module(name).eval(), module(name).eval()
    wanted = exact(**inputs)
    (wanted**2).mean().backward()
    seen: list[torch.dtype] = []
    kernel = names_of(made)["grouped_mm"]

    def watched(*args: Any) -> Tensor:
        found: Tensor = kernel(*args)
        seen.append(found.dtype)
        return found

    names_of(made)["grouped_mm"] = watched
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = made(**inputs).float()
    finally:
        names_of(made)["grouped_mm"] = kernel
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
    made.eval()(tokens, tokens)
    assert all(int(r.balance.load.sum()) == 0 for r in routers(made))
    made.train()(tokens, tokens)
    made(tokens)
    assert [int(r.balance.load.sum()) for r in routers(made)] == 2 * [2 * tokens.numel() * 3]
    assert "load" not in " ".join(made.state_dict())


def test_update_follows_the_rule() -> None:
    """bias += speed · sign(mean load - load), and the count begins anew."""
    made = module(DEEPSEEK, "loss").train()
    tokens = zoo.inputs(zoo.graph(DEEPSEEK))["tokens"]
    made(tokens, tokens).backward()
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


def test_an_update_is_as_wide_as_other_lines() -> None:
    text = archdsl.torch_source(zoo.graph(DEEPSEEK), features=["loss"])
    assert "def update_bias" in text
    assert max(map(len, text.splitlines())) <= 120


def test_models_without_a_bias_have_no_update() -> None:
    assert not hasattr(module(MIXTRAL, "loss"), "update_bias")


# --- capacity ---------------------------------------------------------------------------------------------------------

COUNT, BATCH, TIME, WIDTH = 5, 3, 13, 8

EXPERTS = """
model m(x: [batch, time, 8], weights: [batch, time, TOP_K], chosen: int[batch, time, TOP_K]) {
  return experts(swiglu(hidden: 6), 5, capacity: CAPACITY)(x, weights, chosen)
}
"""
DECODER = """
block layer {
  attention: gqa(heads: 4, kv_heads: 2)
  mask:      causal
  ffn:       moe(experts: 4, top_k: 2, expert: swiglu(hidden: 24), shared: swiglu(hidden: 16), capacity: CAPACITY)
}

model mixture(layers = 2) {
  vocab:   256
  context: 16
  width:   32
  blocks:  layers * layer
  head:    lm
}
"""


def experts(top_k: int, capacity: float | str) -> Model:
    return spec(EXPERTS.replace("TOP_K", str(top_k)).replace("CAPACITY", str(capacity)))


def decoder(capacity: float | str = 0.75, layers: int = 2) -> Model:
    return spec(DECODER.replace("CAPACITY", str(capacity)), layers=layers)


def text(seed: int = 1) -> Tensor:
    return torch.randint(256, (3, 12), generator=torch.Generator().manual_seed(seed))


def routed(top_k: int, seed: int = 3) -> dict[str, Tensor]:
    """Tokens of which more like the first expert than the last, and no two of whose experts are the same."""
    generator = torch.Generator().manual_seed(seed)
    liking = torch.rand(BATCH, TIME, COUNT, generator=generator) + 0.15 * torch.arange(COUNT).flip(0)
    return {
        "x": torch.randn(BATCH, TIME, WIDTH, generator=generator, requires_grad=True),
        "weights": torch.rand(BATCH, TIME, top_k, generator=generator, requires_grad=True),
        "chosen": liking.topk(top_k).indices,
    }


def one_by_one(made: torch.nn.Module, given: dict[str, Tensor], capacity: float) -> tuple[Tensor, list[list[int]]]:
    """What the experts answer, choice after choice; and of each sequence how many each of them took."""
    x, weights, chosen = given.values()
    gate, up, down = (getattr(made.experts, name).weight for name in ("gate", "up", "down"))
    room = math.ceil(round(capacity * TIME * chosen.size(-1) / COUNT, 9))
    rows, taken = [], []
    for b in range(BATCH):
        load = [0] * COUNT
        for t in range(TIME):
            y = torch.zeros(WIDTH)
            for choice, expert in enumerate(chosen[b, t].tolist()):
                if load[expert] < room:
                    load[expert] += 1
                    h = torch.nn.functional.silu(gate[expert] @ x[b, t]) * (up[expert] @ x[b, t])
                    y = y + weights[b, t, choice] * (down[expert] @ h)
            rows.append(y)
        taken.append(load)
    return torch.stack(rows).view_as(x), taken


def rows_of_experts(made: torch.nn.Module, given: dict[str, Tensor]) -> list[int]:
    """How many rows each expert multiplies in one forward."""
    seen: list[Tensor] = []
    hook = made.experts.register_forward_hook(lambda _, args, __: seen.append(args[1]))
    made(**given)
    hook.remove()
    return [int(n) for n in torch.diff(seen[0], prepend=torch.zeros(1, dtype=torch.int32))]


@pytest.mark.parametrize("top_k", [1, 2, 3])
@pytest.mark.parametrize("capacity", [0.1, 0.75, 1, 1.25])
def test_choices_beyond_the_capacity_are_dropped(top_k: int, capacity: float) -> None:
    """In the order of tokens, of each sequence by itself; values, gradients, and the rows that are multiplied."""
    made, given = module(experts(top_k, capacity)).train(), routed(top_k)
    wanted, taken = one_by_one(made, given, capacity)
    assert sum(map(sum, taken)) < BATCH * TIME * top_k
    found = made(**given)
    close(found, wanted)
    assert rows_of_experts(made, given) == [sum(load) for load in zip(*taken, strict=True)]
    generator = torch.Generator().manual_seed(1)
    weigh = torch.randn(wanted.shape, generator=generator)
    inputs = (given["x"], given["weights"], *made.parameters())
    for a, b in zip(
        torch.autograd.grad((found * weigh).sum(), inputs),
        torch.autograd.grad((wanted * weigh).sum(), inputs),
        strict=True,
    ):
        close(a, b)


def test_a_share_that_is_whole_is_not_rounded_up() -> None:
    """1.1 · 10 / 5 is a little more than 2.2 in binary, 1.1 · 50 / 5 a little more than 11."""
    with_room = names_of(module(experts(1, 1)))["with_room"]
    for places, capacity in ((50, 1.1), (10, 1.5), (30, 0.7), (5, 1), (5, 2)):
        chosen = torch.zeros(1, places, 1, dtype=torch.long)
        assert int(with_room(chosen, 5, capacity).sum()) == math.ceil(round(capacity * places / 5, 9))


def test_evaluation_drops_nothing() -> None:
    given = routed(2)
    capped, free = module(experts(2, 0.5)), module(experts(2, "none"))
    assert capped.state_dict().keys() == free.state_dict().keys()
    assert torch.equal(capped.eval()(**given), free(**given))
    assert sum(rows_of_experts(capped, given)) == BATCH * TIME * 2
    assert not torch.equal(capped.train()(**given), free(**given))


def test_a_large_capacity_drops_nothing() -> None:
    """The number of experts is enough for any choice."""
    given = routed(2)
    capped, free = module(experts(2, COUNT)).train(), module(experts(2, "none")).train()
    close(capped(**given), free(**given), 1e-6)
    assert sum(rows_of_experts(capped, given)) == BATCH * TIME * 2


def test_a_model_without_a_capacity_says_nothing_of_one() -> None:
    source = archdsl.torch_source(text=DECODER.replace("CAPACITY", "none"))
    assert "capacity" not in source
    assert "with_room" not in source


def test_what_is_dropped_follows_from_no_later_token_and_no_other_sequence() -> None:
    model = decoder()
    assert causality.prove(model) == []
    made = module(model).train()
    tokens = text()
    found = made(tokens)
    assert float((found - made.eval()(tokens)).detach().abs().max()) > 1e-3, "nothing was dropped"
    made.train()
    other = tokens.clone()
    other[0] = text(2)[0]
    other[1, 7:] = text(3)[1, 7:]
    changed = made(other)
    close(changed[1, :7], found[1, :7])
    close(changed[2], found[2])
    assert float((changed[1, 7:] - found[1, 7:]).detach().abs().max()) > 1e-3


def test_a_micro_batch_drops_what_the_batch_does() -> None:
    made, tokens = module(decoder()).train(), text()
    close(torch.cat([made(row) for row in tokens.split(1)]), made(tokens))


@pytest.mark.slow
def test_dropping_and_counting_compile_as_one_graph() -> None:
    """Tokens without room, and the load that a bias follows."""
    model = spec(DECODER.replace("CAPACITY", "0.75, router: sigmoid_router(bias: true)"), layers=1)
    tokens = text()
    plain, made = (module(model, "loss").train() for _ in range(2))
    compiled = torch.compile(made, backend="aot_eager", fullgraph=True)
    for given in (tokens, tokens[:, :9]):  # the second length makes the graph one for all
        for m in (plain, made):
            m.zero_grad()
        wanted, found = plain(given, given), compiled(given, given)
        close(found, wanted)
        wanted.backward()
        found.backward()
        same_gradients(gradients(made), gradients(plain))
        (found_load,), (load,) = ([r.balance.load for r in routers(m)] for m in (made, plain))
        assert int(load.sum()) > 0
        assert torch.equal(found_load, load)


def test_half_precision_and_autocast() -> None:
    made, tokens = module(decoder()).train(), text()
    wanted = made(tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = made(tokens)
    found.float().square().mean().backward()
    assert float((found.float() - wanted).detach().abs().mean()) <= 0.1 * float(wanted.detach().abs().mean())
    half = made.bfloat16()(tokens)
    half.float().square().mean().backward()
    assert half.isfinite().all()
    assert all(g.isfinite().all() for g in gradients(made).values())


@pytest.mark.parametrize("checkpoint", ["selective", "full"])
def test_layers_computed_again_drop_the_same(checkpoint: Any) -> None:
    tokens, wanted, found = text(), module(decoder()).train(), module(decoder(), checkpoint=checkpoint).train()
    wanted(tokens).square().mean().backward()
    found(tokens).square().mean().backward()
    same_gradients(gradients(found), gradients(wanted))


def test_a_step_of_decoding_drops_nothing() -> None:
    """Neither is anything kept for it: steps give what the whole text gives, in evaluation."""
    model, tokens = decoder(), text()
    step, _ = decode_step(model)
    assert step is not None
    assert {kept.role for kept in step.kept} == {"key", "value"}
    made = module(model, "generate").eval()
    cache = names_of(made)["Cache"](12)
    whole = made(tokens)
    steps = torch.cat([made(part, cache=cache) for part in tokens.split((5, 4, 1, 1, 1), dim=1)], 1)
    close(steps, whole)


@pytest.mark.parametrize("target", ["portable", "ort-cpu"])
def test_onnx_drops_nothing(target: str) -> None:
    model, tokens = decoder(), text()
    made = module(model).eval()
    (found,) = run(onnx_bytes(model, made, target=target), {"tokens": tokens})
    assert distance(found, made(tokens)) < 1e-4


@measured
def test_every_choice_is_counted() -> None:
    """FLOPs and activations are those where every choice finds room, and so the most there can be."""
    sizes = {"batch": 3, "time": 12}
    told = predicted(decoder("none"), sizes)
    saved = {}
    for capacity in (0.5, 4):
        model = decoder(capacity)
        assert predicted(model, sizes) == told == counted(model, sizes, "meta")
        once, step = counted(model, sizes, "cpu")  # all tokens the same: two of four experts are chosen
        assert once == told[0]
        assert step == told[1] if capacity == 4 else step < told[1]
        saved[capacity] = saved_bytes(module(model).train(), {"tokens": text()})[1]
    found = {
        c: measure(decoder(c), sizes, dtype="float32", checkpoint="none", loss="eager", fixed=0) for c in (4, "none")
    }
    assert saved[0.5] < saved[4] == found[4].saved
    assert (found[4].exact, found["none"].exact) == (False, True)


@pytest.mark.slow
def test_devices_drop_what_one_does(tmp_path: Path) -> None:
    """The same curve with batches, experts and heads spread over two processes."""
    path = tmp_path / "capped.py"
    path.write_text(archdsl.torch_source(text=DECODER.replace("CAPACITY", "1"), features=["parallel"]))
    train = parallel.trainer()
    plan = {"steps": 4, "batch": 8, "seq": 16, "warmup": 2, "rate": 1e-2, "clip": 0.5}
    torch.manual_seed(0)
    made = train.model_class(parallel.load(path))()
    wanted = [loss for _, loss in train.train(made, train.synthetic(4096), train.Plan(**plan))]
    jobs = [{"model": str(path), "plan": plan, "layout": layout} for layout in ({}, {"ep": 2}, {"tp": 2})]
    for curve in parallel.results(2, tmp_path, jobs):
        assert list(curve.values()) == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize(
    ("use", "code"),
    [
        ("experts(swiglu(hidden: 6), 5, capacity: 0)(x, w, c)", "E0204"),
        ("experts(swiglu(hidden: 6), 5, capacity: -1)(x, w, c)", "E0204"),
        ("experts(swiglu(hidden: 6), 5, capacity: rows)(x, w, c)", "E0204"),
        ("experts(swiglu(hidden: 6), 5, capacity: 1.25)(x[0], w[0], c[0])", "E0302"),
    ],
)
def test_capacities_that_are_none(use: str, code: str) -> None:
    with pytest.raises(ArchError) as problem:
        spec(f"model m(x: [rows, 8], w: [rows, 2], c: int[rows, 2]) {{ return {use} }}")
    assert [d.code for d in problem.value.diagnostics] == [code]


def test_losses_pass_a_mask_that_is_left_out() -> None:
    text = """
    block layer(seen: mask) {
      attention: mha(heads: 2)
      mask:      seen
      ffn:       moe(experts: 4, top_k: 2, expert: mlp(hidden: 8), router: softmax_router(balance: 0.01))
    }
    model m(x: [batch, time, 8]) -> [batch, time, 8] {
      return x -> layer(causal) as a -> layer(causal & window(2)) as b
    }"""
    made: Any = archdsl.to_torch(text=text)
    x = torch.randn(2, 5, 8)
    both: dict[str, Tensor] = {}
    each: list[dict[str, Tensor]] = [{}, {}]
    y = made(x, both)
    seen = torch.ones(5, 5, dtype=torch.bool).tril().triu(-1)
    assert torch.equal(y, made.b(made.a(x, None, each[0]), seen, each[1]))
    assert both["balance"] == each[0]["balance"] + each[1]["balance"] > 0


def test_experts_may_call_blocks_of_their_own() -> None:
    """Which are handed where the rows of each expert end."""
    text = """
block inner(x: [..., width]) -> [..., width] { return x -> linear(width) -> gelu }
block expert(x: [..., width]) -> [..., width] { return (x -> inner) + (x -> inner) }
model m(width = 16)(tokens: token[batch, time]) {
  x = tokens -> embedding(40, width) -> moe(experts: 4, top_k: 2, expert: expert)
  return x -> linear(40)
}"""
    assert archdsl.verify(text=text, batch=2, seq=8).agrees
