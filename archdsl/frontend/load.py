"""Finding a spec, and what comes of it: its modules, its model, everything that can be said against it.

Nothing here loads the compiler before it is asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from archdsl.diagnostics import ArchError, Diagnostic, did_you_mean, error, plain_name

if TYPE_CHECKING:
    from archdsl.diagnostics.source import Source, Span
    from archdsl.frontend.modules import SpecModule
    from archdsl.ir.graph import Model
    from archdsl.syntax import ast

Settings = Mapping[str, "str | int | float | bool"]

_COMPILED = re.compile(r"^(model|variant)[ \t]+([^\W\d]\w*)", re.MULTILINE)
TRIED = 4
"""How many of the values that may cure an error are tried on each side of the one that was given."""

_SETTING = re.compile(r"\w+=\S+")
_HUB = re.compile(r"[\w.-]+/[\w.-]+")
"""What a checkpoint of the Hugging Face Hub is called."""
_COMMENT = re.compile(r"\A(?:[ \t]*#[^\n]*\n)*")


# --- what a spec is called --------------------------------------------------------------------------------------------


class ZooEntry(NamedTuple):
    """A model or variant that ships with the compiler."""

    name: str
    kind: str
    """`model` or `variant`."""
    file: str
    """Its file's name: `gpt2.arch`, `hf/qwen3.arch`."""
    description: str
    """The file's first line."""


@cache
def list_zoo() -> tuple[ZooEntry, ...]:
    """Every model and variant of the zoo, by file. Looks at texts only: nothing is parsed."""
    from archdsl.resources import zoo_files

    return tuple(_declared(zoo_files()))


@cache
def list_imported() -> tuple[ZooEntry, ...]:
    """Every model of the specs that checkpoints of Hugging Face are imported after, by file."""
    from archdsl.resources import imported_files

    return tuple(_declared(imported_files()))


def _declared(files: Mapping[str, Path]) -> Iterator[ZooEntry]:
    """The models and variants of files, by their names without `.arch`."""
    for name, path in files.items():
        text = path.read_text(encoding="utf-8", errors="replace")
        comment = _COMMENT.match(text)
        lines = comment[0].splitlines() if comment else []
        about = lines[0].lstrip("# \t").rstrip() if lines else ""
        for declaration in _COMPILED.finditer(text):
            yield ZooEntry(declaration[2], declaration[1], f"{name}.arch", about)


def name_of(entry: ZooEntry) -> str:
    """The shortest name by which commands take a model that ships with the compiler: its own, unless another model or
    file has it, else that of its file."""
    if _entry(entry.name) == entry:
        return entry.name
    stem = entry.file.removesuffix(".arch")
    first = next(e for e in (*list_zoo(), *list_imported()) if e.file == entry.file)
    return stem if entry == first else f"{stem}:{entry.name}"


def spec_names() -> list[str]:
    """Every name by which commands take a spec that ships with the compiler."""
    return sorted({*(name_of(e) for e in (*list_zoo(), *list_imported())), *_stems()})


def _entry(name: str) -> ZooEntry | None:
    """The model of that name: the zoo's, that of a file called so first; then, where no file has the name, that of the
    specs for checkpoints."""
    entries = [e for e in list_zoo() if e.name == name]
    if not entries and name not in _stems():
        entries = [e for e in list_imported() if e.name == name]
    return next((e for e in entries if e.file.removesuffix(".arch") in (name, f"hf/{name}")), None) or next(
        iter(entries), None
    )


def published_name(title: str, stem: str, name: str) -> str:
    """Return what a model is called by its publisher: the name in the first line of its file, and what the model's name
    adds to the file's. `llama3_8b` of `llama3.arch`, which begins `# Llama 3.1 (…`, is `Llama 3.1_8b`."""
    return title + name.removeprefix(stem) if name.startswith(stem) else name


def _published(name: str) -> ZooEntry | None:
    """The model of the zoo that is called so by its publisher, or has the name in another spelling: `Llama-3.1-8B` for
    `llama3_8b`, `Qwen3-8B` for `qwen3_8b`."""
    plain = plain_name(name)

    def names(entry: ZooEntry) -> Iterator[str]:
        title = entry.description.partition("(")[0].partition(":")[0]
        yield plain_name(entry.name)
        yield plain_name(published_name(title, entry.file.removesuffix(".arch"), entry.name))

    found = [e for e in list_zoo() if plain in names(e)]
    return found[0] if len(found) == 1 else None


class Spec(NamedTuple):
    """A spec that was found: its text, where it lies, below which folder it may import, and which of its models is
    meant."""

    source: Source
    path: Path | None
    root: Path | None
    model: str | None


def find_spec(spec: str | Path | None, *, text: str | None = None, model: str | None = None) -> Spec:
    """The spec of a path, `path:model`, or the name of a model of the zoo, as it stands there or as it was published
    (`Qwen3-8B`); or of a text.

    Raises ArchError: E0108 where there is no such file or it cannot be read, E0210 where the zoo has no such model."""
    if text is not None:
        from archdsl.syntax.parse import given_text

        return Spec(given_text(str(spec) if spec is not None else "<text>", text), None, None, model)
    if spec is None:
        raise error("E0509", "no spec is given", help="give a path, the name of a zoo model, or `text=…`")
    name = str(spec)
    if isinstance(spec, Path) or _is_path(name):
        return _file(Path(name), name, model)
    head, colon, tail = name.rpartition(":")
    if colon and head and (_is_path(head) or head in _stems()) and tail.isidentifier():
        if _is_path(head):
            return _file(Path(head), head, model or tail)
        return _zoo(head, model or tail)
    return _zoo(name, model)


def _is_path(name: str) -> bool:
    if name.endswith(".arch"):
        return True
    if name in _stems():
        return False
    if "/" in name or "\\" in name:
        return not name.rpartition(":")[2].isidentifier()
    try:
        return Path(name).is_file() and _entry(name) is None
    except (OSError, ValueError):
        return False


def _stems() -> Mapping[str, Path]:
    """Where specs that ship with the compiler lie, by name: `gpt2`, `hf/llama`."""
    from archdsl.resources import imported_files, zoo_files

    return zoo_files() | imported_files()


def _file(path: Path, shown: str, model: str | None) -> Spec:
    from archdsl.syntax.parse import read_source

    try:
        full = path.resolve()
        here = Path.cwd()
    except (OSError, ValueError, RuntimeError) as problem:
        raise error("E0108", f"`{shown}` cannot be read: {problem}") from None
    if _HUB.fullmatch(shown) and not shown.endswith(".arch") and not path.parent.exists():
        known = did_you_mean(path.name, spec_names())
        folder = "`archdsl import FOLDER -o model.arch` writes the spec of a checkpoint"
        raise error("E0108", f"there is no file `{shown}`", help=" ".join(filter(None, (known, folder))))
    below = full.is_relative_to(here)
    root = here if below else full.parent
    return Spec(
        read_source(full, full.relative_to(root).as_posix()) if below else read_source(full, shown), full, root, model
    )


def _zoo(name: str, model: str | None) -> Spec:
    from archdsl.syntax.parse import read_source

    files = _stems()
    entry = _entry(name)
    if entry is None and name not in files:
        entry = _published(name)
        name = name if entry is not None else next((f for f in files if plain_name(f) == plain_name(name)), name)
    if entry is not None:
        path, model = files[entry.file.removesuffix(".arch")], model or entry.name
    elif name in files:
        path = files[name]
    else:
        raise error(
            "E0210",
            f"the zoo has no model `{name}`, and there is no file of that name",
            help=f"each setting has an option of its own: `--set {name}`"
            if _SETTING.fullmatch(name)
            else did_you_mean(name, spec_names())
            or "`archdsl list` shows the zoo; a spec of your own is given as a path: `model.arch`",
        )
    return Spec(read_source(path, path.name), path, path.parent, model)


# --- what a caller gives ----------------------------------------------------------------------------------------------


class Request(NamedTuple):
    """A spec that was found, and how it is to be read."""

    spec: Spec
    set: Settings
    allow_noncausal: bool


def request_of(
    spec: str | Path | Model | None,
    *,
    text: str | None = None,
    model: str | None = None,
    set: Settings | None = None,
    allow_noncausal: bool = False,
) -> Request:
    """Return what is to be read: of a loaded model, the spec that it came from, with its settings and those of `set`.

    Raises ArchError: E0509 for an argument of a wrong type, and for a model that was not read from a spec; otherwise as
    `find_spec` does."""
    _demand_types(spec, text, model, set)
    if spec is None or isinstance(spec, str | Path):
        return Request(find_spec(spec, text=text, model=model), dict(set or {}), allow_noncausal)
    if text is not None or model is not None:
        raise error("E0509", "a loaded model is given alone, without `text` or `model`")
    if not isinstance(spec.origin, Request):
        raise error("E0509", f"the model `{spec.name}` was not read from a spec", help="give what it was made from")
    found, settings, allowed = spec.origin
    return Request(found._replace(model=spec.name), {**settings, **(set or {})}, allowed or allow_noncausal)


def is_model(spec: str | Path | Model | None) -> TypeGuard[Model]:
    """Return whether a caller gave a loaded model, without loading the compiler for a name."""
    if spec is None or isinstance(spec, str | Path):
        return False
    from archdsl.ir.graph import Model

    return isinstance(spec, Model)


def wrong_argument(name: str, value: object, wanted: str) -> ArchError:
    """Return the error for an argument of a function that is of a wrong type."""
    return error("E0509", f"`{name}` is {wanted}, not a value of type `{type(value).__name__}`")


def _demand_types(spec: object, text: object, model: object, set: object) -> None:
    if spec is not None and not isinstance(spec, str | Path):
        from archdsl.ir.graph import Model

        if not isinstance(spec, Model):
            raise wrong_argument("spec", spec, "a path, the name of a zoo model, or a loaded model")
    for name, value in (("text", text), ("model", model)):
        if value is not None and not isinstance(value, str):
            raise wrong_argument(name, value, "a string")
    if set is not None and not isinstance(set, Mapping):
        raise wrong_argument("set", set, "a mapping of names to values")
    for name, value in (set or {}).items():
        if not isinstance(name, str) or not isinstance(value, str | int | float):
            raise wrong_argument(f"set[{name!r}]", value, "a number, a bool or a string of the language")


# --- its model -------------------------------------------------------------------------------------------------------


def load(
    spec: str | Path | Model | None = None,
    *,
    text: str | None = None,
    model: str | None = None,
    set: Settings | None = None,
    allow_noncausal: bool = False,
) -> Model:
    """Read, elaborate and check a spec: `archdsl.load`, without registering how a model is shown."""
    if is_model(spec) and text is None and model is None and not set:
        return spec
    request = request_of(spec, text=text, model=model, set=set, allow_noncausal=allow_noncausal)
    try:
        return load_found(*request)
    except ArchError as problem:
        raise ArchError(_with_values(problem.diagnostics, request.spec, request.set)) from None


def load_found(spec: Spec, set: Settings | None = None, allow_noncausal: bool = False) -> Model:
    """`load` for a spec that `find_spec` has found."""
    from archdsl.dependence.causality import prove

    origin = Request(spec, {name: setting_text(value) for name, value in (set or {}).items()}, allow_noncausal)
    model = replace(_build(module_of(spec), spec.model, set), origin=origin)
    wrong = [d for d in prove(model) if d.is_error and not allow_noncausal]
    if wrong:
        raise ArchError(wrong)
    return model


def _build(module: SpecModule, name: str | None, set: Settings | None) -> Model:
    from archdsl.frontend.root import Elaborator

    return Elaborator(module).build(name, {k: setting_text(v) for k, v in (set or {}).items()})


def _with_values(diagnostics: Sequence[Diagnostic], spec: Spec, set: Settings | None) -> list[Diagnostic]:
    """Return the findings; those with proposals offer the nearest values on both sides with which the model can be
    built, but for what else was found."""
    return [_with_value(d, [o for o in diagnostics if o is not d], spec, set or {}) for d in diagnostics]


def _with_value(finding: Diagnostic, others: Sequence[Diagnostic], spec: Spec, set: Settings) -> Diagnostic:
    known = {(d.code, d.message) for d in others}
    # What was set on the command line first: it is what the user was about to change.
    for proposal in sorted(finding.proposals, key=lambda p: p.span.source.name != "--set"):
        span, was = proposal.span, proposal.span.text.replace("_", "")
        if not was.isdecimal():
            continue

        def fits(value: int, span: Span = span) -> bool:
            tried, settings, source = spec, set, span.source
            if source.name == "--set":
                settings = {k: value if setting_text(v) == source.text else v for k, v in set.items()}
            elif source == spec.source:
                text = source.text[: span.start] + str(value) + source.text[span.end :]
                tried = spec._replace(source=replace(source, text=text))
            else:
                return False
            try:
                _build(module_of(tried), spec.model, settings)
            except ArchError as problem:
                return {(d.code, d.message) for d in problem.diagnostics} <= known
            return True

        below = sorted((n for n in proposal.values if n < int(was)), reverse=True)[:TRIED]
        above = sorted(n for n in proposal.values if n > int(was))[:TRIED]
        values = [next(filter(fits, side), None) for side in (below, above)]
        offered = [f"{proposal.name} = {n}" for n in values if n is not None]
        if offered:
            return replace(finding, help=f"{' or '.join(offered)} would fit")
    return finding


def module_of(spec: Spec) -> SpecModule:
    """The file of a spec and its imports, parsed."""
    from archdsl.frontend.modules import Loader

    return Loader(spec.root).load(spec.source, spec.path)


def setting_text(value: str | int | float | bool) -> str:
    """A setting as a spec would write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)


def check(
    spec: str | Path | Model | None = None,
    *,
    text: str | None = None,
    model: str | None = None,
    set: Settings | None = None,
    allow_noncausal: bool = False,
) -> tuple[Diagnostic, ...]:
    """Everything that can be said against a spec, errors and lints; () for one that is fine. Arguments as for `load`;
    never raises ArchError, but for an argument of a wrong type. Without `model`, every model and variant that the file
    declares is checked; of a loaded model, that one."""
    try:
        request = request_of(spec, text=text, model=model, set=set, allow_noncausal=allow_noncausal)
    except ArchError as problem:
        if problem.diagnostics[0].code == "E0509":
            raise
        return problem.diagnostics
    return check_found(*request)


def check_found(spec: Spec, set: Settings | None = None, allow_noncausal: bool = False) -> tuple[Diagnostic, ...]:
    """`check` for a spec that `find_spec` has found."""
    from archdsl.dependence.causality import prove
    from archdsl.frontend.lint import lints
    from archdsl.frontend.modules import models

    names: list[str | None] = [spec.model]
    found: dict[tuple[str, str, object], Diagnostic] = {}
    try:
        parsed = module_of(spec)
        if spec.model is None and not set:
            names = [*_settled(models(parsed))] or [None]
    except ArchError as problem:
        return problem.diagnostics
    for name in names:
        try:
            module = parsed.fresh()
            model = _build(module, name, set)
            said = [*model.diagnostics, *([] if allow_noncausal else prove(model)), *lints(model, module)]
        except ArchError as problem:
            said = _with_values(problem.diagnostics, spec._replace(model=name), set)
        for d in said:
            place = (d.span.source.name, d.span.start, d.span.end) if d.span is not None else None
            found.setdefault((d.code, d.message, place), d)
    return tuple(found.values())


def _settled(declared: Mapping[str, ast.ModelDecl | ast.Variant]) -> list[str]:
    """The models that can be checked: one that must be given a number is checked as each of its variants."""
    from archdsl.syntax import ast

    based_on = set()
    for d in declared.values():
        call = d.value if isinstance(d, ast.Variant) else None
        function = call.function if isinstance(call, ast.Call) else call
        if isinstance(function, ast.Name):
            based_on.add(function.id)

    def is_open(d: ast.ModelDecl | ast.Variant) -> bool:
        return isinstance(d, ast.ModelDecl) and any(h.default is None for h in d.header.hypers or ())

    return [n for n, d in declared.items() if n not in based_on or not is_open(d)]
