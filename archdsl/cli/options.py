"""Arguments and options that several commands take, how they are read, and what a shell completes them with."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from archdsl.diagnostics import ArchError
from archdsl.ranges import bounds

if TYPE_CHECKING:
    from archdsl.ir.graph import Model

# Panels of the help texts: each makes the options that stand in it.
SPEC = partial(typer.Option, rich_help_panel="Spec")
RUN = partial(typer.Option, rich_help_panel="Run")
FLOPS = partial(typer.Option, rich_help_panel="FLOPs")
MEMORY = partial(typer.Option, rich_help_panel="Memory")
MESH = partial(typer.Option, rich_help_panel="Mesh")
TIME = partial(typer.Option, rich_help_panel="Time and cost")
WEIGHTS = partial(typer.Option, rich_help_panel="Weights")
TORCH = partial(typer.Option, rich_help_panel="PyTorch")
ONNX = partial(typer.Option, rich_help_panel="ONNX")
DECODE = partial(typer.Option, rich_help_panel="ONNX decode step")
SAMPLING = partial(typer.Option, rich_help_panel="Sampling")
OUTPUT = partial(typer.Option, rich_help_panel="Output")
FIGURE = partial(typer.Option, rich_help_panel="Figure")
FOLDER = partial(typer.Option, rich_help_panel="Hugging Face")
STORED = partial(typer.Option, rich_help_panel="ONNX, Hugging Face")
TOKENS = partial(typer.Option, rich_help_panel="Special tokens (ONNX decode step, Hugging Face)")
SEARCH = partial(typer.Option, rich_help_panel="Search")
BUDGET = partial(typer.Option, rich_help_panel="Budget")


# --- completion -------------------------------------------------------------------------------------------------------


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def complete_spec(incomplete: str) -> list[str]:
    """Return names of specs that ship with the compiler, for the shell; paths are the shell's own."""
    from archdsl.frontend.load import spec_names

    return _beginning(incomplete, spec_names())


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
    SPEC(
        "--set",
        metavar="NAME=VALUE",
        help="Give a hyper-parameter another value (repeatable).",
        autocompletion=complete_setting,
    ),
]
NoncausalOption = Annotated[bool, SPEC("--allow-noncausal", help="Accept an LM head that later tokens can reach.")]
JsonOption = Annotated[bool, OUTPUT("--json", help="One JSON object on standard output.")]

FigureOption = Annotated[
    Path | None, FIGURE("--output", "-o", metavar="FILE", help="Draw it: .svg, .html, or .png (needs resvg-py).")
]
BarsOption = Annotated[
    Literal["params", "flops"], FIGURE("--bars", help="What the bars are shares of: FLOPs are of a forward pass.")
]
LightOption = Annotated[bool, FIGURE("--light", help="For a light page; else it follows the reader's mode.")]
DarkOption = Annotated[bool, FIGURE("--dark", help="For a dark page.")]


def theme_of(context: typer.Context, output: Path | None, light: bool, dark: bool) -> Literal["auto", "light", "dark"]:
    """Return the theme of a figure. Raises BadParameter for two of them, and for options of a figure without one."""
    if output is None:
        only_with(context, "-o", "bars", "light", "dark")
    if light and dark:
        raise typer.BadParameter("choose one", param_hint="'--light' / '--dark'")
    return "light" if light else "dark" if dark else "auto"


def settings_of(given: list[str] | None) -> dict[str, str]:
    return {name: value.strip() for name, value in by_name(given, "--set", "name=value").items()}


def by_name(given: list[str] | None, option: str, form: str) -> dict[str, str]:
    """Return the values of an option NAME=VALUE that is repeated. Raises BadParameter for what is not of that `form`,
    and for a name that is given twice: the last would count alone."""
    found: dict[str, str] = {}
    for item in given or ():
        name, _, value = item.partition("=")
        if not name.strip() or not value.strip():
            raise typer.BadParameter(f"write it as {form}, not {item!r}", param_hint=f"'{option}'")
        if found.setdefault(name.strip(), value) != value:
            raise typer.BadParameter(f"{name.strip()} is given twice", param_hint=f"'{option}'")
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


def is_given(context: typer.Context, name: str) -> bool:
    """Return whether an option stands on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def only_with(context: typer.Context, option: str, *names: str) -> None:
    """Refuse options that were given and say nothing without another one."""
    for name in names:
        if is_given(context, name):
            raise typer.BadParameter(f"it goes with {option}", param_hint=f"'--{name.strip('_').replace('_', '-')}'")


Dtype = Literal["float32", "bfloat16", "float16"]
Optimizer = Literal["sgd", "sgd-momentum", "adam", "adamw", "adamw8bit", "adafactor", "muon"]
Checkpoint = Literal["none", "selective", "full"]
Loss = Literal["chunked", "fused", "eager"]

LOSS = (
    "The cross-entropy: in chunks of positions, as `compile --with loss` and the examples do (where the model allows), "
    "one fused kernel, or F.cross_entropy(logits.float())."
)
CHECKPOINT = "Activation checkpointing: recompute nothing, attention (selective), or every layer (full)."

DtypeOption = Annotated[Dtype, WEIGHTS("--dtype", help="The type of weights and activations.")]
TargetOption = Annotated[
    Literal["portable", "ort-cpu", "ort-cuda"],
    ONNX("--target", help="Standard operators, or those of onnxruntime on CPU or CUDA too."),
]
QuantizeOption = Annotated[
    Literal["int8", "int4"] | None,
    ONNX("--quantize", help="Weight-only quantization of linear layers and embeddings: group size 32, asymmetric."),
]
KeepOption = Annotated[
    list[str] | None,
    ONNX("--keep", metavar="PATTERN", help="With --quantize: weights that are not quantized (repeatable)."),
]
WeightsOption = Annotated[
    Path | None, WEIGHTS("--weights", metavar="FILE.safetensors", help="Weights to load, strictly.")
]
SeedOption = Annotated[int, WEIGHTS("--seed", **bounds("seed"), help="Seed of random weights and inputs.")]
SeqOption = Annotated[int | None, RUN("--seq", **bounds("seq"), help="Sequence length; 128 or the context by default.")]
DeviceOption = Annotated[str, RUN("--device", metavar="cpu|cuda|cuda:N", help="Where the model runs.")]
NoDecodeOption = Annotated[bool, ONNX("--no-decode", help="Whole sequences alone: no prefill and decode steps.")]


def keep_needs_bits(keep: list[str] | None, quantize: str | None) -> None:
    if keep and quantize is None:
        raise typer.BadParameter("it goes with --quantize", param_hint="'--keep'")
