"""What a program can ask of the compiler: every function of `archdsl.__all__`, and nothing else.

Each takes `spec`, which is a path, `path:model`, the name of a zoo model or a model that `load` has returned; or
`text`, a spec itself. `model` picks one where a file declares several (the first by default), `set` gives
hyper-parameters other values, and `allow_noncausal` accepts a logit that later tokens reach. Whatever is wrong with a
spec or an argument raises ArchError; only a file that cannot be written raises OSError.

Nothing here loads a back end before it is used, or the compiler before it is asked."""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from archdsl.diagnostics import ArchError, did_you_mean, error, shortened
from archdsl.frontend.load import Settings, check, list_zoo, request_of, setting_text, wrong_argument
from archdsl.frontend.load import load as load_spec
from archdsl.ranges import LAYERS, RANGES, TOKEN, Range, demand
from archdsl.shown import Shown

if TYPE_CHECKING:
    import torch
    from torch import nn

    from archdsl.backends.onnx.store import OnnxFiles
    from archdsl.estimates.dtypes import Dtype, Low
    from archdsl.estimates.fit import FitReport
    from archdsl.estimates.flops import Convention, Flops
    from archdsl.estimates.hardware import Device
    from archdsl.estimates.loss import Loss
    from archdsl.estimates.machines import MachinesReport
    from archdsl.estimates.memory import Memory, MemoryReport, Optimizer
    from archdsl.estimates.needs import Workload
    from archdsl.estimates.params import ParamsReport
    from archdsl.estimates.scaling import ScalingReport
    from archdsl.estimates.sweep import SweepReport
    from archdsl.estimates.sweep import Values as SweepValues
    from archdsl.interop.convert import ImportReport
    from archdsl.interop.lift.report import LiftReport
    from archdsl.ir.graph import Model
    from archdsl.passes.checkpoint import Checkpoint
    from archdsl.report.compare import CompareReport
    from archdsl.report.diff import DiffReport
    from archdsl.run.generate import GenerateReport
    from archdsl.run.verify import VerifyReport

__all__ = [
    "check",
    "compare",
    "diff",
    "draw",
    "estimate",
    "expand",
    "export_checkpoint",
    "fit",
    "flops",
    "format_text",
    "generate",
    "import_checkpoint",
    "import_weights",
    "init_weights",
    "lift",
    "list_zoo",
    "load",
    "memory",
    "scaling",
    "show",
    "sweep",
    "to_huggingface",
    "to_onnx",
    "to_torch",
    "torch_source",
    "verify",
]

Progress = Callable[[int, int], None]
"""Called with how many parts of the work are done, and how many there are."""


def _demand_one_of(name: str, value: object, names: Sequence[str]) -> None:
    """Raise ArchError E0509 for an argument that is none of these names."""
    if not isinstance(value, str):
        raise wrong_argument(name, value, f"one of {', '.join(names)}")
    if value not in names:
        help_ = did_you_mean(value, names)
        raise error("E0509", f"`{name}` is one of {', '.join(names)}, not `{shortened(value)}`", help=help_)


def _demand_ranges(function: Callable[..., object], arguments: Mapping[str, object]) -> None:
    """Raise ArchError E0509 for a number among the arguments of a function that is not of its range."""
    for name, default in (function.__kwdefaults__ or {}).items():
        if name in RANGES and not arguments[name] is default is None:
            demand(name, arguments[name])


def _demand_numbers(name: str, value: object, within: Range, wanted: str) -> None:
    """Raise ArchError E0509 for an argument that is no collection of numbers of a range."""
    if not isinstance(value, Collection) or not all(type(n) is int for n in value):
        raise wrong_argument(name, value, wanted)
    for n in value:
        demand(f"a number of {name}", n, within)


def _is_list(value: object) -> bool:
    """Return whether an argument holds several texts, and is not one."""
    return isinstance(value, Collection) and not isinstance(value, str) and all(isinstance(v, str) for v in value)


def _is_pair(value: object) -> bool:
    return isinstance(value, Sequence) and [type(n) in (int, float) for n in value] == [True, True]


def _demand_path(name: str, value: object) -> None:
    if not isinstance(value, str | Path):
        raise wrong_argument(name, value, "a path")


def _demand_texts(**given: object) -> None:
    """Raise ArchError E0509 for an argument that is given and is no text."""
    for name, value in given.items():
        if value is not None and not isinstance(value, str):
            raise wrong_argument(name, value, "a text")


def _demand_mapping(name: str, value: object, of: str) -> None:
    """Raise ArchError E0509 for an argument that is given and maps no texts to texts."""
    if value is not None and not (isinstance(value, Mapping) and _is_list(value) and _is_list(value.values())):
        raise wrong_argument(name, value, f"a mapping of names to {of}")


def _demand_training(
    dtype: object, optimizer: object, checkpoint: object, loss: object, in_float32: Mapping[str, bool]
) -> None:
    """Raise ArchError E0509 for a type, optimizer, checkpointing or loss that there is not. `in_float32` says which
    arguments are given that keep something in float32: they are refused where `dtype` is that already."""
    from archdsl.estimates.dtypes import Dtype
    from archdsl.estimates.loss import Loss
    from archdsl.estimates.memory import Optimizer
    from archdsl.passes.checkpoint import Checkpoint

    _demand_one_of("dtype", dtype, get_args(Dtype))
    _demand_one_of("optimizer", optimizer, get_args(Optimizer))
    _demand_one_of("checkpoint", checkpoint, get_args(Checkpoint))
    if loss is not None:
        _demand_one_of("loss", loss, get_args(Loss))
    for name, asked in in_float32.items():
        if asked and dtype == "float32":
            raise error("E0509", f"`{name}` has no effect: all is float32", help="give `dtype` too, or leave it out")


def load(
    spec: str | Path | Model | None = None,
    *,
    text: str | None = None,
    model: str | None = None,
    set: Settings | None = None,
    allow_noncausal: bool = False,
) -> Model:
    """Read, elaborate and check a spec.

    `spec` is a path, `path:model`, or the name of a model of the zoo; `text` is a spec itself. `model` picks one where
    a file declares several (the first by default), and `set` gives its hyper-parameters other values. A loaded model is
    returned as it is, or read again with `set` beside its own settings. Raises ArchError with everything that is wrong;
    a logit that later tokens reach is an error too, unless `allow_noncausal`."""
    loaded = load_spec(spec, text=text, model=model, set=set, allow_noncausal=allow_noncausal)
    type(loaded).summaries = SUMMARIES
    return loaded


def _text(model: Model) -> str:
    from archdsl.report import summary

    return summary.text(model)


def _html(model: Model) -> str:
    from archdsl.report import summary

    return summary.html(model)


def _svg(model: Model) -> str:
    return draw(model)


SUMMARIES = {"text": _text, "html": _html, "svg": _svg}
"""How Python and notebooks show a model; the report is imported when one is shown."""


def _report_html(report: object) -> str:
    from archdsl.report import notebook

    return notebook.html(report)


Shown.html = _report_html


# --- counts -----------------------------------------------------------------------------------------------------------


OF_SPEC = ("text", "model", "set", "allow_noncausal")
"""Arguments that name the model."""
OF_MESH = (
    "zero",
    "micro_batches",
    "interleave",
    "stages",
    "checkpoint_every",
    "sequence_parallel",
    "attention",
    "float32_gradients",
    "weights",
    "kv_cache",
)
"""Arguments of `estimate` that need a mesh or an accelerator."""
OF_MEMORY = (
    "batch",
    "dtype",
    "optimizer",
    "master_weights",
    "checkpoint",
    "loss",
    "decode",
    "mesh",
    "zero",
    "micro_batches",
    "weights",
    "kv_cache",
)
"""Arguments of `sweep` that ask for memory."""
OF_ACCELERATOR = ("compute", "devices", "machine", "network", "fused", "mfu", "tokens", "price")
"""Arguments of `estimate` that need an accelerator."""


def estimate(
    spec: str | Path | Model | None = None,
    *,
    batch: int | None = None,
    seq: int | None = None,
    convention: Convention = "exact",
    tokens_per_second: float | None = None,
    step_time: float | None = None,
    peak: float | None = None,
    checkpoint: Checkpoint = "none",
    loss: Loss | None = None,
    dtype: Dtype | None = None,
    optimizer: Optimizer = "adamw",
    master_weights: bool = False,
    measure: bool = False,
    mesh: str | None = None,
    zero: int = 0,
    micro_batches: int = 1,
    interleave: int = 1,
    stages: Sequence[int] = (),
    checkpoint_every: int = 1,
    sequence_parallel: bool = False,
    attention: Literal["fused", "eager"] = "fused",
    float32_gradients: bool = False,
    weights: Low | None = None,
    kv_cache: Low | None = None,
    compute: Literal["float8", "float4", "int8"] | None = None,
    accelerator: str | None = None,
    devices: int | None = None,
    machine: int = 8,
    network: float | None = None,
    fused: bool = True,
    mfu: float | None = None,
    tokens: int | None = None,
    price: float | None = None,
    text: str | None = None,
    model: str | None = None,
    set: Settings | None = None,
    allow_noncausal: bool = False,
) -> ParamsReport | MemoryReport | MachinesReport:
    """Return what `archdsl estimate` prints: exact parameter counts, from the IR alone; with any argument about a run,
    FLOPs and memory too (a `MemoryReport`); with a mesh or an accelerator, also what each rank holds and sends, and
    roofline times (a `MachinesReport`). Each report has the fields of the smaller one.

    A run is `batch` sequences (1) of length `seq` (2,048 or the context, if less); FLOPs are counted by `convention`,
    as for `flops`, memory with `dtype` (float32; with an accelerator the best it has), `optimizer`, `master_weights`,
    `checkpoint`, `loss` and `measure`, as for `memory`. A measured `tokens_per_second`, or `step_time` in seconds,
    gives MFU and HFU of the `peak` in FLOP/s, or of the accelerator's.

    `mesh` ("dp=8,tp=4") spreads a training step over devices, with ZeRO stage `zero`, `micro_batches` of a step,
    `interleave` chunks a pipeline stage, `stages` layers in each chunk, every `checkpoint_every`-th layer checkpointed,
    `sequence_parallel`, `attention` scores fused or saved (eager), and `float32_gradients`. `weights` and `kv_cache`
    (float8, int8, int4) are their types in inference.

    `accelerator` is a name of `archdsl hardware`, or a file .json: of so many `devices`, `machine` a machine, that
    send `network` bytes/s to other machines, with products in the type `compute` and neighbouring element-wise ops
    `fused` or not. `mfu` is what training is expected to reach; `tokens` asks for the time, energy and cost of training
    on so many, at the `price` of a device-hour.

    Other arguments and errors as for `load`, and ArchError: E0503 where the model refuses these sizes, E0507 for an
    unknown accelerator, E0509 for arguments that do not go together, E0514 to E0517 where the mesh does not fit."""
    arguments, defaults = dict(locals()), estimate.__kwdefaults__ or {}
    _demand_ranges(estimate, arguments)
    asked = {name for name, default in defaults.items() if arguments[name] != default} - {*OF_SPEC}
    _demand_together(asked)
    _demand_measuring(measure)
    loaded = load(spec, text=text, model=model, set=set, allow_noncausal=allow_noncausal)
    if not asked:
        from archdsl.estimates.params import estimate as count_parameters

        return count_parameters(loaded)
    from archdsl.estimates.dtypes import Low
    from archdsl.estimates.flops import Convention
    from archdsl.estimates.flops import estimate as count
    from archdsl.estimates.hardware import device
    from archdsl.estimates.machines import mesh_of, with_machines
    from archdsl.estimates.memory import MemoryReport
    from archdsl.estimates.memory import estimate as count_bytes
    from archdsl.estimates.mesh import parse_mesh
    from archdsl.estimates.roofline import Cluster, best_dtype
    from archdsl.estimates.sharding import Compute, StepPlan

    _demand_one_of("convention", convention, get_args(Convention))
    _demand_one_of("attention", attention, ("fused", "eager"))
    _demand_numbers("stages", stages, Range(1, LAYERS), "numbers of layers")
    for name, kind, types in (("weights", weights, Low), ("kv_cache", kv_cache, Low), ("compute", compute, Compute)):
        if kind is not None:
            _demand_one_of(name, kind, get_args(types))
    _demand_texts(mesh=mesh, accelerator=accelerator)
    cluster = Cluster(device(accelerator), machine, network) if accelerator is not None else None
    spread = mesh is not None or cluster is not None
    dtype = dtype or (best_dtype(cluster.device) if cluster is not None else "float32")
    in_float32 = {"master_weights": master_weights, "float32_gradients": float32_gradients}
    _demand_training(dtype, optimizer, checkpoint, loss, in_float32)
    plan = StepPlan(
        mesh=mesh_of(parse_mesh(mesh) if mesh is not None else None, devices),
        zero=zero,  # type: ignore[arg-type]
        micro_batches=micro_batches,
        interleave=interleave,
        stages=tuple(stages),
        sequence_parallel=sequence_parallel,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        loss=loss,
        attention=attention,
        device=cluster.device if cluster is not None else None,
        dtype=dtype,
        weights=weights,
        cache=kv_cache,
        compute=compute,
        optimizer=optimizer,
        master_weights=master_weights,
        gradient_dtype="float32" if float32_gradients else None,
    )
    for name in ("machine", "network") if plan.mesh.devices == 1 else ():
        if name in asked:
            text = f"`{name}` has no effect on one device"
            raise error("E0509", text, help=f"give `devices` or `mesh` too, or leave `{name}` out")
    if peak is None and cluster is not None and (tokens_per_second is not None or step_time is not None):
        of_one = cluster.device.peak.get(compute or dtype)
        peak = of_one * plan.mesh.devices if of_one is not None else None
    counted = count(
        loaded,
        batch=batch or (plan.mesh.dp * micro_batches if spread else 1),
        seq=seq,
        convention=convention,
        tokens_per_second=tokens_per_second,
        step_seconds=step_time,
        peak=peak,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        loss=loss,
    )
    bytes_of = count_bytes(
        loaded,
        batch=counted.flops.batch,
        seq=counted.flops.seq,
        dtype=dtype,
        optimizer=optimizer,
        master_weights=master_weights,
        checkpoint=checkpoint,
        loss=loss,
    )
    if measure:
        from archdsl.run.measure import with_measured

        bytes_of = with_measured(bytes_of, loaded, checkpoint)
    report = MemoryReport(**dict(counted), memory=bytes_of)
    if not spread:
        return report
    by_mesh = mesh is not None
    how: dict[str, Any] = {"fused": fused, "mfu": mfu, "tokens": tokens, "price": price}
    return with_machines(report, loaded, plan, cluster, by_mesh=by_mesh, **how)


def _demand_measuring(measure: bool) -> None:
    """Raise ArchError E0502 where PyTorch is to measure and is not installed."""
    if measure:
        from archdsl.run.smoke import demand_torch

        demand_torch()


def _demand_together(asked: Collection[str]) -> None:
    """Raise ArchError E0509 for arguments of `estimate` that need another one, or exclude each other."""
    rules = (
        ("mesh", OF_MESH),
        ("accelerator", OF_ACCELERATOR),
        ("tokens", ("price",)),
        ("checkpoint", ("checkpoint_every",)),
    )
    for other, names in rules:
        if other in asked or (other == "mesh" and "accelerator" in asked):
            continue
        for name in names:
            if name in asked:
                raise error("E0509", f"`{name}` goes with `{other}`", help=f"give `{other}` too, or leave it out")
    if "measure" in asked and {"mesh", "accelerator"} & {*asked}:
        raise error("E0509", "one device is measured: `measure` cannot be combined with a mesh or an accelerator")
    throughput = {"tokens_per_second", "step_time"} & {*asked}
    if len(throughput) == 2:
        raise error("E0509", "`tokens_per_second` and `step_time` are the same measurement", help="give one of them")
    if throughput and not {"peak", "accelerator"} & {*asked}:
        raise error("E0509", f"`{throughput.pop()}` goes with `peak` or `accelerator`")
    if "peak" in asked and not throughput:
        raise error("E0509", "`peak` goes with `tokens_per_second` or `step_time`")


def flops(
    spec: str | Path | Model | None = None,
    *,
    batch: int = 1,
    seq: int | None = None,
    convention: Convention = "exact",
    text: str | None = None,
    model: str | None = None,
    set: Settings | None = None,
    allow_noncausal: bool = False,
) -> Flops:
    """Return exact FLOPs for `batch` sequences of length `seq` (2,048 or the context, if less), from the IR alone.

    `convention` (exact, dense, megatron, palm, kaplan) says how attention, or all of it, is counted. Other arguments
    and errors as for `load`, and ArchError E0503 where the model refuses these sizes."""
    _demand_ranges(flops, locals())
    from archdsl.estimates.flops import Convention
    from archdsl.estimates.flops import estimate as count

    _demand_one_of("convention", convention, get_args(Convention))
    loaded = load(spec, text=text, model=model, set=set, allow_noncausal=allow_noncausal)
    return count(loaded, batch=batch, seq=seq, convention=convention).flops


def memory(
    spec: str | Path | Model | None = None,
    *,
    batch: int = 1,
    seq: int | None = None,
    dtype: Dtype = "float32",
    optimizer: Optimizer = "adamw",
    master_weights: bool = False,
    checkpoint: Checkpoint = "none",
    loss: Loss | None = None,
    measure: bool = False,
    text: str | None = None,
    model: str | None = None,
    set: Settings | None = None,
    allow_noncausal: bool = False,
) -> Memory:
    """Return exact bytes of weights, gradients and optimizer state in `dtype`, and of the KV cache and other decode
    state of `batch` sequences of length `seq` (2,048 or the context, if less), from the IR alone.

    `optimizer` is sgd, sgd-momentum, adam, adamw, adamw8bit, adafactor or muon; with `master_weights` it updates a
    float32 copy of weights of another type. Of a training step it is estimated what it saves for its backward pass, and
    its peak; `checkpoint` is activation checkpointing: none, selective or full. `loss` is how its cross-entropy is
    computed: in chunks of positions as in emitted code (chunked, the default where the model allows), by one kernel
    (fused), or by `F.cross_entropy(logits.float())` (eager). With `measure` PyTorch runs the emitted file on fake
    tensors: the bytes are then exact in `measured`. Other arguments and errors as for `flops`, E0502 where it is not
    installed, E0512 where numbers decide what is measured, and E0526 where the loss cannot be computed in chunks."""
    _demand_ranges(memory, locals())
    from archdsl.estimates.memory import estimate as count

    _demand_measuring(measure)
    _demand_training(dtype, optimizer, checkpoint, loss, {"master_weights": master_weights})
    loaded = load(spec, text=text, model=model, set=set, allow_noncausal=allow_noncausal)
    found = count(
        loaded,
        batch=batch,
        seq=seq,
        dtype=dtype,
        optimizer=optimizer,
        master_weights=master_weights,
        checkpoint=checkpoint,
        loss=loss,
    )
    if not measure:
        return found
    from archdsl.run.measure import with_measured

    return with_measured(found, loaded, checkpoint)


# --- several models ---------------------------------------------------------------------------------------------------


def compare(
    *specs: str | Path | Model,
    seq: int | None = None,
    allow_noncausal: bool = False,
    progress: Progress | None = None,
) -> CompareReport:
    """Return a table of two to eight models: sizes, attention, positions, experts, parameters, FLOPs of a token, the KV
    cache at 131,072 positions, and the memory of training without activations.

    FLOPs are those of one sequence of length `seq` (2,048, or the smallest context), bytes those of bfloat16, training
    with AdamW and fp32 master weights. Other arguments and errors as for `load`, and ArchError: E0503 where a model
    refuses this length, E0509 for fewer or more models."""
    from archdsl.report.compare import FEWEST, MOST
    from archdsl.report.compare import compare as compared

    _demand_ranges(compare, locals())
    if not FEWEST <= len(specs) <= MOST:
        raise error("E0509", f"`compare` takes {FEWEST} to {MOST} models, not {len(specs)}")
    return compared([load(spec, allow_noncausal=allow_noncausal) for spec in specs], seq=seq, progress=progress)


def diff(
    before: str | Path | Model,
    after: str | Path | Model,
    *,
    seq: int | None = None,
    allow_noncausal: bool = False,
) -> DiffReport:
    """Return how two models differ: their settings, which parts were added, removed, changed or renamed, and what they
    hold and cost. Parts are aligned by structure, not by names.

    FLOPs and decode state are those of one sequence of length `seq` (2,048, or the smaller context), bytes those of
    bfloat16, training with AdamW and fp32 master weights. Other arguments and errors as for `load`, and ArchError E0503
    where a model refuses this length."""
    from archdsl.report.diff import diff as compared

    _demand_ranges(diff, locals())
    models = [load(spec, allow_noncausal=allow_noncausal) for spec in (before, after)]
    return compared(*models, seq=seq)


# --- searches ---------------------------------------------------------------------------------------------------------


def _workload(
    *,
    batch: int,
    seq: int | None,
    dtype: Dtype,
    optimizer: Optimizer,
    master_weights: bool,
    checkpoint: Checkpoint,
    loss: Loss | None,
    decode: bool,
    mesh: str | None,
    zero: int,
    micro_batches: int,
    weights: Low | None,
    kv_cache: Low | None,
    named: Device | None = None,
) -> Workload:
    """Return what memory is asked for by `fit` and `sweep`."""
    from archdsl.estimates.dtypes import Low
    from archdsl.estimates.mesh import Mesh, parse_mesh
    from archdsl.estimates.needs import Workload

    _demand_training(dtype, optimizer, checkpoint, loss, {"master_weights": master_weights})
    _demand_texts(mesh=mesh)
    for name, low in (("weights", weights), ("kv_cache", kv_cache)):
        if low is not None:
            _demand_one_of(name, low, get_args(Low))
            if not decode:
                raise error("E0509", f"`{name}` is of decoding: it goes with `decode=True`")
    return Workload(
        mesh=parse_mesh(mesh) if mesh is not None else Mesh(),
        zero=zero,  # type: ignore[arg-type]
        micro_batches=micro_batches,
        checkpoint=checkpoint,
        loss=loss,
        dtype=dtype,
        weights=weights,
        cache=kv_cache,
        optimizer=optimizer,
        master_weights=master_weights,
        batch=batch,
        seq=seq,
        decode=decode,
        device=named,
    )


def sweep(
    spec: str | Path | Model | None = None,
    *,
    set: Mapping[str, SweepValues],
    seq: int | None = None,
    memory: bool = False,
    batch: int = 1,
    dtype: Dtype = "float32",
    optimizer: Optimizer = "adamw",
    master_weights: bool = False,
    checkpoint: Checkpoint = "none",
    loss: Loss | None = None,
    decode: bool = False,
    mesh: str | None = None,
    zero: int = 0,
    micro_batches: int = 1,
    weights: Low | None = None,
    kv_cache: Low | None = None,
    text: str | None = None,
    model: str | None = None,
    allow_noncausal: bool = False,
    progress: Progress | None = None,
) -> SweepReport:
    """Count a spec at every point of a product of settings.

    `set` gives each hyper-parameter its values: a sequence of them, or a text as on the command line
    (`"512..4096:512"`, `"6,12,24"`). FLOPs are those of one sequence of length `seq` (2,048 or the context, if less).
    With `memory`, or any argument about it, each point has the bytes that a training step, or decoding, needs: `batch`
    and all others are as for `fit`. A point at which the spec is wrong is a row that says so. Other arguments and
    errors as for `load`, and ArchError E0505 for values that cannot be read or are too many."""
    arguments, defaults = dict(locals()), sweep.__kwdefaults__ or {}
    _demand_ranges(sweep, arguments)
    from archdsl.estimates.sweep import sweep as count

    run = {name: arguments[name] for name in OF_MEMORY}
    workload = _workload(seq=seq, **run)
    asked = memory or any(run[name] != defaults[name] for name in OF_MEMORY)
    return count(
        spec,
        text=text,
        model=model,
        set=set,
        seq=seq,
        run=workload if asked else None,
        allow_noncausal=allow_noncausal,
        progress=progress,
    )


def fit(
    spec: str | Path | Model | None = None,
    *,
    vary: str | Sequence[str],
    params: int | None = None,
    active: int | None = None,
    memory: int | None = None,
    accelerator: str | None = None,
    batch: int = 1,
    seq: int | None = None,
    dtype: Dtype | None = None,
    optimizer: Optimizer = "adamw",
    master_weights: bool = False,
    checkpoint: Checkpoint = "none",
    loss: Loss | None = None,
    decode: bool = False,
    mesh: str | None = None,
    zero: int = 0,
    micro_batches: int = 1,
    weights: Low | None = None,
    kv_cache: Low | None = None,
    multiple: Mapping[str, int] | None = None,
    aspect: tuple[float, float] | None = None,
    slack: float = 0.01,
    text: str | None = None,
    model: str | None = None,
    set: Settings | None = None,
    allow_noncausal: bool = False,
    progress: Progress | None = None,
) -> FitReport:
    """Return the largest model within `params` parameters, with at most `active` of them active for a token, and within
    `memory` bytes, or the memory of an `accelerator`; at least one of the three is given.

    `vary` names hyper-parameters, or of memory `batch`, `seq` or both. Memory is that of a training step with this
    `batch`, `seq`, `dtype` (float32; with an accelerator the best it has), `optimizer`, `master_weights`, `checkpoint`
    and `loss`; or, with `decode`, that of weights and KV cache, which `weights` and `kv_cache` say to be of fewer bits
    (float8, int8, int4). On a `mesh` ("dp=8,tp=4"), with `zero` and `micro_batches`, it is that of the fullest device,
    and the mesh takes the model that is found. `set` gives other hyper-parameters a value (and keeps them from
    following the width), `multiple` says what a size must be a multiple of, `aspect` within what the ratio of width and
    layers must lie. Of models smaller than the largest by at most the part `slack`, the one with the spec's aspect
    ratio is taken.

    Other arguments and errors as for `load`, and ArchError: E0505 for what cannot be varied and where nothing fits,
    E0504 where a model cannot be decoded, E0507 for an unknown accelerator."""
    _demand_ranges(fit, locals())
    from archdsl.estimates.fit import fit as largest
    from archdsl.estimates.hardware import device
    from archdsl.estimates.roofline import best_dtype

    _demand_texts(accelerator=accelerator)
    if memory is not None and accelerator is not None:
        raise error("E0509", "`memory` and `accelerator` are the same budget", help="give one of them")
    named = device(accelerator) if accelerator is not None else None
    dtype = dtype or (best_dtype(named) if named is not None else "float32")
    memory = named.usable if named is not None else memory
    for name, budget in (("params", params), ("active", active), ("memory", memory)):
        if budget is not None:
            demand(name, budget, Range(1))
    names = [part.strip() for part in vary.split(",")] if isinstance(vary, str) else vary
    if not _is_list(names):
        raise wrong_argument("vary", vary, "names")
    if multiple is not None and not isinstance(multiple, Mapping):
        raise wrong_argument("multiple", multiple, "a mapping of names to numbers")
    for name, number in (multiple or {}).items():
        demand(f"multiple[{name!r}]", number, Range(1))
    if aspect is not None and not _is_pair(aspect):
        raise wrong_argument("aspect", aspect, "two numbers")
    return largest(
        spec,
        text=text,
        model=model,
        vary=names,
        params=params,
        active=active,
        memory=memory,
        run=_workload(
            batch=batch,
            seq=seq,
            dtype=dtype,
            optimizer=optimizer,
            master_weights=master_weights,
            checkpoint=checkpoint,
            loss=loss,
            decode=decode,
            mesh=mesh,
            zero=zero,
            micro_batches=micro_batches,
            weights=weights,
            kv_cache=kv_cache,
            named=named,
        ),
        multiple=multiple,
        aspect=aspect,
        slack=slack,
        set=set,
        allow_noncausal=allow_noncausal,
        progress=progress,
    )


def scaling(*, flops: float | None = None, params: float | None = None, tokens: float | None = None) -> ScalingReport:
    """Return the best training run by each scaling law (Kaplan, Chinchilla, its replication) for a compute of `flops`,
    for `params` parameters or for `tokens` training tokens; with two of the three, that run and its expected loss.

    Raises ArchError E0509 for none or three numbers, and for one that is not positive."""
    from archdsl.estimates.scaling import scaling as ask

    return ask(flops=flops, params=params, tokens=tokens)


# --- PyTorch ----------------------------------------------------------------------------------------------------------


def torch_source(
    spec: str | Path | Model | None = None,
    *,
    features: Collection[str] = (),
    checkpoint: Checkpoint = "none",
    text: str | None = None,
    model: str | None = None,
    set: Settings | None = None,
    allow_noncausal: bool = False,
) -> str:
    """Return the model as one PyTorch file that imports only the standard library and torch. Loads no torch.

    `features` are what `--with` gives: generate, loss, parallel, cpu, float8, varlen. `checkpoint` is activation
    checkpointing: none, selective or full. Other arguments and errors as for `load`, and ArchError E0508 for an unknown
    feature."""
    from archdsl.backends.torch import Extras, emit
    from archdsl.backends.torch.features import NAMES
    from archdsl.passes.checkpoint import Checkpoint

    if not _is_list(features):
        raise wrong_argument("features", features, f"a collection of names: {', '.join(NAMES)}")
    for name in features:
        if name not in NAMES:
            help_ = did_you_mean(str(name), NAMES) or f"there are {', '.join(NAMES)}"
            raise error("E0508", f"an emitted file has no feature `{shortened(str(name))}`", help=help_)
    _demand_one_of("checkpoint", checkpoint, get_args(Checkpoint))
    extras = Extras(frozenset(n for n in NAMES if n in features), checkpoint)
    return emit(load(spec, text=text, model=model, set=set, allow_noncausal=allow_noncausal), extras)


def to_torch(
    spec: str | Path | Model | None = None,
    *,
    features: Collection[str] = (),
    checkpoint: Checkpoint = "none",
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    text: str | None = None,
    model: str | None = None,
    set: Settings | None = None,
    allow_noncausal: bool = False,
) -> nn.Module:
    """Return the model as a randomly initialized module, made by executing what `torch_source` returns; its random
    numbers are torch's own (`torch.manual_seed`).

    `device` is where its weights are, `dtype` their type: a name or torch's own, torch's default if not given. The
    module can be pickled and copied: what is stored holds its source, and is read wherever archdsl is installed. Other
    arguments and errors as for `torch_source`, and ArchError E0502 where torch or the device is missing."""
    from archdsl.run.smoke import demand_torch, device_called

    torch = demand_torch()
    if device is not None and not isinstance(device, str | torch.device):
        raise wrong_argument("device", device, "a name such as 'cuda:1', or a torch.device")
    kind = _torch_dtype(torch, dtype)
    source = torch_source(
        spec,
        features=features,
        checkpoint=checkpoint,
        text=text,
        model=model,
        set=set,
        allow_noncausal=allow_noncausal,
    )
    from archdsl.run.load import load_source

    with nullcontext() if device is None else device_called(torch, str(device), runs=False):
        module: nn.Module = load_source(source)()
    return module if kind is None else module.to(kind)


def _torch_dtype(torch: Any, dtype: object) -> Any:
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    _demand_one_of("dtype", dtype, ("float32", "bfloat16", "float16", "float64"))
    return getattr(torch, str(dtype))


def init_weights(
    spec: str | Path | Model | None,
    output: str | Path,
    *,
    seed: int = 0,
    dtype: Dtype = "float32",
    text: str | None = None,
    model: str | None = None,
    set: Settings | None = None,
    allow_noncausal: bool = False,
    progress: Callable[[str, int], None] | None = None,
) -> None:
    """Write a safetensors file of randomly initialized weights, as the spec says, one tensor at a time and without
    torch. The same seed gives the same numbers everywhere.

    `progress` is called with each path and how many numbers it holds. Other arguments and errors as for `load`. Raises
    OSError where the file cannot be written."""
    from archdsl.estimates.dtypes import Dtype
    from archdsl.weights.safetensors import draw

    _demand_path("output", output)
    _demand_one_of("dtype", dtype, get_args(Dtype))
    demand("seed", seed)
    loaded = load(spec, text=text, model=model, set=set, allow_noncausal=allow_noncausal)
    draw(loaded, seed, dtype, Path(output), progress)


# --- ONNX -------------------------------------------------------------------------------------------------------------


def to_onnx(
    spec: str | Path | Model | None = None,
    output: str | Path = "model.onnx",
    *,
    dtype: str = "float32",
    target: str = "portable",
    quantize: str | None = None,
    keep: Sequence[str] = (),
    weights: str | Path | None = None,
    seed: int | None = None,
    store: Literal["safetensors", "onnx_data", "inline"] = "safetensors",
    opset: int = 24,
    names: Literal["hf", "spec"] = "hf",
    decode: bool = False,
    logits: Literal["all", "last"] = "all",
    bos_token_id: int | None = None,
    eos_token_id: Sequence[int] = (),
    pad_token_id: int | None = None,
    text: str | None = None,
    model: str | None = None,
    set: Settings | None = None,
    allow_noncausal: bool = False,
    progress: Callable[[str, int], None] | None = None,
) -> OnnxFiles:
    """Write the model as an ONNX graph for inference, batch size and sequence length open; return which files there
    are.

    `output` is a file `….onnx`, or a directory for `model.onnx`. `dtype` (float32, float16, bfloat16) is that of
    weights and activations; `target` is `portable`, or an execution provider of onnxruntime whose own operators may be
    used (`ort-cpu`, `ort-cuda`), or the program that is to run it (`genai`, `optimum`, `transformers.js`, `openvino`):
    what it cannot run is an error then. `opset` is 24, or 21 to 23 for older runtimes: what came later is then written
    as what it is made of. `names` says what inputs and outputs are called: as Hugging Face calls them (`input_ids`,
    `attention_mask`, `logits`), or as the spec does. `quantize` (int8, int4) is weight-only quantization of linear
    layers and embeddings, group size 32, but of those whose path a pattern of `keep` matches.

    The weights come from a safetensors file (`weights`) or are randomly initialized (`seed`), and go to where `store`
    says: a safetensors file beside the graph, in PyTorch's layout; a file of plain numbers beside it; or the graph
    itself. With neither, the graph refers to the safetensors file that `init_weights` would write beside it.

    With `decode`, the graph is a decode step: it takes the new tokens and the KV cache (or other decode state); what a
    model computes once before the first step is a graph of its own, `encoder.onnx` beside `model.onnx`,
    `x_encoder.onnx` beside `x.onnx`. `logits` says whether a step gives those of all new tokens, or of each sequence's
    last alone, which is all that generation asks of a prefill.

    A directory also gets what `archdsl import` has put into the folder `NAME.hf` beside `weights` or the spec, or a
    tokenizer in the same folder as `weights`, and `config.json` and, with `decode`,
    `genai_config.json`, by which optimum, transformers.js and onnxruntime-genai load it, where they can feed the model
    (`remark` of what is returned says why not). They hold the ids of special tokens, as given or of the
    `generation_config.json` beside `weights`; padding is by default what ends a text, or 0.

    Loads no torch. Other arguments and errors as for `load`, and ArchError: E0502 where onnx or onnx-ir is missing,
    E0503 where `weights` is not the model's, E0504 where it cannot be written like this. Raises OSError where a file
    cannot be written."""
    arguments = dict(locals())
    from archdsl.backends.onnx import demand_packages

    demand_packages("writing ONNX", "onnx", "onnx_ir")
    if logits not in ("all", "last") or (logits == "last" and not decode):
        raise error(
            "E0504",
            f"no graph of a {'decode step' if decode else 'whole sequence'} gives the logits of `{logits}`",
            help="a decode step gives those of `all` new tokens, or of the `last` of each sequence",
        )
    _demand_path("output", output)
    _demand_texts(dtype=dtype, target=target, quantize=quantize)
    if weights is not None:
        _demand_path("weights", weights)
    _demand_ranges(to_onnx, arguments)
    if opset != 24 and target in ("ort-cpu", "ort-cuda"):
        raise error(
            "E0504",
            f"`{target}` uses operators of onnxruntime that other versions of it compute otherwise",
            help="an opset below 24 is for `portable` graphs",
        )
    _demand_one_of("store", store, ("safetensors", "onnx_data", "inline"))
    _demand_one_of("names", names, ("hf", "spec"))
    if not _is_list(keep):
        raise wrong_argument("keep", keep, "a sequence of patterns")
    _demand_numbers("eos_token_id", eos_token_id, TOKEN, "a sequence of token ids")
    loaded = load(spec, text=text, model=model, set=set, allow_noncausal=allow_noncausal)
    from archdsl.backends.onnx.metadata import described
    from archdsl.backends.onnx.runtimes import save_graph, save_steps
    from archdsl.backends.onnx.store import Storage
    from archdsl.backends.onnx.targets import GraphOptions
    from archdsl.backends.onnx.tokens import Tokens

    stored = Path(weights) if weights is not None else None
    command: dict[str, Any] = {
        "dtype": dtype,
        "target": target,
        "quantize": quantize,
        "keep": keep,
        "seed": seed,
        "store": store,
        "opset": opset,
        "names": names,
        "weights": stored.name if stored is not None else None,
    }
    if decode:
        tokens = {"bos_token_id": bos_token_id, "eos_token_id": eos_token_id, "pad_token_id": pad_token_id}
        command |= {"decode": True, "logits": logits, **tokens}
    options = GraphOptions(dtype, target, quantize, keep, names=names, last=logits == "last")
    storage = Storage(stored, seed, store, opset, described(loaded, command), progress)
    if decode:
        special = Tokens(bos_token_id, tuple(eos_token_id), pad_token_id)
        return save_steps(loaded, output, special, options, storage)
    return save_graph(loaded, output, options, storage)


# --- Hugging Face -----------------------------------------------------------------------------------------------------


def to_huggingface(
    spec: str | Path | Model | None = None,
    output: str | Path = "model",
    *,
    weights: str | Path | None = None,
    seed: int | None = None,
    bos_token_id: int | None = None,
    eos_token_id: Sequence[int] = (),
    pad_token_id: int | None = None,
    native: bool | None = None,
    text: str | None = None,
    model: str | None = None,
    set: Settings | None = None,
    allow_noncausal: bool = False,
    progress: Callable[[str, int], None] | None = None,
    remark: Callable[[str], None] | None = None,
) -> list[Path]:
    """Write a model as a folder that transformers loads; return the files in it.

    It is the type of transformers that computes the same (`llama`, `gpt2`): `config.json` and, with weights,
    `model.safetensors`. A decoder that is no such type, also one with an encoder, has its classes beside them,
    `configuration_NAME.py` and `modeling_NAME.py`, and loads with `trust_remote_code=True`; `remark` is called with
    what the nearest type computes otherwise. `native=True` demands a type, `native=False` writes the classes in any
    case.

    The weights come from a safetensors file (`weights`), or are randomly initialized (`seed`). What
    `archdsl import` has put into the folder `NAME.hf` beside the weights or the spec (tokenizer, templates, settings
    of generation, the fields of `config.json` beside the spec's numbers) goes along. Ids of special tokens that are
    given go into `config.json` and `generation_config.json`. `remark` is called with what a reader should know.

    Loads neither torch nor transformers. Other arguments and errors as for `load`, and ArchError: E0534 where
    transformers cannot hold the model, or has no such type, E0503 where `weights` is not the model's. Raises OSError
    where a file cannot be written."""
    _demand_ranges(to_huggingface, locals())
    _demand_path("output", output)
    if weights is not None:
        _demand_path("weights", weights)
    if weights is not None and seed is not None:
        raise error("E0509", "`weights` and `seed` are two sources of weights", help="give one of them")
    _demand_numbers("eos_token_id", eos_token_id, TOKEN, "a sequence of token ids")
    if not (native is None or isinstance(native, bool)):
        raise wrong_argument("native", native, "True, False or None")
    loaded = load(spec, text=text, model=model, set=set, allow_noncausal=allow_noncausal)
    from archdsl.estimates.params import vocabulary
    from archdsl.weights.carried import demand_tokens

    ends = [*eos_token_id]
    ids = {"bos_token_id": bos_token_id, "eos_token_id": ends or None, "pad_token_id": pad_token_id}
    if len(ends) == 1:
        ids["eos_token_id"] = ends[0]
    tokens = {name: value for name, value in ids.items() if value is not None}
    demand_tokens("E0534", {**ids, "eos_token_id": ends}, vocabulary(loaded))
    stored = Path(weights) if weights is not None else None
    say = remark or (lambda _: None)
    no_type: ArchError | None = None
    if native is not False:
        from archdsl.interop.native import native_of
        from archdsl.interop.native import save as save_native

        try:
            found = native_of(loaded, stored)
        except ArchError as problem:
            if native:
                raise
            no_type = problem
        else:
            return save_native(loaded, found, Path(output), weights=stored, seed=seed, tokens=tokens, progress=progress)
    from archdsl.backends.huggingface.folder import save

    return save(
        loaded, Path(output), weights=stored, seed=seed, tokens=tokens, no_type=no_type, progress=progress, remark=say
    )


def import_checkpoint(
    source: str | Path,
    output: str | Path,
    *,
    mapping: str | None = None,
    weights: bool = True,
    check: bool = False,
    tolerance: float | None = None,
    ignore: Collection[str] = (),
    lift: bool = False,
    progress: Callable[[str, int], None] | None = None,
) -> ImportReport:
    """Write a checkpoint of Hugging Face, or a GGUF file, as a spec, and its weights beside it in the spec's names.

    `source` is a folder, a `config.json` alone or a file .gguf; `output` ends in `.arch`. `mapping` is the name or path
    of a `.checkpoint` file, by default that of the config's `model_type`; `ignore` names fields of the config that
    change nothing of what is computed. With `check` outputs are compared with transformers': `difference`
    of the report is a share of the largest, and `disagreement()` the finding where it is more than `tolerance` (1e-4).

    With `lift` the spec is not that of a mapping: it is made of the class of the installed transformers, as by
    `archdsl.lift`, for any type that there is; code in the folder is never run. `lift` of the report is what was
    compared, `disagreement()` the finding where anything differs.

    Raises ArchError E0509 for arguments that do not go together, E0531 to E0533 where mapping, checkpoint and spec
    disagree, E0540 to E0547 as for `archdsl.lift` (nothing is written then), E0502 where a package is missing; OSError
    where a file cannot be written."""
    from archdsl.interop.convert import import_folder

    _demand_path("source", source)
    _demand_path("output", output)
    _demand_texts(mapping=mapping)
    if not _is_list(ignore):
        raise wrong_argument("ignore", ignore, "a collection of fields")
    return import_folder(
        Path(source),
        Path(output),
        mapping=mapping,
        weights=weights,
        check=check,
        tolerance=tolerance,
        ignore=[*ignore],
        lift=lift,
        progress=lambda _: nullcontext(progress),
    )


def export_checkpoint(
    spec: str | Path | Model | None,
    output: str | Path,
    weights: str | Path,
    *,
    format: Literal["hf", "gguf"] = "hf",
    mapping: str | None = None,
    text: str | None = None,
    model: str | None = None,
    set: Settings | None = None,
    allow_noncausal: bool = False,
    progress: Callable[[str, int], None] | None = None,
    remark: Callable[[str], None] | None = None,
) -> int:
    """Write weights of a spec (a safetensors file) in the names of a checkpoint, and return how many tensors there are:
    as a folder of Hugging Face with `config.json` and all that the import found beside it, or as a GGUF file.

    `mapping` names the `.checkpoint` file of a folder, by default that beside the spec; `to_huggingface` needs none,
    and finds the type itself. `remark` is called with what has no place in a GGUF file. Other arguments and errors as
    for `load`, and ArchError: E0531 where there is no mapping, E0534 where llama.cpp has no such architecture, E0503
    where `weights` is not the model's. Raises OSError where a file cannot be written."""
    _demand_path("output", output)
    _demand_path("weights", weights)
    _demand_one_of("format", format, ("hf", "gguf"))
    _demand_texts(mapping=mapping)
    loaded = load(spec, text=text, model=model, set=set, allow_noncausal=allow_noncausal)
    if format == "gguf":
        from archdsl.interop.gguf_write import write_gguf

        if mapping is not None:
            raise error("E0509", "`mapping` goes with the format `hf`: an architecture of llama.cpp is found")
        return write_gguf(loaded, Path(weights), Path(output), progress, remark or (lambda _: None))
    from archdsl.interop.convert import convert_to

    return convert_to(loaded, Path(weights), Path(output), mapping, progress)


def import_weights(
    spec: str | Path | Model | None,
    source: str | Path,
    output: str | Path,
    *,
    mapping: str | None = None,
    renames: Mapping[str, str] | None = None,
    init_missing: bool = False,
    seed: int = 0,
    text: str | None = None,
    model: str | None = None,
    set: Settings | None = None,
    allow_noncausal: bool = False,
    progress: Callable[[str, int], None] | None = None,
    remark: Callable[[str], None] | None = None,
) -> list[str]:
    """Write the weights of a checkpoint in the names of a spec, as a safetensors file, and return what there is to say
    of them, a line each. What the mapping has most likely wrong is one of the lines; `remark` is called with it instead
    before anything is written.

    `source` is a folder of Hugging Face, a GGUF file, or a safetensors file in the spec's own names; `renames` gives
    names of its tensors that begin with one text another beginning, before the mapping. With `init_missing` the weights
    that fit the spec are kept, the others are randomly initialized by `seed`, and the lines list both. Other arguments
    and errors as for `import_checkpoint` and `load`."""
    _demand_ranges(import_weights, locals())
    from archdsl.interop.convert import convert_from, fit_from

    _demand_mapping("renames", renames, "names")
    _demand_path("source", source)
    _demand_path("output", output)
    _demand_texts(mapping=mapping)
    loaded = load(spec, text=text, model=model, set=set, allow_noncausal=allow_noncausal)
    pairs = [*(renames or {}).items()]
    if init_missing:
        return [*fit_from(loaded, Path(source), Path(output), mapping, pairs, seed, progress).lines()]
    said: list[str] = []
    tell = remark or said.append
    count = convert_from(
        loaded, Path(source), Path(output), mapping, pairs, progress, lambda doubt: tell(f"in doubt: {doubt}")
    )
    return [*said, f"{count:,} tensors: {output}"]


def lift(
    module: nn.Module | Callable[..., nn.Module] | str,
    example: torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor] | None = None,
    *,
    args: Mapping[str, Any] | None = None,
    config: str | Path | None = None,
    inputs: Collection[str] = (),
    axes: Mapping[str, Sequence[str | None]] | None = None,
    vary: Mapping[str, Sequence[int | float]] | None = None,
    declare: Collection[str] = (),
    fold: bool = False,
    output: str | Path | None = None,
    weights: str | Path | None = None,
    own_weights: bool = False,
    progress: Callable[[str], None] | None = None,
) -> LiftReport:
    """Write a module of PyTorch as a spec, and compare the two: shapes, outputs, decode steps, in float32 and other
    configurations than its own. What differs is in the first line of the spec, and `verified` of the report is False.

    `module` is a module, a class or function that makes one of `args`, or the name of one: `file.py:Name`, or
    `transformers:Class` with a `config.json` as `config`. That runs its code: lift only what you would run.

    `example` are tensors that it is called with, by name or in order; or `inputs` says what they are, as
    `"idx=token[batch,time]"`. Whole numbers of two axes are [batch, time], of others the first axis is the batch and
    the rest is fixed, unless `axes` names them: `{"x": ("batch", "time", None)}`. `vary` gives fields of the
    configuration other values, one for each other configuration that the spec is made from; by default some are found.
    `declare` names blocks that stand for modules of a class which cannot be traced: `"Recurrence=block.arch"`. With
    `fold` blocks whose equations are the library's become slots (`gqa`, `swiglu`), each shown to compute the same.

    With `output`, which ends in `.arch`, the spec is written there, beside it the table of weights as a `.checkpoint`
    file, and the weights of a state dict (`weights`, a file .safetensors or .pt) or the module's `own_weights` as
    safetensors in the spec's names. `progress` is called with what is being done.

    Raises ArchError: E0540 to E0547 where the module cannot be found, called, traced or written in the language, E0502
    where a package is missing, E0503 and E0532 for weights that are not the module's; OSError where a file cannot be
    written."""
    from archdsl.run.smoke import demand_torch

    demand_torch()
    for name, path in (("config", config), ("output", output), ("weights", weights)):
        if path is not None:
            _demand_path(name, path)
    for name, texts in (("inputs", inputs), ("declare", declare)):
        if not _is_list(texts):
            raise wrong_argument(name, texts, "a collection of texts")
    if output is None and (weights is not None or own_weights):
        raise error("E0509", "weights go with `output`", help="give `output` too, or leave them out")
    if weights is not None and own_weights:
        raise error("E0509", "`weights` and `own_weights` are two sources of weights", help="give one of them")
    where = _path("output", output)
    if where is not None and where.suffix != ".arch":
        raise error("E0509", f"`output` ends in .arch, unlike `{shortened(str(where))}`")
    if where is not None and not where.parent.is_dir():  # before minutes of work
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(where.parent))
    if weights is not None and not Path(weights).is_file():
        raise error("E0503", f"there is no file `{weights}`")
    from archdsl.interop.lift.declared import read
    from archdsl.interop.lift.lifting import States, asked_for, tensors, write
    from archdsl.interop.lift.lifting import lift as lifted
    from archdsl.interop.lift.module import aside

    blocks = [read(text) for text in declare]
    tell = progress or (lambda _: None)
    with aside():
        subject, known = asked_for(module, example, args or {}, _path("config", config), inputs, axes or {})
        made = lifted(subject, inputs=known, vary=vary, declarations=blocks, fold=fold, output=where, tell=tell)
    if where is None:
        return made.report
    tell(f"writing {where}")
    own = States(made.module.state_dict()) if own_weights else None
    return write(made, where, tensors(Path(weights)) if weights is not None else own)


# --- runs -------------------------------------------------------------------------------------------------------------


def generate(
    spec: str | Path | Model | None = None,
    prompt: str | Sequence[str] | Sequence[Sequence[int]] = "",
    *,
    weights: str | Path | None = None,
    tokenizer: str | Path | None = None,
    inputs: Mapping[str, str] | None = None,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: Sequence[int] = (),
    seed: int = 0,
    device: str = "cpu",
    dtype: Dtype = "float32",
    compiled: bool = False,
    text: str | None = None,
    model: str | None = None,
    set: Settings | None = None,
    allow_noncausal: bool = False,
    progress: Callable[[int, str], None] | None = None,
) -> GenerateReport:
    """Generate at most `max_new_tokens` tokens after a prompt, or after several as one batch, with the emitted module.

    A prompt is a text, which `tokenizer` (a `tokenizer.json`) reads, or token ids; `inputs` are prompts of further
    inputs of tokens, such as an encoder's, by name. The weights come from a safetensors file, or are randomly
    initialized by `seed`, which sampling uses too. `temperature` 0 is greedy; `top_k` and `top_p` limit what is
    sampled; a token of `stop` ends its sequence. `progress` is called with a row and its new text.

    Other arguments and errors as for `load`, and ArchError: E0502 where torch, the tokenizer's package or the device is
    missing, E0503 where the model or its inputs do not fit, E0504 where the model cannot be decoded step by step."""
    _demand_ranges(generate, locals())
    _demand_numbers("stop", stop, TOKEN, "a sequence of token ids")
    _demand_mapping("inputs", inputs, "prompts")
    from archdsl.estimates.dtypes import Dtype
    from archdsl.run.generate import Sampling
    from archdsl.run.generate import generate as run

    _demand_texts(device=device)
    _demand_one_of("dtype", dtype, get_args(Dtype))
    loaded = load(spec, text=text, model=model, set=set, allow_noncausal=allow_noncausal)
    return run(
        loaded,
        _prompts(prompt),
        given=inputs,
        weights=_path("weights", weights),
        tokenizer=_path("tokenizer", tokenizer),
        max_new_tokens=max_new_tokens,
        sampling=Sampling(float(temperature), top_k, top_p, seed),
        stop=stop,
        device=device,
        dtype=dtype,
        compiled=compiled,
        told=progress,
    )


def _prompts(prompt: object) -> list[str]:
    """Return prompts as the command line takes them: texts, or token ids written as numbers.

    Raises ArchError E0509 for anything else."""
    rows = [prompt] if isinstance(prompt, str) or _is_tokens(prompt) else prompt
    if isinstance(rows, Sequence) and rows and all(isinstance(row, str) or _is_tokens(row) for row in rows):
        return [row if isinstance(row, str) else " ".join(map(str, row)) for row in rows]
    raise wrong_argument("prompt", prompt, "a text, token ids, or a sequence of these")


def _is_tokens(value: object) -> bool:
    return isinstance(value, Sequence) and len(value) > 0 and all(type(token) is int for token in value)


def _path(name: str, value: object) -> Path | None:
    """Return an optional argument as a path; raises ArchError E0509 for a value of another type."""
    if value is None:
        return None
    _demand_path(name, value)
    return Path(str(value))


def verify(
    spec: str | Path | Model | None = None,
    *,
    weights: str | Path | None = None,
    seed: int = 0,
    batch: int = 2,
    seq: int | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    target: str = "portable",
    quantize: str | None = None,
    keep: Sequence[str] = (),
    tolerance: float | None = None,
    decode: bool = True,
    text: str | None = None,
    model: str | None = None,
    set: Settings | None = None,
    allow_noncausal: bool = False,
) -> VerifyReport:
    """Run a model in PyTorch and in onnxruntime, on the same weights and inputs, and compare the outputs; with
    `decode`, those of prefill and decode steps of both, too. `agrees` of the report says whether every relative
    difference is within `tolerance` (1e-4; 2e-2 in float16, 5e-2 in bfloat16).

    `batch` sequences of length `seq` (128 or the context, if less) are drawn by `seed`, and the weights too unless
    they come from a safetensors file. `target`, `quantize` and `keep` are those of `to_onnx`. Other arguments and
    errors as for `load`, and ArchError E0502 where torch, onnxruntime or the device is missing, E0503 where model or
    inputs do not fit."""
    _demand_ranges(verify, locals())
    from archdsl.backends.onnx.targets import TARGETS, GraphOptions
    from archdsl.run.verify import verify as compare

    _demand_one_of("target", target, [*TARGETS])
    _demand_texts(dtype=dtype, quantize=quantize, device=device)
    if not _is_list(keep):
        raise wrong_argument("keep", keep, "a sequence of patterns")
    return compare(
        load(spec, text=text, model=model, set=set, allow_noncausal=allow_noncausal),
        GraphOptions(dtype, target, quantize, keep),
        weights=_path("weights", weights),
        seed=seed,
        batch=batch,
        time=seq,
        device=device,
        tolerance=tolerance,
        decode=decode,
    )


# --- texts ------------------------------------------------------------------------------------------------------------


def show(
    spec: str | Path | Model | None = None,
    form: Literal["tree", "ir", "diagram", "source"] = "tree",
    *,
    block: str | None = None,
    decode: bool = False,
    text: str | None = None,
    model: str | None = None,
    set: Settings | None = None,
    allow_noncausal: bool = False,
) -> str:
    """Return a model as text: as a `tree` of its modules with shapes and parameters, as its `ir` (with `decode` that of
    a step of decoding), as a `diagram` (a Mermaid flowchart, of one `block` if that is named), or the `source` of its
    spec. Other arguments and errors as for `load`; ArchError E0504 where a model has no step."""
    _demand_one_of("form", form, ("tree", "ir", "diagram", "source"))
    if decode and form != "ir":
        raise error("E0509", "`decode` goes with the form `ir`", help="leave `decode` out, or ask for the form `ir`")
    if block is not None and form != "diagram":
        raise error("E0509", "`block` goes with the form `diagram`", help="`expand` writes one block as equations")
    if form == "source":
        return request_of(spec, text=text, model=model, set=set).spec.source.text
    loaded = load(spec, text=text, model=model, set=set, allow_noncausal=allow_noncausal)
    if form == "ir":
        from archdsl.ir.text import print_model

        if decode:
            from archdsl.passes.step import stepped

            loaded = stepped(loaded).model
        return print_model(loaded)
    if form == "diagram":
        from archdsl.report.diagram import block_of, diagram
        from archdsl.report.mermaid import mermaid

        return mermaid(diagram(loaded if block is None else block_of(loaded, block)))
    from archdsl.dependence.causality import assumed
    from archdsl.report.tables import assumed_view, plain_text, tree_view
    from archdsl.report.tree import tree

    return plain_text(tree_view(tree(loaded)), *assumed_view(assumed(loaded)))


def draw(
    spec: str | Path | Model | None = None,
    path: str | Path | None = None,
    *,
    against: str | Path | Model | None = None,
    block: str | None = None,
    depth: int = 3,
    bars: Literal["params", "flops"] = "params",
    theme: Literal["auto", "light", "dark"] = "auto",
    text: str | None = None,
    model: str | None = None,
    set: Settings | None = None,
    allow_noncausal: bool = False,
) -> str:
    """Return the figure of a model, or of one `block` of it, as SVG; write it to `path` too (.svg, .png or .html), if
    one is given. With another model to see it `against`, the other one stands at its right, and what was added, removed
    or changed is marked.

    Blocks of the spec are opened down to `depth`, as far as the figure stays readable; `bars` are the shares of
    parameters or of the FLOPs of a forward pass; the `theme` `auto` follows the reader's light or dark mode. Other
    arguments as for `load`. Raises ArchError as `load`, E0506 for a file of another kind, E0502 for a PNG where resvg
    is not installed, E0503 for FLOPs of a model that has no sizes at its default length; OSError where the file cannot
    be written."""
    _demand_ranges(draw, locals())
    from archdsl.report.diagram import block_of
    from archdsl.report.svg import compared, demand_format, figure, svg, write_figure

    _demand_texts(block=block)
    _demand_one_of("bars", bars, ("params", "flops"))
    _demand_one_of("theme", theme, ("auto", "light", "dark"))
    if path is not None:
        _demand_path("path", path)
        demand_format(Path(path))
    loaded = load(spec, text=text, model=model, set=set, allow_noncausal=allow_noncausal)
    if against is not None:
        if block is not None:
            raise error(
                "E0509", "`block` does not go with `against`", help="leave `block` out: both models are drawn whole"
            )
        other = load(against, allow_noncausal=allow_noncausal)
        drawn = svg(*compared(loaded, other, depth, bars), theme)
    else:
        inner = block_of(loaded, block) if block is not None else None
        drawn = svg(*figure(loaded, inner, depth, bars), theme)
    if path is not None:
        write_figure(drawn, Path(path), f"{loaded.name} ({loaded.source_name})")
    return drawn


def format_text(spec: str | Path | Model | None = None, *, text: str | None = None) -> str:
    """Return a spec's text in its canonical form. Arguments as for `load`; raises ArchError for one that cannot be
    parsed."""
    from archdsl.syntax.format import format_file
    from archdsl.syntax.parse import parse

    source = request_of(spec, text=text).spec.source
    return format_file(parse(source), source)


def expand(
    spec: str | Path | Model | None = None,
    *,
    block: str | None = None,
    text: str | None = None,
    model: str | None = None,
    set: Settings | None = None,
) -> str:
    """Return a spec's text with its declared bodies written out as the equations they stand for; with `block`, only
    that block or model. Other arguments and errors as for `load`."""
    from archdsl.frontend.expand import expand_spec
    from archdsl.frontend.load import module_of

    if block is not None and not isinstance(block, str):
        raise wrong_argument("block", block, "the name of a block")
    found, settings, _ = request_of(spec, text=text, model=model, set=set)
    return expand_spec(module_of(found), found.model, {k: setting_text(v) for k, v in settings.items()}, block)
