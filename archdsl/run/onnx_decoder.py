"""Running the graphs of a step, as a runtime does: the prompt at once or in chunks, then token by token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from archdsl.passes.decode import DecodePlan
from archdsl.run.sequences import Sequences

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


class Decoder(Sequences):
    """The graphs of `write_steps` in sessions of onnxruntime: `model`, and `encoder` where there is one."""

    def __init__(self, steps: DecodePlan, sessions: Mapping[str, Any]) -> None:
        super().__init__(steps)
        self.step = sessions["model"]
        self.encoder = sessions.get("encoder")
        self.inputs = {i.name: i for i in self.step.get_inputs()}
        self.outputs = [o.name for o in self.step.get_outputs()]
        self.ids = next((n for n, v in self.model.inputs if v is steps.ids), None)
        """The input of the model that a step calls `input_ids`."""
        own = {n for n, v in self.model.inputs if v.dtype == "padding"}
        self.padded = "attention_mask" in self.inputs and not own & self.moving.keys()
        """Whether rows may be padded by `attention_mask` alone."""
        self.milliseconds: list[float] = []
        """Of each step of the latest run."""

    def run(self, inputs: Arrays, chunks: Sequence[int], mask: NDArray[Any] | None = None) -> NDArray[Any]:
        """The first output at all positions, the sequence being given in chunks: `(5, 1, 1)` is a prompt of five tokens
        and two steps. `inputs` are the model's, for the whole sequence; `mask` [batch, time] is 1 where a token is
        real."""
        batch, time = len(next(iter(inputs.values()))), sum(chunks)
        mask = np.ones((batch, time), np.int64) if mask is None else mask
        positions = np.maximum(np.cumsum(mask, 1) - 1, 0)
        once = {} if self.encoder is None else self._once(inputs)
        state, found, at = self._start(inputs), [], 0
        self.milliseconds = []
        for count in chunks:
            feed: dict[str, NDArray[Any]] = {
                "attention_mask": mask[:, : at + count],
                "position_ids": positions[:, at : at + count],
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
