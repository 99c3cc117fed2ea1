"""Inputs of a model that is taken step by step, whatever takes it: the sequence, rows of several lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from archdsl.dependence.rows import mixing
from archdsl.ir.dims import Symbol
from archdsl.ir.graph import Model
from archdsl.passes.forms import is_time

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]


class Sequences:
    """The inputs of a model and the sequence that its steps follow."""

    def __init__(self, model: Model, time: Symbol) -> None:
        self.model = model
        self.time = time
        """The length of the sequence."""
        self.moving: dict[str, int] = {}
        """Inputs of the model that follow the positions of the sequence, and their axis of them."""
        for name, value in self.model.inputs:
            axis = next((i for i, d in enumerate(value.shape) if is_time(d, time)), None)
            if axis is not None:
                self.moving[name] = axis
        output = next(v for _, v in model.outputs)
        self.axis = next(i for i, d in enumerate(output.shape) if is_time(d, time))
        """The axis of positions of what comes out."""

    @cached_property
    def by_row(self) -> bool:
        """Whether each row is computed by itself, with positions of its own in every input: only then may rows be of
        several lengths."""
        own = all(self.moving[n] and not v.shape[0].static for n, v in self.model.inputs if n in self.moving)
        return own and mixing(self.model) is None

    def alone(self, inputs: Arrays, row: int, length: int) -> dict[str, NDArray[Any]]:
        """Return the inputs of one row, the first `length` positions of its sequence."""
        found = {}
        for name, value in self.model.inputs:
            x = inputs[name]
            if value.shape and not value.shape[0].static:
                x = x[row : row + 1]
            found[name] = x.take(range(length), self.moving[name]) if name in self.moving else x
        return found

    def moved(self, inputs: Arrays, row: int, real: Sequence[int]) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
        """Return the inputs with the first positions of a row at the positions `real`, all others of it being padding;
        and the attention mask [batch, time] that says so."""
        found = {**inputs}
        time = next(inputs[name].shape[axis] for name, axis in self.moving.items())
        mask = np.ones((len(next(iter(inputs.values()))), time), np.int64)
        mask[row] = 0
        mask[row, real] = 1
        for name, axis in self.moving.items():
            found[name] = inputs[name].copy()
            one = np.moveaxis(found[name][row], axis - 1, 0)
            one[:] = 0
            one[[*real]] = np.moveaxis(inputs[name][row], axis - 1, 0)[: len(real)]
        return found, mask
