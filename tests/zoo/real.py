"""Models of the zoo at the sizes that were published, with few layers: for fake tensors, which cost nothing."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import Tensor

import archdsl
from archdsl.diagnostics import ArchError
from archdsl.ir.graph import Model
from zoo import tiny
from zoo.sizes import place

LAYERS = (
    *("layers", "encoder_layers", "decoder_layers", "sparse_layers", "vision_layers"),
    *("depth", "depth_1", "depth_2", "depth_3", "depth_4", "pairs", "quarters", "sets", "stacks"),
)
DENSE = "dense_layers"
"""What models call their numbers of layers, and that of layers before those with experts."""


def graph(name: str) -> Model:
    """A model with two layers, with four where they come in periods, or with all that it has."""
    path, model = place(name)
    whole = archdsl.load(path, model=model or None)
    for layers in (2, 4):
        few = dict.fromkeys(LAYERS, layers) | {DENSE: 1}
        with suppress(ArchError):
            fewer = {f.name: min(int(f.value), few[f.name]) for f in whole.config if f.name in few}
            return archdsl.load(path, model=whole.name, set=fewer)
    return whole


def inputs(model: Model, time: int, dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    """Random inputs of the model's sizes, those that are not whole numbers of one type."""
    drawn = tiny.inputs(model, time=time)
    return {name: x.to(dtype) if x.is_floating_point() else x for name, x in drawn.items()}
