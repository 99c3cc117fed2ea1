"""Emitted files with sections, as modules: what the tests of this folder share."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import torch
from near import distance
from torch import Tensor, nn
from zoo import tiny as zoo

import archdsl
from archdsl.backends.torch import Extras, emit
from archdsl.backends.torch.features import Name
from archdsl.ir.graph import Model
from archdsl.passes.checkpoint import Checkpoint
from archdsl.run.load import load_source

TOLERANCE = 1e-5


def module(
    model: Model | str, *sections: Name, checkpoint: Checkpoint = "none", seed: int = 0, **more: Any
) -> nn.Module:
    """A model, or a tiny one of the zoo, with these sections, its weights drawn from one seed."""
    loaded = zoo.graph(model, **more) if isinstance(model, str) else model
    text = source(loaded, frozenset(sections), checkpoint)
    torch.manual_seed(seed)
    made: nn.Module = load_source(text)()
    return made


@cache
def source(model: Model, sections: frozenset[Name], checkpoint: Checkpoint) -> str:
    """The text of a file with sections, its lines as they were made."""
    return emit(model, Extras(sections, checkpoint))


def spec(text: str, **settings: Any) -> Model:
    """A model written in the test."""
    return archdsl.load(text=text, set=settings)


def names_of(made: nn.Module) -> dict[str, Any]:
    """The functions and classes of the file that a module is from."""
    return vars(sys.modules[type(made).__module__])


def gradients(made: nn.Module) -> dict[str, Tensor]:
    """Every parameter's gradient; zeros where there is none."""
    return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in made.named_parameters()}


def close(found: Tensor, wanted: Tensor, tolerance: float = TOLERANCE) -> None:
    """Equal within `tolerance` of the largest number wanted."""
    assert wanted.any(), "zeros were compared"
    assert distance(found, wanted) <= tolerance


def same_gradients(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float = TOLERANCE) -> None:
    """The same weights with the same gradients, each within `tolerance` of the largest number of them all."""
    assert found.keys() == wanted.keys()
    scale = max(float(g.abs().max()) for g in wanted.values())
    assert scale > 0
    for name, gradient in found.items():
        assert distance(gradient, wanted[name], scale) <= tolerance, name
