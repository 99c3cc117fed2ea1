"""The statements of a block: what is written into what, and what each value is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from archdsl.interop.lift import authors
from archdsl.interop.lift.authors import step, word
from archdsl.interop.lift.expressions import BINARY, Expressions
from archdsl.interop.lift.folding import Called, Carry, Loop, Unit
from archdsl.interop.lift.holes import INDEX, binary, condition, hole, name, number
from archdsl.interop.lift.tree import Op
from archdsl.ops import registry
from archdsl.syntax import ast
from archdsl.syntax.ast import NOWHERE

STATEMENTS = {"param", "table"}
"""What is a statement of its own."""
TIGHT, WIDE = 88, 112
"""Characters of a statement made of several of the author's, and of one."""


class Region:
    """The statements of a body, or of a loop in it: what is written into what, and what each value is called."""

    def __init__(
        self, body: Expressions, units: Sequence[Unit | Loop], outs: Sequence[Op | Carry], loop: Loop | None
    ) -> None:
        self.body, self.outs, self.loop = body, outs, loop
        self.units = units
        self.made: dict[int, Unit] = {}
        for u in units:
            if isinstance(u, Unit):
                self.made.update({id(o): u for o in u.outs if o is not None})
        self.readers: dict[int, list[Any]] = {}
        for unit in units:
            for a in unit.args:
                if isinstance(a, Op | Carry):
                    self.readers.setdefault(id(a), []).append(unit)
        for out in outs:
            self.readers.setdefault(id(out), []).append(None)
        self.lines = {id(u): body.line(u) for u in units if isinstance(u, Unit)}
        self.widths: dict[int, int] = {}
        self.inlined: set[int] = set()
        for unit in units:
            if isinstance(unit, Unit):
                self._place(unit)
        self.steps = [u for u in units if not (isinstance(u, Unit) and id(u.outs[0]) in self.inlined)]
        self.last: dict[int, int] = {}
        """The last step that reads a value."""
        for k, unit in enumerate(self.steps):
            for v in self._leaves(unit):
                self.last[id(v)] = k
        for out in outs:
            for v in self._leaves_of(out):
                self.last[id(v)] = len(self.steps)
        self.loops = {
            id(u): Region(body, u.body, [c.end for c in u.carries], u) for u in self.steps if isinstance(u, Loop)
        }
        self.holders: dict[str, int] = {}
        """By name, the value that has it."""
        self.results: tuple[Any, ...] = ()

    # what is written into what

    def _place(self, unit: Unit) -> None:
        """Decide whether a unit is a statement of its own, or a part of the one that reads it."""
        width = self.widths[id(unit)] = self.widths.get(id(unit), 0) + _width(unit)
        out = unit.outs[0]
        readers = self.readers.get(id(out), [])
        if len(unit.outs) != 1 or len(readers) != 1 or self._alternates(unit):
            return
        reader, line = readers[0], self.lines[id(unit)]
        if isinstance(reader, Loop) or (isinstance(unit.first, Op) and unit.first.term.op in STATEMENTS):
            return
        plain = line is None or not any(line.targets) or line.returns
        if reader is None:
            most = WIDE if len(self.outs) == 1 else TIGHT // 2 if plain else 0
            if self.loop is None and width <= most:
                self.inlined.add(id(out))
            return
        whole = width + self.widths.get(id(reader), 0) + _width(reader)
        there = self.lines[id(reader)]
        one = plain or (line and there and line[:2] == there[:2]) or _is_constant(unit)
        if whole <= WIDE if one else whole <= TIGHT and self._continues(out, reader):
            self.inlined.add(id(out))
            self.widths[id(reader)] = self.widths.get(id(reader), 0) + width

    def _continues(self, out: Any, reader: Unit) -> bool:
        """Whether a unit only goes on with a value: a stage, or a sum with something that has a name."""
        item = reader.first
        if isinstance(item, Called) and isinstance(self.made[id(out)].first, Called):
            return False
        if isinstance(item, Op) and item.term.op in BINARY:
            others = [a for a in reader.args if a is not out and isinstance(a, Op | Carry)]
            return all(id(a) not in self.made or len(self.readers[id(a)]) > 1 for a in others)
        return reader.args[0] is out and sum(isinstance(a, Op | Carry) for a in reader.args) == 1

    @staticmethod
    def _alternates(unit: Unit) -> bool:
        return len({p.block for p in unit.peers if isinstance(p, Called)}) > 1

    def _leaves(self, step: Unit | Loop) -> list[Any]:
        return [v for a in step.args for v in self._leaves_of(a)]

    def _leaves_of(self, value: Any) -> list[Any]:
        if id(value) in self.inlined:
            return self._leaves(self.made[id(value)])
        return [value] if isinstance(value, Op | Carry) else []

    # names

    def _available(self, title: str, k: int) -> bool:
        if title in self.body.book.reserved:
            return False
        if title in self.holders:
            return self.last.get(self.holders[title], -1) <= k
        return title not in self.body.used or title in self.body.local

    def _bind(self, value: Any, hint: str, k: int) -> str:
        base = word(hint)
        names = (base, *(f"{base}_{n}" for n in range(2, len(self.body.used) + 3)))
        handed = {self.body.names[id(c)] for c in self.loop.carries} if self.loop and value in self.outs else set()
        title = next(n for n in names if self._available(n, k) and n not in handed)
        self._hold(value, title)
        return title

    def _hold(self, value: Any, title: str) -> None:
        if self.loop is None:
            self.body.local.discard(title)
        elif title not in self.body.used:
            self.body.local.add(title)
        self.body.used.add(title)
        self.holders[title] = id(value)
        self.body.names[id(value)] = title

    def _hint(self, unit: Unit, place: int) -> str:
        """What the author calls a result."""
        line, out = self.lines[id(unit)], unit.outs[place]
        readers = self.readers.get(id(out), [])
        if len(readers) == 1 and isinstance(readers[0], Loop):
            carry = next((c for c in readers[0].carries if c.start is out), None)
            if carry is not None:
                return self.loops[id(readers[0])].hint_of(carry)
        targets = line.targets if line else ()
        mates = [
            o
            for u in self.steps
            if isinstance(u, Unit) and line and self.lines[id(u)] is line
            for o in u.outs
            if o is not None and not all(self.lines.get(id(r)) is line for r in self.readers.get(id(o), []))
        ]
        found: str | None = None
        if len(unit.outs) == len(targets):
            found = targets[place]
        elif len(mates) == len(targets) and any(o is out for o in mates):
            found = targets[next(i for i, o in enumerate(mates) if o is out)]
        elif len(unit.outs) > 1 and isinstance(unit.first, Called):
            found = (self.body.book.blocks[unit.first.block].tree.header.results or ())[place].name
        else:
            found = next((t for t in targets if t and t.strip("_")), None)
        if found and found.strip("_"):
            return found
        item = unit.first
        if isinstance(item, Called):
            inner = authors.returned(self.body.class_of(item.group.module))
            if len(inner) == len(unit.outs) and (title := inner[place]) and title.strip("_"):
                return title
        own = unit.path.rpartition(".")[2]
        return own if own and not own.isdigit() and isinstance(item, Op) else "x" if len(unit.outs) == 1 else "h"

    def hint_of(self, carry: Carry) -> str:
        """What the author calls what is carried through this loop."""
        if isinstance(carry.end, Carry):
            for reader in self.units:
                for place, x in enumerate(reader.args):
                    unit = reader if isinstance(reader, Unit) else None
                    if x is carry and unit and isinstance(unit.first, Called):
                        return (self.body.book.blocks[unit.first.block].tree.header.tensors or ())[place].name
            return self.hint_of(carry.end)
        maker = self.made[id(carry.end)]
        return self._hint(maker, next(j for j, o in enumerate(maker.outs) if o is carry.end))

    # statements

    def statements(self) -> list[ast.Statement]:
        """The statements in their order; afterwards `results` are the expressions of what the region gives."""
        if self.loop is None:
            self.holders.update({n: v for v, n in self.body.names.items()})
        found: list[ast.Statement] = []
        for k, unit in enumerate(self.steps):
            found += self._looped(unit, k) if isinstance(unit, Loop) else self._stated(unit, k)
        self.results = tuple(self.read(o) for o in self.outs)
        return found

    def read(self, value: Any) -> Any:
        """The expression of a value: its name, or what is written into this place."""
        if id(value) in self.inlined:
            unit = self.made[id(value)]
            return self.body.expression(unit, [self.read(a) for a in unit.args])
        return name(self.body.names[id(value)]) if isinstance(value, Op | Carry) else value

    def _stated(self, unit: Unit, k: int) -> list[ast.Statement]:
        item, body = unit.first, self.body
        if isinstance(item, Op) and item.term.op == "param":
            bound = body.fresh(step(self._raw(unit)))
            while bound in body.labels:
                bound = body.fresh(f"{bound}_")
            body.labels.add(bound)
            self.last[id(item)] = len(self.steps) + 1
            self._hold(item, bound)
            return [body.param(unit, "", bound)]
        if isinstance(item, Op) and item.term.op == "table":
            bound = body.fresh("table")
            self._hold(item, bound)
            return [body.table(unit, bound)]
        args = [self.read(a) for a in unit.args]
        value = body.expression(unit, args)
        names = tuple(self._named(unit, j, k) for j in range(len(unit.outs)))
        blocks = list(dict.fromkeys(p.block for p in unit.peers if isinstance(p, Called)))
        if len(blocks) > 1:
            made = {b: (_assigned(names, body.invoked(unit, args, b)),) for b in blocks}
            return [_choice([p.block for p in unit.peers if isinstance(p, Called)], made)]
        if (
            len(names) == 1
            and isinstance(unit.outs[0], Op)
            and (added := self._update(unit, names[0], value)) is not None
        ):
            return [ast.Update(names[0], added, None, span=NOWHERE)]
        return [_assigned(names, value)]

    @staticmethod
    def _raw(unit: Unit) -> str:
        """The name of a raw weight: that of a list for its elements."""
        steps = unit.path.split(".")
        return next((s for s in reversed(steps) if not s.isdigit()), steps[-1])

    def _named(self, unit: Unit, place: int, k: int) -> str:
        out = unit.outs[place]
        for carry in self.loop.carries if self.loop else ():
            if carry.end is out and out is not None:
                title = self.body.names[id(carry)]
                if self.last.get(self.holders[title], -1) <= k:
                    self._hold(out, title)
                    return title
        if out is None:
            return self._bind(object(), "_" + self._hint(unit, place), k)
        return self._bind(out, self._hint(unit, place), k)

    @staticmethod
    def _update(unit: Unit, title: str, value: Any) -> Any:
        """What is added to a tensor in its shape, or None."""
        if not isinstance(value, ast.Binary) or value.op != "+":
            return None
        for mine, other, operand in ((value.left, value.right, 0), (value.right, value.left, 1)):
            x, out = unit.args[operand], unit.outs[0]
            x = x.start if isinstance(x, Carry) else x
            if mine == name(title) and isinstance(x, Op) and out is not None and x.shape == out.shape:
                return other
        return None

    def _looped(self, loop: Loop, k: int) -> list[ast.Statement]:
        """A loop, before it copies of what it carries where the first value is still needed."""
        body = self.body
        found: list[ast.Statement] = []
        inside = self.loops[id(loop)]
        fixed = {id(a) for u in loop.body for a in u.args if isinstance(a, Op)}
        for carry in loop.carries:
            start = body.names[id(carry.start)]
            again = any(c.start is carry.start for c in loop.carries if c is not carry and id(c) in body.names)
            if self.last.get(id(carry.start), -1) > k or id(carry.start) in fixed or again:
                title = body.fresh(inside.hint_of(carry))
                found.append(_assigned((title,), name(start)))
            else:
                title = start
            self._hold(carry, title)
            inside.holders[title] = id(carry)
        outer = {id(c): body.names[id(c)] for c in loop.carries}
        statements = inside.statements()
        for carry in reversed(loop.carries):  # what another carry was before that is made anew
            title = outer[id(carry)]
            if body.names[id(carry.end)] != title:
                statements.append(_assigned((title,), name(body.names[id(carry.end)])))
        for carry in loop.carries:
            title = outer[id(carry)]
            if carry.last is not None:
                self._hold(carry.last, title)
        count = hole(loop.turns, "layers")
        found.append(ast.For(INDEX, count, tuple(statements), span=NOWHERE))
        return found


def _assigned(names: tuple[str, ...], value: Any) -> ast.Assign:
    return ast.Assign(names, value, None, span=NOWHERE)


def _choice(turns: list[str], made: Mapping[str, tuple[ast.Statement, ...]]) -> ast.If:
    """The statement of each turn, where they differ: the most frequent is the last `else`."""
    order = sorted(made, key=lambda b: (turns.count(b), turns.index(b)))
    found: tuple[ast.Statement, ...] = made[order[-1]]
    for block in reversed(order[:-1]):
        when = condition([t == block for t in turns])
        if when is None:
            numbers = [k for k, t in enumerate(turns) if t == block]
            when = binary("==", name(INDEX), number(numbers[0]))
            for n in numbers[1:]:
                when = binary("or", when, binary("==", name(INDEX), number(n)))
        found = (ast.If(when, made[block], found, span=NOWHERE),)
    assert isinstance(found[0], ast.If)
    return found[0]


def _is_constant(unit: Unit) -> bool:
    return not any(isinstance(a, Op | Carry) for a in unit.args)


def _width(unit: Unit) -> int:
    """About how many characters a unit takes."""
    item = unit.first
    if isinstance(item, Called):
        return len(item.block) + len(unit.path.rpartition(".")[2]) + 12 + 8 * (len(unit.args) - 1)
    term = item.term
    if term.op in BINARY:
        return 6
    label = len(unit.path.rpartition(".")[2]) + 4 if term.weights else 0
    primitive = registry.find(term.op)
    hypers = primitive.header.hypers or () if primitive else ()
    named = {h.name for h in hypers if h.default is not None}
    options = sum(len(k) + 8 if k in named else 9 for k in term.options)
    return len(term.op) + 4 + label + options + 8 * (len(unit.args) - 1)
