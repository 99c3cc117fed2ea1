"""What is around every command: the process, exit statuses, diagnostics."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Iterable
from copy import copy
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, ParamSpec, TypeVar, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from archdsl.cli.busy import busy
from archdsl.diagnostics import REPORT, ArchError, Diagnostic, InternalError, nearest
from archdsl.diagnostics.exhausted import exhausted
from archdsl.diagnostics.source import printable
from archdsl.signals import TerminatedError, heeded, watch

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import RenderableType

P = ParamSpec("P")
R = TypeVar("R", bound="BaseModel")

FINE, WRONG_SPEC, WRONG_CALL, INTERNAL, INTERRUPTED, NO_READER, TERMINATED = 0, 1, 2, 70, 130, 141, 143
FORMAT_VARIABLE = "ARCHDSL_FORMAT"

RENAMED = {
    "--time": "--seq",
    "--recompute": "--checkpoint",
    "--device": "--accelerator",
    "--backend": "--to",
    "--to": "--backend",
}
"""Options that other commands or versions have, and what a command without them has instead."""


NUMBERS = {"integer": "a whole number", "number": "a number"}
"""What pydantic calls kinds of numbers, and what people do."""


class Command(TyperCommand):
    """A command whose help shows no type beside a flag, and which knows what an option was called elsewhere."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _flags_without_type(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for param in self.params:
            if (param.metavar or "").endswith(",…") and not param.multiple:
                _demand_once(param.opts[0], args)
        try:
            return super().parse_args(ctx, args)
        except Exception as problem:
            instead = RENAMED.get(getattr(problem, "option_name", ""))
            if type(problem).__name__ == "NoSuchOption" and any(instead in p.opts for p in self.params):
                problem.message += f"; did you mean {instead}?"  # type: ignore[attr-defined]
                problem.possibilities = None  # type: ignore[attr-defined]
            elif hasattr(problem, "message"):
                problem.message = self._plain(problem.message)
            raise

    def _plain(self, message: str) -> str:
        """Return what typer says of an argument without the names of its classes, and with what was probably meant."""
        message = message.removeprefix("Value error, ")
        if choice := re.fullmatch(r"'(.*)' is not one of (.*)\.", message):
            near = nearest(choice[1], re.findall(r"'([^']+)'", choice[2]))
            return f"{message[:-1]}; did you mean {near}?" if near else message
        for number, words in NUMBERS.items():
            if message.startswith(f"Input should be a valid {number}, "):
                return f"it takes {words}"
        extra = re.fullmatch(r"Got unexpected extra arguments?(?:\(s\))? \((\w+=\S+).*\)", message)
        if extra and any("--set" in p.opts for p in self.params):
            return f"{message}; --set takes one setting and is repeated: --set {extra[1]}"
        return message


def _demand_once(option: str, args: list[str]) -> None:
    """Raise BadParameter where an option that takes a list is given twice: the last would count alone."""
    if sum(a.partition("=")[0] == option for a in args) > 1:
        raise typer.BadParameter("it takes a list, and is given once: A,B", param_hint=f"'{option}'")


class CommandGroup(TyperGroup):
    """The commands, with a help as theirs."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _flags_without_type(super().get_params(ctx))


def _flags_without_type(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
    return params


app = typer.Typer(
    cls=CommandGroup,
    help="Check, count, compile and run sequence-model architectures written in .arch files.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


# --- the frame around every command -----------------------------------------------------------------------------------


def main() -> NoReturn:
    """Run the command line of this process."""
    watch()
    _open_closed()
    try:
        _with_called(sys.argv[1:])(prog_name="archdsl")
    except TerminatedError:
        raise SystemExit(TERMINATED) from None
    except KeyboardInterrupt:
        say("interrupted")
        raise SystemExit(INTERRUPTED) from None
    except OSError as problem:  # typer prints helps itself
        raise SystemExit(_refused(problem)) from None
    raise AssertionError  # typer ends by SystemExit


def _open_closed() -> None:
    """Give a process whose standard output or error is closed one that refuses, or drops, what is written."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(os.devnull, encoding="utf-8")  # noqa: SIM115


def _with_called(arguments: list[str]) -> typer.Typer:
    """Return the app with the one command that is called, if any is: typer evaluates the parameters of all it has."""
    name = next((a for a in arguments if not a.startswith("-")), None)
    called = copy(app)
    called.registered_commands = [c for c in app.registered_commands if c.name == name] or app.registered_commands
    return called


def command(name: str, panel: str) -> Callable[[Callable[P, int | None]], Callable[P, None]]:
    """Register a command in a panel of the help. Whatever goes wrong in it ends in a diagnostic or in one line, and in
    an exit status."""

    def register(function: Callable[P, int | None]) -> Callable[P, None]:
        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
            with busy(f"archdsl {name}"):
                status = _status(lambda: function(*args, **kwargs))
            raise typer.Exit(status)

        return app.command(name, cls=Command, rich_help_panel=panel)(guarded)

    return register


def _status(work: Callable[[], int | None]) -> int:
    try:
        with heeded():
            status = work() or FINE
            sys.stdout.flush()
        return status
    except ArchError as problem:
        show_diagnostics(problem.diagnostics)
        return blame(problem.diagnostics)
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        _silence()
        return NO_READER
    except (MemoryError, RecursionError, RuntimeError, OSError) as problem:
        if _debug():
            raise
        if (told := exhausted(problem)) is not None:
            show_diagnostics(told.diagnostics)
            return blame(told.diagnostics)
        if not isinstance(problem, OSError):
            return _internal(problem)
        return _refused(problem)
    except Exception as problem:
        if _debug() or isinstance(problem, _usage_errors()):
            raise
        return _internal(problem)


def _refused(problem: OSError) -> int:
    """Say in one line what the system refused, and return the exit status."""
    about = f"{problem.filename}: " if problem.filename else ""
    say(f"error: {about}{problem.strerror or problem}")
    _silence()
    return WRONG_CALL


def _internal(problem: Exception) -> int:
    kind = "" if isinstance(problem, InternalError) else f"{type(problem).__name__}: "
    say(f"internal error: {kind}{_one_line(problem)}")
    say(f"{REPORT}; ARCHDSL_DEBUG=1 shows where it happened")
    return INTERNAL


def _usage_errors() -> tuple[type[BaseException], ...]:
    """What typer itself reports, with exit status 2."""
    return tuple(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def _one_line(problem: BaseException) -> str:
    return " ".join(str(problem).split())[:300]


def print_or_json(report: R, view: Callable[[R], Iterable[RenderableType]], json: bool) -> None:
    """Print a report: as one JSON object, or the way people like to read it."""
    if json:
        sys.stdout.write(_escaped(report.model_dump_json(indent=2)) + "\n")
        return
    from archdsl.report.tables import print_report

    print_report(*view(report))


def _escaped(text: str) -> str:
    """JSON whose strings hold only what can be printed: of what may stand there as it is, a terminal obeys some."""
    return re.sub(r"[^\n -~]", lambda c: c[0] if c[0].isprintable() else dumps(c[0])[1:-1], text)


def say(line: str) -> None:
    print(f"archdsl: {printable(line)}", file=sys.stderr)


def _silence() -> None:
    """Nobody reads standard output any more, or it cannot be written: what is left in its buffer must not be tried
    again."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _debug() -> bool:
    return os.environ.get("ARCHDSL_DEBUG", "") not in ("", "0")


def color(stream: object) -> bool:
    isatty = getattr(stream, "isatty", None)
    return bool(isatty and isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def show_diagnostics(diagnostics: Iterable[Diagnostic]) -> None:
    """Print findings to standard error, in the form that ARCHDSL_FORMAT names: text, concise, json or github."""
    from archdsl.diagnostics.render import Format, render

    wanted = os.environ.get(FORMAT_VARIABLE)
    format: Format = next((f for f in get_args(Format) if f == wanted), "text")
    sys.stdout.flush()
    sys.stderr.write(render(diagnostics, format, color(sys.stderr)))


def blame(diagnostics: Iterable[Diagnostic]) -> int:
    """Whether the spec is wrong or the command line: a file that is not there, a model that no file has, a `--set` that
    says nothing."""
    for d in diagnostics:
        if d.span is None and (d.code.startswith("E05") or d.code in ("E0108", "E0206", "E0210")):
            return WRONG_CALL
        if d.span is not None and d.span.source.name == "--set":
            return WRONG_CALL
    return WRONG_SPEC if any(d.is_error for d in diagnostics) else FINE


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Verify the IR after each pass; show where an internal error happened.")
    ] = False,
) -> None:
    if debug:
        os.environ["ARCHDSL_DEBUG"] = "1"
    if _debug():
        from archdsl.ir import verify

        verify.enabled = True
    if version:
        from archdsl import __version__

        print(f"archdsl {__version__}")
        raise typer.Exit
