"""The command for modules of PyTorch: lift."""

from __future__ import annotations

from json import loads
from pathlib import Path
from typing import Annotated, Any

import typer

from archdsl.cli.frame import FINE, WRONG_SPEC, command, print_or_json, say, show_diagnostics
from archdsl.cli.options import OUTPUT, WEIGHTS, JsonOption, by_name

MODULE = "Module"


@command("lift", "Hugging Face")
def lift_(
    module: Annotated[
        str, typer.Argument(metavar="FILE.py:NAME|transformers:CLASS", help="A class, or a function that returns one.")
    ],
    output: Annotated[Path, OUTPUT("--output", "-o", metavar="NAME.arch", help="Where to write the spec.")],
    args: Annotated[
        str,
        typer.Option(
            "--args",
            metavar="JSON",
            help="Arguments by keyword: a dict is a configuration of the class that is annotated.",
            rich_help_panel=MODULE,
        ),
    ] = "{}",
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="config.json", help="Of a class of transformers.", rich_help_panel=MODULE),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            metavar="NAME=VALUES",
            help="Other values of a field, one for each other configuration: n_layer=4,6 (repeatable). By default some "
            "are found.",
            rich_help_panel=MODULE,
        ),
    ] = None,
    input: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="NAME=KIND[AXES]",
            help="An input of forward: idx=token[batch,time], x=float[batch,time,64] (repeatable).",
            rich_help_panel=MODULE,
        ),
    ] = None,
    axes: Annotated[
        list[str] | None,
        typer.Option(
            "--axes",
            metavar="NAME=AXES",
            help="Which axes of an input are open: x=batch,time,_ (repeatable).",
            rich_help_panel=MODULE,
        ),
    ] = None,
    declare: Annotated[
        list[str] | None,
        typer.Option(
            "--declare",
            metavar="CLASS=FILE.arch",
            help="A block that stands for modules of a class that cannot be traced (repeatable).",
            rich_help_panel=MODULE,
        ),
    ] = None,
    fold: Annotated[
        bool,
        typer.Option(
            "--fold",
            help="Blocks whose equations are the library's become slots: gqa, swiglu, a pre-norm layer.",
            rich_help_panel=MODULE,
        ),
    ] = False,
    weights: Annotated[
        Path | None, WEIGHTS("--weights", metavar="FILE", help="A state dict of the module: .safetensors or .pt.")
    ] = None,
    own_weights: Annotated[
        bool, WEIGHTS("--own-weights", help="Write the weights that the module is built with.")
    ] = False,
    json: JsonOption = False,
) -> int:
    """Write a module of PyTorch as a spec, beside it the table of its weights, and with --weights these in the spec's
    names. This runs the code of the module: lift only what you would run."""
    from archdsl.api import lift
    from archdsl.report.tables import lift_view

    if weights is not None and own_weights:
        raise typer.BadParameter("choose one", param_hint="'--weights' / '--own-weights'")
    report = lift(
        module,
        args=_object(args),
        config=config,
        inputs=input or (),
        axes={name: text.split(",") for name, text in by_name(axes, "--axes", "name=axes").items()},
        vary={name: _numbers(text) for name, text in by_name(vary, "--vary", "name=values").items()},
        declare=declare or (),
        fold=fold,
        output=output,
        weights=weights,
        own_weights=own_weights,
        progress=say,
    )
    print_or_json(report, lift_view, json)
    if (finding := report.disagreement()) is None:
        return FINE
    show_diagnostics([finding])
    return WRONG_SPEC


def _object(text: str) -> dict[str, Any]:
    """Read arguments. Raises BadParameter for what is no object of JSON."""
    try:
        value = loads(text)
    except (ValueError, RecursionError) as problem:
        said = "nested too deeply" if isinstance(problem, RecursionError) else str(problem)
        raise typer.BadParameter(f"it is no JSON: {said}", param_hint="'--args'") from None
    if not isinstance(value, dict):
        raise typer.BadParameter('it is an object of JSON: {"name": value}', param_hint="'--args'")
    return value


def _numbers(text: str) -> list[int | float]:
    """Read the values of a field. Raises BadParameter for what is no list of numbers."""
    try:
        return [int(word) if word.strip().lstrip("-").isdecimal() else float(word) for word in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"it takes numbers, not {text!r}", param_hint="'--vary'") from None
