"""Arguments and options that several commands take, how they are read, and what a shell completes them with."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from archdsl.diagnostics import ArchError

if TYPE_CHECKING:
    from archdsl.ir.graph import Model

# Panels of the help texts.
SPEC, RUN, FLOPS, MEMORY, MESH, TIME = "Spec", "Run", "FLOPs", "Memory", "Mesh", "Time and cost"
WEIGHTS, TORCH, ONNX, DECODE, SAMPLING, OUTPUT = "Weights", "PyTorch", "ONNX", "ONNX decode step", "Sampling", "Output"
FOLDER = "Hugging Face"
STORED, TOKENS = "ONNX, Hugging Face", "Special tokens (ONNX decode step, Hugging Face)"
SEARCH, BUDGET = "Search", "Budget"


# --- completion -------------------------------------------------------------------------------------------------------


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def complete_spec(incomplete: str) -> list[str]:
    """Return names of the zoo, for the shell; paths are the shell's own."""
    from archdsl.api import list_zoo

    return _beginning(incomplete, (e.name for e in list_zoo()))


def complete_accelerator(incomplete: str) -> list[str]:
    """Return names of accelerators, for the shell."""
    from archdsl.estimates.hardware import devices

    return _beginning(incomplete, devices())


def complete_topic(incomplete: str) -> list[str]:
    """Return codes, primitives and library blocks that can be explained, for the shell."""
    from archdsl.ops import registry
    from archdsl.resources import error_codes, library_index

    return _beginning(incomplete, sorted({*error_codes(), *library_index(), *registry.names()}))


def complete_setting(context: typer.Context, incomplete: str) -> list[str]:
    """Return `name=` for each hyper-parameter of the spec that stands on the command line, for the shell."""
    from archdsl.api import load

    # Where `--set` still lacks its value, the words before it have not been read as arguments.
    given = context.params.get("spec") or context.params.get("specs") or context.args
    spec = given[0] if given and not isinstance(given, str) else given
    if not isinstance(spec, str):
        return []
    try:
        return _beginning(incomplete, (f"{field.name}=" for field in load(spec, allow_noncausal=True).config))
    except ArchError:
        return []


# --- arguments and options --------------------------------------------------------------------------------------------

SpecArgument = Annotated[
    str,
    typer.Argument(
        metavar="SPEC", help="A path, path:model, or the name of a zoo model.", autocompletion=complete_spec
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Give a hyper-parameter another value (repeatable).",
        autocompletion=complete_setting,
        rich_help_panel=SPEC,
    ),
]
NoncausalOption = Annotated[
    bool,
    typer.Option("--allow-noncausal", help="Accept an LM head that later tokens can reach.", rich_help_panel=SPEC),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.", rich_help_panel=OUTPUT)]


def settings_of(given: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in given or ():
        key, equals, value = item.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise typer.BadParameter(f"write it as name=value, not {item!r}", param_hint="'--set'")
        found[key.strip()] = value.strip()
    return found


def load_model(spec: str, set: list[str] | None, allow_noncausal: bool) -> Model:
    from archdsl.api import load

    return load(spec, set=settings_of(set), allow_noncausal=allow_noncausal)


def demand_other(output: str | Path | None, spec: str, weights: Path | None = None) -> None:
    """Refuse to write over what is read. Raises ArchError E0521."""
    from archdsl.diagnostics import error
    from archdsl.frontend.load import find_spec

    if output is None or output == "-" or not (path := Path(output)).is_file():
        return
    for read in (find_spec(spec).path, weights):
        if read is not None and read.exists() and path.samefile(read):
            raise error("E0521", f"`{output}` would be written over what is read", help="give the output another name")


def only_with(context: typer.Context, option: str, *names: str) -> None:
    """Refuse options that were given and say nothing without another one."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"it goes with {option}", param_hint=f"'--{name.strip('_').replace('_', '-')}'")


Dtype = Literal["float32", "bfloat16", "float16"]
Optimizer = Literal["sgd", "sgd-momentum", "adam", "adamw", "adamw8bit", "adafactor", "muon"]
Checkpoint = Literal["none", "selective", "full"]

CHECKPOINT = "Activation checkpointing: recompute nothing, attention (selective), or every layer (full)."

DtypeOption = Annotated[
    Dtype, typer.Option("--dtype", help="The type of weights and activations.", rich_help_panel=WEIGHTS)
]
TargetOption = Annotated[
    Literal["portable", "ort-cpu", "ort-cuda"],
    typer.Option(
        "--target", help="Standard operators, or those of onnxruntime on CPU or CUDA too.", rich_help_panel=ONNX
    ),
]
QuantizeOption = Annotated[
    Literal["int8", "int4"] | None,
    typer.Option(
        "--quantize",
        help="Weight-only quantization of linear layers and embeddings: group size 32, asymmetric.",
        rich_help_panel=ONNX,
    ),
]
KeepOption = Annotated[
    list[str] | None,
    typer.Option(
        "--keep",
        metavar="PATTERN",
        help="With --quantize: weights that are not quantized (repeatable).",
        rich_help_panel=ONNX,
    ),
]
WeightsOption = Annotated[
    Path | None,
    typer.Option("--weights", metavar="FILE.safetensors", help="Weights to load, strictly.", rich_help_panel=WEIGHTS),
]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of random weights and inputs.", rich_help_panel=WEIGHTS)]
SeqOption = Annotated[
    int | None,
    typer.Option("--seq", min=1, help="Sequence length; 128 or the context by default.", rich_help_panel=RUN),
]
DeviceOption = Annotated[
    str, typer.Option("--device", metavar="cpu|cuda|cuda:N", help="Where the model runs.", rich_help_panel=RUN)
]
NoDecodeOption = Annotated[
    bool,
    typer.Option("--no-decode", help="Whole sequences alone: no prefill and decode steps.", rich_help_panel=ONNX),
]


def keep_needs_bits(keep: list[str] | None, quantize: str | None) -> None:
    if keep and quantize is None:
        raise typer.BadParameter("it goes with --quantize", param_hint="'--keep'")
