"""`--checkpoint`: the same gradients, the same buffers and losses, less kept, and as much computed again as is said."""

from __future__ import annotations

import gc
import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode
from zoo import tiny as zoo

import archdsl
from archdsl import ArchError
from archdsl.estimates.flops import estimate
from archdsl.passes.checkpoint import Checkpoint
from torch_emit.emitted import close, gradients, module, same_gradients

# Kinds of stacks: one list, two, a shared block, nested lists, periods, runs, recurrences, buffers, losses, experts.
MODELS = [
    "gpt2:gpt2",
    "gpt3:gpt3_small",
    "llama3:llama3",
    "mistral:mistral_7b",
    "mixtral:mixtral_8x7b",
    "deepseek_v3:deepseek_v3",
    "deepseek_v3:deepseek_v3_mtp",
    "mamba:mamba_130m",
    "transformer:transformer_base",
    "bert:bert_base",
    "albert:albert_base",
    "xlnet:xlnet_base",
    "switch:switch_base_8",
    "reformer:reformer_enwik8",
    "norms:post_powernorm",
    "convmixer:convmixer_1536_20",
    "conformer:conformer_transducer_l",
    "wavenet:wavenet",
    "bytenet:bytenet",
    "pixel_rnn:pixel_rnn_cifar",
]
KINDS: list[Checkpoint] = ["full", "selective"]


def step(made: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """One step of training; the objective, and the losses of the blocks."""
    torch.manual_seed(3)  # of dropout
    losses: dict[str, Tensor] = {}
    given: dict[str, Any] = {"losses": losses} if "losses" in inspect.signature(made.forward).parameters else {}
    results = made.train()(**inputs, **given)
    generator = torch.Generator().manual_seed(2)
    outputs = results if isinstance(results, tuple) else (results,)
    objective = sum((o * torch.randn(o.shape, generator=generator)).mean() for o in outputs) + sum(losses.values())
    objective.backward()
    return objective.detach(), {name: value.detach() for name, value in losses.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_step_of_training_is_the_same(name: str) -> None:
    """Dropout included, and what running statistics and losses come to."""
    inputs = zoo.inputs(zoo.graph(name))
    plain = module(name)
    wanted, losses = step(plain, inputs)
    for kind in KINDS:
        made = module(name, checkpoint=kind)
        found, others = step(made, inputs)
        close(found, wanted)
        same_gradients(gradients(made), gradients(plain))
        assert others.keys() == losses.keys()
        for key, value in losses.items():
            close(others[key], value)
        for (n, buffer), (_, other) in zip(plain.named_buffers(), made.named_buffers(), strict=True):
            assert torch.equal(buffer, other), n


class Kept(TorchDispatchMode):
    """Bytes of all storages made within, as long as they live."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, Any] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self.made[storage._cdata] = (storage._weak_ref(), storage.nbytes())
        return found

    def alive(self) -> int:
        gc.collect()
        storage = torch.UntypedStorage
        return sum(size for ref, size in self.made.values() if not storage._expired(ref))


def kept_bytes(name: str, kind: Checkpoint) -> int:
    """What is alive between forward and backward beside weights and inputs."""
    made = module(name, checkpoint=kind, width=64, layers=4, context=256).train()
    tokens = torch.randint(97, (4, 128), generator=torch.Generator().manual_seed(1))
    with Kept() as seen:
        result = made(tokens)
    alive = seen.alive()
    result.sum().backward()
    return alive


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2:gpt2", "llama3:llama3", "mixtral:mixtral_8x7b"])
def test_less_is_kept(name: str) -> None:
    nothing, selective, full = (kept_bytes(name, kind) for kind in ("none", "selective", "full"))
    assert selective < 0.75 * nothing
    assert full < 0.35 * nothing


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["gpt2:gpt2", "llama3:llama3", "bert:bert_token_classifier", "transformer:transformer_base"]
)
def test_as_much_is_computed_again_as_the_estimate_says(name: str) -> None:
    """`selective` computes attention's core again, `full` every layer: by torch's own count, which takes each pair.
    (Otherwise torch stops before the last product of a layer, whose result nothing backwards needs.)"""
    model = zoo.graph(name)
    inputs = zoo.inputs(model)
    length = min(zoo.TIME, *(v.shape[1] for v in inputs.values()))
    inputs = {n: v[:, :length] for n, v in inputs.items()}
    counted = {}
    for kind in ("none", *KINDS):
        made = module(name, checkpoint=kind)
        with (
            FlopCounterMode(display=False) as counter,
            sdpa_kernel([SDPBackend.MATH]),
            set_checkpoint_early_stop(False),
        ):
            step(made, inputs)
        counted[kind] = counter.get_total_flops()
    said = estimate(model, batch=zoo.BATCH, seq=length, convention="dense").flops.recomputation
    again = {kind: counted[kind] - counted["none"] for kind in KINDS}
    assert again["selective"] == said.selective - said.none
    assert again["full"] == said.full - said.none


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_computed_again_outside_of_training(kind: Checkpoint) -> None:
    made = module("llama3:llama3", checkpoint=kind)
    tokens = zoo.inputs(zoo.graph("llama3:llama3"))["tokens"]
    wanted = module("llama3:llama3").eval()(tokens)
    assert torch.equal(made.eval()(tokens), wanted)
    with torch.no_grad():
        assert torch.equal(made.train()(tokens), wanted)


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        ("sparsely_gated_moe:moe_32", "full", "no stack"),
        ("self_attention:self_attention", "selective", "no stack"),
        ("tagger:bigru_tagger", "selective", "recurrences"),
    ],
)
def test_refused(name: str, kind: Checkpoint, reason: str) -> None:
    path, model = zoo.place(name)
    with pytest.raises(ArchError) as raised:
        archdsl.torch_source(path, model=model, checkpoint=kind)
    (found,) = raised.value.diagnostics
    assert found.code == "E0527"
    assert reason in found.message


def test_recurrences_in_one_kernel_can_be_computed_again_whole() -> None:
    name = "tagger:bigru_tagger"
    inputs = zoo.inputs(zoo.graph(name))
    plain, made = module(name), module(name, checkpoint="full")
    step(plain, inputs)
    step(made, inputs)
    same_gradients(gradients(made), gradients(plain))


@pytest.mark.slow
def test_with_loss() -> None:
    """Both together, with the losses of experts added once."""
    name = "switch:switch_base_8"
    inputs = zoo.inputs(zoo.graph(name))
    targets = inputs["target"]
    found = []
    for kind in ("none", "full"):
        made = module(name, "loss", checkpoint=kind).train()
        torch.manual_seed(3)  # of dropout
        loss = made(*inputs.values(), targets)
        loss.backward()
        found.append((loss, gradients(made)))
    close(found[1][0], found[0][0])
    same_gradients(found[1][1], found[0][1])
