"""Weights of a reference model under the names of ours: a table of names, and what happens to each tensor on the way.

A row of a table is `their.name our.name [transform]`.  `#` stands for a number and `*` for `weight` or `bias`, in both
names; `{q,k,v}` in ours makes three targets, and `[#]` behind ours a place along a leading axis (experts one by one).
A transform is a differentiable function to one tensor for each target, so gradients go back by the same table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Transform = Callable[[Tensor], Any]


@dataclass(frozen=True)
class Rule:
    """Where the tensors go whose names match: `targets` are templates over the match's groups."""

    pattern: re.Pattern[str]
    targets: tuple[str, ...]
    transform: Transform | None


def table(text: str, **more: Transform) -> tuple[Rule, ...]:
    """The rules of a table; `more` are its own transforms by name."""
    known = {**TRANSFORMS, **more}
    rules = []
    for line in text.split("\n"):
        cells = line.split("  #", 1)[0].split()
        if cells:
            theirs, ours, *how = cells
            rules.append(Rule(_pattern(theirs), _targets(ours, theirs), known[how[0]] if how else None))
    return tuple(rules)


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name).replace(r"\#", r"(\d+)").replace(r"\*", "(weight|bias)"))


def _targets(name: str, theirs: str) -> tuple[str, ...]:
    wild = re.findall(r"[#*]", theirs)
    groups = {kind: [i + 1 for i, w in enumerate(wild) if w == kind] for kind in "#*"}

    def template(text: str) -> str:
        for kind in "#*":
            for i in range(text.count(kind)):
                group = groups[kind][min(i, len(groups[kind]) - 1)]
                text = text.replace(kind, rf"\g<{group}>", 1)
        return text

    braces = re.search(r"\{(.*?)\}", name)
    if braces is None:
        return (template(name),)
    return tuple(template(name.replace(braces.group(), part)) for part in braces.group(1).split(","))


def their_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every weight (tied ones once) and every saved buffer that is not a counter."""
    saved = set(model.state_dict())
    found = dict(model.named_parameters())
    found.update({n: b for n, b in model.named_buffers() if n in saved and b.is_floating_point()})
    return found


def carried(theirs: Mapping[str, Tensor], rules: Iterable[Rule], inert: Iterable[str] = ()) -> dict[str, Tensor]:
    """Our tensors by name, as functions of theirs. A tensor that no rule takes must be listed as inert."""
    found: dict[str, Tensor] = {}
    pieces: dict[str, dict[int, Tensor]] = {}
    for name, tensor in theirs.items():
        matches = [(r, m) for r in rules if (m := r.pattern.fullmatch(name))]
        if not matches:
            assert any(re.search(i, name) for i in inert), f"nothing takes {name} {tuple(tensor.shape)}"
        for rule, match in matches:
            made = rule.transform(tensor) if rule.transform else tensor
            parts = made if isinstance(made, tuple | list) else (made,)
            for target, part in zip(rule.targets, parts, strict=True):
                ours = match.expand(target)
                place = re.fullmatch(r"(.*)\[(\d+)\]", ours)
                if place:
                    pieces.setdefault(place.group(1), {})[int(place.group(2))] = part
                else:
                    assert ours not in found, f"{ours} is given twice"
                    found[ours] = part
    for ours, parts in pieces.items():
        found[ours] = torch.stack([parts[i] for i in range(len(parts))])
    return found


def load(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Copy by name: every weight and saved buffer of the module must be given, and nothing else."""
    saved = set(module.state_dict())
    own: dict[str, Tensor] = dict(module.named_parameters())
    own.update({n: b for n, b in module.named_buffers() if n in saved and b.is_floating_point()})
    left, unknown = sorted(set(own) - set(values)), sorted(set(values) - set(own))
    assert (left, unknown) == ([], []), "weights of ours that were not given, and names that are none of ours"
    with torch.no_grad():
        for name, tensor in own.items():
            assert tensor.shape == values[name].shape, f"{name}: {tuple(tensor.shape)} and {tuple(values[name].shape)}"
            tensor.copy_(values[name])


# --- transforms -----------------------------------------------------------------------------------------------------


def by_head(heads: int, parts: int = 3) -> Transform:
    """Rows packed as (heads, parts, head_dim): q, k and v of one head together."""

    def split(t: Tensor) -> tuple[Tensor, ...]:
        packed = t.unflatten(0, (heads, parts, -1))
        return tuple(packed[:, i].flatten(0, 1) for i in range(parts))

    return split


TRANSFORMS: dict[str, Transform] = {
    # Matrices stored (inputs, outputs); a bias is left as it is.
    "conv": lambda t: t.t() if t.dim() == 2 else t,
    "t_thirds": lambda t: tuple(p.t() for p in t.chunk(3, dim=-1)) if t.dim() == 2 else t.chunk(3),
    # Stacked experts: (experts, gate rows then up rows, width).
    "gate_up": lambda t: t.chunk(2, dim=1),
    "flat": lambda t: t.flatten(),
    "squeeze": lambda t: t.squeeze(-1),
}
