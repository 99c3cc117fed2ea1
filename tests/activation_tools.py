"""What PyTorch keeps in a step of training: the storages that autograd saves, and those alive at a time."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class _Box:
    """A saved tensor, as long as autograd has it. Its own past would keep the step alive that saved it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()


def tensors_of(results: Any) -> list[Tensor]:
    return [t for t in tree_iter(results) if isinstance(t, Tensor)]


def saved_bytes(module: nn.Module, given: Mapping[str, Tensor]) -> tuple[list[Tensor], int]:
    """The results of a module, and the bytes of the distinct storages that its forward pass leaves saved: without
    weights, buffers and inputs."""
    boxes: weakref.WeakSet[_Box] = weakref.WeakSet()

    def pack(t: Tensor) -> _Box:
        box = _Box(t)
        boxes.add(box)
        return box

    own = {t.untyped_storage()._cdata for t in (*module.parameters(), *module.buffers(), *given.values())}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda box: box.tensor):
        results = module(*given.values())
    storages = {s._cdata: s.nbytes() for s in (box.tensor.untyped_storage() for box in boxes)}
    return tensors_of(results), sum(n for at, n in storages.items() if at not in own)


class Alive(TorchDispatchMode):
    """The bytes of the storages alive, and the most that ever were; without those given."""

    def __init__(self, given: Iterable[Tensor]) -> None:
        super().__init__()
        self.bytes = self.most = 0
        self.held = [t.untyped_storage() for t in given]
        self.known: dict[int, Any] = {s._cdata: None for s in self.held}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = function(*args, **(kwargs or {}))
        for t in tensors_of(results):
            self.add(t.untyped_storage())
        return results

    def add(self, storage: Any) -> None:
        at, size = storage._cdata, storage.nbytes()
        if at in self.known:
            return

        def gone(_: object) -> None:
            self.bytes -= size
            del self.known[at]

        self.known[at] = weakref.ref(storage, gone)
        self.bytes += size
        self.most = max(self.most, self.bytes)


def objective(results: Any) -> Tensor:
    """The loss that the estimates speak of."""
    total: Any = 0
    for t in tensors_of(results):
        if t.requires_grad:
            wide = t.float()
            if t.ndim > 1:
                targets = torch.zeros(t.numel() // t.shape[-1], dtype=torch.long)
                total = F.cross_entropy(wide.flatten(0, -2), targets) + total
            else:
                total = wide.square().mean() + total
    return total


def step(module: nn.Module, given: Mapping[str, Tensor]) -> tuple[int, int]:
    """One step: the bytes alive after the forward pass, and the most that ever were, both with the loss's."""
    with Alive([*module.parameters(), *module.buffers(), *given.values()]) as alive:
        losses = [objective(module(*given.values()))]
        after = alive.bytes
        losses.pop().backward()
    return after, alive.most
