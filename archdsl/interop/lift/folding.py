"""Like layers in a row become a loop."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from archdsl.interop.lift.meanings import Experts
from archdsl.interop.lift.tree import Group, Op, module_of
from archdsl.ops import registry


@dataclass(eq=False)
class Called:
    """A module's call, of which the block is known."""

    group: Group
    block: str
    instance: int
    inputs: tuple[Op, ...]
    outs: tuple[Op, ...]
    weights: tuple[tuple[str, str, bool], ...]


@dataclass(eq=False)
class Carry:
    """What a turn of a loop hands to the next: it begins as `start`, each turn ends it as `end`, what it has made or
    what another carry was, and `last` is what it is after the loop."""

    start: Op
    end: Op | Carry
    last: Op | None


@dataclass(eq=False)
class Unit:
    """An op with its results, or a call: one, or one in each turn of the loop around."""

    peers: list[Op | Called]
    args: tuple[Any, ...]
    """Of the first turn: ops, carries, numbers."""
    outs: tuple[Op | None, ...]

    @property
    def first(self) -> Op | Called:
        return self.peers[0]

    @property
    def path(self) -> str:
        """The module whose weights these are, or of a raw weight its path; empty where there are none."""
        return path_of(self.first)


@dataclass(eq=False)
class Loop:
    body: list[Unit]
    turns: int
    carries: list[Carry] = field(default_factory=list)

    @property
    def args(self) -> tuple[Any, ...]:
        inside = {id(o) for u in self.body for o in u.outs}
        read = [a for u in self.body for a in u.args if isinstance(a, Op) and id(a) not in inside]
        return (*(c.start for c in self.carries), *dict.fromkeys(read))


def path_of(item: Op | Called) -> str:
    if isinstance(item, Called):
        return item.group.module
    weights = item.term.weights
    if item.term.op == "param":
        return weights[""].name
    return (module_of(item.label) or next(iter(weights.values())).name.rpartition(".")[0]) if weights else ""


LONGEST = 64
"""Ops of a turn."""

Key = Callable[[Unit], Any]


def folded(units: Sequence[Unit], outs: Sequence[Op], line: Key) -> list[Unit | Loop]:
    """The units with loops in place of those that repeat; `line` is the author's statement of each: what stands in
    several was no loop."""
    exact = [_signature(u, line, True) for u in units]
    loose = [_signature(u, line, False) for u in units]
    readers: dict[int, list[int]] = {id(o): [len(units)] for o in outs}
    for i, unit in enumerate(units):
        for a in unit.args:
            if isinstance(a, Op):
                readers.setdefault(id(a), []).append(i)
    found: list[Unit | Loop] = []
    at = 0
    while at < len(units):
        loop = None
        if isinstance(units[at].first, Called):
            loop = _loop(units, at, 1, loose, readers)
            if loop and _runs(loop) < 3:
                loop = None
        for period in range(1, min(LONGEST, (len(units) - at) // 2) + 1):
            loop = loop or _loop(units, at, period, exact, readers)
        if loop:
            found.append(loop)
            at += len(loop.body) * loop.turns
        else:
            found.append(units[at])
            at += 1
    return found


def _runs(loop: Loop) -> int:
    blocks = [p.block for p in loop.body[0].peers if isinstance(p, Called)]
    return 1 + sum(a != b for a, b in pairwise(blocks))


def _signature(unit: Unit, line: Key, exact: bool) -> Any:
    item = unit.first
    shared = item.group.shared if isinstance(item, Called) else item.shared
    words = shared or re.sub(r"\d+", "#", unit.path)
    operands = tuple(isinstance(a, Op) for a in unit.args)
    if isinstance(item, Called):
        return item.block if exact else "", words, operands, len(unit.outs), line(unit)
    options = tuple((k, _same_in_all(item, k, v)) for k, v in item.term.options.items())
    shape = len(item.shape)
    return item.term.op, words, operands, options, shape, tuple(item.term.weights), len(unit.outs), line(unit)


def _same_in_all(op: Op, name: str, option: Any) -> Any:
    """Return the part of an option that must be equal in all turns of a loop: the length of a list, a text, or what
    experts compute. None for numbers, which may differ by turn."""
    if isinstance(option, Experts):
        return option
    if isinstance(option, list | tuple):
        return len(option)
    primitive = registry.find(op.term.op)
    hyper = next((h for h in (primitive.header.hypers or ()) if h.name == name), None) if primitive else None
    return option if hyper is not None and hyper.kind == "string" else None


def _loop(
    units: Sequence[Unit], start: int, period: int, signatures: Sequence[Any], readers: dict[int, list[int]]
) -> Loop | None:
    """The longest loop of that period that begins here."""
    end = start + period
    while end < len(units) and signatures[end] == signatures[end - period]:
        end += 1
    for turns in range((end - start) // period, 1, -1):
        window = units[start : start + period * turns]
        found = _carried(window, period, readers, start) if _numbered(window, period) else None
        if found and found[0]:
            carries, places = found
            body = []
            for m, unit in enumerate(window[:period]):
                args = tuple(places.get((m, i), a) for i, a in enumerate(unit.args))
                body.append(Unit([p for u in window[m::period] for p in u.peers], args, unit.outs))
            return Loop(body, turns, carries)
    return None


def _numbered(window: Sequence[Unit], period: int) -> bool:
    """Whether the modules of each turn are numbered on from those of the turn before, or are the same."""
    steps = set()
    for a, b in zip(window, window[period:], strict=False):
        own, following = _numbers(a.path), _numbers(b.path)
        if not a.path:
            continue
        if len(own) != len(following):  # one set of weights under two paths
            return False
        numbers = [(int(x), int(y)) for x, y in zip(own, following, strict=True) if x != y]
        if len(numbers) > 1:
            return False
        steps.add(numbers[0][1] - numbers[0][0] if numbers else 0)
    return len(steps) == 1 and min(steps) >= 0


def _numbers(path: str) -> list[str]:
    return re.findall(r"\d+", path)


def _carried(
    window: Sequence[Unit], period: int, readers: dict[int, list[int]], start: int
) -> tuple[list[Carry], dict[tuple[int, int], Carry]] | None:
    """What is carried from turn to turn, and by which unit and in which place it is read; None where the turns are no
    loop.

    An operand that a unit reads of the turn before is carried; one of d turns before passes d carries, of which each is
    what the one before was."""
    made = {id(o): (i, j) for i, u in enumerate(window) for j, o in enumerate(u.outs) if o is not None}
    turns = len(window) // period
    starts: dict[tuple[int, int], dict[int, Op]] = {}
    places: dict[tuple[int, int], tuple[tuple[int, int], int]] = {}
    for m in range(period):
        for i, column in enumerate(zip(*(u.args for u in window[m::period]), strict=True)):
            last = column[-1]
            if not isinstance(last, Op) or (id(last) not in made and all(x is last for x in column)):
                continue
            if id(last) not in made:
                return None
            at, j = made[id(last)]
            back = turns - 1 - at // period
            for t, x in enumerate(column):
                if t >= back:
                    if made.get(id(x)) != ((t - back) * period + at % period, j):
                        return None
                elif id(x) in made or starts.setdefault((at % period, j), {}).setdefault(back - t, x) is not x:
                    return None
            if back:
                places[m, i] = (at % period, j), back
    for at, unit in enumerate(window):
        for j, out in enumerate(unit.outs):
            outside = out is not None and any(not start <= r < start + len(window) for r in readers.get(id(out), ()))
            if outside and turns - 1 - at // period >= len(starts.get((at % period, j), {})):
                return None
    carries: dict[tuple[tuple[int, int], int], Carry] = {}
    for (m, j), firsts in starts.items():
        end: Any = window[m].outs[j]
        for back in range(1, len(firsts) + 1):
            final = window[(turns - back) * period + m].outs[j] if back <= turns else None
            end = carries[(m, j), back] = Carry(firsts[back], end, final)
    return list(carries.values()), {place: carries[key] for place, key in places.items()}
