"""`archdsl run --backend onnx`: the graphs in onnxruntime."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic import BaseModel

from archdsl.backends.onnx import demand_packages
from archdsl.backends.onnx.targets import TARGETS, GraphOptions
from archdsl.diagnostics import ArchError, Diagnostic, error
from archdsl.diagnostics.exhausted import exhaustion_told
from archdsl.ir.graph import Model, Value
from archdsl.run.binding import BoundSession, asking_runtime
from archdsl.run.smoke import TensorInfo, input_shapes, machine_memory, not_numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archdsl.backends.onnx.write import Written
    from archdsl.passes.flat_step import FlatStep
    from archdsl.run.onnx_decoder import Decoder
    from archdsl.run.sequences import Sequences

RUNS = 5
"""How often the model is run after the first time."""
STEPS = 16
"""How many tokens are decoded one by one, if the sequence has twice as many; else half of it."""
NOT_ASKED = "it was not asked for"
WHOLE = "whole"
"""The graph of whole sequences, beside those of `write_steps`."""


class OnnxRunReport(BaseModel):
    """What `archdsl run --backend onnx` prints."""

    model: str
    device: str
    dtype: str
    target: str
    quantize: str | None
    providers: list[str]
    """The execution providers that onnxruntime took, best first."""
    parameters: int
    inputs: dict[str, TensorInfo]
    outputs: dict[str, TensorInfo]
    nan: dict[str, int]
    """How many numbers of an output are NaN, where any are."""
    prompt: int | None
    """How many tokens `prefill` takes at once; None where nothing is decoded."""
    no_decode: str | None
    """Why nothing is decoded."""
    milliseconds: dict[str, float]
    """`write`: the graphs; `weights`: drawing or reading them; `load`: the session; `first`: the first run; `forward`:
    the median of five more; `prefill`: the prompt in the graph of a step; `token`: the median of the steps after it.
    Outputs stay on the device."""

    def failure(self) -> Diagnostic | None:
        """Return the finding E0510 where a result is NaN."""
        return not_numbers(self.model, self.outputs, self.nan)


class Stopwatch:
    """Times of named steps, in milliseconds."""

    def __init__(self) -> None:
        self.milliseconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = perf_counter()
        yield
        self.milliseconds[name] = 1e3 * (perf_counter() - start)


# --- the command ------------------------------------------------------------------------------------------------------


@exhaustion_told()
def run(
    model: Model,
    options: GraphOptions,
    *,
    weights: Path | None,
    seed: int,
    batch: int,
    time: int | None,
    device: str,
    decode: bool = True,
) -> OnnxRunReport:
    """Write a model's graph, load its weights or draw them, and run it in onnxruntime; with `decode`, step by step too,
    where the model can be taken so.

    Raises ArchError: E0502 where a package or the device is missing, E0503 where the model cannot be run like this, the
    weights are not its own or the inputs break one of its conditions, E0504 where the graph cannot be written."""
    demand_runtime(device, options.dtype)
    demand_room(model, options.dtype, 1)
    timed = Stopwatch()
    inputs = draw_inputs(model, batch, time, seed)
    with tempfile.TemporaryDirectory(prefix="archdsl-", ignore_cleanup_errors=True) as folder:
        made = make_graphs(model, options, Path(folder), weights, seed, decode, timed)
        found, providers = _whole(made, device, inputs, timed)
        prompt = None
        if made.steps is not None:
            decoder = open_decoder(made, made.steps, device)
            chunks = chunks_of(decoder, inputs)
            for _ in range(2):  # the first time, onnxruntime sets memory aside
                decoder.run(inputs, chunks)
            prompt = chunks[0]
            timed.milliseconds["prefill"] = decoder.milliseconds[0]
            if len(chunks) > 1:
                timed.milliseconds["token"] = median(decoder.milliseconds[1:])
    return OnnxRunReport(
        model=model.name,
        device=device,
        dtype=options.dtype,
        target=options.target,
        quantize=options.quantize,
        providers=providers,
        parameters=parameters_of(model),
        inputs=infos(inputs, options.dtype),
        outputs=infos(found, options.dtype),
        nan={name: n for name, x in found.items() if (n := int(np.isnan(x).sum()))},
        prompt=prompt,
        no_decode=made.no_decode,
        milliseconds=timed.milliseconds,
    )


# --- the graph and its session ----------------------------------------------------------------------------------------


class Graphs(NamedTuple):
    """The graphs of a model, and the file that holds their numbers."""

    graphs: dict[str, Written]
    """`whole`; and those of a step, where the model decodes."""
    exact: dict[str, Written]
    """The same, whose products with matrices of few bits do not round their inputs."""
    numbers: Path
    steps: FlatStep | None
    no_decode: str | None
    """Why there are no steps."""


def make_graphs(
    model: Model,
    options: GraphOptions,
    folder: Path,
    weights: Path | None,
    seed: int,
    decode: bool,
    timed: Stopwatch,
    exact: bool = False,
) -> Graphs:
    """The graphs as the options say, and `exact` ones. Drawn weights lie in `model.safetensors` beside the file of
    their numbers."""
    from archdsl.backends.onnx.store import ByteRange, Storage, as_they_lie, refer, save
    from archdsl.backends.onnx.write import write
    from archdsl.weights.safetensors import Checkpoint, draw, saved

    with timed("write"):
        graphs = {WHOLE: write(model, options)}
        steps, no_decode = _step_graphs(model, graphs, options) if decode else (None, NOT_ASKED)
        plain = graphs
        if exact and options.quantize is not None and TARGETS[options.target].rounds_inputs:
            options = replace(options, exact=True)
            plain = {WHOLE: write(model, options)}
            if steps is not None:
                _step_graphs(model, plain, options)
    with timed("weights"):
        if weights is None:
            weights = folder / "model.safetensors"
            draw(model, seed, options.dtype, weights, given=True)
        checkpoint = Checkpoint(weights)
        checkpoint.demand(saved(model))
        every = [*graphs.values(), *(plain.values() if plain is not graphs else ())]
        if as_they_lie(every, checkpoint, weights.parent):
            positions = {name: ByteRange(e.start, e.end - e.start) for name, e in checkpoint.entries.items()}
            refer(every, weights.name, positions)
            return Graphs(graphs, plain, weights, steps, no_decode)
        paths = {folder / f"graph_{i}.onnx": written for i, written in enumerate(every)}
        files = save(paths, model, Storage(weights))
        assert files.weights is not None
        return Graphs(graphs, plain, files.weights, steps, no_decode)


def _whole(
    made: Graphs, device: str, inputs: Mapping[str, NDArray[Any]], timed: Stopwatch
) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """The outputs for whole sequences, and what the session runs on. Its weights are in memory as long as it is."""
    with timed("load"):
        bound = BoundSession(open_session(made.graphs[WHOLE], made.numbers, device))
    given = {name: bound.tensor(name, inputs[name]) for name in bound.inputs}
    with timed("first"):
        found = bound.run(given)
    times = []
    for _ in range(RUNS):
        start = perf_counter()
        bound.run(given)
        times.append(1e3 * (perf_counter() - start))
    timed.milliseconds["forward"] = median(times)
    return {name: value.numpy() for name, value in found.items()}, bound.session.get_providers()


def _step_graphs(model: Model, graphs: dict[str, Written], options: GraphOptions) -> tuple[FlatStep | None, str | None]:
    """Add the graphs of a step; how the model is taken step by step, or why it is not."""
    from archdsl.backends.onnx.step import write_steps
    from archdsl.passes.flat_step import unroll_step
    from archdsl.passes.step import stepped

    try:
        steps = unroll_step(stepped(model))
        graphs |= write_steps(model, options, steps)
    except ArchError as problem:
        first = problem.diagnostics[0]
        if first.code != "E0504":
            raise
        return None, first.message
    return steps, None


def open_decoder(made: Graphs, steps: FlatStep, device: str) -> Decoder:
    """The graphs of a step, loaded."""
    from archdsl.run.onnx_decoder import Decoder

    names = [name for name in made.exact if name != WHOLE]
    return Decoder(steps, {name: open_session(made.exact[name], made.numbers, device) for name in names})


def open_session(written: Written, numbers: Path, device: str) -> Any:
    """A session of onnxruntime for a graph whose weights lie in the file `numbers`. Of a graph in bfloat16, which numpy
    does not have, inputs and outputs are float32, but for those that steps give each other."""
    from archdsl.backends.onnx.store import serialized

    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # what is wrong is raised
    if re.fullmatch("[1-9][0-9]{0,3}", threads := os.environ.get("OMP_NUM_THREADS", "")):
        options.intra_op_num_threads = int(threads)  # as many as PyTorch takes
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(numbers.resolve().parent)
    )
    if written.dtype == "bfloat16":
        _outside_in_float32(written)
    kind, _, index = device.partition(":")
    providers: list[Any] = ["CPUExecutionProvider"]
    if kind == "cuda":
        with contextlib.redirect_stdout(io.StringIO()):  # it prints what it does not find
            runtime.preload_dlls()
        runtime.set_default_logger_severity(4)  # and logs what is raised below
        # Products of float32 are not rounded to TensorFloat32, as they are not in PyTorch.
        providers = [("CUDAExecutionProvider", {"device_id": index or "0", "use_tf32": "0"}), *providers]
    data = serialized(written)
    try:
        session = asking_runtime(lambda: runtime.InferenceSession(data, options, providers=providers), "load the graph")
    finally:
        runtime.set_default_logger_severity(2)
    if kind == "cuda" and "CUDAExecutionProvider" not in session.get_providers():
        raise error(
            "E0502",
            f"onnxruntime cannot use `{device}`: libraries of CUDA or cuDNN are missing, or there is no such device",
            help="pip install 'onnxruntime-gpu[cuda,cudnn]'",
        )
    return session


def run_session(session: Any, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The outputs by name."""
    bound = BoundSession(session)
    found = bound.run({name: bound.tensor(name, inputs[name]) for name in bound.inputs})
    return {name: value.numpy() for name, value in found.items()}


def _outside_in_float32(written: Written) -> None:
    import onnx_ir as ir

    graph = written.model.graph
    half, single = ir.DataType.BFLOAT16, ir.DataType.FLOAT
    for i, x in enumerate(list(graph.inputs)):
        if x.dtype == half and not _stays(x.name):
            outer = ir.Value(name=x.name, type=ir.TensorType(single), shape=x.shape)
            x.name = f"{x.name}/bfloat16"
            graph.inputs[i] = outer
            graph.insert_before(graph[0], ir.node("Cast", [outer], {"to": half.value}, outputs=[x], name=x.name))
    for i, x in enumerate(list(graph.outputs)):
        if x.dtype == half and not _stays(x.name):
            outer = ir.Value(name=x.name, type=ir.TensorType(single), shape=x.shape)
            x.name = f"{x.name}/bfloat16"
            graph.outputs[i] = outer
            graph.append(ir.node("Cast", [x], {"to": single.value}, outputs=[outer], name=x.name))


def _stays(name: str | None) -> bool:
    """Whether an input or output of a step is what steps give each other, which no array holds."""
    return name is not None and name.startswith(("past_key_values.", "present."))


# --- what there must be -----------------------------------------------------------------------------------------------


def demand_runtime(device: str, dtype: str) -> None:
    """Raises ArchError where packages or the device are missing, or it has no such numbers."""
    demand_packages("running a graph", "onnx", "onnx_ir", "onnxruntime")
    kind, colon, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (colon and not (kind == "cuda" and index.isdecimal())):
        raise error("E0502", f"onnxruntime has no device `{device}`", help="`--device cpu`, `cuda` or `cuda:1`")
    if kind == "cpu":
        if dtype == "bfloat16":
            raise error(
                "E0503",
                "onnxruntime has no kernels for bfloat16 on the CPU",
                help="`--dtype float32` or `float16`, or `--device cuda`",
            )
        return
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        raise error(
            "E0502", f"there is no device `{device}` here: no driver of CUDA", help="`--device cpu` is always there"
        ) from None
    runtime = importlib.import_module("onnxruntime")
    if "CUDAExecutionProvider" not in runtime.get_available_providers():
        raise error(
            "E0502",
            "the onnxruntime that is installed knows no CUDA",
            help="pip uninstall onnxruntime onnxruntime-gpu, then pip install 'onnxruntime-gpu[cuda,cudnn]'",
        )


def demand_room(model: Model, dtype: str, copies: int) -> None:
    """Refuse what would bring the machine down: `copies` of the weights in memory, besides onnxruntime's own two."""
    from archdsl.estimates.counts import total

    numbers = total(model)
    need = numbers * {"float32": 4}.get(dtype, 2) * (copies + 1)
    free = shutil.disk_usage(tempfile.gettempdir()).free
    where = f"{tempfile.gettempdir()} has room for"
    if need // (copies + 1) <= free:
        if (memory := machine_memory()) is None:
            return
        free, where = memory, "there are"
    else:
        need //= copies + 1
    if need > free:
        raise error(
            "E0503",
            f"`{model.name}` has {numbers:,} parameters: that takes {need / 2**30:,.1f} GiB, and {where} "
            f"{free / 2**30:,.1f} GiB",
            help="make it smaller for a trial: `--set layers=2 --set width=256`",
        )


def parameters_of(model: Model) -> int:
    from archdsl.estimates.counts import total

    return total(model)


# --- inputs -----------------------------------------------------------------------------------------------------------


def draw_inputs(
    model: Model, batch: int, time: int | None, seed: int, lengths: bool = False
) -> dict[str, NDArray[Any]]:
    """Random tokens and numbers by name; every position real, all of one document, all of the first kind. With
    `lengths` the rows are of several lengths, and of several documents."""
    from archdsl.estimates.params import vocabulary

    rows = vocabulary(model) or 2
    shapes = input_shapes(model, batch, time, machine_memory())
    draws = np.random.Generator(np.random.Philox(seed))
    return {name: _drawn(value, shapes[name], rows, draws, lengths) for name, value in model.inputs}


def _drawn(value: Value, shape: list[int], rows: int, draws: np.random.Generator, lengths: bool) -> NDArray[Any]:
    if value.dtype == "token":
        return draws.integers(rows, size=shape)
    if value.dtype == "documents" and lengths and shape:
        found: NDArray[Any] = np.cumsum(draws.random(shape) < 0.1, axis=-1)
        return found
    if value.is_int:
        return np.zeros(shape, np.int64)
    if value.dtype == "padding" and lengths and shape:
        ends = draws.integers(1, shape[-1] + 1, size=(*shape[:-1], 1))
        real: NDArray[Any] = np.arange(shape[-1]) < ends
        return real
    if value.is_bool:
        return np.ones(shape, np.bool_)
    return draws.standard_normal(shape).astype(np.float32)


def infos(tensors: Mapping[str, NDArray[Any]], dtype: str) -> dict[str, TensorInfo]:
    """Names, types and shapes; float32 stands for the model's own type, where onnxruntime was handed that."""
    return {
        name: TensorInfo(
            dtype=dtype if dtype == "bfloat16" and t.dtype == np.float32 else str(t.dtype), shape=list(t.shape)
        )
        for name, t in tensors.items()
    }


# --- decoding ---------------------------------------------------------------------------------------------------------


def chunks_of(sequences: Sequences, inputs: Mapping[str, NDArray[Any]]) -> list[int]:
    """The prompt, then token by token. No condition of the model refuses the prompt."""
    from archdsl.estimates.flops import refusal

    model, name = sequences.model, sequences.time.name
    sizes = {str(d.value): n for key, v in model.inputs for d, n in zip(v.shape, inputs[key].shape, strict=True)}
    time = sizes[name]
    prompt = time - min(STEPS, time // 2)
    while prompt < time and refusal(model, {**sizes, name: prompt}):
        prompt += 1
    return [prompt, *[1] * (time - prompt)]
