"""Statements of Python over values: what `schedule` makes, and `text` prints when they have names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from archdsl.backends.torch.program import Bind, Check, Do, Put, Target
from archdsl.backends.torch.tree import Code, Part, Read, leaves, mapped, nodes, own_trees, word
from archdsl.ir.op import Tree


class Rebind(Code):
    """Targets get their values at once; those that are the same local already drop out when names are known."""

    targets: tuple[Target, ...]
    exprs: tuple[Tree, ...]


class ForLoop(Code):
    """`for targets in zip(sources)`; `range(sources)` where that is a number, counted by the target or by nothing."""

    targets: tuple[Target, ...]
    source: Tree
    body: tuple[Statement, ...]


class IfStatement(Code):
    """`if test`, with or without `else`."""

    test: Tree
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]
    note: str = ""


class ReturnStatement(Code):
    """`return exprs`."""

    exprs: tuple[Tree, ...]


Statement = Bind | Rebind | Check | Put | Do | ForLoop | IfStatement | ReturnStatement


def blocks_of(s: Statement) -> tuple[tuple[Statement, ...], ...]:
    """The bodies of a statement."""
    return (s.body,) if isinstance(s, ForLoop) else (s.then, s.otherwise) if isinstance(s, IfStatement) else ()


def bound(s: Statement) -> tuple[Target, ...]:
    """What a statement binds."""
    return s.targets if isinstance(s, Bind | Rebind | ForLoop) else ()


def attributes(statements: Sequence[Statement]) -> set[str]:
    """Attributes of `self` that some statements read."""
    own = (n.fields[1] for n in nodes(statements) if n.kind == "Attribute" and n.fields[0] == word("self"))
    return {*own, *(x.name for x in leaves(statements) if isinstance(x, Part))}


def statement_keys(
    statements: Sequence[Statement], known: dict[Any, Any], name: Callable[[Target], str]
) -> tuple[Any, ...]:
    """Equal for statements that read alike: what they bind by its order and the name it would like to have."""

    def leaf(x: Any) -> Any:
        return Read(known.get(x.value, x.value)) if isinstance(x, Read) else x

    found = []
    for s in statements:
        own = tuple(mapped(e, leaf) for e in own_trees(s))
        targets = tuple(None if t is None else known.setdefault(t, (len(known), name(t))) for t in bound(s))
        text = s.message if isinstance(s, Check) else s.note if isinstance(s, Bind) else ""
        inner = tuple(statement_keys(body, known, name) for body in blocks_of(s))
        found.append((type(s).__name__, own, targets, text, inner))
    return tuple(found)
