"""Tiny copies of the zoo's models: the specs as they are, in the sizes of `sizes.py`."""

from __future__ import annotations

from functools import cache

import torch
from near import distance
from torch import Tensor, nn

import archdsl
from archdsl.backends.torch import emit
from archdsl.estimates.params import estimate as count
from archdsl.estimates.params import vocabulary
from archdsl.ir.dims import Poly, evaluate
from archdsl.ir.graph import Model, Value
from archdsl.ir.weights import weights
from archdsl.run.load import load_source
from zoo.sizes import place, tables

BATCH, TIME, OTHER = 2, 16, 12
"""Rows, places of the sequence, and places of any other sequence."""
TOLERANCE = 1e-5
"""Of what two implementations give, relative to the largest number."""


def close(found: Tensor, wanted: Tensor) -> None:
    """Equal but for rounding."""
    assert wanted.any(), "zeros were compared"
    assert distance(found, wanted) < TOLERANCE


@cache
def graph(name: str, **more: int) -> Model:
    """The tiny model's IR; `more` are further settings."""
    path, model = place(name)
    return archdsl.load(path, model=model, set=tables()[name] | more)


@cache
def compiled(name: str, **more: int) -> type[nn.Module]:
    """The class of the tiny model's emitted file, which all modules of a process have."""
    made: type[nn.Module] = load_source(emit(graph(name, **more)))
    return made


def module(name: str, **more: int) -> nn.Module:
    """The tiny model, compiled, its weights drawn from one seed."""
    torch.manual_seed(0)
    return compiled(name, **more)()


def inputs(model: Model, seed: int = 1, time: int = TIME) -> dict[str, Tensor]:
    """Random inputs: tokens of the vocabulary, other whole numbers 0 or 1 (0 where there is one kind of segment), and a
    second row that ends early."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {s.name: {"batch": BATCH, "time": time}.get(s.name, OTHER) for s in model.symbols}
    kinds = min((int(w.shape[0]) for w in weights(model) if w.path == "segment_embedding.weight"), default=2)
    return {name: _drawn(value, sizes, vocabulary(model) or 2, kinds, generator) for name, value in model.inputs}


def _drawn(value: Value, sizes: dict[str, int], rows: int, kinds: int, generator: torch.Generator) -> Tensor:
    shape = [int(evaluate(d.value, sizes)) if isinstance(d.value, Poly) else int(d.value) for d in value.shape]
    if value.dtype == "token":
        return torch.randint(rows, shape, generator=generator)
    if value.is_bool:
        lengths = torch.tensor([shape[-1], shape[-1] - 3])[: shape[0]]
        return (torch.arange(shape[-1]) < lengths[:, None]).expand(shape).clone()
    if value.is_int:
        return torch.randint(kinds, shape, generator=generator)
    return torch.randn(shape, generator=generator)


def step(name: str) -> dict[str, float]:
    """Run a tiny model once forwards and once backwards in training mode; the size of each weight's gradient.

    Fails where a result or a gradient is missing or not finite, or where the module has another number of parameters
    than the IR says."""
    made = module(name).train()
    assert sum(p.numel() for p in made.parameters()) == count(graph(name)).params.total
    results = made(**inputs(graph(name)))
    outputs = results if isinstance(results, tuple) else (results,)
    assert all(o.isfinite().all() for o in outputs)
    generator = torch.Generator().manual_seed(2)
    torch.stack([(o * torch.randn(o.shape, generator=generator)).mean() for o in outputs]).sum().backward()
    sizes = {n: float("nan") if p.grad is None else float(p.grad.abs().max()) for n, p in made.named_parameters()}
    assert [n for n, size in sizes.items() if not 0 <= size < float("inf")] == []
    return sizes
