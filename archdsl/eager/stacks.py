"""Turns of a stack that are alike: where each layer does what the one before it did, some of them tell of all."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import _lru_cache_wrapper
from typing import Any

from archdsl.eager.modules import Module, ModuleList
from archdsl.eager.tensors import Tensor

LONGEST = 12
"""No more layers than these are taken for one turn."""


@dataclass(frozen=True)
class Stretch:
    """Layers of a list that repeat: `turns` times `period` of them, the first one at place `at`."""

    name: str
    at: int
    period: int
    turns: int

    def turn(self, path: str) -> int | None:
        """The turn in which a module stands; None outside."""
        index = self.place(path)
        if index is None or not self.at <= index < self.at + self.turns * self.period:
            return None
        return (index - self.at) // self.period

    def place(self, path: str) -> int | None:
        """The place in the list at which a module stands."""
        name, _, rest = path.partition(".")
        index = rest.partition(".")[0]
        return int(index) if name == self.name and index.isdecimal() else None

    def moved(self, path: str, turns: int, start: int = 0) -> str:
        """The path so many turns later, of layers from place `start` on."""
        index = self.place(path)
        if index is None or index < start:
            return path
        rest = path.partition(".")[2].partition(".")
        return "".join((self.name, ".", str(index + turns * self.period), *rest[1:]))


def stretches(model: Module, source: str, least: int) -> list[Stretch]:
    """What repeats at least so often in the lists of the model itself, where its code, `source`, does nothing with them
    but to go through them."""
    found: list[Stretch] = []
    uses = Counter(id(t) for m in model.modules() for t in (*m._parameters.values(), *m._buffers.values()))
    shared = {i for i, n in uses.items() if n > 1}
    numbers: dict[Any, int] = {}
    for name, inner in model._modules.items():
        step = _taken(name, source) if isinstance(inner, ModuleList) else None
        if step is not None and len(inner._modules) >= least * step:
            kinds = [numbers.setdefault(alike(m, shared), len(numbers)) for m in inner.children()]
            found += _repeated(name, kinds, step, least)
    return found


def _repeated(name: str, kinds: Sequence[int], step: int, least: int) -> list[Stretch]:
    found: list[Stretch] = []
    at = 0
    while at < len(kinds):
        best: Stretch | None = None
        for period in range(step, LONGEST + 1, step):
            end = at + period
            while end < len(kinds) and kinds[end] == kinds[end - period]:
                end += 1
            here = Stretch(name, at, period, (end - at) // period)
            if here.turns >= least and (best is None or here.turns * period > best.turns * best.period):
                best = here
        if best is not None:
            found.append(best)
        at += step if best is None else best.turns * best.period
    return found


def _taken(name: str, source: str) -> int | None:
    """How many layers of the list a turn of the code's loops takes; None where the code does something else too."""
    step = 1
    for found in re.finditer(rf"^.*\bself\.{name}\b.*$", source, re.MULTILINE):
        line = found[0].strip()
        if line.startswith(f"self.{name} = nn.ModuleList(") or re.fullmatch(rf"for \w+ in self\.{name}:", line):
            continue
        pairs = re.fullmatch(r"for [\w, ]+ in zip\((.*)\):", line)
        places = (
            [re.fullmatch(rf"self\.{name}\[(\d*)::(\d+)\]", text) for text in pairs[1].split(", ")] if pairs else []
        )
        if not places or any(
            p is None or int(p[2]) != len(places) or int(p[1] or 0) != i for i, p in enumerate(places)
        ):
            return None
        step = math.lcm(step, len(places))
    return step


def alike(value: Any, shared: set[int]) -> Any:
    """What two modules that do the same have in common, and no others: class, settings, shapes, and which tensors they
    share with other modules."""
    if value is None or isinstance(value, int | float | str):
        return type(value), value
    if isinstance(value, Tensor):
        own = id(value) if id(value) in shared else 0
        return value.shape, value.strides, value.dtype.name, value.requires_grad, own
    if isinstance(value, Module):
        # What is registered under its name stands in `_modules` and `_parameters` too.
        own_names = value._modules.keys() | value._parameters.keys() | {"_path"}
        content = tuple((k, alike(v, shared)) for k, v in value.__dict__.items() if k not in own_names)
        return type(value), content
    if isinstance(value, tuple | list):
        return tuple(alike(v, shared) for v in value)
    if isinstance(value, dict):
        return tuple((k, alike(v, shared)) for k, v in value.items())
    return id(value)


def fresh(model: Module) -> None:
    """Forget what a run has left: gradients, and what the functions of the file keep for the next time."""
    for weight in model.parameters():
        weight.grad = None
    for value in type(model).forward.__globals__.values():
        if isinstance(value, _lru_cache_wrapper):
            value.cache_clear()


def shorten(
    model: Module, whole: Mapping[str, Sequence[Module]], stretches: Sequence[Stretch], turns: int
) -> list[Stretch]:
    """Leave so many turns of each stretch. `whole` are the layers of each list; gives where the stretches are then."""
    found = []
    for name, layers in whole.items():
        kept: list[Module] = []
        end = 0
        for s in stretches:
            if s.name == name:
                kept += layers[end : s.at]
                found.append(replace(s, at=len(kept), turns=turns))
                kept += layers[s.at : s.at + turns * s.period]
                end = s.at + s.turns * s.period
        kept += layers[end:]
        model._modules[name]._modules.clear()
        model._modules[name]._modules.update((str(i), layer) for i, layer in enumerate(kept))
    for path, module in model.named_modules():
        module.__dict__["_path"] = path
    return found
