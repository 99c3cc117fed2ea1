"""Running the graphs of a step, as a runtime does: the prompt at once or in chunks, then token by token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from archdsl.analyses.decode import Plan, is_time

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]

NUMPY = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}
"""The types of onnxruntime's inputs."""


class Decoder:
    """The graphs of `write_steps` in sessions of onnxruntime: `model`, and `encoder` where there is one."""

    def __init__(self, steps: Plan, sessions: Mapping[str, Any]) -> None:
        self.model = steps.model
        self.step = sessions["model"]
        self.encoder = sessions.get("encoder")
        self.inputs = {i.name: i for i in self.step.get_inputs()}
        self.outputs = [o.name for o in self.step.get_outputs()]
        self.moving: dict[str, int] = {}
        """Inputs of the model that follow the places of the sequence, and their axis of them."""
        for name, value in self.model.inputs:
            axis = next((i for i, d in enumerate(value.shape) if is_time(d, steps.time)), None)
            if axis is not None:
                self.moving[name] = axis
        self.axis = next(i for i, d in enumerate(steps.step.outputs[0].shape) if is_time(d, steps.time))
        """The axis of places of what comes out."""
        known = {*self.inputs, *(i.name for i in (self.encoder.get_inputs() if self.encoder is not None else ()))}
        self.ids = next((n for n, v in self.model.inputs if v.dtype == "token" and n not in known), None)
        """The input of the model that a step calls `input_ids`."""
        own = {n for n, v in self.model.inputs if v.dtype == "padding"}
        self.padded = "attention_mask" in self.inputs and not own & self.moving.keys()
        """Whether rows may be padded by `attention_mask` alone."""
        self.milliseconds: list[float] = []
        """Of each step of the latest run."""

    def run(self, inputs: Arrays, chunks: Sequence[int], mask: NDArray[Any] | None = None) -> NDArray[Any]:
        """The first output at all places, the sequence being given in chunks: `(5, 1, 1)` is a prompt of five tokens
        and two steps. `inputs` are the model's, for the whole sequence; `mask` [batch, time] is 1 where a token is
        real."""
        batch, time = len(next(iter(inputs.values()))), sum(chunks)
        mask = np.ones((batch, time), np.int64) if mask is None else mask
        places = np.maximum(np.cumsum(mask, 1) - 1, 0)
        once = {} if self.encoder is None else self._once(inputs)
        state, found, at = self._start(inputs), [], 0
        self.milliseconds = []
        for count in chunks:
            feed: dict[str, NDArray[Any]] = {
                "attention_mask": mask[:, : at + count],
                "position_ids": places[:, at : at + count],
                "past_length": np.array([at]),
                **{("input_ids" if n == self.ids else n): self._part(x, n, at, count) for n, x in inputs.items()},
                **once,
                **state,
            }
            start = perf_counter()
            first, *kept = self.step.run(None, {n: self._typed(n, feed[n]) for n in self.inputs})
            self.milliseconds.append(1e3 * (perf_counter() - start))
            found.append(first)
            names = [n.replace("present.", "past_key_values.", 1) for n in self.outputs[1:]]
            state = dict(zip(names, kept, strict=True))
            at += count
        return np.concatenate(found, self.axis)

    def alone(self, inputs: Arrays, row: int, length: int) -> dict[str, NDArray[Any]]:
        """The inputs of one row, the first `length` places of its sequence."""
        found = {}
        for name, value in self.model.inputs:
            x = inputs[name]
            if value.shape and not value.shape[0].static:
                x = x[row : row + 1]
            found[name] = x.take(range(length), self.moving[name]) if name in self.moving else x
        return found

    def moved(self, inputs: Arrays, row: int, real: Sequence[int]) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
        """The inputs with the first places of a row at the places `real`, all others of it being filling; and the mask
        that says so."""
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

    def _once(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        """What is computed before the first step."""
        assert self.encoder is not None
        names = [o.name for o in self.encoder.get_outputs()]
        feed: Arrays = {i.name: inputs[i.name].astype(NUMPY[i.type]) for i in self.encoder.get_inputs()}
        return dict(zip(names, self.encoder.run(None, feed), strict=True))

    def _start(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        """What is kept before the first step: nothing."""
        shapes = ((v.shape, inputs[name].shape) for name, v in self.model.inputs)
        known = {str(d.value): n for dims, sizes in shapes for d, n in zip(dims, sizes, strict=True)}
        known |= {"batch_size": len(next(iter(inputs.values()))), "past_sequence_length": 0}
        return {
            name: np.zeros([known.get(d, d) for d in i.shape], NUMPY[i.type])
            for name, i in self.inputs.items()
            if name.replace("past_key_values.", "present.", 1) in self.outputs
        }

    def _part(self, x: NDArray[Any], name: str, at: int, count: int) -> NDArray[Any]:
        return x.take(range(at, at + count), self.moving[name]) if name in self.moving else x

    def _typed(self, name: str, x: NDArray[Any]) -> NDArray[Any]:
        return x.astype(NUMPY[self.inputs[name].type], copy=False)
