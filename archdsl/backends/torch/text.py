"""Statements as lines of Python: the only module that makes text of trees. `black` lays them out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from archdsl.backends.torch.lower import Method
from archdsl.backends.torch.names import Names
from archdsl.backends.torch.program import Bind, Check, Do, Put, effectful, is_cache
from archdsl.backends.torch.python import WIDTH
from archdsl.backends.torch.statements import (
    ForLoop,
    IfStatement,
    Rebind,
    ReturnStatement,
    Statement,
    bound,
)
from archdsl.backends.torch.tree import Part, PyNode, Read, leaves, py, trees, unparse, words
from archdsl.diagnostics.source import printable
from archdsl.frozen import Frozen
from archdsl.ir.op import Tree

Leaf = Callable[[Any], str]
"""The text of a leaf."""


def quoted(text: str) -> str:
    """Text of a spec within a Python string or docstring."""
    return printable(text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " "))


def asserted(test: Tree, message: str, leaf: Leaf) -> str:
    return f'assert {unparse(test, leaf)}, "{quoted(message)}"'


def lines(statements: Sequence[Statement], name: Callable[[Any], str], leaf: Leaf, indent: int = 2) -> Iterator[str]:
    """The lines of some statements; `name` gives the local of a target, '_' for none."""
    space = "    " * indent
    for s in statements:
        match s:
            case Bind():
                yield from _let(s, name, leaf, space)
            case Rebind():
                pairs = [(name(t), unparse(e, leaf)) for t, e in zip(s.targets, s.exprs, strict=True)]
                pairs = [(t, e) for t, e in pairs if t != e]
                if pairs:
                    yield f"{space}{', '.join(t for t, _ in pairs)} = {', '.join(e for _, e in pairs)}"
            case Check():
                yield space + asserted(s.test, s.message, leaf)
            case Put():
                yield f"{space}{unparse(s.target, leaf)} = {unparse(s.expr, leaf)}"
            case Do():
                yield space + unparse(s.expr, leaf)
            case ForLoop():
                yield f"{space}for {', '.join(map(name, s.targets))} in {unparse(s.source, leaf)}:"
                yield from list(lines(s.body, name, leaf, indent + 1)) or [f"{space}    pass"]
            case IfStatement() if (alike := _chosen(s, name, leaf, indent)) is not None:
                yield from alike
            case IfStatement():
                then, otherwise, after = _apart(s, name, leaf, indent + 1)
                if then or otherwise:
                    test = s.test if then else negated(s.test)
                    yield f"{space}if {unparse(test, leaf)}:" + (f"  # {s.note}" if s.note else "")
                    yield from then or otherwise
                if then and otherwise:
                    yield f"{space}else:"
                    yield from otherwise
                yield from after
            case ReturnStatement():
                yield f"{space}return {unparse(s.exprs, leaf)}"


def _let(s: Bind, name: Callable[[Any], str], leaf: Leaf, space: str) -> Iterator[str]:
    text, to = unparse(s.expr, leaf), ", ".join(map(name, s.targets))
    if to != text:
        line = f"{space}{to} = {text}"
        note = f"  # {s.note}" if s.note else ""
        yield line + (note if len(line) + len(note) <= WIDTH else "")


def _apart(s: IfStatement, name: Callable[[Any], str], leaf: Leaf, indent: int) -> tuple[list[str], ...]:
    """The lines of both arms of an `if`, and of the statements that both end with, which follow it."""
    arms = [[text for x in arm if (text := [*lines([x], name, leaf, indent)])] for arm in (s.then, s.otherwise)]
    after: list[str] = []
    while _shared(s.test) and arms[0][-1:] == arms[1][-1:] != [] and len(arms[0]) + len(arms[1]) > 2:
        after = [line[4:] for line in arms[0].pop()] + after
        arms[1].pop()
    return *([line for text in arm for line in text] for arm in arms), after


def _shared(test: Tree) -> bool:
    """Whether what both arms of an `if` end with may follow it: the validator runs what follows for each arm only where
    a cache decides which of them is run."""
    asked = [*leaves(test)]
    return bool(asked) and all(map(is_cache, asked)) and "self" not in words(test)


def _chosen(s: IfStatement, name: Callable[[Any], str], leaf: Leaf, indent: int) -> list[str] | None:
    """An `if` whose arms end alike, as expressions: `x = a if test else b`; before them an `if` with what one arm alone
    does. None where a line would be too long, or the order of what is done another."""
    arms = [[x for x in arm if [*lines([x], name, leaf)]] for arm in (s.then, s.otherwise)]
    short, long = sorted(arms, key=len)
    free = not effectful((*trees((short, long)),)) or all(map(is_cache, leaves(s.test)))
    if not short or s.note or not free:
        return None
    first = long[: len(long) - len(short)]
    if first and not _shared(s.test):
        return None
    asked = {leaf(x) for x in leaves(s.test)}
    rebound = {name(t) for arm in (short, long) for x in arm for t in bound(x) if t is not None}
    if (asked & rebound and len(long) > 1) or any(bound(x) for x in first):
        return None
    found = []
    for a, b in zip(*(arm[-len(short) :] for arm in arms), strict=True):
        one = _either(s.test, a, b, name)
        if one is None:
            return None
        made = list(lines([one], name, leaf, indent))
        if len(made) != 1 or len(made[0]) > WIDTH:
            return None
        found += made
    if not first:
        return found
    test = s.test if long is arms[0] else negated(s.test)
    return [*lines([IfStatement(test, tuple(first), ())], name, leaf, indent), *found]


def _either(test: Tree, a: Statement, b: Statement, name: Callable[[Any], str]) -> Statement | None:
    """One statement that does what either of two does."""
    if isinstance(a, Bind) and isinstance(b, Bind) and [*map(name, a.targets)] == [*map(name, b.targets)]:
        if len(a.targets) > 1 or a.note or b.note:
            return None
        return replace(a, expr=PyNode("IfExp", (test, a.expr, b.expr)))
    if isinstance(a, Check) and isinstance(b, Check) and a.message == b.message:
        return replace(a, test=_choice(test, a.test, b.test))
    return None


def _choice(test: Tree, a: Any, b: Any) -> Any:
    """What is `a` or `b`: the choice stands as far within as only one part of them differs."""
    if isinstance(a, PyNode) and isinstance(b, PyNode) and a.kind == b.kind and len(a.fields) == len(b.fields):
        apart = [i for i, (x, y) in enumerate(zip(a.fields, b.fields, strict=True)) if x != y]
        if len(apart) == 1 and isinstance(a.fields[apart[0]], Tree):
            i = apart[0]
            inner = _choice(test, a.fields[i], b.fields[i])
            return PyNode(a.kind, (*a.fields[:i], inner, *a.fields[i + 1 :]))
    return PyNode("IfExp", (test, a, b))


def negated(test: Tree) -> Tree:
    """`not test`, said the other way round where `test` asks for None."""
    if isinstance(test, PyNode) and test.kind == "Compare":
        left, ops, rights = test.fields
        other = {"Is": "IsNot", "IsNot": "Is"}.get(ops[0].kind) if len(ops) == 1 else None
        if other is not None:
            return PyNode("Compare", (left, (PyNode(other, ()),), rights))
    return py("not {x}", x=test)


def first_sentence(doc: str) -> str:
    """The first sentence of a doc comment, quoted; abbreviations end none."""
    text = " ".join(doc.split())
    m = re.match(r"(.*?[.!?])(?= [A-Z`]|$)", text)
    found = m[1] if m else text
    while m and re.search(r"\b(al|e\.g|i\.e|vs|cf|Eq|Fig|Sec)\.$", found) and len(found) < len(text):
        rest = re.match(r"(.*?[.!?])(?= [A-Z`]|$)", text[len(found) :])
        if rest is None:
            return quoted(text)
        found += rest[1]
    return quoted(found)


def part_text(x: Any) -> str:
    """A submodule or raw weight as text."""
    assert isinstance(x, Part), x
    if x.index is None:
        return f"self.{x.name}"
    if isinstance(x.index, tuple):
        return f"self.{x.name}[{x.index[0]}:{x.index[1]}]"
    return f"self.{x.name}[{x.index}]"


class Scheduled(Frozen):
    """A method whose statements have names."""

    method: Method
    body: tuple[Statement, ...]
    names: Names

    def lines(self, statements: Sequence[Statement], indent: int = 2) -> list[str]:
        """Some of its statements as text."""
        return list(lines(statements, self.name, self.leaf, indent))

    def name(self, target: Any) -> str:
        return "_" if target is None else self.names[target]

    def leaf(self, x: Any) -> str:
        return self.names[x.value] if isinstance(x, Read) else part_text(x)
