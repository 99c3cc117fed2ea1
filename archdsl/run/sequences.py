"""Inputs of a model that is taken step by step, whatever takes it: the sequence, rows of several lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from archdsl.dependence.rows import mixing
from archdsl.passes.forms import is_time
from archdsl.passes.step import Stepped

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]


class Sequences:
    """The inputs of a model and the sequence that its steps follow."""

    def __init__(self, step: Stepped) -> None:
        self.model = model = step.whole
        self.time = time = step.time
        """The length of the sequence."""
        self.moving: dict[str, int] = {}
        """Inputs of the model that follow the positions of the sequence, and their axis of them."""
        for name, value in self.model.inputs:
            axis = next((i for i, d in enumerate(value.shape) if is_time(d, time)), None)
            if axis is not None:
                self.moving[name] = axis
        self.results = step.results
        """Which of the model's outputs a step gives."""
        outputs = [v for _, v in model.outputs]
        shapes = (outputs[i].shape for i in step.results)
        self.axes = [next((i for i, d in enumerate(shape) if is_time(d, time)), None) for shape in shapes]
        """The axis of positions of each of them; None of what depends on weights alone."""
        self.axis = next(i for i in self.axes if i is not None)
        """That of the first."""

    def joined(self, found: Sequence[Sequence[Any]], join: Callable[[Sequence[Any], int], Any]) -> list[Any]:
        """Return each result of a step at all positions, of what the steps gave of the new ones."""
        every = zip(self.axes, zip(*found, strict=True), strict=True)
        return [given[-1] if axis is None else join(given, axis) for axis, given in every]

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
