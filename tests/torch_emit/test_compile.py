"""`torch.compile` without a break and without compiling again for other lengths; mixed precision; the same numbers from
the same seed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._pytree import tree_leaves
from zoo import sizes
from zoo import tiny as zoo

from archdsl.passes.checkpoint import Checkpoint
from torch_emit.emitted import close, gradients, module, same_gradients, spec

MODELS = ["gpt2:gpt2", "llama3:llama3", "mixtral:mixtral_8x7b"]
KINDS = {
    "bloom:bloom_560m": {"layers": 1},
    "mistral:mistral_7b": {"layers": 1},
    "bert:bert_base": {"layers": 1},
    "vit:vit_b16": {"layers": 1},
    "wavenet:wavenet": {"stacks": 1},
}
"""What no other test here compiles, and how few layers are enough; `pytest --every` takes a model of each family."""
LONGROPE = """
block layer {
  attention: mha(heads: 4)
  position:  rope(scaling: longrope(short: [1, 1, 1.5, 2], long: [1, 2, 3, 4], original: 12))
  mask:      causal
  ffn:       mlp(hidden: 64)
}
model longrope { vocab: 97  context: 64  width: 32  blocks: 2 * layer  head: lm }
"""


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(97, (batch, length), generator=torch.Generator().manual_seed(length))


@pytest.mark.slow
def test_one_graph_for_all_lengths() -> None:
    """The second length makes the graph one of any length; no other compiles again, forwards and backwards. Experts are
    compiled for two lengths in test_moe.py."""
    plain, made = (module("llama3:llama3", layers=1).eval() for _ in range(2))
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(made, backend=counter, fullgraph=True)
    for length in (9, 16, 31, 12):
        for each in (plain, compiled):
            each.zero_grad()
        wanted, found = plain(tokens(2, length)), compiled(tokens(2, length))
        close(found, wanted)
        (wanted**2).mean().backward()
        (found**2).mean().backward()
        same_gradients(gradients(made), gradients(plain))
    assert counter.frame_count == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODELS, "longrope"])
def test_lengths_that_are_marked_take_one_graph(name: str) -> None:
    made = (module(spec(LONGROPE)) if name == "longrope" else module(name, layers=1)).eval()
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(made, backend=counter, fullgraph=True)
    for length in (9, 16, 31):
        x = tokens(2, length)
        torch._dynamo.mark_dynamic(x, 1)
        close(compiled(x), made(x))
    assert counter.frame_count == 1


def test_divisors_of_longrope_survive_another_device_and_type() -> None:
    """They are in no checkpoint; in bfloat16 they would turn far positions by other angles."""
    made: Any = module(spec(LONGROPE))
    with torch.device("meta"):
        other = type(made)()
    other.to_empty(device="cpu").init_weights()
    other.load_state_dict(made.state_dict())
    assert torch.equal(other(tokens(2, 16)), made(tokens(2, 16)))
    assert torch.equal(other.bfloat16().longrope.bits, made.longrope.bits)


@pytest.mark.slow
@pytest.mark.parametrize("name", sizes.sample() if sizes.every else KINDS)
def test_a_training_step_is_one_graph(name: str) -> None:
    """At sequence lengths that may be any, where the model has no loop over positions. Decomposed as inductor has it:
    without, the backend trusts that batch normalization and softplus keep strides, which on CPUs they do not."""
    fewer = KINDS.get(name, {})
    made = zoo.module(name, **fewer).train()
    model = zoo.graph(name, **fewer)
    given = zoo.inputs(model)
    for input_name, value in model.inputs:
        for axis, size in enumerate(value.shape):
            if str(size) == "time":
                torch._dynamo.maybe_mark_dynamic(given[input_name], axis)
    results = tree_leaves(torch.compile(made, backend="aot_eager_decomp_partition", fullgraph=True)(**given))
    torch.stack([y.sum() for y in results if y.is_floating_point()]).sum().backward()
    assert all(p.grad.isfinite().all() for p in made.parameters() if p.grad is not None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "checkpoint"),
    [("llama3:llama3", "none"), ("llama3:llama3", "full"), ("mixtral:mixtral_8x7b", "selective")],
)
def test_the_loss_is_one_graph(name: str, checkpoint: Checkpoint) -> None:
    """With what the backward computes again, too."""
    plain, made = (module(name, "loss", checkpoint=how, layers=1).train() for how in ("none", checkpoint))
    x = tokens(2, 24)
    wanted = plain(x, x)
    found = torch.compile(made, backend="aot_eager", fullgraph=True)(x, x)
    wanted.backward()
    found.backward()
    close(found, wanted)
    same_gradients(gradients(made), gradients(plain))


@pytest.mark.slow
def test_inductor() -> None:
    made = module("llama3:llama3", layers=1).eval()
    compiled = torch.compile(made, fullgraph=True)
    with torch.no_grad():
        close(compiled(tokens(2, 16)), made(tokens(2, 16)))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODELS, "mistral:mistral_7b", "deepseek_v3:deepseek_v3"])
def test_mixed_precision(name: str) -> None:
    """Under autocast loss and gradients are finite and near those of float32."""
    exact, made = module(name, "loss").eval(), module(name, "loss").eval()
    x = tokens(4, 24)
    wanted = exact(x, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = made(x, x)
    wanted.backward()
    found.backward()
    assert found.dtype == torch.float32
    assert abs(float(found - wanted)) < 0.02 * float(wanted)
    total = torch.cat([g.flatten() for g in gradients(exact).values()])
    mine = torch.cat([g.flatten() for g in gradients(made).values()])
    assert mine.isfinite().all()
    assert float(F.cosine_similarity(mine, total, dim=0)) > 0.98


@pytest.mark.parametrize("name", MODELS)
def test_the_same_from_the_same_seed(name: str) -> None:
    """Weights, dropout, losses and gradients, to the bit."""
    found = []
    for _ in range(2):
        made = module(name, "loss", seed=5).train()
        x = zoo.inputs(zoo.graph(name))["tokens"]
        loss = made(x, x)
        loss.backward()
        found.append((loss, gradients(made)))
    (first, before), (second, after) = found
    assert torch.equal(first, second)
    assert all(torch.equal(before[n], after[n]) for n in before)
