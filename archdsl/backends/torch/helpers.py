"""Helpers of emitted files: the functions and classes of `runtime/`, copied into a file by source.

They are real modules, linted, typed and tested like all others, and never imported by the compiler: each is parsed
once, so that it is known which other helpers and which imports it needs.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import cache
from importlib.resources import files
from symtable import SymbolTable, symtable
from textwrap import dedent, indent
from typing import Any

from archdsl.backends.torch.python import laid_out
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


def fitted(those: Sequence[Helper], callers: Iterable[str]) -> dict[str, str]:
    """The sources of helpers, each behind those that it builds on, without parameters that nothing in them nor in
    `callers` gives."""
    found: dict[str, str] = {}
    known, uses = _parameters(), _Uses()
    trims = any(h.name in known for h in those)
    for text in callers if trims else ():
        uses.note(text)
    for helper in reversed(those):
        given = uses.given(helper.name) if helper.name in known else set()
        found[helper.name] = trimmed(helper.name, frozenset(given)) if given else helper.source
        if trims:
            uses.note(found[helper.name])
    return found


class _Uses:
    """Where helpers are called, and read."""

    def __init__(self) -> None:
        self.calls: dict[str, list[ast.Call]] = {}
        self.reads: Counter[str] = Counter()

    def note(self, source: str) -> None:
        """Note the uses in a source."""
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Name):
                self.reads[node.id] += 1
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                self.calls.setdefault(node.func.id, []).append(node)

    def given(self, name: str) -> set[str]:
        """The parameters of a helper that are given somewhere; all where it is read but not called, or what is given is
        not known; none of one that is read nowhere."""
        parameters, calls, found = _parameters()[name], self.calls.get(name, []), set[str]()
        if len(calls) < self.reads[name]:
            return {*parameters}
        for call in calls:
            if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
                return {*parameters}
            found |= {*parameters[: len(call.args)], *(k.arg for k in call.keywords if k.arg)}
        return found


@cache
def _parameters() -> dict[str, list[str]]:
    """The parameters of helpers that are one function some of whose parameters have a default."""
    bodies = {name: ast.parse(h.source).body for name, h in helpers().items()}
    functions = ((name, body[0]) for name, body in bodies.items() if len(body) == 1)
    return {n: [a.arg for a in f.args.args] for n, f in functions if isinstance(f, ast.FunctionDef) and f.args.defaults}


@cache
def trimmed(name: str, wanted: frozenset[str]) -> str:
    """A helper that is a function, without the parameters that have a default and are not wanted, and without what is
    done for these alone. One that is read for more than to decide what is done stays."""
    source = helpers()[name].source
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    own = function.args
    defaults = dict(zip((a.arg for a in reversed(own.args)), reversed(own.defaults), strict=False))
    known = {p: ast.literal_eval(value) for p, value in defaults.items() if p not in wanted}
    body: list[str] = []
    while known:
        body = [*_Decided(known, source.splitlines()).text(function.body)]
        read = {n.id for n in ast.walk(ast.parse(dedent("\n".join(body)))) if isinstance(n, ast.Name)}
        if read.isdisjoint(known):
            break
        known = {p: value for p, value in known.items() if p not in read}
    if not known:
        return source
    own.args = [a for a in own.args if a.arg not in known]
    own.defaults = [defaults[a.arg] for a in own.args if a.arg in defaults]
    function.body = []
    return laid_out("\n".join([ast.unparse(function), *body]))


class _Decided(ast.NodeTransformer):
    """Statements of a function some of whose parameters are `known`; `lines` are those of its source."""

    def __init__(self, known: Mapping[str, Any], lines: Sequence[str]) -> None:
        self.known, self.lines = known, lines

    def text(self, body: Sequence[ast.stmt], deeper: int = 0) -> Iterator[str]:
        """The lines of some statements, which may stand `deeper` in the source; those that change lose comments."""
        end = body[0].lineno - 1 if body else 0
        for s in body:
            holds = self.holds(s.test) if isinstance(s, ast.If) else None
            if isinstance(s, ast.If) and holds is not None:
                yield from self.text(s.body if holds else s.orelse, deeper + 4)
            else:
                before = ast.unparse(s)
                made = ast.unparse(self.visit(s))
                old = (
                    self.lines[end : s.end_lineno] if made == before else indent(made, " " * (4 + deeper)).splitlines()
                )
                yield from (line[deeper:] for line in old)
            end = s.end_lineno or end

    def holds(self, test: ast.expr) -> bool | None:
        """Whether a test of a parameter holds; None where it is not known."""
        match test:
            case ast.Name(id=name) if name in self.known:
                return bool(self.known[name])
            case ast.Compare(ast.Name(name), [ast.Is() | ast.IsNot() as op], [ast.Constant(None)]) if (
                name in self.known
            ):
                return (self.known[name] is None) == isinstance(op, ast.Is)
            case ast.Compare(ast.Name(name), [ast.Gt()], [ast.Constant(value)]) if name in self.known:
                return bool(self.known[name] > value)
        return None

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        holds = self.holds(node.test)
        self.generic_visit(node)
        return node if holds is None else node.body if holds else node.orelse

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """A call that is handed what is None leaves it out: no function that helpers call has another default."""
        self.generic_visit(node)
        node.keywords = [
            k for k in node.keywords if not (isinstance(k.value, ast.Name) and self.known.get(k.value.id, 0) is None)
        ]
        return node


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
