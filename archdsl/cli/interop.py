"""Commands for other people's formats: import, weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from archdsl.cli.frame import FINE, WRONG_SPEC, command, print_or_json, say, show_diagnostics
from archdsl.cli.options import (
    OUTPUT,
    WEIGHTS,
    JsonOption,
    NoncausalOption,
    SetOption,
    SpecArgument,
    demand_other,
    load_model,
    only_with,
)
from archdsl.ranges import bounds

MapOption = Annotated[
    str | None, WEIGHTS("--map", metavar="NAME|FILE.checkpoint", help="The mapping; else by `model_type`.")
]


@command("import", "Hugging Face")
def import_(
    source: Annotated[Path, typer.Argument(metavar="FOLDER|config.json|FILE.gguf", help="A checkpoint.")],
    output: Annotated[Path, OUTPUT("--output", "-o", metavar="NAME.arch", help="Where to write the spec.")],
    map: MapOption = None,
    no_weights: Annotated[bool, WEIGHTS("--no-weights", help="The spec alone.")] = False,
    ignore: Annotated[
        list[str] | None,
        WEIGHTS(
            "--ignore",
            metavar="FIELD",
            help="A field of config.json that does not change what is computed (repeatable).",
        ),
    ] = None,
    lift: Annotated[
        bool, WEIGHTS("--lift", help="Make the spec of the class in transformers, and prove that it is one: any type.")
    ] = False,
    check: Annotated[bool, WEIGHTS("--check", help="Compare outputs with transformers'.")] = False,
    tolerance: Annotated[
        float | None,
        WEIGHTS(
            "--tolerance",
            **bounds("tolerance"),
            help="With --check: the largest relative difference that passes, 1e-4 by default.",
        ),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Write a checkpoint of Hugging Face, or a GGUF file, as a spec, and beside it its weights in the spec's names."""
    from archdsl.interop.convert import import_folder
    from archdsl.report.tables import drawing, import_view

    report = import_folder(
        source,
        output,
        mapping=map,
        weights=not no_weights,
        check=check,
        tolerance=tolerance,
        ignore=ignore or (),
        lift=lift,
        tell=say,
        progress=partial(drawing, what="writing"),
    )
    print_or_json(report, import_view, json)
    if (finding := report.disagreement()) is None:
        return FINE
    show_diagnostics([finding])
    return WRONG_SPEC


@command("weights", "Hugging Face")
def weights_(
    context: typer.Context,
    spec: SpecArgument,
    output: Annotated[Path, OUTPUT("--output", "-o", metavar="FILE|FOLDER", help="Where to write the weights.")],
    from_: Annotated[
        tuple[str, Path] | None, WEIGHTS("--from", metavar="hf FOLDER|FILE", help="A checkpoint to read.")
    ] = None,
    rename: Annotated[
        list[str] | None,
        WEIGHTS(
            "--rename",
            metavar="OLD=NEW",
            help="With --from: names that start with OLD start with NEW instead, before the mapping (repeatable).",
        ),
    ] = None,
    to: Annotated[str | None, WEIGHTS("--to", metavar="hf|gguf", help="The format to write.")] = None,
    weights: Annotated[Path | None, WEIGHTS("--weights", metavar="FILE.safetensors", help="With --to.")] = None,
    map: MapOption = None,
    init_missing: Annotated[
        bool, WEIGHTS("--init-missing", help="With --from: keep the weights that fit the spec, initialize the others.")
    ] = False,
    seed: Annotated[int, WEIGHTS("--seed", **bounds("seed"), help="With --init-missing: as for `init`.")] = 0,
    set: SetOption = None,
    allow_noncausal: NoncausalOption = False,
) -> None:
    """Write the weights of a checkpoint in the names of a spec (--from hf FOLDER), or a spec's in the names of a
    checkpoint (--to hf --weights FILE), or as a GGUF file of llama.cpp (--to gguf --weights FILE)."""
    from archdsl.api import export_checkpoint, import_weights
    from archdsl.report.tables import drawing

    if (from_ is None) is (to is None):
        raise typer.BadParameter("choose one", param_hint="'--from' / '--to'")
    kind = to if from_ is None else from_[0]
    if kind not in (("hf",) if to is None else ("hf", "gguf")):
        raise typer.BadParameter(f"the format is hf, not {kind!r}", param_hint="'--from' / '--to'")
    renames = [item.partition("=") for item in rename or ()]
    if renames and from_ is None:
        raise typer.BadParameter("it goes with --from", param_hint="'--rename'")
    if bad := [old + new for old, sign, new in renames if not sign]:
        raise typer.BadParameter(f"write it as OLD=NEW, not {bad[0]!r}", param_hint="'--rename'")
    if from_ is not None and weights is not None:
        raise typer.BadParameter("it goes with --to; --from names what is read", param_hint="'--weights'")
    if from_ is None:
        only_with(context, "--from", "init_missing")
    if not init_missing:
        only_with(context, "--init-missing", "seed")
    demand_other(output, spec, weights if from_ is None else from_[1])
    model = load_model(spec, set, allow_noncausal)
    with drawing(model, "writing") as progress:
        if from_ is not None:
            given: dict[str, str] = {}
            for old, _, new in renames:
                given.setdefault(old, new)  # the first prefix that fits is replaced
            lines = import_weights(
                model,
                from_[1],
                output,
                mapping=map,
                renames=given,
                init_missing=init_missing,
                seed=seed,
                progress=progress,
                remark=say,
            )
        elif weights is None:
            raise typer.BadParameter("needs --weights FILE.safetensors", param_hint="'--to'")
        else:
            form: Literal["hf", "gguf"] = "gguf" if to == "gguf" else "hf"
            count = export_checkpoint(model, output, weights, format=form, mapping=map, progress=progress, remark=say)
            lines = [f"{count:,} tensors: {output}"]
    for line in lines:
        say(line)
