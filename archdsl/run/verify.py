"""`archdsl verify`: the emitted module beside its graphs in onnxruntime, for whole sequences and step by step."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel

from archdsl.backends.onnx.targets import GraphOptions
from archdsl.dependence.causality import assumed
from archdsl.diagnostics import ArchError, error
from archdsl.diagnostics.exhausted import exhaustion_told
from archdsl.ir.graph import Model
from archdsl.packages import install
from archdsl.run.difference import Difference, difference
from archdsl.run.onnx import (
    NOT_ASKED,
    WHOLE,
    Stopwatch,
    chunks_of,
    demand_room,
    demand_runtime,
    draw_inputs,
    infos,
    make_graphs,
    open_decoder,
    open_session,
    parameters_of,
    run_session,
)
from archdsl.run.smoke import TensorInfo, load_weights, named, one_line
from archdsl.shown import Shown

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from archdsl.backends.onnx.write import Written
    from archdsl.run.onnx_decoder import Decoder
    from archdsl.run.sequences import Sequences
    from archdsl.run.torch_decoder import TorchDecoder

TOLERANCES = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 5e-2}
"""The largest relative difference that is put down to rounding, by type."""


FAILED = "the emitted steps failed"


class VerifyReport(BaseModel, Shown):
    """What `archdsl verify` prints."""

    model: str
    device: str
    dtype: str
    target: str
    quantize: str | None
    seed: int
    parameters: int
    tolerance: float
    agrees: bool
    """Whether no relative difference, of decoding either, is larger than the tolerance, no step failed, and there was
    something to compare: outputs that are all zero, or NaN on both sides, are not."""
    assumed: list[str]
    """What the spec takes for causal without a proof, each with its position: decoding relies on it."""
    ties: list[str]
    """Ops that had equal values to choose from, of which PyTorch takes any: here, as ONNX, that of the lower index."""
    inputs: dict[str, TensorInfo]
    outputs: dict[str, Difference]
    rounding: dict[str, Difference]
    """With weights of few bits, how far the graph's outputs are from PyTorch's with weights as they are; {} without."""
    decode: dict[str, Difference]
    """How far decoding is from PyTorch's outputs for the whole sequence, of the first one and, with their names behind
    (`steps hidden`), of those others that a step gives. `prefill`: the prompt at once; `steps`:
    the tokens after it, one by one; `left`, `right`: all positions of a batch whose last row is shorter, and padded on
    that side, where the graphs allow it."""
    no_decode: str | None
    """Why nothing is decoded."""
    torch_decode: dict[str, Difference]
    """How far PyTorch's own decode steps (`--with generate`) are from its outputs for the whole sequence.
    `prefill`, `steps`: as in `decode`; `static`: all positions, by steps whose tensors keep their sizes, as those of a
    compiled step do; `left`, `right`: the logits that `stream` draws tokens by, of a batch whose last row is shorter,
    and padded on that side, where the module goes from tokens to logits."""
    no_torch_decode: str | None
    """Why PyTorch decodes nothing, or how its steps failed."""
    milliseconds: dict[str, float]


# --- the command ------------------------------------------------------------------------------------------------------


@exhaustion_told()
def verify(
    model: Model,
    options: GraphOptions,
    *,
    weights: Path | None,
    seed: int,
    batch: int,
    time: int | None,
    device: str,
    tolerance: float | None = None,
    decode: bool = True,
) -> VerifyReport:
    """Run a model in PyTorch and in onnxruntime, on the same weights and inputs, and compare what comes out; with
    `decode`, what comes out step by step too, of both, where the model can be taken so.

    Where matrices are quantized, PyTorch is given the rounded weights, and a target that rounds the inputs of products,
    too, is not to: what is compared is arithmetic. How far all rounding moves the outputs is reported apart.
    `tolerance` is the largest relative difference that passes: 1e-4 by default, 2e-2 in float16, 5e-2 in bfloat16.
    Raises ArchError as `run` does."""
    from archdsl.backends.torch import emit
    from archdsl.run.torch_decoder import TorchDecoder

    dtype = options.dtype
    demand_runtime(device, dtype)
    try:
        import torch
    except ImportError:
        raise error(
            "E0502", "verifying a model needs PyTorch, which is not installed", help=install("torch", "onnx")
        ) from None
    from archdsl.run.ties import LowerIndexFirst

    choosing = LowerIndexFirst()
    demand_room(model, dtype, 3)
    timed = Stopwatch()
    inputs = draw_inputs(model, batch, time, seed, lengths=True)
    steps: dict[str, Difference] = {}
    torch_steps: dict[str, Difference] = {}
    no_torch_decode: str | None = NOT_ASKED
    failed = ""
    with tempfile.TemporaryDirectory(prefix="archdsl-", ignore_cleanup_errors=True) as folder:
        made = make_graphs(model, options, Path(folder), weights, seed, decode, timed, exact=True)
        whole, file = made.graphs[WHOLE], weights or made.numbers.parent / "model.safetensors"
        with timed("load"):
            session = open_session(whole, made.numbers, device)
        where = torch.device(device if device != "cpu" and torch.cuda.is_available() else "cpu")
        with timed("torch load"):
            module = _module(torch, emit(model), where, dtype)
            load_weights(module, file, where)

        def expect(given: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
            with choosing:
                return _in_torch(torch, model, module, given, where, dtype)

        with timed("torch"):
            expected = expect(inputs)
        rounded = expected
        if whole.quantized:
            _round(torch, module, whole)
            rounded = expect(inputs)
        with timed("onnxruntime"):
            found = run_session(session, inputs)
        moved = found
        if made.exact is not made.graphs:
            del session
            session = open_session(made.exact[WHOLE], made.numbers, device)
            found = run_session(session, inputs)
        del session  # its weights are in memory
        if made.steps is not None:
            with timed("decode"):
                steps = _steps(open_decoder(made, made.steps, device), inputs, expect, dtype)
        if decode:
            with timed("torch decode"):
                source, no_torch_decode = _source_of_steps(model)
                if source is not None:
                    stepping = _module(torch, source, where, dtype)
                    stepping.load_state_dict(module.state_dict(), assign=True)  # the same tensors
                    decoder = TorchDecoder(model, stepping)
                    try:
                        with choosing:
                            torch_steps.update(_torch_steps(torch, decoder, inputs, expect, where, dtype))
                    except ArchError:
                        raise
                    except Exception as problem:  # of whatever type: what was emitted is on trial
                        failed = no_torch_decode = f"{FAILED}: {type(problem).__name__}: {one_line(problem)}"
    outputs = _differences(found, rounded, dtype)
    parts = [part.values() for part in (outputs, steps, torch_steps)]
    compared = all(any(d.largest for d in part) for part in parts if part)
    limit = TOLERANCES[dtype] if tolerance is None else tolerance
    return VerifyReport(
        model=model.name,
        device=device,
        dtype=dtype,
        target=options.target,
        quantize=options.quantize,
        seed=seed,
        parameters=parameters_of(model),
        tolerance=limit,
        assumed=assumed(model),
        ties=[*choosing.ties],
        agrees=not failed and compared and all(d.relative <= limit for part in parts for d in part),
        inputs=infos(inputs, dtype),
        outputs=outputs,
        rounding=_differences(moved, expected, dtype) if whole.quantized else {},
        decode=steps,
        no_decode=made.no_decode,
        torch_decode=torch_steps,
        no_torch_decode=no_torch_decode,
        milliseconds=timed.milliseconds,
    )


# --- PyTorch ----------------------------------------------------------------------------------------------------------


def _module(torch: Any, source: str, device: Any, dtype: str) -> Any:
    """The module of an emitted file, its weights as they are initialized."""
    from archdsl.run.load import load_source

    with torch.device(device):
        module = load_source(source)()
    return module.to(getattr(torch, dtype)).eval()


def _in_torch(
    torch: Any, model: Model, module: Any, inputs: Mapping[str, NDArray[Any]], device: Any, dtype: str
) -> dict[str, NDArray[Any]]:
    tensors = _tensors(torch, model, inputs, device, dtype)
    with _refusals(), torch.no_grad():
        results = module(*tensors.values())
    return {name: _array(t) for name, t in named(model, results).items()}


def _tensors(
    torch: Any, model: Model, inputs: Mapping[str, NDArray[Any]], device: Any, dtype: str
) -> dict[str, torch.Tensor]:
    """The inputs as the module takes them, in its order."""
    tensors = {}
    for name, value in model.inputs:
        tensor = torch.from_numpy(inputs[name]).to(device)
        if tensor.is_floating_point():
            tensor = tensor.to(getattr(torch, dtype if value.dtype == "float" else value.dtype))
        tensors[name] = tensor
    return tensors


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    tensor = tensor.detach()  # a weight may be given
    found: NDArray[Any] = (tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy()
    return found


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Raises ArchError E0503 where a module refuses its inputs."""
    try:
        yield
    except (AssertionError, ValueError) as problem:
        raise error(
            "E0503", f"the model refused its inputs: {one_line(problem)}", help="give another `--seq` or `--batch`"
        ) from None


def _round(torch: Any, module: Any, written: Written) -> None:
    """Give a module the weights that the graph has, back from their few bits."""
    from archdsl.backends.onnx.quantize import dequantized

    state = dict(module.state_dict(keep_vars=True))
    with torch.no_grad():
        for path, matrix in written.quantized.items():
            weight = state[path]
            rows = weight.float().cpu().numpy().reshape(-1, weight.shape[-1])
            back = dequantized(rows, matrix.bits, written.dtype).reshape(tuple(weight.shape))
            weight.copy_(torch.from_numpy(back))


# --- step by step -----------------------------------------------------------------------------------------------------


def _steps(
    decoder: Decoder,
    inputs: Mapping[str, NDArray[Any]],
    expect: Callable[[Mapping[str, NDArray[Any]]], dict[str, NDArray[Any]]],
    dtype: str,
) -> dict[str, Difference]:
    """How far decoding is from what PyTorch gives for the whole sequence."""
    inputs = _every_position_real(decoder, inputs)
    chunks = chunks_of(decoder, inputs)
    prompt, time = chunks[0], sum(chunks)

    expected = _of_steps(decoder, expect(inputs))
    found = _by_steps(decoder, decoder.run(inputs, chunks), expected, chunks, dtype)
    last, cut = len(next(iter(expected.values()))) - 1, max(1, prompt // 3)
    if not decoder.padded or prompt == 1:
        return found
    alone = _alone(decoder, inputs, expect, last, time - cut)
    if alone is None:
        return found
    for side, real in _sides(prompt, time, cut):
        given, mask = decoder.moved(inputs, last, real)
        for (name, whole), axis, result in zip(
            expected.items(), decoder.axes, decoder.run(given, chunks, mask), strict=True
        ):
            if axis is not None:  # what stands at the filling is nobody's
                whole = whole.copy()  # it may be the input itself
                whole[last], result[last] = 0, _at(result[last], real, axis - 1)
                np.moveaxis(whole[last], axis - 1, 0)[: len(real)] = np.moveaxis(alone[name][0], axis - 1, 0)
            found[_called(side, name, expected)] = difference(result, whole, dtype)
    return found


def _torch_steps(
    torch: Any,
    decoder: TorchDecoder,
    inputs: Mapping[str, NDArray[Any]],
    expect: Callable[[Mapping[str, NDArray[Any]]], dict[str, NDArray[Any]]],
    device: Any,
    dtype: str,
) -> Iterator[tuple[str, Difference]]:
    """How far PyTorch's own steps are from what it gives for the whole sequence."""
    inputs = _every_position_real(decoder, inputs)
    chunks = chunks_of(decoder, inputs)
    prompt, time = chunks[0], sum(chunks)
    every = _of_steps(decoder, expect(inputs))
    first, whole = next(iter(every.items()))

    def tensors(given: Mapping[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
        return _tensors(torch, decoder.model, given, device, dtype)

    def decoded(static: bool) -> list[NDArray[Any]]:
        with _refusals():
            return [*map(_array, decoder.run(tensors(inputs), chunks, static=static))]

    yield from _by_steps(decoder, decoded(static=False), every, chunks, dtype).items()
    for (name, one), result in zip(every.items(), decoded(static=True), strict=True):
        yield _called("static", name, every), difference(result, one, dtype)
    last, cut = len(whole) - 1, max(1, prompt // 3)
    alone = _alone(decoder, inputs, expect, last, time - cut) if decoder.streams and prompt > 1 else None
    if alone is None:
        return
    # Of each row what the tokens after its prompt are chosen by.
    expected = np.concatenate((whole[:last, prompt - 1 : -1], alone[first][:, prompt - cut - 1 : -1]))
    name = next(n for n in decoder.new if n in decoder.moving)
    after = inputs[name][:, prompt:].copy()
    after[last] = inputs[name][last, prompt - cut : time - cut]
    for side, real in _sides(prompt, time, cut):
        given, mask = decoder.moved(inputs, last, real)
        rows, behind, kept = (
            torch.from_numpy(x).to(device) for x in (given[name][:, :prompt], after, mask[:, :prompt])
        )
        with _refusals():
            result = _array(decoder.stream(tensors(inputs), rows, behind, kept.bool()))
        yield side, difference(result, expected, dtype)


def _source_of_steps(model: Model) -> tuple[str | None, str | None]:
    """The file with decode steps; or why there is none."""
    from archdsl.backends.torch import Extras, emit

    try:
        return emit(model, Extras(frozenset({"generate"}))), None
    except ArchError as problem:
        first = problem.diagnostics[0]
        if first.code != "E0504":
            raise
        return None, first.message


def _every_position_real(sequences: Sequences, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The inputs without padding along the sequence that the steps follow."""
    paddings = {n for n, v in sequences.model.inputs if v.dtype == "padding"} & sequences.moving.keys()
    return {n: np.ones_like(x) if n in paddings else x for n, x in inputs.items()}


def _of_steps(sequences: Sequences, outputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Those of a model's outputs that a step gives, too."""
    every = [*outputs.items()]
    return dict(every[i] for i in sequences.results)


def _called(how: str, output: str, outputs: Mapping[str, Any]) -> str:
    """What a comparison is called: of the first output how it was decoded alone."""
    return how if output == next(iter(outputs)) else f"{how} {output}"


def _by_steps(
    sequences: Sequences,
    found: Sequence[NDArray[Any]],
    expected: Mapping[str, NDArray[Any]],
    chunks: Sequence[int],
    dtype: str,
) -> dict[str, Difference]:
    """How far the prompt is from the whole sequence, and what comes after it. What is the same at every step is
    compared as it is after the last."""
    differences = {}
    for (name, whole), result, axis in zip(expected.items(), found, sequences.axes, strict=True):
        if axis is None:
            differences[_called("steps", name, expected)] = difference(result, whole, dtype)
            continue
        parts = (np.split(x, [chunks[0]], axis) for x in (result, whole))
        for how, ours, theirs in zip(("prefill", "steps"), *parts, strict=True):
            if theirs.shape[axis]:
                differences[_called(how, name, expected)] = difference(ours, theirs, dtype)
    return differences


def _alone(
    sequences: Sequences,
    inputs: Mapping[str, NDArray[Any]],
    expect: Callable[[Mapping[str, NDArray[Any]]], dict[str, NDArray[Any]]],
    row: int,
    length: int,
) -> dict[str, NDArray[Any]] | None:
    """What PyTorch gives for one row of that length; None if the model takes none, or no rows of several lengths."""
    if not sequences.by_row:
        return None
    try:
        return _of_steps(sequences, expect(sequences.alone(inputs, row, length)))
    except ArchError:
        return None


def _sides(prompt: int, time: int, cut: int) -> tuple[tuple[str, list[int]], ...]:
    """Where the tokens of a row stand whose prompt is `cut` shorter, by the side of the padding."""
    return ("left", [*range(cut, time)]), ("right", [*range(prompt - cut), *range(prompt, time)])


def _at(row: NDArray[Any], positions: Sequence[int], axis: int) -> NDArray[Any]:
    """What stands at those positions of a row, in front; zeros behind it."""
    found = np.zeros_like(row)
    np.moveaxis(found, axis, 0)[: len(positions)] = np.moveaxis(row, axis, 0)[[*positions]]
    return found


# --- differences ------------------------------------------------------------------------------------------------------


def _differences(
    found: Mapping[str, NDArray[Any]], expected: Mapping[str, NDArray[Any]], dtype: str
) -> dict[str, Difference]:
    pairs = zip(expected.items(), found.values(), strict=True)
    return {name: difference(ours, theirs, dtype) for (name, theirs), ours in pairs}
