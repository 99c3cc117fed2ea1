"""The emitted modules against models nobody here wrote: the same results and gradients from the same weights."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from near import distance
from torch import Tensor, nn
from zoo import tiny

import archdsl
from parity.cases import CASES as OWN
from parity.cases import Case
from parity.checks import (
    GRADIENT_TOLERANCE,
    TOLERANCE,
    close_in_bfloat16,
    compiles_as_one_graph,
    exports_with_free_axes,
    objective,
    results,
)
from parity.mapping import carried, load, their_tensors
from parity.zoo_cases import ZOO

pytestmark = pytest.mark.slow

SILENT = (r"key\.bias$", r"k_proj\.bias$", r"linear_k\.bias$", r"expert_\d+\.")
"""What may have no gradient: a softmax is blind to biases of keys, and an expert may not be chosen."""

CASES = OWN | ZOO
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
EXPORTED = ("gpt2:gpt2", "deepseek_v3:deepseek_v3", "bert:bert_base", "xlnet:xlnet_large", "t5:t5_base", "conformer")
"""One of each way of attending and of carrying a state: an export takes seconds."""
COMPILED = ("t5:t5_base", "switch:switch_base_8")
"""What is like no decoder of test_compile.py."""
FLOAT32 = {name: case for name, case in CASES.items() if not case.double}
each_in_float32 = pytest.mark.parametrize("case", FLOAT32.values(), ids=FLOAT32)


def pair(case: Case) -> tuple[nn.Module, nn.Module]:
    """The reference, and our module with its weights; made once for all tests of a process, which leave them alone."""
    return pair_of(case.name)


@cache
def pair_of(name: str) -> tuple[nn.Module, nn.Module]:
    case = CASES[name]
    reference, module = case.reference(), case.module()
    if case.double:
        reference, module = reference.double(), module.double()
    rotations = {}
    for name, buffer in module.named_buffers():
        if name.endswith("rotations"):
            torch.manual_seed(0)  # the reference's `hash_seed`, set anew in each layer
            rotations[name] = torch.randn(buffer.shape, dtype=buffer.dtype)
    load(module, carried(their_tensors(reference), case.rules, case.inert) | rotations)
    return reference, module


def inputs(case: Case, seed: int = 1) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
    return case.inputs(torch.Generator().manual_seed(seed))


def at_tokens(outputs: tuple[Tensor, ...], real: Tensor | None) -> tuple[Tensor, ...]:
    """What stands at a place of padding is nobody's; XLNet's see themselves there."""
    if real is None:
        return outputs
    return tuple(o[real.bool()] if o.shape[:2] == real.shape else o for o in outputs)


@each_case
def test_results_and_gradients_are_those_of_the_reference(case: Case) -> None:
    reference, module = pair(case)
    called_with, arguments = inputs(case)
    real = called_with.get("attention_mask")
    with torch.set_grad_enabled(not case.double):
        expected = at_tokens(case.outputs(reference(**called_with)), real)
        found = at_tokens(results(module, arguments), real)
    assert [o.shape for o in found] == [o.shape for o in expected]
    errors = [distance(o, e) for o, e in zip(found, expected, strict=True)]
    assert max(errors) < TOLERANCE, errors
    if case.double:
        return  # the reference has gradients in training mode alone

    objective(expected).backward()
    module.zero_grad()
    objective(found).backward()
    worst = gradient_errors(case, their_tensors(reference), module)
    assert max(worst.values()) < GRADIENT_TOLERANCE, sorted(worst.items(), key=lambda e: -e[1])[:8]


def gradient_errors(case: Case, theirs: dict[str, Tensor], module: nn.Module) -> dict[str, float]:
    """For each of their tensors how far our gradient, taken back through the table, is from theirs."""
    leaves = {n: t.detach().clone().requires_grad_() for n, t in theirs.items()}
    ours = dict(module.named_parameters())
    reached = {n: t for n, t in carried(leaves, case.rules, case.inert).items() if n in ours}
    gradients = [torch.zeros_like(ours[n]) if (g := ours[n].grad) is None else g for n in reached]
    taken_back = torch.autograd.grad(list(reached.values()), list(leaves.values()), gradients, allow_unused=True)
    # Where the result barely depends on a tensor its gradient is rounding noise: measured against the largest of all.
    largest = max(float(t.grad.abs().max()) for t in theirs.values() if t.grad is not None)
    errors = {}
    for (name, theirs_), gradient in zip(theirs.items(), taken_back, strict=True):
        if gradient is None or not theirs_.requires_grad:
            continue
        wanted = torch.zeros_like(gradient) if theirs_.grad is None else theirs_.grad
        size = float(wanted.abs().max())
        assert size > 1e-6 * largest or any(re.search(s, name) for s in SILENT), f"{name} does not move the result"
        errors[name] = distance(gradient, wanted, size + 1e-3 * largest)
    return errors


@each_in_float32
def test_bfloat16_is_close_to_float32(case: Case) -> None:
    close_in_bfloat16(pair(case)[1], inputs(case)[1])


@pytest.mark.parametrize("name", COMPILED)
def test_compiles_as_one_graph(name: str) -> None:
    case = CASES[name]
    compiles_as_one_graph(pair(case)[1], inputs(case)[1])


@pytest.mark.parametrize("name", EXPORTED)
def test_exports_with_free_batch_and_time(name: str) -> None:
    case = CASES[name]
    exports_with_free_axes(pair(case)[1], inputs(case)[1], case.free)


def test_tokens_without_room_are_those_of_the_reference() -> None:
    """Transformers counts by sequence, too, and drops in evaluation as well: ours, in training, with a reference that
    is not. Three tokens an expert are an even share of twelve."""
    case = CASES["switch:switch_base_8"]
    case = replace(case, settings={**case.settings, "expert_capacity": 3})
    path, model = tiny.place(case.name)
    text = path.read_text(encoding="utf-8").replace("router: switch_router)", "router: switch_router, capacity: 1)")
    settings = tiny.tables()[case.name]
    reference, module = (
        case.reference(),
        archdsl.to_torch(text=re.sub(r"(dropout: +)0.1", r"\g<1>0", text), model=model, set=settings),
    )
    load(module, carried(their_tensors(reference), case.rules, case.inert))
    called_with, arguments = inputs(case)
    called_with, arguments = {n: t[:, :12] for n, t in called_with.items()}, tuple(a[:, :12] for a in arguments)
    (expected,) = case.outputs(reference(**called_with))
    (found,) = results(module.train(), arguments)
    assert distance(found, expected) < TOLERANCE
    assert distance(results(module.eval(), arguments)[0], expected) > 100 * TOLERANCE, "nothing was dropped"

    module.train().zero_grad()
    objective((expected,)).backward()
    objective((found,)).backward()
    worst = gradient_errors(case, their_tensors(reference), module)
    assert max(worst.values()) < GRADIENT_TOLERANCE, sorted(worst.items(), key=lambda e: -e[1])[:8]
