"""Helpers of emitted files: the functions and classes of `runtime/`, copied into a file by source.

They are real modules, linted, typed and tested like all others, and never imported by the compiler: each is parsed
once, so that it is known which other helpers and which imports it needs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Set
from functools import cache
from importlib.resources import files
from symtable import SymbolTable, symtable

from archdsl.frozen import Frozen


class Helper(Frozen):
    """A definition of `runtime/`: its source, and every name that it reads and does not define itself."""

    name: str
    source: str
    names: frozenset[str]

    @property
    def is_constant(self) -> bool:
        """Whether it is one line at the top of a module, `name = …`."""
        return self.source.startswith(f"{self.name} = ")


@cache
def helpers() -> dict[str, Helper]:
    """Every helper by name. A module with statements at its top level besides definitions is one helper, named after
    its first definition."""
    found: dict[str, Helper] = {}
    for path in sorted((p for p in files(__package__).joinpath("runtime").iterdir()), key=lambda p: p.name):
        if path.name.endswith(".py"):
            for helper in _helpers_of(path.read_text(encoding="utf-8")):
                found[helper.name] = helper
    return found


@cache
def helper_names() -> frozenset[str]:
    """Every name that a helper defines at the top of a file."""
    tables = (symtable(h.source, h.name, "exec") for h in helpers().values())
    return frozenset(s.get_name() for table in tables for s in table.get_symbols() if s.is_assigned())


def _helpers_of(text: str) -> Iterator[Helper]:
    lines = text.splitlines()
    body = [n for n in ast.parse(text).body if not isinstance(n, ast.Import | ast.ImportFrom | ast.Expr)]
    names = {id(n): n.name for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    names |= {id(n): ast.unparse(n.targets[0]) for n in body if isinstance(n, ast.Assign)}
    if len(names) < len(body):
        yield _helper(next(iter(names.values())), lines, body)
    else:
        yield from (_helper(names[id(n)], lines, [n]) for n in body)


def _helper(name: str, lines: list[str], body: list[ast.stmt]) -> Helper:
    first = body[0]
    decorators = first.decorator_list if isinstance(first, ast.FunctionDef | ast.ClassDef) else []
    start = min([first.lineno, *(d.lineno for d in decorators)])
    end = body[-1].end_lineno
    source = "\n".join(lines[start - 1 : end])
    table = symtable(source, name, "exec")
    return Helper(name, source, frozenset(_read_in(table)) - {t.get_name() for t in table.get_children()})


def names_in_source(source: str) -> frozenset[str]:
    """Every global name that a source reads."""
    return frozenset(_read_in(symtable(source.strip(), "source", "exec")))


def _read_in(scope: SymbolTable) -> Iterator[str]:
    """The global names, built-in ones among them, that are read in a scope and those within it."""
    of_module = scope.get_type() == "module"
    yield from (s.get_name() for s in scope.get_symbols() if s.is_referenced() and (of_module or s.is_global()))
    for inner in scope.get_children():
        yield from _read_in(inner)


def members(name: str, wanted: Set[str]) -> str:
    """A helper that is a class, with those of its methods and annotated attributes that are wanted, and without what
    these then compute for nobody."""
    source = helpers()[name].source
    (body,) = ast.parse(source).body
    assert isinstance(body, ast.ClassDef)
    gone: set[int] = set()
    for n in body.body:
        called = n.name if isinstance(n, ast.FunctionDef) else isinstance(n, ast.AnnAssign) and ast.unparse(n.target)
        if called and called not in wanted:
            gone |= _lines_of(n)
    while unread := _unread(body, {f"self.{n}" for n in wanted}, gone):
        gone |= unread
    left = (line for i, line in enumerate(source.splitlines(), 1) if i not in gone)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(left)).rstrip()


def _lines_of(node: ast.stmt) -> set[int]:
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    assert node.end_lineno is not None
    return {*range(min([node.lineno, *(d.lineno for d in decorators)]), node.end_lineno + 1)}


def _unread(body: ast.ClassDef, wanted: Set[str], gone: Set[int]) -> set[int]:
    """The lines, beside those that are gone, of what is assigned and read by no other assignment nor statement."""
    found = [n for n in ast.walk(body) if isinstance(n, ast.stmt | ast.expr) and n.lineno not in gone]
    assigned: dict[str, set[int]] = {}
    for n in found:
        if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name | ast.Attribute):
            assigned.setdefault(ast.unparse(n.targets[0]), set()).update(_lines_of(n))
    read = {*wanted}
    for n in found:
        if isinstance(n, ast.Name | ast.Attribute) and isinstance(n.ctx, ast.Load):
            read |= {t for t in [ast.unparse(n)] if n.lineno not in assigned.get(t, ())}
    return {line for target, lines in assigned.items() if target not in read for line in lines}


def in_order(first: Iterable[str]) -> list[Helper]:
    """The helpers of these names and all that they build on: each after those."""
    known, found = helpers(), dict[str, Helper]()

    def add(name: str) -> None:
        if name not in found:
            for other in known:
                if other in known[name].names and other != name:
                    add(other)
            found[name] = known[name]

    for name in first:
        add(name)
    return list(found.values())
