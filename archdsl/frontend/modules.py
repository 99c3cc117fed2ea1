"""Files and names: a spec, what it imports, and the library below them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archdsl.diagnostics import ArchError, Diagnostic, Label, error, shortened
from archdsl.diagnostics.source import Source, Span
from archdsl.ir import masks
from archdsl.ir.wording import one_of
from archdsl.resources import library_index, library_source
from archdsl.syntax import ast
from archdsl.syntax.limits import (
    MAX_AXES,
    MAX_FILE_BYTES,
    MAX_IMPORTS,
    MAX_MODELS,
    MAX_PROBLEMS,
    MAX_SIGNATURE,
    raising,
)
from archdsl.syntax.parse import parse, read_source

if TYPE_CHECKING:
    from archdsl.ir.op import Primitive

# Words that stand for themselves; an option says which of them it takes.
_WORDS = """
    pre post branch sandwich serial parallel same float float32 bfloat16 int bool tokens
    top2 backward forward yarn ntk llama3 longrope dynamic
"""
WORDS = frozenset(_WORDS.split())
CONSTANTS: dict[str, bool | None] = {"true": True, "false": False, "none": None}
FUNCTIONS = ("shared", "accepts", "offer", "given", "option")
RESERVED = frozenset({*CONSTANTS, *FUNCTIONS[:3], "training"})


Named = ast.Let | ast.BlockDecl | ast.ModelDecl | ast.Variant
"""A declaration that gives something a name."""


@dataclass(eq=False)
class SpecModule:
    """One file's declarations. `imports` are (prefix or None, module)."""

    source: Source
    tree: ast.File
    names: dict[str, Named] = field(default_factory=dict)
    imports: list[tuple[str | None, SpecModule]] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    """File-level lets that were evaluated."""

    def find(self, name: str) -> tuple[SpecModule, Named] | None:
        """A declaration by the name it has in this file: its own, or an import's (`c.decoder`)."""
        if name in self.names:
            return self, self.names[name]
        head, _, tail = name.partition(".")
        for prefix, module in self.imports:
            found = module.names.get(name if prefix is None else tail) if prefix is None or prefix == head else None
            if found is not None:
                return module, found
        return None

    def fresh(self, made: dict[int, SpecModule] | None = None) -> SpecModule:
        """The same declarations, nothing evaluated: each model that is built has constants of its own."""
        made = {} if made is None else made
        if id(self) not in made:
            made[id(self)] = copy = SpecModule(self.source, self.tree, self.names)
            copy.imports = [(prefix, module.fresh(made)) for prefix, module in self.imports]
        return made[id(self)]

    def files(self, found: dict[int, SpecModule] | None = None) -> Collection[SpecModule]:
        """The file, and all that it imports, each once."""
        found = {} if found is None else found
        if id(self) not in found:
            found[id(self)] = self
            for _, module in self.imports:
                module.files(found)
        return found.values()

    def visible(self) -> Iterator[str]:
        """Every name that can be said in this file, the library's left out."""
        yield from self.names
        for prefix, module in self.imports:
            yield from (n if prefix is None else f"{prefix}.{n}" for n in module.names)


def words(text: str) -> frozenset[str]:
    """Every name that a text says."""
    return frozenset(re.findall(r"\w+", text))


def declare(source: Source, tree: ast.File) -> tuple[SpecModule, list[Diagnostic]]:
    """A module with its own names; reports names declared twice and reserved ones."""
    module, problems = SpecModule(source, tree), []
    for declaration in tree.declarations:
        if isinstance(declaration, ast.Import):
            continue
        span = declaration.span if isinstance(declaration, ast.Let) else declaration.name_span
        if declaration.name in RESERVED:
            problems.append(
                Diagnostic("E0104", f"`{declaration.name}` is a word of the language and cannot be declared", span)
            )
        elif declaration.name in module.names:
            first = module.names[declaration.name]
            where = first.span if isinstance(first, ast.Let) else first.name_span
            problems.append(_twice(f"`{declaration.name}` is declared twice in this file", span, where))
        else:
            module.names[declaration.name] = declaration
        if isinstance(declaration, ast.BlockDecl | ast.ModelDecl):
            problems += _signature_problems(declaration)
    return module, problems[:MAX_PROBLEMS]


def _twice(text: str, span: Span, first: Span) -> Diagnostic:
    labels = (Label(first, "first declared here"),)
    return Diagnostic("E0202", text, span, labels=labels, help="give one of them another name")


def _signature_problems(declaration: ast.BlockDecl | ast.ModelDecl) -> list[Diagnostic]:
    """Unknown kinds, and names that a signature gives twice: hyper-parameters, tensors, and a tensor called like an
    axis."""
    from archdsl.frontend.kinds import KINDS

    header = declaration.header
    entries: list[ast.Hyper | ast.TensorParam] = [*(header.hypers or ()), *(header.tensors or ())]
    seen: dict[str, Span] = {}
    problems = []
    if len(entries) > MAX_SIGNATURE:
        text = f"`{declaration.name}` takes {len(entries):,} hyper-parameters and tensors"
        return [Diagnostic("E0404", text, declaration.name_span, help=raising("signature"))]
    kinds = [k for k in KINDS if k != "ints"]  # which only primitives read
    for hyper in header.hypers or ():
        if hyper.kind is not None and hyper.kind not in kinds:
            help_ = one_of(hyper.kind, kinds, "kinds are")
            problems.append(
                Diagnostic("E0203", f"`{hyper.kind}` is no kind of hyper-parameters", hyper.span, help=help_)
            )
    for entry in entries:
        if entry.name in seen:
            problems.append(_twice(f"`{declaration.name}` declares `{entry.name}` twice", entry.span, seen[entry.name]))
        seen.setdefault(entry.name, entry.span)
    tensors = {t.name for t in header.tensors or ()}
    for param in header.tensors or ():
        if len(param.type.dims) > MAX_AXES:
            problems.append(Diagnostic("E0404", f"a tensor has at most {MAX_AXES} axes", param.span))
            continue
        for dim in param.type.dims:
            if isinstance(dim, ast.Name) and dim.id in tensors:
                problems.append(
                    Diagnostic(
                        "E0202",
                        f"`{dim.id}` is a tensor of `{declaration.name}` and the name of an axis",
                        dim.span,
                        labels=(Label(seen[dim.id], "the tensor"),),
                        help="a tensor and an axis of one signature have different names",
                    )
                )
    return problems


class Loader:
    """Reads a spec and its imports, each file once."""

    def __init__(self, root: Path | None) -> None:
        self.root = root
        self.modules: dict[Path, SpecModule] = {}
        self.read = 0
        """Characters of all files so far."""
        self.problems: list[Diagnostic] = []

    def load(self, source: Source, path: Path | None) -> SpecModule:
        """The module of a source; `path` is where its imports are relative to. Raises ArchError with every problem
        found."""
        module = self._load(source, path, parse(source), ())
        if self.problems:
            raise ArchError(self.problems)
        return module

    def _load(self, source: Source, path: Path | None, tree: ast.File, chain: tuple[Path, ...]) -> SpecModule:
        module, problems = declare(source, tree)
        self.problems += problems
        self.read += len(source.text)
        if path is not None:
            self.modules[path] = module
            chain = (*chain, path)
        for declaration in tree.declarations:
            if isinstance(declaration, ast.Import):
                try:
                    module.imports.append((declaration.name, self._import(declaration, path, chain)))
                except ArchError as problem:
                    self.problems += problem.diagnostics
        return module

    def _import(self, declaration: ast.Import, path: Path | None, chain: tuple[Path, ...]) -> SpecModule:
        if path is None or self.root is None:
            raise error(
                "E0208", "a spec that is not a file cannot import", declaration.span, help="save it as a file first"
            )
        relative = Path(declaration.path)
        shown = shortened(declaration.path)
        try:
            target = (path.parent / relative).resolve()
        except (OSError, ValueError, RuntimeError) as problem:  # a zero byte, or links that lead to each other
            text = f'cannot import "{shown}": {problem.strerror if isinstance(problem, OSError) else problem}'
            raise error("E0208", text, declaration.span) from None
        root = self.root.resolve()
        if relative.is_absolute() or "\\" in declaration.path or not target.is_relative_to(root):
            raise error(
                "E0208",
                f'import "{shown}" leads out of the project',
                declaration.span,
                help="import files that lie in the folder of the spec or below it, by a relative path",
            )
        if target in chain:
            names = " -> ".join(p.name for p in (*chain[chain.index(target) :], target))
            raise error(
                "E0209",
                f"these files import each other: {names}" if path != target else "this file imports itself",
                declaration.span,
                help="move what both need into a third file" if path != target else "leave the import out",
            )
        if target in self.modules:
            return self.modules[target]
        if len(self.modules) > MAX_IMPORTS:  # the spec that imports is one of them
            text = f"more than {MAX_IMPORTS} imported files"
            raise error("E0208", text, declaration.span, help=raising("imports"))
        try:
            source = read_source(target, shortened(target.relative_to(root).as_posix()))
        except ArchError as problem:
            first = problem.diagnostics[0]
            text = f'cannot import "{shown}": {first.message}'
            raise error("E0208", text, declaration.span, help=first.help) from None
        if self.read + len(source.text) > MAX_FILE_BYTES:
            text = f"a spec and its imports are larger than {MAX_FILE_BYTES // 1024:,} KiB"
            raise error("E0208", text, declaration.span, help=raising("source"))
        return self._load(source, target, parse(source), chain)


@cache
def library(stem: str) -> SpecModule:
    """A file of the standard library."""
    source = library_source(stem)
    module, problems = declare(source, parse(source))
    assert not problems, problems
    return module


def find_in_library(name: str) -> tuple[SpecModule, Named] | None:
    stem = library_index().get(name)
    if stem is None:
        return None
    module = library(stem)
    return module, module.names[name]


def find_primitive(name: str) -> Primitive | None:
    """The primitive that a spec means by a name, or None: what has no examples is put into graphs by others alone."""
    from archdsl.ops import registry

    op = registry.find(name)
    return op if op is not None and op.examples else None


def every_name(module: SpecModule) -> set[str]:
    """Every name that can be said in a file: for did-you-mean."""
    from archdsl.frontend.schemes import SCHEMES
    from archdsl.ops import registry

    return {
        *module.visible(),
        *library_index(),
        *filter(find_primitive, registry.names()),
        *WORDS,
        *CONSTANTS,
        *FUNCTIONS,
        *masks.RULES,
        *masks.TENSOR_RULES,
        *SCHEMES,
    }


def models(module: SpecModule) -> dict[str, ast.ModelDecl | ast.Variant]:
    """What can be compiled in a file, in order. Raises ArchError E0404 where it is too many."""
    found = {n: d for n, d in module.names.items() if isinstance(d, ast.ModelDecl | ast.Variant)}
    if len(found) > MAX_MODELS:
        text = f"{module.source.name} declares more than {MAX_MODELS:,} models and variants"
        raise error("E0404", text, next(iter(found.values())).name_span, help=raising("models"))
    return found


def pick_model(module: SpecModule, name: str | None) -> ast.ModelDecl | ast.Variant:
    """The model of that name; without a name the file's first. Raises E0210."""
    found = models(module)
    if not found:
        raise error(
            "E0210",
            f"{module.source.name} declares no model",
            Span(module.source, 0, len(module.source.line(1))),
            help="add `model name { … }`",
        )
    if name is None:
        return next(iter(found.values()))
    if name not in found:
        help_ = one_of(name, found, "it has")
        raise error("E0210", f"{module.source.name} has no model `{name}`", None, help=help_)
    return found[name]
