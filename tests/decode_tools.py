"""Decoding in onnxruntime step by step, as a runtime would, for any model that can be taken so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from archdsl.analyses.decode import is_time, plan
from archdsl.analyses.params import vocabulary
from archdsl.api import module_from
from archdsl.ir.dims import evaluate
from archdsl.ir.graph import Model
from archdsl.lower.onnx.step import write_steps
from archdsl.lower.onnx.store import inline, serialized
from onnx_tools import check, session

Array = NDArray[Any]


def module_of(model: Model, seed: int = 0) -> torch.nn.Module:
    """The emitted module with weights wide enough that every one of them is seen."""
    torch.manual_seed(seed)
    module = module_from(model).eval()
    for p in module.parameters():
        if p.dim() > 1:
            torch.nn.init.normal_(p, std=0.2)
        else:
            with torch.no_grad():
                p.add_(0.1 * torch.randn_like(p))
    return module


def inputs_for(model: Model, sizes: dict[str, int], seed: int = 0) -> dict[str, torch.Tensor]:
    """Inputs of those lengths: random tokens and numbers, every place real, all of one kind."""
    generator = torch.Generator().manual_seed(seed)
    rows = vocabulary(model) or 2
    found = {}
    for name, value in model.inputs:
        shape = [int(evaluate(d.value, {s.name: sizes.get(s.name, 6) for s in model.symbols})) for d in value.shape]
        if value.dtype == "token":
            found[name] = torch.randint(rows, shape, generator=generator)
        elif value.is_int:
            found[name] = torch.zeros(shape, dtype=torch.long)
        elif value.is_bool:
            found[name] = torch.ones(shape, dtype=torch.bool)
        else:
            found[name] = torch.randn(shape, generator=generator)
    return found


def first_output(module: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> Array:
    with torch.no_grad():
        result = module(**inputs)
    found: Array = (result if isinstance(result, torch.Tensor) else result[0]).numpy()
    return found


class Decoder:
    """The graphs of a model with a module's weights, run step by step."""

    def __init__(self, model: Model, module: torch.nn.Module, **options: Any) -> None:
        arrays = {k: t.detach().numpy() for k, t in module.state_dict().items()}
        self.model = model
        self.sessions = {}
        for name, written in write_steps(model, **options).items():
            inline(written, arrays)
            data = serialized(written)
            check(data)
            self.sessions[name] = session(data)
        self.step = self.sessions["model"]
        self.inputs = {i.name: i for i in self.step.get_inputs()}
        self.outputs = [o.name for o in self.step.get_outputs()]
        steps = plan(model)
        self.moving = {n for n, v in model.inputs if any(is_time(d, steps.time) for d in v.shape)}
        """Inputs that follow the places of the sequence."""
        self.axis = next(i for i, d in enumerate(steps.step.outputs[0].shape) if is_time(d, steps.time))
        self.padded = "attention_mask" in self.inputs
        """Whether rows may be padded."""

    def start(self, given: dict[str, Array]) -> dict[str, Array]:
        """What is kept before the first step: nothing."""
        known = {str(d.value): n for name, v in self.model.inputs for d, n in zip(v.shape, given[name].shape)}
        known |= {"batch_size": next(iter(given.values())).shape[0], "past_sequence_length": 0}
        found = {}
        for name, i in self.inputs.items():
            if f"present.{name.removeprefix('past_key_values.')}" in self.outputs:
                shape = [known.get(d, d) for d in i.shape]
                found[name] = np.zeros(shape, np.float32 if "float" in i.type else np.int64)
        return found

    def run(self, inputs: dict[str, torch.Tensor], chunks: Sequence[int], mask: Array | None = None) -> Array:
        """The first output at all places, the sequence being given in chunks. `mask` [batch, time] is 1 where a token
        is real."""
        given = {k: t.numpy() for k, t in inputs.items()}
        fixed = {}
        if "encoder" in self.sessions:
            encoder = self.sessions["encoder"]
            names = [o.name for o in encoder.get_outputs()]
            wanted = {i.name for i in encoder.get_inputs()}
            fixed = dict(zip(names, encoder.run(None, {k: x for k, x in given.items() if k in wanted}), strict=True))
        early = {i.name for i in self.sessions["encoder"].get_inputs()} if "encoder" in self.sessions else set()
        known = early | self.inputs.keys()
        ids = next((n for n, v in self.model.inputs if v.dtype == "token" and n not in known), None)
        moving = {("input_ids" if n == ids else n): x for n, x in given.items() if n in self.moving}
        time = sum(chunks)
        batch = next(iter(given.values())).shape[0]
        mask = np.ones((batch, time), np.int64) if mask is None else mask
        places = np.maximum(np.cumsum(mask, 1) - 1, 0)
        state, found, at = self.start(given), [], 0
        for count in chunks:
            feed = {**state, **{k: x for k, x in fixed.items() if k in self.inputs}}
            for name, x in moving.items():
                if name in self.inputs and name not in feed:
                    feed[name] = x[:, at : at + count]
            extra = {
                "attention_mask": mask[:, : at + count],
                "position_ids": places[:, at : at + count],
                "past_length": np.array([at]),
            }
            feed |= {k: x for k, x in extra.items() if k in self.inputs}
            results = self.step.run(None, feed)
            found.append(results[0])
            state = {
                n.replace("present.", "past_key_values."): x for n, x in zip(self.outputs[1:], results[1:], strict=True)
            }
            at += count
        return np.concatenate(found, self.axis)


def differences(model: Model, chunks: Sequence[int] = (4, 1, 1, 2), **options: Any) -> dict[str, float]:
    """How far decoding in chunks is from the whole sequence at once, relative to the largest number; and, where rows may
    be padded, how far the rows of a batch of two lengths are, padded on the left and on the right."""
    module = module_of(model)
    time, first = sum(chunks), chunks[0]
    sizes = {"batch": 2, "time": 8, "frames": 8, plan(model).time.name: time}
    inputs = inputs_for(model, sizes)
    whole = first_output(module, inputs)
    scale = max(1.0, float(np.abs(whole).max()))
    decoder = Decoder(model, module, **options)
    found = {"steps": float(np.abs(decoder.run(inputs, chunks) - whole).max()) / scale}
    moving = [n for n, v in model.inputs if v.dtype != "padding" and n in decoder.moving]
    if not decoder.padded or any(v.dtype == "padding" and n in decoder.moving for n, v in model.inputs):
        return found
    # The second row is two tokens shorter.
    short = first_output(
        module,
        {
            n: (t[1:, : time - 2] if n in moving else t[1:] if t.dim() and t.shape[0] == 2 else t)
            for n, t in inputs.items()
        },
    )
    for side, real in (
        ("left", [*range(2, time)]),
        ("right", [*range(first - 2), *range(first, time)]),
    ):
        padded = {n: t.clone() for n, t in inputs.items()}
        mask = np.ones((2, time), np.int64)
        mask[1] = 0
        mask[1, real] = 1
        for n in moving:
            padded[n][1] = 0
            padded[n][1, real] = inputs[n][1, : time - 2]
        result = decoder.run(padded, chunks, mask)
        second = np.take(result[1], real, decoder.axis - 1)
        found[side] = float(max(np.abs(result[0] - whole[0]).max(), np.abs(second - short[0]).max())) / scale
    return found
