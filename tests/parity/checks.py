"""What is asked of a module and of the reference that it must equal: how far apart they are, in which types, and that
PyTorch takes the module as a whole."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

TOLERANCE = 1e-5
"""Of results, relative to their largest; float32 rounding alone reaches 1e-6."""
GRADIENT_TOLERANCE = 1e-4
BFLOAT16_TOLERANCE = 0.05
"""Relative, over the whole result. A router may choose another expert for a rounded token: then ten times that."""


def results(module: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    out = module(*arguments)
    return tuple(out) if isinstance(out, tuple | list) else (out,)


def objective(outputs: tuple[Tensor, ...]) -> Tensor:
    """A loss that every logit has its own share in."""
    generator = torch.Generator().manual_seed(2)
    return torch.stack([(o * torch.randn(o.shape, generator=generator)).mean() for o in outputs]).sum()


def close_in_bfloat16(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
    """Results near those of float32, and gradients that are finite."""
    with torch.no_grad():
        expected = results(module, arguments)
    rounded = deepcopy(module).to(torch.bfloat16)
    found = results(rounded, tuple(a.to(torch.bfloat16) if a.is_floating_point() else a for a in arguments))
    objective(found).backward()
    routed = any(".router." in name for name, _ in module.named_parameters())
    for output, wanted in zip(found, expected, strict=True):
        assert output.dtype == torch.bfloat16
        error = float((output.detach().float() - wanted).norm() / wanted.norm())
        assert error < BFLOAT16_TOLERANCE * (10 if routed else 1)
    for name, weight in rounded.named_parameters():
        assert weight.grad is None or weight.grad.isfinite().all(), name


def compiles_as_one_graph(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
    torch._dynamo.reset()
    with torch.no_grad():
        expected = results(module, arguments)
        found = results(torch.compile(module, fullgraph=True, backend="eager"), arguments)
    for output, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(output, wanted, rtol=1e-5, atol=1e-5)


def exports_with_free_axes(module: nn.Module, arguments: tuple[Tensor, ...], free: int) -> None:
    """With so many leading axes of the inputs left open the exported program takes one row, too, and where time is
    among them a few places less."""
    axes: tuple[dict[int, Any], ...] = tuple(
        dict.fromkeys(range(min(free, a.dim())), torch.export.Dim.AUTO) for a in arguments
    )
    exported = torch.export.export(module, arguments, dynamic_shapes=axes).module()
    fewer = tuple(a[:1, : a.shape[1] - 4] if free > 1 else a[:1] for a in arguments)
    with torch.no_grad():
        for given in (arguments, fewer):
            for output, wanted in zip(results(exported, given), results(module, given), strict=True):
                torch.testing.assert_close(output, wanted, rtol=1e-4, atol=1e-5)
