"""The zoo described: what `archdsl list` prints and `docs/zoo.md` shows.

Name, authors, year and what is special come from the comment above each spec; kind and counts from the IR. A family is
described once and kept in the cache until its text, the library or the compiler changes.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ValidationError

from archdsl.diagnostics import ArchError, Diagnostic, plain_name
from archdsl.estimates.kinds import KINDS as KINDS
from archdsl.estimates.kinds import Kind
from archdsl.version import __version__

if TYPE_CHECKING:
    from archdsl.ir.graph import Model

_PACKAGE = Path(__file__).resolve().parent
_COMMENT = re.compile(r"\A(?:[ \t]*#[^\n]*(?:\n|\Z))*")
_CITED = re.compile(
    r"(?P<name>[^:(]+?)\s*\((?P<authors>[^()]*?),?\s*(?P<year>(?:1[89]|20)\d\d)\)\s*[:,]?\s*(?P<about>.*)"
)
_NAMED = re.compile(r"(?P<name>[^:]+?)\s*:\s*(?P<about>.*)")
_IMPORT = re.compile(r'^[ \t]*import[ \t]+"([^"\n]+)"', re.MULTILINE)
_CACHE = "zoo"


class ZooModel(BaseModel):
    """A model or variant of the zoo."""

    name: str
    declared: Literal["model", "variant"]
    kind: Kind
    config: dict[str, int | float]
    parameters: int
    active: int
    """What one token meets; differs from `parameters` where experts are chosen."""
    non_embedding: int
    layers: int
    width: int | None
    rule_of_thumb: int | None
    """12 · layers · width²; None where there are no layers or no width."""
    ratio: float | None
    """non_embedding / rule_of_thumb."""


class ZooProblem(BaseModel):
    """What is wrong with models of a family."""

    models: list[str]
    """Empty where the file itself cannot be read."""
    code: str
    message: str
    place: str


class ZooFamily(BaseModel):
    """A file of the zoo."""

    family: str
    """The file's name without `.arch`."""
    file: str
    name: str
    authors: str
    """'' where the comment names none."""
    year: int | None
    about: str
    """What is special about it: the rest of the first line."""
    notes: str
    """The further lines of the comment, as they are wrapped there."""
    models: list[ZooModel]
    problems: list[ZooProblem]


class ZooReport(BaseModel):
    """What `archdsl list --json` prints."""

    families: list[ZooFamily]


class Comment(BaseModel):
    """The comment above a spec, taken apart."""

    name: str
    authors: str
    year: int | None
    about: str
    notes: str


def read_comment(text: str, stem: str) -> Comment:
    """`# Name (Authors, year): what is special.` and the lines below it. What a comment does not say is '' or None; the
    name is then the file's."""
    found = _COMMENT.match(text)
    lines = [line.strip().removeprefix("#").strip() for line in (found[0] if found else "").splitlines()]
    first, notes = (lines[0], "\n".join(lines[1:]).strip()) if lines else ("", "")
    if cited := _CITED.fullmatch(first):
        return Comment(
            name=cited["name"], authors=cited["authors"], year=int(cited["year"]), about=cited["about"], notes=notes
        )
    named = _NAMED.fullmatch(first)
    return Comment(
        name=named["name"] if named else stem,
        authors="",
        year=None,
        about=named["about"] if named else first,
        notes=notes,
    )


# --- families ---------------------------------------------------------------------------------------------------------


def imported(
    words: Iterable[str] = (), names: Iterable[str] = (), told: Callable[[int, int], None] | None = None
) -> list[ZooFamily]:
    """The families that checkpoints are imported after, called `hf/llama`, whose names or comments have these words;
    only those of these `names`, if any. Each model has the name by which commands take it."""
    from archdsl.frontend.load import list_imported, name_of
    from archdsl.resources import declared_names, imported_files

    def listed(_: str, text: str) -> str:
        comment = _COMMENT.match(text)
        return " ".join([comment[0] if comment else "", *declared_names(text)])

    found = families(_asked(imported_files(), words, names, listed), f"{_CACHE}-hf", told)
    called = {(e.file, e.name): name_of(e) for e in list_imported()}

    def named(family: ZooFamily) -> ZooFamily:
        file = f"hf/{family.file}"
        models = [m.model_copy(update={"name": called[file, m.name]}) for m in family.models]
        return family.model_copy(update={"family": f"hf/{family.family}", "file": file, "models": models})

    return [named(family) for family in found]


def worded(words: Iterable[str] = (), names: Iterable[str] = ()) -> list[Path]:
    """The files of the zoo that may have models that these words say: each stands in the text, or says a kind; only
    those of these `names`, if any."""
    from archdsl.frontend.load import published_name
    from archdsl.resources import declared_names, zoo_files

    def said(stem: str, text: str) -> str:
        title = read_comment(text, stem).name
        return " ".join([text, *KINDS, *(published_name(title, stem, name) for name in declared_names(text))])

    return _asked(zoo_files(), words, names, said)


def _asked(
    files: Mapping[str, Path], words: Iterable[str], names: Iterable[str], said: Callable[[str, str], str]
) -> list[Path]:
    """The files of these `names`, if any, that have each word in their name or in what is `said` of name and text."""
    words, names = [w.lower() for w in words], {*names}
    texts = {
        path: f"{name} {said(name, path.read_text(encoding='utf-8'))}".lower()
        for name, path in files.items()
        if not names or name in names
    }
    return [path for path, text in texts.items() if all(w in text or _spelled(w, text) for w in words)]


def _spelled(word: str, name: str) -> bool:
    """Whether a word stands in a name in another spelling: `Qwen3-8B` in `qwen3_8b`."""
    return plain_name(word) != "" and plain_name(word) in plain_name(name)


def families(
    paths: Iterable[Path] | None = None, shelf: str = _CACHE, told: Callable[[int, int], None] | None = None
) -> list[ZooFamily]:
    """Every family of the zoo (or of these files), by file. A spec that is wrong has its problems told in its family;
    nothing is raised for it. What is found is kept in the cache: the zoo, and what has a `shelf` of its own there.
    `told` is called with how many are found, and of how many."""
    from archdsl.resources import zoo_files
    from archdsl.syntax import cache

    kept = cache.load(shelf)
    kept = kept if isinstance(kept, dict) else {}
    stamp = _stamp()
    found: list[ZooFamily] = []
    entries: dict[str, object] = {}
    every = [*zoo_files().values()]
    wanted = every if paths is None else [*paths]
    for path in wanted:
        if told is not None:
            told(len(found), len(wanted))
        key = f"{stamp} {_texts(path)}"
        family = _kept(kept.get(str(path)), key)
        if family is None:
            family = describe(path)
        found.append(family)
        entries[str(path)] = {"key": key, "family": family.model_dump()}
    whole = entries if paths is None else kept | entries
    if whole != kept and (shelf != _CACHE or {*wanted} <= {*every}):
        cache.store(shelf, whole)
    return found


def _kept(entry: object, key: str) -> ZooFamily | None:
    if not isinstance(entry, dict) or entry.get("key") != key:
        return None
    try:
        return ZooFamily.model_validate(entry.get("family"))
    except ValidationError:
        return None  # written by another version under our name


def _texts(path: Path) -> str:
    """A hash of a spec and of everything it imports."""
    digest = hashlib.sha256()
    todo, seen = [path], {path}
    while todo:
        file = todo.pop()
        try:
            content = file.read_bytes()
        except OSError:
            content = b""
        digest.update(b"%d:" % len(content) + content)
        for name in _IMPORT.findall(content.decode("utf-8", "replace")):
            target = file.parent / name
            if target not in seen:
                seen.add(target)
                todo.append(target)
    return digest.hexdigest()


@functools.cache
def _stamp() -> str:
    """Changes with whatever else a description depends on: the compiler's files, the library, the grammar."""
    from archdsl.resources import grammar_text, library_files

    digest = hashlib.sha256(f"{__version__}\n{grammar_text()}".encode())
    for stem, path in library_files().items():
        digest.update(stem.encode() + path.read_bytes())
    for folder, _, names in sorted(os.walk(_PACKAGE)):
        for name in sorted(n for n in names if n.endswith(".py")):
            status = os.stat(os.path.join(folder, name))
            digest.update(f"{folder}/{name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def describe(path: Path) -> ZooFamily:
    """A family from its file: every model and variant is elaborated, checked and counted."""
    from archdsl.frontend.load import Spec, load_found, module_of
    from archdsl.frontend.modules import models
    from archdsl.syntax import ast
    from archdsl.syntax.parse import read_source

    text = ""
    described: list[ZooModel] = []
    problems: dict[tuple[str, str, str], ZooProblem] = {}

    def wrong(problem: ArchError, names: list[str]) -> None:
        d = problem.diagnostics[0]
        key = (d.code, d.message, _place(d, path))
        problems.setdefault(key, ZooProblem(models=[], code=d.code, message=d.message, place=key[2])).models.extend(
            names
        )

    try:
        source = read_source(path, path.name)
        text = source.text
        declared = models(module_of(Spec(source, path, path.parent, None)))
    except ArchError as problem:
        declared = {}
        wrong(problem, [])
    for name, node in declared.items():
        try:
            model = load_found(Spec(source, path, path.parent, name))
        except ArchError as problem:
            wrong(problem, [name])
        else:
            described.append(_described(model, "model" if isinstance(node, ast.ModelDecl) else "variant"))
    comment = read_comment(text, path.stem)
    return ZooFamily(
        family=path.stem,
        file=path.name,
        **comment.model_dump(),
        models=described,
        problems=list(problems.values()),
    )


def _place(d: Diagnostic, path: Path) -> str:
    return str(d.span) if d.span is not None else path.name


def _described(model: Model, declared: Literal["model", "variant"]) -> ZooModel:
    from archdsl.estimates.kinds import kind_of_model
    from archdsl.estimates.params import estimate

    report = estimate(model)
    p = report.params
    return ZooModel(
        name=model.name,
        declared=declared,
        kind=kind_of_model(model),
        config=report.config,
        parameters=p.total,
        active=p.active,
        non_embedding=p.non_embedding,
        layers=p.layers,
        width=p.width,
        rule_of_thumb=p.rule_of_thumb,
        ratio=p.ratio,
    )


# --- what was asked for -----------------------------------------------------------------------------------------------


def chosen(
    found: Iterable[ZooFamily],
    *,
    text: str = "",
    kinds: Iterable[str] = (),
    families: Iterable[str] = (),
    years: tuple[int | None, int | None] = (None, None),
) -> list[ZooFamily]:
    """The families, cut down to the models that fit everything asked for.

    Each word of `text` stands somewhere in what is listed of a model: its name, in any spelling, its family, the
    comment, its kind. `years` are the first and the last, None for open; a family without a year fits no years.
    Problems are kept where neither text nor kinds are asked for, because a spec that is wrong has none."""
    from archdsl.frontend.load import published_name

    words, kinds, names = text.lower().split(), set(kinds), set(families)
    first, last = years
    kept = []
    for family in found:
        if names and family.family not in names:
            continue
        if (first is not None or last is not None) and (
            family.year is None or family.year < (first or family.year) or family.year > (last or family.year)
        ):
            continue
        about = " ".join((family.family, family.name, family.authors, str(family.year), family.about, family.notes))
        models = [
            m
            for m in family.models
            if (not kinds or m.kind in kinds)
            and all(
                w in f"{about} {m.name} {m.kind}".lower()
                or _spelled(w, m.name)
                or _spelled(w, published_name(family.name, family.family, m.name))
                for w in words
            )
        ]
        problems = [] if words or kinds else family.problems
        if models or problems:
            kept.append(family.model_copy(update={"models": models, "problems": problems}))
    return kept
