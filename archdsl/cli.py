"""The commands. Each reads its arguments, asks `archdsl.api`, and prints; what it prints for people is in
`archdsl.views`.

Exit status: 0 fine · 1 the spec is wrong, or `verify` found a difference · 2 the command line is · 70 an error in the
compiler itself · 130 interrupted."""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn, ParamSpec

import typer

from archdsl.diagnostics import ArchError, Diagnostic

if TYPE_CHECKING:
    from archdsl.ir.graph import Model

P = ParamSpec("P")

FINE, WRONG_SPEC, WRONG_CALL, INTERNAL, INTERRUPTED, NO_READER = 0, 1, 2, 70, 130, 141
RARELY = 100_000
"""New objects between two searches for cycles: a graph is many objects that all live to the end of the command."""

app = typer.Typer(
    help="Check, count, compile and run sequence-model architectures written in .arch files.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


# --- the frame around every command -----------------------------------------------------------------------------------


def main() -> NoReturn:
    """Run the command line of this process."""
    gc.set_threshold(RARELY)
    try:
        app(prog_name="archdsl")
    except KeyboardInterrupt:
        _say("interrupted")
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        _silence()
        raise SystemExit(NO_READER) from None
    raise SystemExit(FINE)


def command(name: str) -> Callable[[Callable[P, int | None]], Callable[P, None]]:
    """Register a command. Whatever goes wrong in it ends in a diagnostic or in one line, and in an exit status."""

    def register(function: Callable[P, int | None]) -> Callable[P, None]:
        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
            raise typer.Exit(_status(lambda: function(*args, **kwargs)))

        return app.command(name)(guarded)

    return register


def _status(work: Callable[[], int | None]) -> int:
    try:
        status = work() or FINE
        sys.stdout.flush()
        return status
    except ArchError as problem:
        _show(problem.diagnostics)
        return _blame(problem.diagnostics)
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        _silence()
        return NO_READER
    except typer.Exit as done:
        return done.exit_code
    except OSError as problem:
        if _debug():
            raise
        about = f"{problem.filename}: " if problem.filename else ""
        _say(f"error: {about}{problem.strerror or problem}")
        _silence()
        return WRONG_CALL
    except Exception as problem:
        if _debug() or isinstance(problem, _usage_errors()):
            raise
        _say(f"internal error: {type(problem).__name__}: {_one_line(problem)}")
        _say("please report it with the spec; ARCHDSL_DEBUG=1 shows where it happened")
        return INTERNAL


def _usage_errors() -> tuple[type[BaseException], ...]:
    """What typer itself reports, with exit status 2."""
    return tuple(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def _one_line(problem: BaseException) -> str:
    return " ".join(str(problem).split())[:300]


def _say(line: str) -> None:
    print(f"archdsl: {line}", file=sys.stderr)


def _silence() -> None:
    """Nobody reads standard output any more, or it cannot be written: what is left in its buffer must not be tried
    again."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _debug() -> bool:
    return os.environ.get("ARCHDSL_DEBUG", "") not in ("", "0")


def _color(stream: object) -> bool:
    isatty = getattr(stream, "isatty", None)
    return bool(isatty and isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _show(diagnostics: Iterable[Diagnostic]) -> None:
    from archdsl.render import render_text

    sys.stdout.flush()
    sys.stderr.write(render_text(diagnostics, _color(sys.stderr)))


def _blame(diagnostics: Iterable[Diagnostic]) -> int:
    """Whether the spec is wrong or the command line: a file that is not there, a model that no file has, a `--set` that
    says nothing."""
    for d in diagnostics:
        if d.span is None and d.code in (
            "E0108",
            "E0210",
            "E0206",
            "E0501",
            "E0502",
            "E0503",
            "E0504",
            "E0505",
            "E0506",
            "E0507",
        ):
            return WRONG_CALL
        if d.span is not None and d.span.source.name == "--set":
            return WRONG_CALL
    return WRONG_SPEC if any(d.is_error for d in diagnostics) else FINE


# --- arguments --------------------------------------------------------------------------------------------------------


def _complete(incomplete: str) -> list[str]:
    """Names of the zoo, for the shell; paths are the shell's own."""
    from archdsl.api import list_zoo

    return [e.name for e in list_zoo() if e.name.startswith(incomplete)]


def _settings(given: list[str] | None) -> dict[str, str]:
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
        metavar="SPEC", help="A path, path:model, or the name of a model of the zoo.", autocompletion=_complete
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Give a hyper-parameter another value (repeatable)."),
]
NoncausalOption = Annotated[bool, typer.Option("--allow-noncausal", help="Accept a head that later tokens reach.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


def _load(spec: str, set: list[str] | None, allow_noncausal: bool) -> Model:
    from archdsl.api import load

    return load(spec, set=_settings(set), allow_noncausal=allow_noncausal)


def _print_json(text: str) -> None:
    sys.stdout.write(text + "\n")


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an internal error happened.")] = False,
) -> None:
    if debug:
        os.environ["ARCHDSL_DEBUG"] = "1"
    if version:
        from archdsl import __version__

        print(f"archdsl {__version__}")
        raise typer.Exit


# --- the front half ---------------------------------------------------------------------------------------------------


@command("check")
def check(
    specs: Annotated[
        list[str],
        typer.Argument(metavar="SPEC…", help="Paths, path:model, or names of the zoo.", autocompletion=_complete),
    ],
    format: Annotated[
        Literal["text", "concise", "json", "github"], typer.Option("--format", help="How to print what was found.")
    ] = "text",
    set: SetOption = None,
    allow_noncausal: NoncausalOption = False,
) -> int:
    """Check specs: syntax, names, shapes, constraints, causality. Without a model's name, every model of a file."""
    from archdsl import api, render

    settings = _settings(set)
    found: list[Diagnostic] = []
    status = FINE
    for name in specs:
        said = api.check(name, set=settings, allow_noncausal=allow_noncausal)
        found += said
        status = max(status, _blame(said))
        if format == "text" and not any(d.is_error for d in said):
            print(f"{name}: no errors" + (f", {len(said)} lint{'s' * (len(said) > 1)}" if said else ""))
    # A file that two specs import may say the same twice.
    found = list({(d.code, d.message, d.span): d for d in found}.values())
    if format == "json":
        sys.stdout.write(render.render_json(found))
    elif format == "text":
        sys.stdout.write(render.render_text(found, _color(sys.stdout)))
    else:
        sys.stdout.write(render.render_concise(found) if format == "concise" else render.render_github(found))
    return status


@command("estimate")
def estimate(
    spec: SpecArgument,
    batch: Annotated[int | None, typer.Option("--batch", min=1, help="FLOPs for so many sequences (1).")] = None,
    seq: Annotated[
        int | None, typer.Option("--seq", min=1, help="FLOPs for sequences of that length (2,048 or the context).")
    ] = None,
    flops: Annotated[
        Literal["exact", "dense", "megatron", "palm", "kaplan", "all"] | None,
        typer.Option("--flops", help="The convention by which FLOPs are told; all of them side by side."),
    ] = None,
    tokens_per_second: Annotated[
        float | None, typer.Option("--tokens-per-second", min=1e-9, help="With --peak: how much of it is used.")
    ] = None,
    peak: Annotated[
        float | None, typer.Option("--peak", min=1.0, help="FLOP/s of all devices together: 989e12.")
    ] = None,
    recompute: Annotated[
        Literal["none", "selective", "full"],
        typer.Option("--recompute", help="What the backward computes again: nothing, attention's core, every layer."),
    ] = "none",
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        typer.Option("--dtype", help="Memory with weights and activations of that type (float32)."),
    ] = None,
    optimizer: Annotated[
        Literal["sgd", "sgd-momentum", "adam", "adamw", "adamw8bit", "adafactor", "muon"] | None,
        typer.Option("--optimizer", help="Memory with the states of that optimizer (adamw)."),
    ] = None,
    master_weights: Annotated[
        bool, typer.Option("--master-weights", help="Memory with a float32 copy of weights that are of another type.")
    ] = False,
    json: JsonOption = False,
    set: SetOption = None,
    allow_noncausal: NoncausalOption = False,
) -> None:
    """Count parameters exactly (total, without embeddings, active for each token, by block), FLOPs, and bytes of
    memory."""
    from archdsl.views import flops_view, memory_view, params_view, print_report

    if (tokens_per_second is None) != (peak is None):
        raise typer.BadParameter("they go together", param_hint="'--tokens-per-second' / '--peak'")
    model = _load(spec, set, allow_noncausal)
    memory = dtype is not None or optimizer is not None or master_weights
    told = any((batch, seq, flops, peak, recompute != "none"))
    if not json and not memory and not told:
        from archdsl.analyses.params import estimate as count

        print_report(*params_view(count(model)))
        return
    from archdsl.analyses.flops import estimate as count_all
    from archdsl.analyses.memory import with_memory

    counted = count_all(
        model,
        batch=batch or 1,
        seq=seq,
        convention="exact" if flops is None or flops == "all" else flops,
        tokens_per_second=tokens_per_second,
        peak=peak,
        recompute=recompute,
    )
    report = with_memory(
        counted, model, dtype=dtype or "float32", optimizer=optimizer or "adamw", master_weights=master_weights
    )
    if json:
        _print_json(report.model_dump_json(indent=2))
        return
    parts = [*params_view(report, blocks=False)]
    if told:
        parts += ["", *flops_view(report, side_by_side=flops == "all")]
    if memory:
        parts += ["", *memory_view(report)]
    print_report(*parts)


@command("sweep")
def sweep(
    spec: SpecArgument,
    set: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="NAME=VALUES",
            help="6,12,24 or 512..4096:512 or 512..4096*2 (repeatable): all combinations are counted.",
        ),
    ],
    seq: Annotated[
        int | None, typer.Option("--seq", min=1, help="FLOPs for sequences of that length (2,048 or the context).")
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Rows of exact numbers on standard output.")] = False,
    json: JsonOption = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw it too: .svg, .png or .html (needs matplotlib).")
    ] = None,
    y: Annotated[
        Literal["parameters", "non_embedding", "active", "ratio", "forward_per_token", "training_per_token"],
        typer.Option("--y", help="With --plot: what is drawn."),
    ] = "parameters",
    allow_noncausal: NoncausalOption = False,
) -> int:
    """Count a spec at many settings: parameters and FLOPs for each token; impossible settings are rows that say why."""
    from archdsl.plots import demand_plots, plot_sweep
    from archdsl.sweep import sweep as count_all
    from archdsl.views import counting, print_report, sweep_csv, sweep_view

    if csv and json:
        raise typer.BadParameter("choose one", param_hint="'--csv' / '--json'")
    if plot is not None:
        demand_plots(plot)
    elif y != "parameters":
        raise typer.BadParameter("it goes with --plot", param_hint="'--y'")
    with counting("counting") as progress:
        report = count_all(spec, set=_settings(set), seq=seq, allow_noncausal=allow_noncausal, progress=progress)
    if json:
        _print_json(report.model_dump_json(indent=2))
    elif csv:
        sys.stdout.write(sweep_csv(report))
    else:
        print_report(*sweep_view(report))
    if plot is not None:
        plot_sweep(report, plot, y)
    return FINE if any(row.parameters is not None for row in report.rows) else WRONG_SPEC


@command("fit")
def fit(
    spec: SpecArgument,
    vary: Annotated[
        str, typer.Option("--vary", metavar="NAME,NAME", help="One or two hyper-parameters that are whole numbers.")
    ],
    params: Annotated[
        str | None, typer.Option("--params", metavar="N", help="At most so many parameters: 1.3B, 350M.")
    ] = None,
    active: Annotated[
        str | None, typer.Option("--active", metavar="N", help="At most so many active for each token.")
    ] = None,
    multiple: Annotated[
        list[str] | None,
        typer.Option(
            "--multiple",
            metavar="NAME=N",
            help="What a size is a multiple of: width=128 (the default), … (repeatable).",
        ),
    ] = None,
    aspect: Annotated[
        str | None,
        typer.Option("--aspect", metavar="LOW..HIGH", help="Width / layers; half to twice the spec's by default."),
    ] = None,
    slack: Annotated[
        float,
        typer.Option(
            "--slack", min=0.0, max=0.5, help="So much less than the largest may be taken for a better aspect."
        ),
    ] = 0.01,
    json: JsonOption = False,
    set: SetOption = None,
    allow_noncausal: NoncausalOption = False,
) -> None:
    """The largest model within a budget: sizes are varied in multiples that run fast, and head_dim is kept."""
    from archdsl.fit import fit as largest
    from archdsl.views import counting, fit_view, print_report

    if params is None and active is None:
        raise typer.BadParameter("give one of them, or both", param_hint="'--params' / '--active'")
    multiples = {}
    for item in multiple or ():
        name, _, number = item.partition("=")
        if not name.strip() or not number.strip().isdecimal() or int(number) < 1:
            raise typer.BadParameter(f"write it as name=128, not {item!r}", param_hint="'--multiple'")
        multiples[name.strip()] = int(number)
    with counting("fitting") as progress:
        report = largest(
            spec,
            vary=[name.strip() for name in vary.split(",") if name.strip()],
            params=None if params is None else int(_amount(params, "--params")),
            active=None if active is None else int(_amount(active, "--active")),
            multiple=multiples,
            aspect=_between(aspect),
            slack=slack,
            set=_settings(set),
            allow_noncausal=allow_noncausal,
            progress=progress,
        )
    if json:
        _print_json(report.model_dump_json(indent=2))
    else:
        print_report(*fit_view(report))


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


@command("scaling")
def scaling(
    flops: Annotated[str | None, typer.Option("--flops", metavar="N", help="Training compute: 5.76e23.")] = None,
    params: Annotated[str | None, typer.Option("--params", metavar="N", help="Parameters: 70B.")] = None,
    tokens: Annotated[str | None, typer.Option("--tokens", metavar="N", help="Training tokens: 1.4T.")] = None,
    json: JsonOption = False,
) -> None:
    """Scaling laws: the best parameters and tokens for a budget, and the loss to expect; of two numbers, that run."""
    from archdsl.analyses.scaling import report as ask
    from archdsl.views import print_report, scaling_view

    told = {"--flops": flops, "--params": params, "--tokens": tokens}
    given = {option[2:]: float(_amount(text, option)) for option, text in told.items() if text is not None}
    if not 1 <= len(given) <= 2:
        hint = "'--flops' / '--params' / '--tokens'"
        raise typer.BadParameter("give one of them, or two; the third follows", param_hint=hint)
    found = ask(**given)
    if json:
        _print_json(found.model_dump_json(indent=2))
    else:
        print_report(*scaling_view(found))


@command("hardware")
def hardware(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="DEVICE", help="Names of devices, or files .json of your own; all that are known."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List accelerators: memory, bandwidth, dense peaks by type, links, watts, and where the figures are from."""
    from archdsl.hardware import chosen
    from archdsl.views import hardware_view, print_report

    report = chosen(names or ())
    if json:
        _print_json(report.model_dump_json(indent=2))
    else:
        print_report(*hardware_view(report))


@command("show")
def show(
    spec: SpecArgument,
    ir: Annotated[bool, typer.Option("--ir", help="Print the IR, every block once.")] = False,
    expand: Annotated[
        bool, typer.Option("--expand", help="Print declared bodies as the equations they stand for.")
    ] = False,
    block: Annotated[
        str | None, typer.Option("--block", metavar="NAME", help="With --expand or --diagram: only this block.")
    ] = None,
    diagram: Annotated[
        bool, typer.Option("--diagram", help="Print a block diagram, a Mermaid flowchart that Markdown pages show.")
    ] = False,
    json: JsonOption = False,
    set: SetOption = None,
    allow_noncausal: NoncausalOption = False,
) -> None:
    """Show a model: a tree with shapes and counts, the IR, a block diagram, or declared bodies as equations."""
    if ir + expand + diagram + json > 1:
        raise typer.BadParameter("choose one", param_hint="'--ir' / '--expand' / '--diagram' / '--json'")
    if block is not None and not (expand or diagram):
        raise typer.BadParameter("it goes with --expand or --diagram", param_hint="'--block'")
    if expand:
        from archdsl.api import expand as expanded

        sys.stdout.write(expanded(spec, set=_settings(set), block=block))
        return
    model = _load(spec, set, allow_noncausal)
    if ir:
        from archdsl.ir.text import print_model

        sys.stdout.write(print_model(model))
        return
    if diagram:
        from archdsl.analyses.diagram import block_of
        from archdsl.analyses.diagram import diagram as drawing
        from archdsl.lower.mermaid import mermaid

        sys.stdout.write(mermaid(drawing(model if block is None else block_of(model, block))))
        return
    from archdsl.analyses.tree import tree

    if json:
        _print_json(tree(model).model_dump_json(indent=2))
        return
    from archdsl.views import print_report, tree_view

    print_report(tree_view(tree(model)))


@command("fmt")
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
    from archdsl.syntax.parse import read_source

    status = FINE
    for name in _spec_files(files):
        try:
            if name == "-":
                from archdsl.source import Source

                source = Source("<stdin>", sys.stdin.read())
            else:
                source = read_source(name, name)
            text = format_text(source)
        except ArchError as problem:
            _show(problem.diagnostics)
            status = max(status, _blame(problem.diagnostics))
            continue
        if name == "-" and not check:
            sys.stdout.write(text)
        elif text != source.text:
            if check:
                status = max(status, WRONG_SPEC)
            else:
                write_text(Path(name), text)
            print(f"{'would format' if check else 'formatted'} {name}")
    return status


def _spec_files(names: Iterable[str]) -> Iterable[str]:
    for name in names:
        if name != "-" and Path(name).is_dir():
            yield from (str(p) for p in sorted(Path(name).rglob("*.arch")))
        else:
            yield name


@command("explain")
def explain(topic: Annotated[str, typer.Argument(metavar="CODE|OP|BLOCK", help="E0301, sdpa, mha, …")]) -> None:
    """Explain an error, a primitive or a block of the standard library."""
    from archdsl.reference import explain as page

    text = page(topic)
    if not _color(sys.stdout):
        sys.stdout.write(text)
        return
    from rich.markdown import Markdown

    from archdsl.views import print_report

    print_report(Markdown(text))


@command("list")
def list_(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="WORD", help="Only models of which each word is said: in a name, an author, a remark."),
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
    """List the zoo, the models that ship with the compiler: year, kind, exact parameters and what is special."""
    from archdsl import zoo

    kinds = _known("--kind", kind, zoo.KINDS)
    files = _known("--family", [f.removesuffix(".arch") for f in family or ()], _families())
    years = _years(year)
    found = zoo.chosen(zoo.families(), text=" ".join(words or ()), kinds=kinds, families=files, years=years)
    if json:
        _print_json(zoo.ZooReport(families=found).model_dump_json(indent=2))
    else:
        from archdsl.views import print_report, zoo_view

        print_report(*zoo_view(found))
        if not found:
            print("no model of the zoo is like that")
    return WRONG_SPEC if any(f.problems for f in found) else FINE


def _families() -> list[str]:
    from archdsl.resources import zoo_files

    return list(zoo_files())


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


# --- the back ends ----------------------------------------------------------------------------------------------------


DtypeOption = Annotated[
    Literal["float32", "bfloat16", "float16"], typer.Option("--dtype", help="The type of weights and activations.")
]
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


@command("compile")
def compile_(
    context: typer.Context,
    spec: SpecArgument,
    to: Annotated[str, typer.Option("--to", metavar="torch|onnx", help="What to compile to.")],
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Where to write it (ONNX: a directory too); else standard output."
        ),
    ] = None,
    dtype: DtypeOption = "float32",
    target: TargetOption = "portable",
    quantize: QuantizeOption = None,
    keep: KeepOption = None,
    weights: Annotated[
        Path | None, typer.Option("--weights", metavar="FILE.safetensors", help="ONNX: the weights, strictly.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="ONNX: draw the weights, as `init` does.")] = None,
    store: Annotated[
        Literal["safetensors", "onnx_data", "inline"],
        typer.Option(
            "--store",
            help="ONNX: weights beside the graph as PyTorch reads them too, beside it as ONNX has it, or inside.",
        ),
    ] = "safetensors",
    decode: Annotated[
        bool,
        typer.Option("--decode", help="ONNX: a step of generating: new tokens, and what was kept of those before."),
    ] = False,
    bos_token_id: Annotated[
        int | None, typer.Option("--bos-token-id", metavar="N", min=0, help="With --decode: begins a text.")
    ] = None,
    eos_token_id: Annotated[
        list[int] | None,
        typer.Option("--eos-token-id", metavar="N", min=0, help="With --decode: ends a text (repeatable)."),
    ] = None,
    pad_token_id: Annotated[
        int | None,
        typer.Option(
            "--pad-token-id", metavar="N", min=0, help="With --decode: fills a batch; what ends a text, or 0."
        ),
    ] = None,
    set: SetOption = None,
    allow_noncausal: NoncausalOption = False,
) -> None:
    """Compile a spec to one readable PyTorch file that imports only torch, or to an ONNX graph."""
    tokens = ("bos_token_id", "eos_token_id", "pad_token_id")
    if to != "onnx":
        from archdsl.api import source_for
        from archdsl.files import write_text

        _only_with(context, "--to onnx", "dtype", "target", "quantize", "keep", "weights", "seed", "store", "decode")
        _only_with(context, "--to onnx --decode", *tokens)
        text = source_for(spec, to, set=_settings(set), allow_noncausal=allow_noncausal)
        if output is None or output == "-":
            sys.stdout.write(text)
        else:
            write_text(Path(output), text)
        return
    from archdsl.api import onnx_from
    from archdsl.diagnostics import error
    from archdsl.views import drawing, files_view

    if output is None or output == "-":
        raise error("E0504", "an ONNX file is no text", help="say where to write it: `-o FILE.onnx` or `-o DIRECTORY/`")
    _keep_needs_bits(keep, quantize)
    if weights is not None and seed is not None:
        raise typer.BadParameter("choose one", param_hint="'--weights' / '--seed'")
    if not decode:
        _only_with(context, "--decode", *tokens)
    model = _load(spec, set, allow_noncausal)
    with drawing(model, "writing") as progress:
        files = onnx_from(
            model,
            output,
            dtype=dtype,
            target=target,
            quantize=quantize,
            keep=keep or (),
            weights=weights,
            seed=seed,
            store=store,
            decode=decode,
            bos_token_id=bos_token_id,
            eos_token_id=eos_token_id or (),
            pad_token_id=pad_token_id,
            progress=progress,
        )
    told = [spec, *(f"--set={s}" for s in set or ()), *(["--allow-noncausal"] if allow_noncausal else [])]
    for line in files_view(files, told, dtype, quantize):
        _say(line)


def _only_with(context: typer.Context, option: str, *names: str) -> None:
    """Refuse options that were given and say nothing without another one."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"it goes with {option}", param_hint=f"'--{name.replace('_', '-')}'")


@command("init")
def init(
    spec: SpecArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.safetensors", help="Where to write the weights.")
    ],
    seed: Annotated[int, typer.Option("--seed", help="The same seed draws the same weights, on every machine.")] = 0,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"], typer.Option("--dtype", help="How the weights are stored.")
    ] = "float32",
    set: SetOption = None,
    allow_noncausal: NoncausalOption = False,
) -> None:
    """Draw every weight as the spec says and write a safetensors file: without torch, one tensor at a time."""
    from archdsl.api import draw_weights
    from archdsl.views import drawing

    model = _load(spec, set, allow_noncausal)
    with drawing(model) as progress:
        draw_weights(model, seed, dtype, output, progress)


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


@command("run")
def run(
    context: typer.Context,
    spec: SpecArgument,
    backend: Annotated[
        Literal["torch", "onnx"], typer.Option("--backend", help="PyTorch, or the ONNX graph in onnxruntime.")
    ] = "torch",
    weights: WeightsOption = None,
    seed: SeedOption = 0,
    batch: Annotated[int, typer.Option("--batch", min=1, help="How many sequences.")] = 1,
    time: TimeOption = None,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    target: TargetOption = "portable",
    quantize: QuantizeOption = None,
    keep: KeepOption = None,
    no_decode: NoDecodeOption = False,
    json: JsonOption = False,
    set: SetOption = None,
    allow_noncausal: NoncausalOption = False,
) -> None:
    """Compile a spec and run it: once forwards and once backwards in PyTorch; in onnxruntime forwards and by steps."""
    if backend == "torch":
        _only_with(context, "--backend onnx", "target", "quantize", "keep", "no_decode")
        from archdsl.trial import run as trial

        model = _load(spec, set, allow_noncausal)
        report = trial(model, weights=weights, seed=seed, batch=batch, time=time, device=device, dtype=dtype)
        if json:
            _print_json(report.model_dump_json(indent=2))
            return
        from archdsl.views import print_report, run_view

        print_report(*run_view(report))
        return
    from archdsl.inference import run as infer

    _keep_needs_bits(keep, quantize)
    found = infer(
        _load(spec, set, allow_noncausal),
        weights=weights,
        seed=seed,
        batch=batch,
        time=time,
        device=device,
        dtype=dtype,
        target=target,
        quantize=quantize,
        keep=keep or (),
        decode=not no_decode,
    )
    if json:
        _print_json(found.model_dump_json(indent=2))
        return
    from archdsl.views import onnx_run_view, print_report

    print_report(*onnx_run_view(found))


@command("verify")
def verify(
    spec: SpecArgument,
    weights: WeightsOption = None,
    seed: SeedOption = 0,
    batch: Annotated[int, typer.Option("--batch", min=1, help="How many sequences.")] = 2,
    time: TimeOption = None,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    target: TargetOption = "portable",
    quantize: QuantizeOption = None,
    keep: KeepOption = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance", min=0, help="The largest relative difference: 1e-4 by default, more in half precision."
        ),
    ] = None,
    no_decode: NoDecodeOption = False,
    json: JsonOption = False,
    set: SetOption = None,
    allow_noncausal: NoncausalOption = False,
) -> int:
    """Run a model in PyTorch and in onnxruntime, on the same weights, and compare what comes out, step by step too."""
    from archdsl.inference import verify as compare

    _keep_needs_bits(keep, quantize)
    report = compare(
        _load(spec, set, allow_noncausal),
        weights=weights,
        seed=seed,
        batch=batch,
        time=time,
        device=device,
        dtype=dtype,
        target=target,
        quantize=quantize,
        keep=keep or (),
        tolerance=tolerance,
        decode=not no_decode,
    )
    if json:
        _print_json(report.model_dump_json(indent=2))
    else:
        from archdsl.views import print_report, verify_view

        print_report(*verify_view(report))
    return FINE if report.agrees else WRONG_SPEC


def _keep_needs_bits(keep: list[str] | None, quantize: str | None) -> None:
    if keep and quantize is None:
        raise typer.BadParameter("it goes with --quantize", param_hint="'--keep'")
