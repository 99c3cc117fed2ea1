"""Decoding step by step in onnxruntime, as a runtime would, and in PyTorch, for any model that can be taken so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from near import distance
from numpy.typing import NDArray
from onnx_tools import check, session

from archdsl.api import load, to_torch
from archdsl.backends.onnx.step import write_steps
from archdsl.backends.onnx.store import inline, serialized
from archdsl.backends.onnx.targets import GraphOptions
from archdsl.backends.torch import Extras, emit
from archdsl.estimates.params import vocabulary
from archdsl.ir.dims import evaluate
from archdsl.ir.graph import Model
from archdsl.passes.flat_step import unroll_step
from archdsl.passes.sequence import DecodedSequence
from archdsl.passes.step import stepped
from archdsl.run.load import load_source
from archdsl.run.onnx_decoder import Decoder
from archdsl.run.torch_decoder import TorchDecoder

Array = NDArray[Any]


def module_of(model: Model, seed: int = 0) -> torch.nn.Module:
    """The emitted module with weights wide enough that every one of them is seen."""
    torch.manual_seed(seed)
    module = to_torch(model).eval()
    widen(module)
    return module


def behind_memory(layer: str) -> Model:
    """Two layers behind three places in front of the sequence, which go through them."""
    text = f"""model m(tokens: token[batch, time]) {{
  param memory: [1, 3, 8] = normal(1)
  x = concat(memory -> expand(0, batch), tokens -> embedding(11, 8), axis: 1)
  for i in 2 {{ x = x + (x -> {layer}) }}
  return x[:, 3:] -> linear(11)
}}"""
    return load(text=text)


def widen(module: torch.nn.Module) -> None:
    """Draw weights so wide that every one of them is seen."""
    for p in module.parameters():
        if p.dim() > 1:
            torch.nn.init.normal_(p, std=0.2)
        else:
            with torch.no_grad():
                p.add_(0.1 * torch.randn_like(p))


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
    return all_outputs(module, inputs)[0]


def all_outputs(module: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> list[Array]:
    with torch.no_grad():
        results = module(*inputs.values())
    return [x.detach().numpy() for x in ([results] if isinstance(results, torch.Tensor) else results)]


def furthest(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    """How far the results of steps are from those of whole sequences, each relative to its largest number."""
    pairs = zip(found, wanted, strict=True)
    return max(distance(a, b, max(1.0, float(np.abs(np.asarray(b)).max(initial=0)))) for a, b in pairs)


def decoder(model: Model, module: torch.nn.Module, **options: Any) -> Decoder:
    """The graphs of a model with a module's weights, to be run step by step."""
    arrays = {k: t.detach().numpy() for k, t in module.state_dict().items()}
    sessions = {}
    for name, written in write_steps(model, GraphOptions(**options)).items():
        inline(written, arrays)
        data = serialized(written)
        check(data)
        sessions[name] = session(data)
    return Decoder(unroll_step(stepped(model)), sessions)


def differences(
    model: Model,
    chunks: Sequence[int] = (4, 1, 1, 2),
    module: torch.nn.Module | None = None,
    last: bool = False,
    inputs: dict[str, torch.Tensor] | None = None,
    **options: Any,
) -> dict[str, float]:
    """How far decoding in chunks is from the whole sequence at once, relative to the largest number; where rows may be
    padded, how far the rows of a batch of two lengths are, padded on the left and on the right; and with `last` how far
    graphs that give their output at each row's last position alone are from those that give all."""
    module = module or module_of(model)
    time, first = sum(chunks), chunks[0]
    sizes = {"batch": 2, "time": 8, "frames": 8, DecodedSequence.of(model).time.name: time}
    tensors = inputs or inputs_for(model, sizes)
    made = decoder(model, module, **options)
    every = all_outputs(module, tensors)
    whole = [every[i] for i in made.results]
    arrays = {n: t.numpy() for n, t in tensors.items()}
    runs = {"steps": (arrays, np.ones((2, time), np.int64), made.run(arrays, chunks))}
    found = {"steps": furthest(runs["steps"][2], whole)}
    if made.padded:  # the second row is two tokens shorter
        alone = made.alone(arrays, 1, time - 2)
        every = all_outputs(module, {n: torch.from_numpy(x) for n, x in alone.items()})
        short = [every[i] for i in made.results]
        for side, real in (("left", [*range(2, time)]), ("right", [*range(first - 2), *range(first, time)])):
            given, mask = made.moved(arrays, 1, real)
            result = made.run(given, chunks, mask)
            rows, wanted = [], []
            for axis, a, b, c in zip(made.axes, result, whole, short, strict=True):
                rows += [a] if axis is None else [a[0], np.take(a[1], real, axis - 1)]
                wanted += [b] if axis is None else [b[0], c[0]]
            found[side] = furthest(rows, wanted)
            runs[side] = given, mask, result
    if last:
        of_last = decoder(model, module, last=True, **options)
        for name, (given, mask, wanted) in runs.items():
            last_ones = of_last.run(given, chunks, mask)
            found[f"{name}, last"] = max(
                distance(a, b) if axis is None else _difference_at_the_last(a, b, axis, mask, chunks)
                for axis, a, b in zip(made.axes, last_ones, wanted, strict=True)
            )
    return found


def _difference_at_the_last(result: Array, every: Array, axis: int, mask: Array, chunks: Sequence[int]) -> float:
    """How far an output at the last position of each row and chunk is from that among all positions."""
    result, every = np.moveaxis(result, axis, 1), np.moveaxis(every, axis, 1)
    assert result.shape == (*every.shape[:1], len(chunks), *every.shape[2:])
    ends = np.cumsum(chunks)
    positions = [[max(i for i in range(end) if mask[row, i]) for end in ends] for row in range(len(every))]
    wanted = np.stack([every[row, at] for row, at in enumerate(positions)])
    return distance(result, wanted, max(1.0, float(np.abs(every).max())))


def torch_differences(
    model: Model,
    chunks: Sequence[int] = (4, 1, 1, 2),
    stepping: torch.nn.Module | None = None,
    inputs: dict[str, torch.Tensor] | None = None,
) -> dict[str, float]:
    """How far PyTorch's own steps are from the whole sequence at once, relative to the largest number: in chunks, with
    tensors of fixed sizes (`static`); and, where the module goes from tokens to logits, what `stream` chooses tokens by
    in a batch of two lengths, padded on the left and on the right, its step compiled or not. `stepping` is the module
    with the section `generate`, where it is there already.

    Raises ArchError E0504 where the model cannot be taken so."""
    if stepping is None:
        stepping = load_source(emit(model, Extras(frozenset({"generate"}))))().eval()
        stepping.load_state_dict(module_of(model).state_dict())
    time, first = sum(chunks), chunks[0]
    sizes = {"batch": 2, "time": 8, "frames": 8, DecodedSequence.of(model).time.name: time}
    inputs = inputs or inputs_for(model, sizes)
    every = all_outputs(stepping, inputs)
    whole = every[0]
    scale = max(1.0, float(np.abs(whole).max()))
    made = TorchDecoder(model, stepping)
    given = [every[i] for i in made.results]

    def apart(found: torch.Tensor, expected: Array) -> float:
        return distance(found, expected, scale)

    found = {
        "steps": furthest(made.run(inputs, chunks), given),
        "static": furthest(made.run(inputs, chunks, static=True), given),
    }
    if not (made.streams and made.by_row):
        return found
    # The prompt of the second row is two tokens shorter.
    name = next(n for n in made.new if n in made.moving)
    arrays = {n: t.numpy() for n, t in inputs.items()}
    try:
        short = first_output(stepping, {n: torch.from_numpy(x) for n, x in made.alone(arrays, 1, time - 2).items()})
    except AssertionError:
        return found  # the model takes no rows of that length
    expected = np.concatenate((whole[:1, first - 1 : -1], short[:, first - 3 : -1]))
    after = inputs[name][:, first:].clone()
    after[1] = inputs[name][1, first - 2 : -2]
    for side, real in (("left", [*range(2, time)]), ("right", [*range(first - 2), *range(first, time)])):
        moved, mask = made.moved(arrays, 1, real)
        prompt, kept = torch.from_numpy(moved[name][:, :first]), torch.from_numpy(mask[:, :first] > 0)
        found[side] = apart(made.stream(inputs, prompt, after, kept), expected)
        with patch.object(torch, "compile", lambda step, **_: step):
            found[f"{side}, static"] = apart(made.stream(inputs, prompt, after, kept, compiled=True), expected)
    return found
