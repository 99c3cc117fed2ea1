"""Initialization of emitted modules: what a model built on the meta device has after `init_weights()`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def tensors(module: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer, those that are not saved, too."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def reinitialized(module: nn.Module, seed: int = 5) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    module.init_weights()  # type: ignore[operator]
    return tensors(module)


def from_meta(made: Any) -> nn.Module:
    """The module of a file, built on the meta device and then given memory, which holds no numbers."""
    with torch.device("meta"):
        module: nn.Module = made()
    assert [name for name, x in tensors(module).items() if not x.is_meta] == []
    module.to_empty(device="cpu")
    for x in tensors(module).values():
        x.data.fill_(torch.nan if x.is_floating_point() else True if x.dtype == torch.bool else -77)
    return module


def different(made: Any, plain: nn.Module) -> list[str]:
    """The weights and buffers that a module from the meta device and a plain one do not have alike after
    `init_weights()`."""
    if not any(x.numel() for x in tensors(plain).values()):
        return []
    wanted, found = reinitialized(plain), reinitialized(from_meta(made))
    assert wanted.keys() == found.keys()
    return [name for name, x in found.items() if x.dtype != wanted[name].dtype or not torch.equal(x, wanted[name])]
