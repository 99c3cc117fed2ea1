"""Running the graphs of a step, as a runtime does: the prompt at once or in chunks, then token by token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from archdsl.ir.dims import evaluate
from archdsl.passes.flat_step import FlatStep
from archdsl.run.binding import NUMPY, BoundSession
from archdsl.run.sequences import Sequences

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]


class Decoder(Sequences):
    """The graphs of `write_steps` in sessions of onnxruntime: `model`, and `encoder` where there is one."""

    def __init__(self, steps: FlatStep, sessions: Mapping[str, Any]) -> None:
        super().__init__(steps.of)
        self.steps = steps
        self.step = BoundSession(sessions["model"])
        self.encoder = BoundSession(sessions["encoder"]) if "encoder" in sessions else None
        self.ids = None if steps.ids is None else steps.names[steps.ids]
        """The input of the model that a step calls `input_ids`."""
        own = {n for n, v in self.model.inputs if v.dtype == "padding"}
        self.padded = "attention_mask" in self.step.inputs and not own & self.moving.keys()
        """Whether rows may be padded by `attention_mask` alone."""
        self.milliseconds: list[float] = []
        """Of each step of the latest run, whose outputs stay on the device."""

    def run(self, inputs: Arrays, chunks: Sequence[int], mask: NDArray[Any] | None = None) -> list[NDArray[Any]]:
        """What a step gives (`results`) at all positions, the sequence given in chunks: `(5, 1, 1)` is a prompt of five
        tokens and two steps. `inputs` are the model's, for the whole sequence; `mask` [batch, time] is 1 where a token
        is real. What a step keeps for the next stays on the device.

        Raises ArchError E0503 where onnxruntime cannot run a graph."""
        batch, time = len(next(iter(inputs.values()))), sum(chunks)
        mask = np.ones((batch, time), np.int64) if mask is None else mask
        positions = np.maximum(np.cumsum(mask, 1) - 1, 0)
        once = {} if self.encoder is None else self._once(inputs)
        state, found, at = self._start(inputs), [], 0
        self.milliseconds = []
        for count in chunks:
            new: dict[str, NDArray[Any]] = {
                "attention_mask": mask[:, : at + count],
                "position_ids": positions[:, at : at + count],
                "past_length": np.array([at]),
                **{("input_ids" if n == self.ids else n): self._part(x, n, at, count) for n, x in inputs.items()},
            }
            kept = {**once, **state}
            start = perf_counter()
            feed = {n: kept[n] if n in kept else self.step.tensor(n, new[n]) for n in self.step.inputs}
            outputs = self.step.run(feed)
            self.milliseconds.append(1e3 * (perf_counter() - start))
            names, own = [*outputs], len(self.results)
            found.append([outputs[n].numpy() for n in names[:own]])
            state = {n.replace("present.", "past_key_values.", 1): outputs[n] for n in names[own:]}
            at += count
        return self.joined(found, np.concatenate)

    def _once(self, inputs: Arrays) -> dict[str, Any]:
        """Return what is computed before the first step, on the device."""
        assert self.encoder is not None
        return self.encoder.run({n: self.encoder.tensor(n, inputs[n]) for n in self.encoder.inputs})

    def _start(self, inputs: Arrays) -> dict[str, Any]:
        """Return the empty caches that the first step is given, by the name of its input."""
        shapes = ((v.shape, inputs[name].shape) for name, v in self.model.inputs)
        sizes = {str(d.value): n for dims, found in shapes for d, n in zip(dims, found, strict=True)}
        sizes[self.steps.of.all.name] = 0
        found = {}
        for kept in self.steps.kept:
            name = f"past_key_values.{kept.name}"
            shape = [int(evaluate(d.value, sizes)) for d in kept.shape]
            if kept.kind == "cache":
                shape[kept.axis] = 0
            found[name] = self.step.tensor(name, np.zeros(shape, NUMPY[self.step.inputs[name].type]))
        return found

    def _part(self, x: NDArray[Any], name: str, at: int, count: int) -> NDArray[Any]:
        return x.take(range(at, at + count), self.moving[name]) if name in self.moving else x
