"""`archdsl run --backend onnx` and `archdsl verify`: the graph in onnxruntime, alone and beside the emitted module."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel

from archdsl.api import demand_packages
from archdsl.diagnostics import error
from archdsl.ir.graph import Model, Value
from archdsl.trial import TensorInfo, input_shapes, load_weights, named, one_line

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archdsl.lower.onnx.write import Written

RUNS = 5
"""How often the model is run after the first time."""
TOLERANCES = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 5e-2}
"""The largest relative difference that is put down to rounding, by type."""


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
    milliseconds: dict[str, float]
    """`write`: the graph; `weights`: drawing or reading them; `load`: the session; `first`: the first run; `forward`:
    the median of five more."""


class Difference(BaseModel):
    """How far an output of onnxruntime is from PyTorch's."""

    dtype: str
    shape: list[int]
    absolute: float
    """The largest difference."""
    relative: float
    """The same, divided by the largest number of PyTorch's output; of whole numbers, the share that differs."""


class VerifyReport(BaseModel):
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
    """Whether no relative difference is larger than the tolerance."""
    inputs: dict[str, TensorInfo]
    outputs: dict[str, Difference]
    rounding: dict[str, Difference]
    """With weights of few bits, how far that moves PyTorch's own outputs; {} without."""
    milliseconds: dict[str, float]


class Stopwatch:
    """Times of named steps, in milliseconds."""

    def __init__(self) -> None:
        self.milliseconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = perf_counter()
        yield
        self.milliseconds[name] = 1e3 * (perf_counter() - start)


# --- the two commands -------------------------------------------------------------------------------------------------


def run(
    model: Model,
    *,
    weights: Path | None,
    seed: int,
    batch: int,
    time: int | None,
    device: str,
    dtype: str,
    target: str = "portable",
    quantize: str | None = None,
    keep: Sequence[str] = (),
) -> OnnxRunReport:
    """Write a model's graph, load its weights or draw them, and run it in onnxruntime.

    Raises ArchError: E0502 where a package or the device is missing, E0503 where the model cannot be run like this, the
    weights are not its own or the inputs break one of its conditions, E0504 where the graph cannot be written."""
    _demand(device, dtype)
    _demand_room(model, dtype, 1)
    timed = Stopwatch()
    with tempfile.TemporaryDirectory(prefix="archdsl-", ignore_cleanup_errors=True) as folder:
        made, numbers = _graph(model, Path(folder), weights, seed, dtype, target, quantize, keep, timed)
        with timed("load"):
            session = open_session(made, numbers, device)
    inputs = draw_inputs(model, batch, time, seed)
    with timed("first"):
        found = run_session(session, inputs)
    times = []
    for _ in range(RUNS):
        start = perf_counter()
        run_session(session, inputs)
        times.append(1e3 * (perf_counter() - start))
    timed.milliseconds["forward"] = median(times)
    return OnnxRunReport(
        model=model.name,
        device=device,
        dtype=dtype,
        target=target,
        quantize=quantize,
        providers=session.get_providers(),
        parameters=_parameters(model),
        inputs=_infos(inputs, dtype),
        outputs=_infos(found, dtype),
        milliseconds=timed.milliseconds,
    )


def verify(
    model: Model,
    *,
    weights: Path | None,
    seed: int,
    batch: int,
    time: int | None,
    device: str,
    dtype: str,
    target: str = "portable",
    quantize: str | None = None,
    keep: Sequence[str] = (),
    tolerance: float | None = None,
) -> VerifyReport:
    """Run a model in PyTorch and in onnxruntime, on the same weights and inputs, and compare what comes out.

    With `quantize`, PyTorch is given the rounded weights; how far rounding moves its outputs is reported apart.
    `tolerance` is the largest relative difference that passes: 1e-4 by default, 2e-2 in float16, 5e-2 in bfloat16.
    Raises ArchError as `run` does."""
    _demand(device, dtype)
    try:
        import torch
    except ImportError:
        raise error(
            "E0502", "verifying a model needs PyTorch, which is not installed", help="pip install 'archdsl[torch,onnx]'"
        ) from None
    _demand_room(model, dtype, 3)
    timed = Stopwatch()
    inputs = draw_inputs(model, batch, time, seed, lengths=True)
    with tempfile.TemporaryDirectory(prefix="archdsl-", ignore_cleanup_errors=True) as folder:
        made, numbers = _graph(model, Path(folder), weights, seed, dtype, target, quantize, keep, timed)
        with timed("load"):
            session = open_session(made, numbers, device)
        where = torch.device(device if device != "cpu" and torch.cuda.is_available() else "cpu")
        with timed("torch load"):
            module = _module(torch, model, weights or numbers.parent / "model.safetensors", where, dtype)
    with timed("torch"):
        expected = _in_torch(torch, model, module, inputs, where, dtype)
    rounded = expected
    if made.quantized:
        _round(torch, module, made)
        rounded = _in_torch(torch, model, module, inputs, where, dtype)
    with timed("onnxruntime"):
        found = run_session(session, inputs)
    outputs = _differences(found, rounded, dtype)
    limit = TOLERANCES[dtype] if tolerance is None else tolerance
    return VerifyReport(
        model=model.name,
        device=device,
        dtype=dtype,
        target=target,
        quantize=quantize,
        seed=seed,
        parameters=_parameters(model),
        tolerance=limit,
        agrees=all(d.relative <= limit for d in outputs.values()),
        inputs=_infos(inputs, dtype),
        outputs=outputs,
        rounding=_differences(rounded, expected, dtype) if made.quantized else {},
        milliseconds=timed.milliseconds,
    )


# --- the graph and its session ----------------------------------------------------------------------------------------


def _graph(
    model: Model,
    folder: Path,
    weights: Path | None,
    seed: int,
    dtype: str,
    target: str,
    quantize: str | None,
    keep: Sequence[str],
    timed: Stopwatch,
) -> tuple[Written, Path]:
    """The graph, and the file that holds its numbers. Drawn weights lie in `model.safetensors` beside that file."""
    from archdsl.lower.onnx.store import Place, as_they_lie, refer, save
    from archdsl.lower.onnx.write import write
    from archdsl.lower.weights import Checkpoint, draw, saved

    with timed("write"):
        made = write(model, dtype=dtype, target=target, quantize=quantize, keep=keep)
    with timed("weights"):
        if weights is None:
            weights = folder / "model.safetensors"
            draw(model, seed, dtype, weights)
        checkpoint = Checkpoint(weights)
        checkpoint.demand(saved(model))
        if as_they_lie([made], checkpoint, weights.parent):
            places = {name: Place(e.start, e.end - e.start) for name, e in checkpoint.entries.items()}
            refer([made], weights.name, places)
            return made, weights
        files = save({folder / "graph.onnx": made}, model, weights=weights)
        assert files.weights is not None
        return made, files.weights


def open_session(written: Written, numbers: Path, device: str) -> Any:
    """A session of onnxruntime for a graph whose weights lie in the file `numbers`. Of a graph in bfloat16, which numpy
    does not have, inputs and outputs are float32."""
    from archdsl.lower.onnx.store import serialized

    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # what is wrong is raised
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
        providers = [("CUDAExecutionProvider", {"device_id": index or "0"}), *providers]
    data = serialized(written)
    try:
        session = _asked(lambda: runtime.InferenceSession(data, options, providers=providers), "load the graph")
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
    feeds: dict[str, NDArray[Any]] = {i.name: inputs[i.name].astype(NUMPY[i.type]) for i in session.get_inputs()}
    names = [o.name for o in session.get_outputs()]
    found = _asked(lambda: session.run(None, feeds), "run the graph")
    return dict(zip(names, found, strict=True))


NUMPY = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}


def _asked(work: Callable[[], Any], what: str) -> Any:
    try:
        return work()
    except Exception as problem:
        if not type(problem).__module__.startswith("onnxruntime"):
            raise
        raise error(
            "E0503",
            f"onnxruntime could not {what}: {one_line(problem)[:300]}",
            help="give another `--time` or `--batch`, or another `--target` or `--dtype`",
        ) from None


def _outside_in_float32(written: Written) -> None:
    import onnx_ir as ir

    graph = written.model.graph
    half, single = ir.DataType.BFLOAT16, ir.DataType.FLOAT
    for i, x in enumerate(list(graph.inputs)):
        if x.dtype == half:
            outer = ir.Value(name=x.name, type=ir.TensorType(single), shape=x.shape)
            x.name = f"{x.name}/bfloat16"
            graph.inputs[i] = outer
            graph.insert_before(graph[0], ir.node("Cast", [outer], {"to": half.value}, outputs=[x], name=x.name))
    for i, x in enumerate(list(graph.outputs)):
        if x.dtype == half:
            outer = ir.Value(name=x.name, type=ir.TensorType(single), shape=x.shape)
            x.name = f"{x.name}/bfloat16"
            graph.outputs[i] = outer
            graph.append(ir.node("Cast", [x], {"to": single.value}, outputs=[outer], name=x.name))


# --- what there must be -----------------------------------------------------------------------------------------------


def _demand(device: str, dtype: str) -> None:
    """Raises ArchError where packages or the device are missing, or it has no such numbers."""
    demand_packages("running a graph", "onnx", "onnx_ir", "onnxruntime")
    kind, colon, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (colon and not (kind == "cuda" and index.isdecimal())):
        raise error(
            "E0502", f"onnxruntime is not asked for a device `{device}`", help="`--device cpu`, `cuda` or `cuda:1`"
        )
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
            help="pip uninstall onnxruntime, then pip install 'onnxruntime-gpu[cuda,cudnn]'",
        )


def _demand_room(model: Model, dtype: str, copies: int) -> None:
    """Refuse what would bring the machine down: `copies` of the weights in memory, besides onnxruntime's own two."""
    from archdsl.analyses.params import total

    numbers = total(model)
    need = numbers * {"float32": 4}.get(dtype, 2) * (copies + 1)
    free = shutil.disk_usage(tempfile.gettempdir()).free
    where = f"{tempfile.gettempdir()} has room for"
    if need // (copies + 1) <= free:
        if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", ()):
            return
        free, where = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "there are"
    else:
        need //= copies + 1
    if need > free:
        raise error(
            "E0503",
            f"`{model.name}` has {numbers:,} parameters: that takes {need / 2**30:,.1f} GiB, and {where} "
            f"{free / 2**30:,.1f} GiB",
            help="make it smaller for a trial: `--set layers=2 --set width=256`",
        )


def _parameters(model: Model) -> int:
    from archdsl.analyses.params import total

    return total(model)


# --- inputs -----------------------------------------------------------------------------------------------------------


def draw_inputs(
    model: Model, batch: int, time: int | None, seed: int, lengths: bool = False
) -> dict[str, NDArray[Any]]:
    """Random tokens and numbers by name; every place real, all of one document, all of the first kind. With `lengths`
    the rows are of several lengths, and of several documents."""
    from archdsl.analyses.params import vocabulary

    rows = vocabulary(model) or 2
    shapes = input_shapes(model, batch, time)
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


def _infos(tensors: Mapping[str, NDArray[Any]], dtype: str) -> dict[str, TensorInfo]:
    """Names, types and shapes; float32 stands for the model's own type, where onnxruntime was handed that."""
    return {
        name: TensorInfo(
            dtype=dtype if dtype == "bfloat16" and t.dtype == np.float32 else str(t.dtype), shape=list(t.shape)
        )
        for name, t in tensors.items()
    }


# --- PyTorch ----------------------------------------------------------------------------------------------------------


def _module(torch: Any, model: Model, weights: Path, device: Any, dtype: str) -> Any:
    from archdsl.lower.load import load_source
    from archdsl.lower.torch import emit

    source = emit(model)
    with torch.device(device):
        module = load_source(source)()
    load_weights(module, weights, device)
    return module.to(getattr(torch, dtype)).eval()


def _in_torch(
    torch: Any, model: Model, module: Any, inputs: Mapping[str, NDArray[Any]], device: Any, dtype: str
) -> dict[str, NDArray[Any]]:
    tensors = {}
    for name, value in model.inputs:
        tensor = torch.from_numpy(inputs[name]).to(device)
        if tensor.is_floating_point():
            tensor = tensor.to(getattr(torch, dtype if value.dtype == "float" else value.dtype))
        tensors[name] = tensor
    try:
        with torch.no_grad():
            results = module(**tensors)
    except (AssertionError, ValueError) as problem:
        raise error(
            "E0503", f"the model refused its inputs: {one_line(problem)}", help="give another `--time` or `--batch`"
        ) from None
    return {
        name: (t.float() if t.is_floating_point() else t).cpu().numpy() for name, t in named(model, results).items()
    }


def _round(torch: Any, module: Any, written: Written) -> None:
    """Give a module the weights that the graph has, back from their few bits."""
    from archdsl.lower.onnx.quantize import dequantized

    state = dict(module.state_dict(keep_vars=True))
    with torch.no_grad():
        for path, matrix in written.quantized.items():
            weight = state[path]
            rows = weight.float().cpu().numpy().reshape(-1, weight.shape[-1])
            back = dequantized(rows, matrix.bits, written.dtype).reshape(tuple(weight.shape))
            weight.copy_(torch.from_numpy(back))


# --- differences ------------------------------------------------------------------------------------------------------


def _differences(
    found: Mapping[str, NDArray[Any]], expected: Mapping[str, NDArray[Any]], dtype: str
) -> dict[str, Difference]:
    pairs = zip(expected.items(), found.values(), strict=True)
    return {name: difference(ours, theirs, dtype) for (name, theirs), ours in pairs}


def difference(found: NDArray[Any], expected: NDArray[Any], dtype: str = "float32") -> Difference:
    """The largest difference of two tensors. Places where both are infinite alike, or both not a number, are equal; one
    where only one of them is, is infinitely far off. Raises ValueError where their shapes differ."""
    if found.shape != expected.shape:
        raise ValueError(f"shapes differ: {found.shape} and {expected.shape}")
    whole = expected.dtype.kind in "iub"
    a, b = (x.astype(np.float64) for x in (found, expected))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf, posinf=np.inf))
    absolute = float(apart.max(initial=0.0))
    if whole:
        relative = float(1 - same.mean()) if same.size else 0.0
    else:
        largest = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
        relative = absolute / largest if largest else absolute
    kind = str(expected.dtype) if whole else dtype
    return Difference(dtype=kind, shape=list(expected.shape), absolute=absolute, relative=relative)
