"""Commands that count: estimate, sweep, fit, scaling, hardware."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from archdsl.cli import mesh_options
from archdsl.cli.frame import FINE, WRONG_SPEC, command, print_or_json
from archdsl.cli.options import (
    BUDGET,
    CHECKPOINT,
    FLOPS,
    LOSS,
    MEMORY,
    OUTPUT,
    RUN,
    SEARCH,
    Checkpoint,
    Dtype,
    JsonOption,
    Loss,
    NoncausalOption,
    Optimizer,
    SetOption,
    SpecArgument,
    by_name,
    complete_accelerator,
    complete_setting,
    demand_other,
    is_given,
    load_model,
    only_with,
    settings_of,
)
from archdsl.ranges import bounds

if TYPE_CHECKING:
    from rich.console import RenderableType


@command("estimate", "Estimates")
def estimate(
    context: typer.Context,
    spec: SpecArgument,
    batch: Annotated[int | None, RUN("--batch", **bounds("batch"), help="Batch size (1).")] = None,
    seq: Annotated[int | None, RUN("--seq", **bounds("seq"), help="Sequence length (2,048 or the context).")] = None,
    flops: Annotated[
        Literal["exact", "dense", "megatron", "palm", "kaplan", "all"] | None,
        FLOPS("--flops", help="Count FLOPs by that convention, or by all side by side."),
    ] = None,
    tokens_per_second: Annotated[
        float | None,
        FLOPS(
            "--tokens-per-second",
            **bounds("tokens_per_second"),
            help="With --accelerator or --peak: measured throughput, for MFU.",
        ),
    ] = None,
    step_time: Annotated[
        float | None, FLOPS("--step-time", **bounds("step_time"), help="The same by the seconds of a training step.")
    ] = None,
    peak: Annotated[
        float | None, FLOPS("--peak", **bounds("peak"), help="Peak FLOP/s of all devices together: 989e12.")
    ] = None,
    checkpoint: Annotated[Checkpoint, MEMORY("--checkpoint", help=CHECKPOINT)] = "none",
    loss: Annotated[Loss | None, MEMORY("--loss", help=LOSS)] = None,
    dtype: Annotated[
        Dtype | None,
        MEMORY("--dtype", help="The type of weights and activations (float32; with --accelerator the best it has)."),
    ] = None,
    optimizer: Annotated[
        Optimizer | None, MEMORY("--optimizer", help="Memory with the state of that optimizer (adamw).")
    ] = None,
    master_weights: Annotated[bool, MEMORY("--master-weights", help="Memory with fp32 master weights.")] = False,
    measure: Annotated[
        bool, MEMORY("--measure", help="Measure the memory of a step too: PyTorch runs the emitted file.")
    ] = False,
    mesh: mesh_options.MeshOption = None,
    zero: mesh_options.ZeroOption = 0,
    micro_batches: mesh_options.MicroBatchesOption = 1,
    interleave: mesh_options.InterleaveOption = 1,
    stages: mesh_options.StagesOption = None,
    checkpoint_every: mesh_options.CheckpointEveryOption = 1,
    sequence_parallel: mesh_options.SequenceParallelOption = False,
    attention: mesh_options.AttentionOption = "fused",
    float32_gradients: mesh_options.Float32GradientsOption = False,
    weights: mesh_options.WeightsOption = None,
    kv_cache: mesh_options.CacheOption = None,
    compute: mesh_options.ComputeOption = None,
    accelerator: mesh_options.AcceleratorOption = None,
    devices: mesh_options.DevicesOption = None,
    machine: mesh_options.MachineOption = 8,
    network: mesh_options.NetworkOption = None,
    fused: mesh_options.FusedOption = True,
    mfu: mesh_options.MfuOption = None,
    tokens: mesh_options.TokensOption = None,
    price: mesh_options.PriceOption = None,
    plot: Annotated[
        Path | None,
        OUTPUT("--plot", metavar="FILE", help="Plot it by block too: .svg, .png or .html (needs matplotlib)."),
    ] = None,
    json: JsonOption = False,
    set: SetOption = None,
    allow_noncausal: NoncausalOption = False,
) -> None:
    """Count parameters exactly (total, without embeddings, active per token, by block), FLOPs, and bytes of memory; on
    a mesh, what each rank holds and sends; on a named accelerator, roofline times and costs."""
    from archdsl.report.tables import answer_view, flops_view, machines_view, memory_view, params_view

    if tokens_per_second is not None and step_time is not None:
        raise typer.BadParameter("choose one", param_hint="'--tokens-per-second' / '--step-time'")
    measured = tokens_per_second is not None or step_time is not None
    if measured is not (peak is not None) and (peak is not None or accelerator is None):
        hint = "'--tokens-per-second' / '--step-time' and '--peak' / '--accelerator'"
        raise typer.BadParameter("they go together", param_hint=hint)
    if plot is not None:
        from archdsl.report.plots import demand_plots, plot_estimate

        demand_plots(plot, "--json")
        demand_other(plot, spec)
    mesh_options.demand_together(context)
    spread = mesh is not None or accelerator is not None
    if measure and spread:
        raise typer.BadParameter("one device is measured; it cannot be combined with others", param_hint="'--measure'")
    asked = dtype is not None or optimizer is not None or loss is not None or master_weights or measure
    memory = not spread and asked
    told = any((flops, peak)) or (not spread and any((batch, seq, checkpoint != "none")))
    from archdsl.api import estimate as count

    if not json and not memory and not told and plot is None and not spread:
        model = load_model(spec, set, allow_noncausal)
        print_or_json(count(model), params_view, json=False)
        return
    from archdsl.estimates.memory import MemoryReport

    report = count(
        spec,
        batch=batch or (None if spread else 1),
        seq=seq,
        convention="exact" if flops is None or flops == "all" else flops,
        tokens_per_second=tokens_per_second,
        step_time=step_time,
        peak=peak,
        checkpoint=checkpoint,
        loss=loss,
        dtype=dtype,
        optimizer=optimizer or "adamw",
        master_weights=master_weights,
        measure=measure,
        mesh=mesh,
        zero=zero,
        micro_batches=micro_batches,
        interleave=interleave,
        stages=mesh_options.layers(stages),
        checkpoint_every=checkpoint_every,
        sequence_parallel=sequence_parallel,
        attention=attention,
        float32_gradients=float32_gradients,
        weights=weights,
        kv_cache=kv_cache,
        compute=compute,
        accelerator=accelerator,
        devices=devices,
        machine=machine,
        network=network,
        fused=fused,
        mfu=mfu,
        tokens=int(_amount(tokens, "--tokens")) if tokens is not None else None,
        price=price,
        set=settings_of(set),
        allow_noncausal=allow_noncausal,
    )
    assert isinstance(report, MemoryReport)  # a run was asked about

    def view(report: MemoryReport) -> Iterator[RenderableType]:
        yield from answer_view(report)
        yield from params_view(report, blocks=not told and not memory and not spread)
        if told:
            yield ""
            yield from flops_view(report, side_by_side=flops == "all", sizes=not spread)
        if memory:
            yield ""
            yield from memory_view(report, sizes=not told)
        yield from machines_view(report)

    print_or_json(report, view, json)
    if plot is not None:
        plot_estimate(report, plot, memory=memory)


@command("sweep", "Estimates")
def sweep(
    context: typer.Context,
    spec: SpecArgument,
    set: Annotated[
        list[str],
        SEARCH(
            "--set",
            metavar="NAME=VALUES",
            help="6,12,24 or 512..4096:512 or 512..4096*2 (repeatable): all combinations are counted.",
            autocompletion=complete_setting,
        ),
    ],
    seq: Annotated[
        int | None, RUN("--seq", **bounds("seq"), help="Sequence length for FLOPs and memory (2,048 or the context).")
    ] = None,
    memory: Annotated[
        bool, MEMORY("--memory", help="Memory of each point, as with any other of these options.")
    ] = False,
    batch: Annotated[
        int | None, MEMORY("--batch", **bounds("batch"), help="Batch size (1; with --mesh a sequence a micro-batch).")
    ] = None,
    dtype: Annotated[Dtype, MEMORY("--dtype", help="The type of weights and activations.")] = "float32",
    optimizer: Annotated[Optimizer, MEMORY("--optimizer", help="Its state counts.")] = "adamw",
    master_weights: Annotated[bool, MEMORY("--master-weights", help="Memory with fp32 master weights.")] = False,
    checkpoint: Annotated[Checkpoint, MEMORY("--checkpoint", help=CHECKPOINT)] = "none",
    loss: Annotated[Loss | None, MEMORY("--loss", help=LOSS)] = None,
    decode: Annotated[bool, MEMORY("--decode", help="Weights and KV cache of decoding; no training.")] = False,
    weights: Annotated[
        mesh_options.LOW | None, MEMORY("--weights", help="With --decode: matrices of that type.")
    ] = None,
    kv_cache: Annotated[
        mesh_options.LOW | None, MEMORY("--kv-cache", help="With --decode: a KV cache of that type.")
    ] = None,
    mesh: mesh_options.MeshOption = None,
    zero: mesh_options.ZeroOption = 0,
    micro_batches: mesh_options.MicroBatchesOption = 1,
    csv: Annotated[bool, OUTPUT("--csv", help="Rows of exact numbers on standard output.")] = False,
    json: JsonOption = False,
    plot: Annotated[
        Path | None, OUTPUT("--plot", metavar="FILE", help="Plot it too: .svg, .png or .html (needs matplotlib).")
    ] = None,
    y: Annotated[
        Literal["parameters", "non_embedding", "active", "ratio", "forward_per_token", "training_per_token", "memory"],
        OUTPUT("--y", help="With --plot: what is plotted."),
    ] = "parameters",
    allow_noncausal: NoncausalOption = False,
) -> int:
    """Count a spec at many settings: parameters, FLOPs per token, memory if asked; impossible settings say why."""
    from archdsl.api import OF_MEMORY
    from archdsl.api import sweep as count_all
    from archdsl.report.plots import demand_plots, plot_sweep
    from archdsl.report.tables import counting, sweep_csv, sweep_view

    if csv and json:
        raise typer.BadParameter("choose one", param_hint="'--csv' / '--json'")
    if plot is not None:
        demand_plots(plot)
        demand_other(plot, spec)
    elif y != "parameters":
        raise typer.BadParameter("it goes with --plot", param_hint="'--y'")
    _demand_memory_options(context, decode, mesh)
    with counting("counting") as progress:
        report = count_all(
            spec,
            set=settings_of(set),
            seq=seq,
            memory=memory or any(is_given(context, name) for name in OF_MEMORY),
            batch=batch or _batch(mesh, micro_batches),
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
            allow_noncausal=allow_noncausal,
            progress=progress,
        )
    if csv:
        sys.stdout.write(sweep_csv(report))
    else:
        print_or_json(report, sweep_view, json)
    if plot is not None:
        plot_sweep(report, plot, y)
    return FINE if any(row.parameters is not None for row in report.rows) else WRONG_SPEC


@command("fit", "Estimates")
def fit(
    context: typer.Context,
    spec: SpecArgument,
    vary: Annotated[
        str,
        SEARCH(
            "--vary",
            metavar="NAME,…",
            help="Hyper-parameters that are whole numbers; with --memory, or batch, seq or both.",
        ),
    ],
    params: Annotated[
        str | None, BUDGET("--params", metavar="N", help="At most so many parameters: 1.3B, 350M.")
    ] = None,
    active: Annotated[str | None, BUDGET("--active", metavar="N", help="At most so many active per token.")] = None,
    memory: Annotated[
        str | None, BUDGET("--memory", metavar="BYTES", help="At most so much memory in a training step: 80GiB, 24GB.")
    ] = None,
    accelerator: Annotated[
        str | None,
        BUDGET(
            "--accelerator",
            metavar="NAME",
            help="At most what a model can use of its memory: see `archdsl hardware`.",
            autocompletion=complete_accelerator,
        ),
    ] = None,
    decode: Annotated[
        bool, MEMORY("--decode", help="With --memory: weights and KV cache of decoding; no training.")
    ] = False,
    mesh: mesh_options.MeshOption = None,
    zero: mesh_options.ZeroOption = 0,
    micro_batches: mesh_options.MicroBatchesOption = 1,
    batch: Annotated[
        int | None,
        MEMORY("--batch", **bounds("batch"), help="With --memory: batch size (1; a sequence a micro-batch)."),
    ] = None,
    seq: Annotated[
        int | None, MEMORY("--seq", **bounds("seq"), help="With --memory: sequence length (2,048 or the context).")
    ] = None,
    dtype: Annotated[
        Dtype | None,
        MEMORY(
            "--dtype",
            help="With --memory: the type of weights and activations (float32; with --accelerator the best it has).",
        ),
    ] = None,
    optimizer: Annotated[Optimizer, MEMORY("--optimizer", help="With --memory: its state counts.")] = "adamw",
    master_weights: Annotated[bool, MEMORY("--master-weights", help="With --memory: fp32 master weights.")] = False,
    checkpoint: Annotated[Checkpoint, MEMORY("--checkpoint", help=f"With --memory: {CHECKPOINT}")] = "none",
    loss: Annotated[Loss | None, MEMORY("--loss", help=f"With --memory: {LOSS}")] = None,
    weights: Annotated[
        mesh_options.LOW | None, MEMORY("--weights", help="With --decode: matrices of that type.")
    ] = None,
    kv_cache: Annotated[
        mesh_options.LOW | None, MEMORY("--kv-cache", help="With --decode: a KV cache of that type.")
    ] = None,
    multiple: Annotated[
        list[str] | None,
        SEARCH(
            "--multiple",
            metavar="NAME=N",
            help="What a size is a multiple of: width=128 (the default), … (repeatable).",
        ),
    ] = None,
    aspect: Annotated[
        str | None, SEARCH("--aspect", metavar="LOW..HIGH", help="Width / layers; half to twice the spec's by default.")
    ] = None,
    slack: Annotated[
        float,
        SEARCH(
            "--slack", **bounds("slack"), help="Share of the budget that may stay unused for a better aspect ratio."
        ),
    ] = 0.01,
    json: JsonOption = False,
    set: SetOption = None,
    allow_noncausal: NoncausalOption = False,
) -> None:
    """The largest model, or batch, within a budget of parameters or memory: sizes are varied in multiples that run
    fast, and head_dim is kept."""
    from archdsl.api import fit as largest
    from archdsl.report.tables import counting, fit_view

    if memory is not None and accelerator is not None:
        raise typer.BadParameter("choose one", param_hint="'--memory' / '--accelerator'")
    bounded = memory is not None or accelerator is not None
    if params is None and active is None and not bounded:
        hint = "'--params' / '--active' / '--memory' / '--accelerator'"
        raise typer.BadParameter("give one of them, or several", param_hint=hint)
    if not bounded:
        only_with(context, "--memory", "decode", "batch", "seq", "dtype", *OF_TRAINING)
    _demand_memory_options(context, decode, mesh)
    names = [name.strip() for name in vary.split(",")]
    for name in ("batch", "seq"):
        if name in names:
            only_with(context, "another --vary", name)
    multiples = by_name(multiple, "--multiple", "name=128")
    for name, number in multiples.items():
        if not number.strip().isdecimal() or int(number) < 1:
            raise typer.BadParameter(f"write it as name=128, not {name}={number}", param_hint="'--multiple'")
    with counting("fitting") as progress:
        report = largest(
            spec,
            vary=names,
            params=None if params is None else int(_amount(params, "--params")),
            active=None if active is None else int(_amount(active, "--active")),
            memory=None if memory is None else _bytes(memory),
            accelerator=accelerator,
            batch=batch or _batch(mesh, micro_batches),
            mesh=mesh,
            zero=zero,
            micro_batches=micro_batches,
            seq=seq,
            dtype=dtype,
            optimizer=optimizer,
            master_weights=master_weights,
            checkpoint=checkpoint,
            loss=loss,
            decode=decode,
            weights=weights,
            kv_cache=kv_cache,
            multiple={name: int(number) for name, number in multiples.items()},
            aspect=_between(aspect),
            slack=slack,
            set=settings_of(set),
            allow_noncausal=allow_noncausal,
            progress=progress,
        )
    print_or_json(report, fit_view, json)


OF_TRAINING = ("optimizer", "master_weights", "checkpoint", "loss")
"""Options of `sweep` and `fit` about the memory of a training step."""


def _demand_memory_options(context: typer.Context, decode: bool, mesh: str | None) -> None:
    """Refuse options about memory that say nothing: of training beside `--decode`, of decoding or a mesh without."""
    if decode:
        only_with(context, "training, and not with --decode", *OF_TRAINING)
    else:
        only_with(context, "--decode", "weights", "kv_cache")
    if mesh is None:
        only_with(context, "--mesh", "zero", "micro_batches")


def _batch(mesh: str | None, micro_batches: int) -> int:
    """Return a sequence for each micro-batch of each data-parallel device."""
    from archdsl.estimates.mesh import parse_mesh

    return micro_batches * parse_mesh(mesh).dp if mesh is not None else 1


def _amount(text: str, option: str) -> Decimal:
    """A positive number, with a unit if it likes: 1.3B, 350M, 1_000_000, 5.76e23."""
    units = {"": 0, "K": 3, "M": 6, "B": 9, "T": 12}
    number = text.strip().replace("_", "")
    unit = number[-1:].upper() if number[-1:].isalpha() else ""
    try:
        found = Decimal(number[: len(number) - len(unit)]).scaleb(units[unit])
        if not found.is_finite() or found <= 0 or found > Decimal("1e40"):
            raise ValueError
    except (KeyError, ValueError, ArithmeticError):
        raise typer.BadParameter(f"write it as 1.3B or 1300000000, not {text!r}", param_hint=f"'{option}'") from None
    return found


def _bytes(text: str) -> int:
    """A size of memory: 80GiB, 24GB, 512 MiB, 85899345920."""
    number = text.strip().replace("_", "")
    digits = number.rstrip("KMGTPEiIbBkmgtpe ")
    unit = number[len(digits) :].strip().upper()
    powers = {letter: i for i, letter in enumerate("KMGTPE", 1)}
    size = 1024 if unit.endswith("IB") else 1000
    letter = unit.removesuffix("B").removesuffix("I")
    try:
        if unit not in ("", "B", f"{letter}B", f"{letter}IB") or (letter and letter not in powers):
            raise ValueError
        found = Decimal(digits) * size ** powers.get(letter, 0)
        if not found.is_finite() or not 1 <= found <= Decimal("1e40"):
            raise ValueError
    except (ValueError, ArithmeticError):
        said = f"write it as 80GiB, 24GB or 85899345920, not {text!r}"
        raise typer.BadParameter(said, param_hint="'--memory'") from None
    return int(found)


def _between(text: str | None) -> tuple[float, float] | None:
    """Two numbers: `64..128`."""
    if text is None:
        return None
    low, dots, high = text.partition("..")
    try:
        found = float(low), float(high if dots else low)
        if not 0 < found[0] <= found[1] < float("inf"):
            raise ValueError
    except ValueError:
        raise typer.BadParameter(f"write it as 64..128, not {text!r}", param_hint="'--aspect'") from None
    return found


@command("scaling", "Estimates")
def scaling(
    flops: Annotated[str | None, typer.Option("--flops", metavar="N", help="Training compute: 5.76e23.")] = None,
    params: Annotated[str | None, typer.Option("--params", metavar="N", help="Parameters: 70B.")] = None,
    tokens: Annotated[str | None, typer.Option("--tokens", metavar="N", help="Training tokens: 1.4T.")] = None,
    json: JsonOption = False,
) -> None:
    """Scaling laws: the best parameters and tokens for a budget, and the loss to expect; of two numbers, that run."""
    from archdsl.api import scaling as ask
    from archdsl.report.tables import scaling_view

    told = {"--flops": flops, "--params": params, "--tokens": tokens}
    given = {option[2:]: float(_amount(text, option)) for option, text in told.items() if text is not None}
    if not 1 <= len(given) <= 2:
        hint = "'--flops' / '--params' / '--tokens'"
        raise typer.BadParameter("give one of them, or two; the third follows", param_hint=hint)
    found = ask(**given)
    print_or_json(found, scaling_view, json)


@command("hardware", "Estimates")
def hardware(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ACCELERATOR",
            help="Names, or files .json of your own; all that are known.",
            autocompletion=complete_accelerator,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List accelerators: memory, bandwidth, dense peaks by type, links, watts, and where the figures are from."""
    from archdsl.estimates.hardware import chosen
    from archdsl.report.tables import hardware_view

    report = chosen(names or ())
    print_or_json(report, hardware_view, json)
