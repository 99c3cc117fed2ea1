"""Commands that read specs: check, show, fmt, explain, list."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer

from archdsl.cli.frame import (
    FINE,
    FORMAT_VARIABLE,
    WRONG_SPEC,
    blame,
    color,
    command,
    print_or_json,
    say,
    show_diagnostics,
)
from archdsl.cli.options import (
    FIGURE,
    OUTPUT,
    BarsOption,
    DarkOption,
    FigureOption,
    JsonOption,
    LightOption,
    NoncausalOption,
    SetOption,
    SpecArgument,
    complete_spec,
    complete_topic,
    demand_other,
    load_model,
    only_with,
    settings_of,
    theme_of,
)
from archdsl.diagnostics import ArchError, Diagnostic
from archdsl.ranges import bounds


@command("check", "Specs")
def check(
    specs: Annotated[
        list[str],
        typer.Argument(
            metavar="SPEC…",
            help="Paths, path:model, names of zoo models, folders; - reads standard input.",
            autocompletion=complete_spec,
        ),
    ],
    format: Annotated[
        Literal["text", "concise", "json", "github"],
        OUTPUT("--format", envvar=FORMAT_VARIABLE, help="How to print what was found."),
    ] = "text",
    set: SetOption = None,
    allow_noncausal: NoncausalOption = False,
) -> int:
    """Check specs: syntax, names, shapes, constraints, causality. Without a model's name, every model of a file."""
    from archdsl import api
    from archdsl.diagnostics.render import render

    settings = settings_of(set)
    found: list[Diagnostic] = []
    status = FINE
    for name in _spec_files(specs):
        text = _standard_input() if name == "-" else None
        name = "<stdin>" if name == "-" else name
        said = api.check(name, text=text, set=settings, allow_noncausal=allow_noncausal)
        found += said
        status = max(status, blame(said))
        if format == "text" and not any(d.is_error for d in said):
            print(f"{name}: no errors" + (f", {len(said)} lint{'s' * (len(said) > 1)}" if said else ""))
    # A file that two specs import may say the same twice.
    found = list({(d.code, d.message, d.span): d for d in found}.values())
    sys.stdout.write(render(found, format, color(sys.stdout)))
    return status


@command("show", "Specs")
def show(
    context: typer.Context,
    spec: SpecArgument,
    ir: Annotated[bool, OUTPUT("--ir", help="Print the IR, every block once.")] = False,
    decode: Annotated[
        bool, OUTPUT("--decode", help="With --ir: a step of decoding, and what it keeps of the tokens before.")
    ] = False,
    expand: Annotated[bool, OUTPUT("--expand", help="Print declared bodies as the equations they stand for.")] = False,
    block: Annotated[
        str | None, OUTPUT("--block", metavar="NAME", help="With --expand, --diagram or -o: only this block.")
    ] = None,
    diagram: Annotated[
        bool, OUTPUT("--diagram", help="Print a block diagram, a Mermaid flowchart that Markdown pages show.")
    ] = False,
    source: Annotated[
        bool, OUTPUT("--source", help="Print the spec as it is written: of the zoo, to begin one's own with.")
    ] = False,
    output: FigureOption = None,
    depth: Annotated[
        int, FIGURE("--depth", **bounds("depth"), help="How many blocks within each other are opened, at most.")
    ] = 3,
    bars: BarsOption = "params",
    light: LightOption = False,
    dark: DarkOption = False,
    json: JsonOption = False,
    set: SetOption = None,
    allow_noncausal: NoncausalOption = False,
) -> None:
    """Show a model: a tree with shapes and counts, a figure, the IR, a Mermaid diagram, declared bodies as equations,
    or the spec itself."""
    drawn = output is not None
    if ir + expand + diagram + source + json + drawn > 1:
        one = " / ".join([*(f"'--{name}'" for name in ("ir", "expand", "diagram", "source", "json")), "'-o'"])
        raise typer.BadParameter("choose one", param_hint=one)
    if block is not None and not (expand or diagram or drawn):
        raise typer.BadParameter("it goes with --expand, --diagram or -o", param_hint="'--block'")
    if decode and not ir:
        raise typer.BadParameter("it goes with --ir", param_hint="'--decode'")
    theme = theme_of(context, output, light, dark)
    if output is None:
        only_with(context, "-o", "depth")
    else:
        from archdsl.api import draw

        demand_other(output, spec)
        draw(
            spec,
            output,
            block=block,
            depth=depth,
            bars=bars,
            theme=theme,
            set=settings_of(set),
            allow_noncausal=allow_noncausal,
        )
        return
    if expand:
        from archdsl.api import expand as expanded

        sys.stdout.write(expanded(spec, set=settings_of(set), block=block))
        return
    if ir or diagram or source:
        from archdsl.api import show as shown

        form: Literal["ir", "diagram", "source"] = "ir" if ir else "diagram" if diagram else "source"
        settings = settings_of(set)
        found = shown(spec, form, block=block, decode=decode, set=settings, allow_noncausal=allow_noncausal)
        sys.stdout.write(found)
        return
    model = load_model(spec, set, allow_noncausal)
    from archdsl.dependence.causality import assumed
    from archdsl.report.tables import assumed_view, tree_view
    from archdsl.report.tree import tree

    print_or_json(tree(model), lambda found: [tree_view(found), *assumed_view(assumed(model))], json)


@command("fmt", "Specs")
def fmt(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE…", help="Files or folders; - reads standard input and writes to standard output."),
    ],
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit with 1 where something would change.")
    ] = False,
) -> int:
    """Bring specs into their canonical form."""
    from archdsl.api import format_text
    from archdsl.files import write_text
    from archdsl.frontend.load import find_spec

    status = FINE
    for name in _spec_files(files):
        try:
            piped = name == "-"
            was = _standard_input() if piped else find_spec(Path(name)).source.text
            name = "<stdin>" if piped else name
            text = format_text(name, text=was)
        except ArchError as problem:
            show_diagnostics(problem.diagnostics)
            status = max(status, blame(problem.diagnostics))
            continue
        if piped and not check:
            sys.stdout.write(text)
        elif text != was:
            if check:
                status = max(status, WRONG_SPEC)
            else:
                write_text(Path(name), text)
            print(f"{'would format' if check else 'formatted'} {name}")
    return status


def _standard_input() -> str:
    """The text on standard input; of one that does not end, more than a spec may have."""
    from archdsl.syntax.limits import MAX_FILE_BYTES

    return sys.stdin.read(MAX_FILE_BYTES + 1)


def _spec_files(names: Iterable[str]) -> Iterator[str]:
    """The names, and for a folder every spec below it, hidden folders left out."""
    for name in names:
        folder = Path(name)
        if name == "-" or name in _families() or not _is_folder(folder):
            yield name
            continue
        found = sorted(folder.rglob("*.arch"))
        shown = [p for p in found if not any(part.startswith(".") for part in p.relative_to(folder).parts)]
        if not shown:
            raise typer.BadParameter(f"no file .arch lies below {name}")
        yield from map(str, shown)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


@command("explain", "Specs")
def explain(
    topic: Annotated[
        str, typer.Argument(metavar="CODE|OP|BLOCK", help="E0301, sdpa, mha, …", autocompletion=complete_topic)
    ],
) -> None:
    """Explain an error, a primitive or a block of the standard library."""
    from archdsl.report.reference import explain as page

    text = page(topic)
    if not color(sys.stdout):
        sys.stdout.write(text)
        return
    from rich.markdown import Markdown

    from archdsl.report.tables import print_report

    print_report(Markdown(text))


@command("list", "Specs")
def list_(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="WORD", help="Only models that match each word: in a name, an author, a remark."),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            metavar="KIND",
            help="decoder, encoder, encoder-decoder, recurrent, convolutional, vision or layer (repeatable).",
        ),
    ] = None,
    family: Annotated[
        list[str] | None, typer.Option("--family", metavar="FILE", help="Models of this file (repeatable).")
    ] = None,
    year: Annotated[
        str | None, typer.Option("--year", metavar="YEAR", help="2017, 2017..2020, 2017.. or ..2020.")
    ] = None,
    json: JsonOption = False,
) -> int:
    """List the zoo, the models that ship with the compiler: year, kind, exact parameters and what is special.

    A word also finds the specs that checkpoints of Hugging Face are imported after: `hf/qwen3`."""
    from archdsl import zoo

    kinds = _known("--kind", kind, zoo.KINDS)
    files = _known("--family", [f.removesuffix(".arch") for f in family or ()], _families())
    years = _years(year)
    from archdsl.report.tables import counting, zoo_view

    said = " ".join(words or ()).split()
    with counting("counting models") as told:
        every = zoo.families(zoo.worded(said, files) if said or files else None, told=told)
        if said or any("/" in f for f in files):
            every += zoo.imported(said, files, told)
    found = zoo.chosen(every, text=" ".join(said), kinds=kinds, families=files, years=years)
    print_or_json(zoo.ZooReport(families=found), lambda report: zoo_view(report.families), json)
    if not found:
        asked = [*(words or ()), *kinds, *files, *([year] if year else [])]
        say(f"no zoo model matches {' '.join(map(repr, asked))}")
    return WRONG_SPEC if not found or any(f.problems for f in found) else FINE


def _families() -> list[str]:
    from archdsl.resources import imported_files, zoo_files

    return [*zoo_files(), *imported_files()]


def _known(option: str, given: list[str] | None, names: Iterable[str]) -> list[str]:
    """What an option was given, each of it one of the names there are."""
    from archdsl.diagnostics import did_you_mean

    for name in given or ():
        if name not in (known := list(names)):
            help_ = did_you_mean(name, known) or f"there are {', '.join(known)}"
            raise typer.BadParameter(f"there is no {name!r}; {help_}", param_hint=f"'{option}'")
    return given or []


def _years(text: str | None) -> tuple[int | None, int | None]:
    """The first and the last year: `2017`, `2017..2020`, `2017..`, `..2020`."""
    if text is None:
        return None, None
    first, dots, last = text.partition("..")
    if not all(y.isdecimal() or (dots and not y) for y in (first, last or first)) or not (first or last):
        raise typer.BadParameter(f"write it as 2017 or 2017..2020, not {text!r}", param_hint="'--year'")
    start = int(first) if first else None
    return start, (int(last) if last else None) if dots else start


@command("schema", "Specs")
def schema(
    name: Annotated[
        str | None, typer.Argument(metavar="COMMAND", help="estimate, sweep, fit, …; the list of them where none is.")
    ] = None,
) -> None:
    """The JSON Schema of what a command prints with --json (`check`: with --format json)."""
    from archdsl.report.schemas import REPORTS
    from archdsl.report.schemas import schema as described

    if name is None:
        print("\n".join(REPORTS))
        return
    _known("COMMAND", [name], REPORTS)
    import json

    print(json.dumps(described(name), indent=2, ensure_ascii=False))
