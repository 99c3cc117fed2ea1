"""Names for the values of a method, when all its statements are known: the one that a value would like to have, if
nothing that is still read has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from archdsl.backends.torch.program import Bind, Target
from archdsl.backends.torch.python import local_name
from archdsl.backends.torch.statements import ForLoop, IfStatement, Statement, blocks_of, bound
from archdsl.backends.torch.tree import Read, Variable, leaves, own_trees

Names = dict[Any, str]


def preferred(value: Target, hints: Mapping[Any, str]) -> str:
    """What a value would like to be called: the spec's name, or one that says roughly what it is."""
    if isinstance(value, Variable):
        return local_name(value.hint)
    return local_name(value.name or hints.get(value) or ("h" if value.is_float else "found"))


def named(
    parameters: Sequence[Target], statements: Sequence[Statement], hints: Mapping[Any, str], avoid: set[str]
) -> Names:
    """A name for every parameter and local. No two that are live at once share one."""
    entry = Bind(tuple(parameters), ())  # type: ignore[arg-type]  # it reads nothing
    after: dict[int, frozenset[Target]] = {}
    after[id(entry)] = _live(statements, frozenset(), after)
    against: dict[Target, set[Target]] = {}
    for s in (entry, *_bindings(statements)):
        targets = [t for t in bound(s) if t is not None]
        for t in targets:
            against.setdefault(t, set()).update({*after[id(s)], *targets} - {t})
    for value, others in list(against.items()):
        for other in others:
            against.setdefault(other, set()).add(value)
    names: Names = {}
    wanted = {value: _parameter(value, hints) if value in parameters else preferred(value, hints) for value in against}
    for value, others in against.items():
        busy = avoid | {names[v] for v in others if v in names}
        base = wanted[value]
        names[value] = next(n for i in count(1) if (n := base if i == 1 else f"{base}_{i}") not in busy)
    return names


def _parameter(value: Target, hints: Mapping[Any, str]) -> str:
    """A parameter is called as the block's header calls it."""
    return local_name(hints[value]) if value in hints else preferred(value, hints)


def _bindings(statements: Sequence[Statement]) -> Iterator[Statement]:
    """Every statement, those within others after theirs."""
    for s in statements:
        yield s
        for body in blocks_of(s):
            yield from _bindings(body)


def _live(
    statements: Sequence[Statement], after: frozenset[Target], found: dict[int, frozenset[Target]]
) -> frozenset[Target]:
    """What is read later before the first of some statements, given what is after the last; in `found`, what is after
    each (of a loop: where each iteration begins)."""
    for s in reversed(statements):
        live = after
        if isinstance(s, ForLoop):
            while (wider := live | (_live(s.body, live, found) - {*s.targets})) != live:
                live = wider
            found[id(s)] = live
        elif isinstance(s, IfStatement):
            found[id(s)] = after
            live = _live(s.then, after, found) | _live(s.otherwise, after, found)
        else:
            found[id(s)] = after
            live = after - {*bound(s)}
        after = live | {x.value for x in leaves(own_trees(s)) if isinstance(x, Read)}
    return after
