"""The emitted modules against models that nobody here wrote: the same results and the same gradients from the same weights."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archdsl
from parity.cases import CASES, Case
from parity.mapping import carried, load, their_tensors

pytestmark = pytest.mark.slow

TOLERANCE = 2e-5
"""Of results, relative to their largest; float32 rounding alone reaches 5e-6."""
GRADIENT_TOLERANCE = 1e-4
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@cache
def compiled(name: str) -> nn.Module:
    """The module of a case, compiled once for all tests of a process."""
    case = CASES[name]
    return archdsl.to_torch(case.path, model=case.model_name).eval()


def inputs(case: Case, seed: int = 1) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
    return case.inputs(torch.Generator().manual_seed(seed))


def results(module: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    out = module(*arguments)
    return tuple(out) if isinstance(out, tuple | list) else (out,)


def objective(outputs: tuple[Tensor, ...]) -> Tensor:
    """A loss that every logit has its own share in."""
    generator = torch.Generator().manual_seed(2)
    return torch.stack([(o * torch.randn(o.shape, generator=generator)).mean() for o in outputs]).sum()


def distance(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


@each_case
def test_results_and_gradients_are_those_of_the_reference(case: Case) -> None:
    reference, module = case.reference(), compiled(case.name)
    called_with, arguments = inputs(case)
    theirs = their_tensors(reference)
    load(module, carried(theirs, case.rules, case.inert))

    expected = case.outputs(reference(**called_with))
    found = results(module, arguments)
    assert [o.shape for o in found] == [o.shape for o in expected]
    errors = [distance(o, e) for o, e in zip(found, expected, strict=True)]
    assert max(errors) < TOLERANCE, errors

    objective(expected).backward()
    module.zero_grad()
    objective(found).backward()
    worst = gradient_errors(case, theirs, module)
    assert max(worst.values()) < GRADIENT_TOLERANCE, sorted(worst.items(), key=lambda e: -e[1])[:8]


def gradient_errors(case: Case, theirs: dict[str, Tensor], module: nn.Module) -> dict[str, float]:
    """For each of their tensors how far our gradient, taken back through the table, is from theirs."""
    leaves = {n: t.detach().clone().requires_grad_() for n, t in theirs.items()}
    ours = dict(module.named_parameters())
    reached = {n: t for n, t in carried(leaves, case.rules, case.inert).items() if n in ours}
    gradients = [ours[n].grad if ours[n].grad is not None else torch.zeros_like(ours[n]) for n in reached]
    taken_back = torch.autograd.grad(list(reached.values()), list(leaves.values()), gradients, allow_unused=True)
    found = {n: g for n, g in zip(leaves, taken_back, strict=True) if g is not None and theirs[n].requires_grad}
    # Where the result barely depends on a tensor its gradient is rounding noise: measured against the largest of all.
    largest = max(float(t.grad.abs().max()) for t in theirs.values() if t.grad is not None)
    errors = {}
    for name, gradient in found.items():
        wanted = theirs[name].grad
        wanted = torch.zeros_like(gradient) if wanted is None else wanted
        errors[name] = float((gradient - wanted).abs().max() / (wanted.abs().max() + 1e-3 * largest))
    return errors


@each_case
def test_runs_in_bfloat16(case: Case) -> None:
    module = archdsl.to_torch(case.path, model=case.model_name).eval()
    module.load_state_dict(compiled(case.name).state_dict())
    module = module.to(torch.bfloat16)
    arguments = tuple(a.to(torch.bfloat16) if a.is_floating_point() else a for a in inputs(case)[1])
    found = results(module, arguments)
    objective(found).backward()
    for output in found:
        assert output.dtype == torch.bfloat16
        assert output.isfinite().all()
    for name, weight in module.named_parameters():
        assert weight.grad is None or weight.grad.isfinite().all(), name


@each_case
def test_compiles_as_one_graph(case: Case) -> None:
    module = compiled(case.name)
    arguments = inputs(case)[1]
    torch._dynamo.reset()
    with torch.no_grad():
        expected = results(module, arguments)
        found = results(torch.compile(module, fullgraph=True, backend="eager"), arguments)
    for output, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(output, wanted, rtol=1e-5, atol=1e-5)


@each_case
def test_exports_with_free_batch_and_time(case: Case) -> None:
    module = compiled(case.name)
    arguments = inputs(case)[1]
    exported = torch.export.export(module, arguments, dynamic_shapes=free_axes(case, arguments)).module()
    with torch.no_grad():
        for other in (arguments, case.resized(arguments)):
            for output, wanted in zip(results(exported, other), results(module, other), strict=True):
                torch.testing.assert_close(output, wanted, rtol=1e-4, atol=1e-5)


def free_axes(case: Case, arguments: tuple[Tensor, ...]) -> tuple[dict[int, Any], ...]:
    auto = torch.export.Dim.AUTO
    return tuple(dict.fromkeys(range(min(case.free, a.dim())), auto) for a in arguments)
