"""Commands about several models: diff, compare."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from archdsl.cli.frame import FINE, WRONG_SPEC, command, print_or_json
from archdsl.cli.options import (
    OUTPUT,
    RUN,
    SPEC,
    BarsOption,
    DarkOption,
    FigureOption,
    JsonOption,
    LightOption,
    NoncausalOption,
    complete_spec,
    demand_other,
    load_model,
    theme_of,
)
from archdsl.ranges import bounds

BeforeOption = Annotated[
    list[str] | None,
    SPEC("--set-before", metavar="NAME=VALUE", help="Give a hyper-parameter of the first another value (repeatable)."),
]
AfterOption = Annotated[
    list[str] | None,
    SPEC("--set-after", metavar="NAME=VALUE", help="The same of the second (repeatable)."),
]


@command("compare", "Estimates")
def compare(
    specs: Annotated[
        list[str],
        typer.Argument(
            metavar="SPEC…",
            help="Two to eight models: paths, path:model, names of zoo models.",
            autocompletion=complete_spec,
        ),
    ],
    seq: Annotated[
        int | None,
        RUN("--seq", **bounds("seq"), help="Sequence length of FLOPs (2,048, or the smallest context)."),
    ] = None,
    markdown: Annotated[bool, OUTPUT("--markdown", help="A table for a Markdown page.")] = False,
    csv: Annotated[bool, OUTPUT("--csv", help="A row of exact numbers for each model.")] = False,
    json: JsonOption = False,
    allow_noncausal: NoncausalOption = False,
) -> None:
    """A table of models: sizes, attention, positions, experts, parameters, FLOPs, KV cache, memory of training."""
    from archdsl.api import compare as compared
    from archdsl.report.compare import FEWEST
    from archdsl.report.compare import MOST as MOST_MODELS
    from archdsl.report.tables import compare_csv, compare_markdown, compare_view, counting

    if markdown + csv + json > 1:
        raise typer.BadParameter("choose one", param_hint="'--markdown' / '--csv' / '--json'")
    if not FEWEST <= len(specs) <= MOST_MODELS:
        raise typer.BadParameter(f"it takes {FEWEST} to {MOST_MODELS} models, not {len(specs)}", param_hint="'SPEC…'")
    with counting("counting") as progress:
        report = compared(*specs, seq=seq, allow_noncausal=allow_noncausal, progress=progress)
    if markdown or csv:
        sys.stdout.write((compare_markdown if markdown else compare_csv)(report))
    else:
        print_or_json(report, compare_view, json)


@command("diff", "Specs")
def diff(
    context: typer.Context,
    before: Annotated[
        str,
        typer.Argument(
            metavar="BEFORE", help="A path, path:model, or the name of a zoo model.", autocompletion=complete_spec
        ),
    ],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="The other one.", autocompletion=complete_spec)],
    all: Annotated[
        bool, SPEC("--all", help="Every model that the two files declare, by name, not only the first of each.")
    ] = False,
    set_before: BeforeOption = None,
    set_after: AfterOption = None,
    seq: Annotated[
        int | None, RUN("--seq", **bounds("seq"), help="Sequence length (2,048, or the smaller context).")
    ] = None,
    output: FigureOption = None,
    bars: BarsOption = "params",
    light: LightOption = False,
    dark: DarkOption = False,
    exit_code: Annotated[bool, OUTPUT("--exit-code", help="Exit with 1 where the models differ.")] = False,
    json: JsonOption = False,
    allow_noncausal: NoncausalOption = False,
) -> int:
    """Compare two models part by part: settings, what was added, removed, changed or renamed, sizes and costs."""
    from archdsl.api import diff as compared
    from archdsl.report.diff import DiffReport, FilesDiffReport
    from archdsl.report.tables import diff_view, files_diff_view

    theme = theme_of(context, output, light, dark)

    def of(one: str, other: str) -> DiffReport:
        pairs = ((one, set_before), (other, set_after))
        return compared(*(load_model(spec, given, allow_noncausal) for spec, given in pairs), seq=seq)

    if output is not None:
        from archdsl.api import draw

        if all:
            raise typer.BadParameter("one pair of models is drawn", param_hint="'--all' / '-o'")
        demand_other(output, before)
        demand_other(output, after)
        one, other = (load_model(*of, allow_noncausal) for of in ((before, set_before), (after, set_after)))
        draw(one, output, against=other, bars=bars, theme=theme, allow_noncausal=allow_noncausal)
    if not all:
        report = of(before, after)
        print_or_json(report, diff_view, json)
        return WRONG_SPEC if exit_code and not report.same else FINE
    names = [_declared(spec) for spec in (before, after)]
    both = [name for name in names[1] if name in names[0]]
    files = FilesDiffReport(
        removed=[n for n in names[0] if n not in both],
        added=[n for n in names[1] if n not in both],
        models=[of(f"{before}:{name}", f"{after}:{name}") for name in both],
    )
    print_or_json(files, files_diff_view, json)
    return WRONG_SPEC if exit_code and not files.same else FINE


def _declared(spec: str) -> list[str]:
    """The models that a file declares; of the null device, which git compares new files with, none."""
    from archdsl.frontend.load import find_spec, module_of
    from archdsl.frontend.modules import models

    if spec == os.devnull:
        return []
    found = find_spec(spec)
    if found.model is not None:
        raise typer.BadParameter(f"it takes files, and {spec} is a model", param_hint="'--all'")
    return [*models(module_of(found))]
