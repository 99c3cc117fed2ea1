"""Arguments and options that several commands take, and how they are read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from archdsl.ir.graph import Model


def complete(incomplete: str) -> list[str]:
    """Names of the zoo, for the shell; paths are the shell's own."""
    from archdsl.api import list_zoo

    return [e.name for e in list_zoo() if e.name.startswith(incomplete)]


def settings_of(given: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in given or ():
        key, equals, value = item.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise typer.BadParameter(f"write it as name=value, not {item!r}", param_hint="'--set'")
        found[key.strip()] = value.strip()
    return found


SpecArgument = Annotated[
    str,
    typer.Argument(
        metavar="SPEC", help="A path, path:model, or the name of a model of the zoo.", autocompletion=complete
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Give a hyper-parameter another value (repeatable)."),
]
NoncausalOption = Annotated[bool, typer.Option("--allow-noncausal", help="Accept a head that later tokens reach.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


def load_model(spec: str, set: list[str] | None, allow_noncausal: bool) -> Model:
    from archdsl.api import load

    return load(spec, set=settings_of(set), allow_noncausal=allow_noncausal)


def demand_other(output: str | Path | None, spec: str, weights: Path | None = None) -> None:
    """Refuse to write over what is read. Raises ArchError E0521."""
    from archdsl.api import find_spec
    from archdsl.diagnostics import error

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
Recompute = Literal["none", "selective", "full"]

DtypeOption = Annotated[Dtype, typer.Option("--dtype", help="The type of weights and activations.")]
TargetOption = Annotated[
    Literal["portable", "ort-cpu", "ort-cuda"],
    typer.Option("--target", help="ONNX: standard operators, or those of onnxruntime on the CPU or on CUDA too."),
]
QuantizeOption = Annotated[
    Literal["int8", "int4"] | None,
    typer.Option("--quantize", help="ONNX: matrices of linear maps in so few bits (blocks of 32, with zero points)."),
]
KeepOption = Annotated[
    list[str] | None,
    typer.Option("--keep", metavar="PATTERN", help="With --quantize: weights that stay as they are (repeatable)."),
]


WeightsOption = Annotated[
    Path | None, typer.Option("--weights", metavar="FILE.safetensors", help="Weights to load, strictly.")
]
SeedOption = Annotated[int, typer.Option("--seed", help="Draws the weights and the inputs.")]
TimeOption = Annotated[
    int | None, typer.Option("--time", min=1, help="How long they are; 128 or the context by default.")
]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1, …")]
NoDecodeOption = Annotated[
    bool, typer.Option("--no-decode", help="ONNX: whole sequences alone; no prompt and tokens after it, step by step.")
]


def keep_needs_bits(keep: list[str] | None, quantize: str | None) -> None:
    if keep and quantize is None:
        raise typer.BadParameter("it goes with --quantize", param_hint="'--keep'")
