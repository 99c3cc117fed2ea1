"""`for` over a list of blocks: one Python loop where the turns read alike, else one for each run or period of equal
turns.

Each body of the loop is written once, at no indentation, with a variable for each module that it makes and for each
value that differs between the bodies.  Then the turns are compared and laid out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from archdsl.ir import dims
from archdsl.ir.graph import Graph, LoopNode, Value, captured
from archdsl.ir.wording import WRITTEN_OUT
from archdsl.lower.python import local_name, singular
from archdsl.lower.torch import patterns
from archdsl.lower.torch.locals import Hold
from archdsl.lower.torch.modules import TENSORS, Made
from archdsl.lower.torch.numbers import Numbers
from archdsl.lower.torch.reading import module_names
from archdsl.lower.torch.text import PART, PART_TOKEN, Line, loop_header, runs
from archdsl.lower.torch.written import InitText, Resolver

if TYPE_CHECKING:
    from archdsl.lower.torch.block import BlockWriter

LONGEST_PERIOD = 12
"""Patterns of more turns than this are not looked for."""


@dataclass(eq=False)
class Body:
    """One body of a loop: its lines, the modules it makes in order, the variables for them, and what differs between
    bodies, by variable (`absent` where it is a mask that needs no tensor)."""

    lines: list[Line]
    made: list[Made]
    variables: Mapping[str, str]
    varying: Mapping[str, Value]
    absent: frozenset[Value]

    @property
    def names(self) -> list[str]:
        """Lists of modules that a turn uses, once for each module."""
        return [m.name for m in self.made]

    @property
    def raw(self) -> set[str]:
        """Lists of raw weights."""
        return {m.name for m in self.made if m.raw}

    @property
    def sliced(self) -> set[str]:
        """Lists of which a turn uses a slice, for a loop within."""
        return {m[1] for _, text in self.lines for m in PART_TOKEN.finditer(text)}

    @property
    def key(self) -> tuple[tuple[Line, ...], tuple[str, ...]]:
        """Equal for bodies that read alike."""
        return tuple(self.lines), tuple(self.names)


class LoopWriter:
    """Writes one loop."""

    def __init__(self, writer: BlockWriter, node: LoopNode) -> None:
        self.writer = writer
        self.locals = writer.locals
        self.modules = writer.modules
        self.node = node
        self.outside = [list(dict.fromkeys(captured(g))) for g in node.bodies]
        """What each body reads from around."""
        self.carried: list[str] = []
        self.lists: list[str] = []
        """Locals that collect what the turns emit."""

    def write(self) -> None:
        node, known = self.node, self.locals
        around = [v for values in self.outside for v in values]
        for value in around:
            known.settle(value)
        for start, end in zip(node.starts, node.outputs, strict=True):
            self.carried.append(known.carry(start, local_name(end.name or "x")))
        for value in node.emitted[0] if node.emitted else ():
            self.lists.append(known.reserve(local_name(value.name or "collected")))
            known.line(f"{self.lists[-1]} = []")
        known.protect(around)
        bodies = [self._body(b) for b in range(len(node.bodies))]
        known.protect(around, -1)
        self._module_lists(bodies)
        self._turns(bodies)
        if self.modules.recording is not None:
            self.modules.recording += [m for t in node.turns for m in bodies[t].made]
        for t, emitted in enumerate(node.emitted):
            for name, value in zip(self.lists, emitted, strict=True):
                known.bound[value] = f"{name}[{t}]"
        for name, end in zip(self.carried, node.outputs, strict=True):
            known.hold(end, name)

    # --- one body ---

    def _body(self, b: int) -> Body:
        known, modules, graph = self.locals, self.modules, self.node.bodies[b]
        holder, bound, lines, indent = dict(known.holder), dict(known.bound), known.lines, known.indent
        recording, variables = modules.recording, dict(modules.variables)
        known.lines, known.indent, modules.recording = [], 0, []
        varying = self._varying(b)
        absent = frozenset(v for v in varying.values() if v in self.writer.elided)
        self.writer.elided -= absent
        known.bound |= {value: name for name, value in varying.items()}
        self._name_modules(graph, varying)
        for value, name in zip(graph.inputs, self.carried, strict=True):
            known.hold(value, name)
        self.writer.body(graph)
        ends = [o for o in graph.outputs if o is not None]
        for value, name in zip(ends[len(self.carried) :], self.lists, strict=True):
            # Before the carried names change: what is emitted may be a value from before the turn.
            known.line(f"{name}.append({known.take(value, 0)})")
        known.rebind(self.carried, [known.take(end, 0) for end in ends[: len(self.carried)]])
        body = Body(known.lines, modules.recording, dict(modules.variables), varying, absent)
        self.writer.elided |= absent
        known.lines, known.indent, modules.recording = lines, indent, recording
        known.holder, known.bound = holder, {**known.bound, **bound}
        if recording is not None:
            modules.variables = variables
        return body

    def _varying(self, b: int) -> dict[str, Value]:
        """What the body reads from around that is another value in other bodies, by the loop's variable for it. Modules
        are no variables: `self.table` is read as it is."""
        found: dict[str, Value] = {}
        if len({len(values) for values in self.outside}) > 1:
            return found
        for k, value in enumerate(self.outside[b]):
            others = [values[k] for values in self.outside]
            if len(set(others)) == 1 or any(self.locals.bound.get(o, "").startswith("self.") for o in others):
                continue
            shown = next((o for o in others if o not in self.writer.elided), value)
            found[self._variable(local_name(shown.name or "given"), set(others), found)] = value
        return found

    def _variable(self, base: str, others: set[Value], varying: Mapping[str, Value]) -> str:
        """The loop's variable for what differs from turn to turn: `layer_mask` where it runs over `mask`, too."""
        holder = self.locals.holder
        if base in holder and holder[base] in others:
            base = f"{local_name(self.node.variable)}_{base}"
        elif base in holder:
            base = singular(base)
        name, n = base, 1
        while (
            name in self.carried
            or name in varying
            or name in self.locals.avoid
            or (name in holder and holder[name] not in others and holder[name] is not Hold.SHARED)
        ):
            n += 1
            name = f"{base}_{n}"
        return name

    def _name_modules(self, graph: Graph, varying: Mapping[str, Value]) -> None:
        """Variables for the modules of the body: `block` for one of `self.blocks`."""
        variables = self.modules.variables
        for name in module_names(graph):
            if name not in variables:
                variable = singular(name)
                known = self.locals
                while variable in {*known.holder, *known.avoid, *variables.values(), *varying, *self.carried}:
                    variable += "_"
                variables[name] = variable

    # --- the turns ---

    def _turns(self, bodies: list[Body]) -> None:
        first, turns = bodies[0], self.node.turns
        alike = len({b.key for b in bodies}) == 1
        once = all(len(set(b.names)) == len(b.names) for b in bodies)
        sliced = any(b.sliced for b in bodies)
        if alike and once and not sliced:
            self._one_loop(bodies)
        elif alike and not first.varying and len(turns) > 1:
            self._indexed_loop(first)
        else:
            period = next((p for p in range(2, LONGEST_PERIOD + 1) if _repeats(turns, p)), 0)
            if len(runs(turns)) > 3 and period and not sliced:
                self._period(bodies, turns[:period], len(turns) // period)
            else:
                self._runs(bodies)

    def _one_loop(self, bodies: list[Body]) -> None:
        """Turns that read alike and use one module of each list."""
        first = bodies[0]
        variables = [first.variables[name] for name in first.names]
        sources = [self.modules.source(name) for name in first.names]
        for name in first.varying:
            variables.append(name)
            sources.append(self._list_of([self._outer(b, b.varying[name]) for b in bodies]))
        self.locals.line(loop_header(variables, sources, self._length()))
        self._inner(first.lines)

    def _indexed_loop(self, body: Body) -> None:
        """Equal turns that use several modules of a list each: turn i has its slice."""
        each = Counter(body.names)
        words = {w for _, text in body.lines for w in re.findall(r"\w+", text)} | self.locals.holder.keys()
        index = next(n for n in ("i", "j", "k", *(f"i_{n}" for n in range(2, 99))) if n not in words)
        self.locals.line(f"for {index} in range({self._length()}):")

        def module(name: str, k: int) -> str:
            start = index if each[name] == 1 else f"{each[name]} * {index}"
            return f"{self.modules.source(name)}[{f'{start} + {k}' if k else start}]"

        def part(name: str) -> str:
            n = each[name]
            return f"{self.modules.source(name)}[{n} * {index} : {n} * ({index} + 1)]"

        self._inner(_placed(body, body.lines, module, part))

    def _runs(self, bodies: list[Body]) -> None:
        """Turns of different kinds: one loop for each run of equal ones; a turn by itself is no loop."""
        self._demand_counts()
        total = Counter(name for t in self.node.turns for name in bodies[t].names)
        used: Counter[str] = Counter()
        for b, count in runs(self.node.turns):
            body = bodies[b]
            each = Counter(body.names)
            lines = self._outer_lines(body)
            if count == 1 or any(n > 1 for n in each.values()) or body.sliced:
                for _ in range(count):
                    self.locals.lines += [(self.locals.indent + i, text) for i, text in self._turn(body, lines, used)]
                    used += each
                continue
            sources = []
            for name in each:
                low, high = used[name], used[name] + count
                ends = f"[{low or ''}:{'' if high == total[name] else high}]"
                sources.append(self.modules.source(name) + (ends if ends != "[:]" else ""))
                used[name] = high
            self.locals.line(loop_header([body.variables[n] for n in each], sources, str(count)))
            self._inner(lines)

    def _demand_counts(self) -> None:
        """What is written out turn by turn holds for these lengths only: other numbers of the user's are refused."""
        numbers = self.writer.numbers
        for count in patterns.counts(self.node.pattern) if self.node.pattern is not None else ():
            if dims.free_names(count):
                self.writer.written.init.append(partial(_count_line, count, numbers))

    def _turn(self, body: Body, lines: Sequence[Line], used: Mapping[str, int]) -> list[Line]:
        """One turn by itself, whose modules come after those that turns before it `used`."""
        each = Counter(body.names)

        def module(name: str, k: int) -> str:
            return f"{self.modules.source(name)}[{used[name] + k}]"

        def part(name: str) -> str:
            return f"{self.modules.source(name)}[{used[name]}:{used[name] + each[name]}]"

        return _placed(body, lines, module, part)

    def _period(self, bodies: list[Body], turns: Sequence[int], repeats: int) -> None:
        """`local, local, global` again and again: one loop over the groups."""
        variables, sources = [], []
        total = Counter(name for t in turns for name in bodies[t].names)
        used: Counter[str] = Counter()
        inner: list[Line] = []
        for k, t in enumerate(turns):
            body = bodies[t]
            lines = self._outer_lines(body)
            for name in body.names:
                old = body.variables[name]
                variable = f"{old}_{k + 1}" if total[name] > 1 else old
                # Where it is called or handed on: a local may have the same name. A raw weight is read anywhere.
                pattern = rf"(?<![\w.]){re.escape(old)}" + (r"\b" if name in body.raw else r"(?=\(|\.|,|\))")
                times = 0 if name in body.raw else 1
                lines = [(i, re.sub(pattern, variable, text, count=times)) for i, text in lines]
                variables.append(variable)
                sources.append(f"{self.modules.source(name)}[{used[name] or ''}::{total[name]}]")
                used[name] += 1
            inner += lines
        if len(sources) == 1:
            sources = [sources[0].removesuffix("[::1]")]
        self.locals.line(loop_header(variables, sources, str(repeats)))
        self._inner(inner)

    def _inner(self, lines: Sequence[Line]) -> None:
        self.locals.indented(lines or [(0, "pass")])

    def _outer_lines(self, body: Body) -> list[Line]:
        """The lines with what differs between bodies under its name around the loop."""
        lines = body.lines
        for name, value in body.varying.items():
            outer = self._outer(body, value)
            if outer != name:
                lines = [(i, re.sub(rf"\b{re.escape(name)}\b", outer, text)) for i, text in lines]
        return lines

    def _outer(self, body: Body, value: Value) -> str:
        return "None" if value in body.absent else self.locals.bound[value]

    # --- lists ---

    def _length(self) -> str:
        if self.node.pattern is None:
            return str(len(self.node.turns))
        return self.writer.numbers.forward_expr(patterns.length(self.node.pattern))

    def _list_of(self, items: Sequence[str]) -> str:
        """A list with one entry a turn, written as the spec writes its list."""
        if self.node.pattern is None:
            return f"[{', '.join(items[t] for t in self.node.turns)}]"
        return patterns.list_text(self.node.pattern, items, self.writer.numbers.forward_expr)

    def _module_lists(self, bodies: list[Body]) -> None:
        """The lists of all modules of one name, in the order of turns; those of an inner loop are the outer one's to
        make."""
        if self.modules.recording is not None:
            return
        for name in dict.fromkeys(name for b in bodies for name in b.names):
            if name not in self.modules.made:
                self.modules.made.add(name)
                self._module_list(name, bodies)

    def _module_list(self, name: str, bodies: list[Body]) -> None:
        makers = [[m.constructor for m in b.made if m.name == name] for b in bodies]
        kind = "nn.ParameterList" if any(name in b.raw for b in bodies) else "nn.ModuleList"
        if any(m.buffer for b in bodies for m in b.made if m.name == name):
            kind = self.modules.helper(TENSORS)
        for count in patterns.counts(self.node.pattern) if self.node.pattern is not None else ():
            for used in dims.free_names(dims.shortest(count, self.writer.block.local)):
                self.writer.numbers.note(used)
        self.modules.line(lambda r: f"self.{name} = {kind}({self._makers_text(r, makers)})")

    def _makers_text(self, r: Resolver, makers: list[list[InitText]]) -> str:
        texts = [[text(r) for text in m] for m in makers]
        if self.node.pattern is not None and all(len(t) == 1 for t in texts):
            init_expr = self.writer.numbers.init_expr
            return patterns.modules_text(self.node.pattern, [t[0] for t in texts], lambda n, s: init_expr(n, r, s))
        entries = runs(t for turn in self.node.turns for t in texts[turn])
        if len(entries) == 1 and entries[0][1] > 1:
            return f"{entries[0][0]} for _ in range({entries[0][1]})"
        return "[" + ", ".join(t if n == 1 else f"*({t} for _ in range({n}))" for t, n in entries) + "]"


def _repeats(turns: Sequence[int], period: int) -> bool:
    """Whether the turns are several equal groups of that length."""
    return period < len(turns) and len(turns) % period == 0 and all(t == turns[i % period] for i, t in enumerate(turns))


def _placed(
    body: Body, lines: Sequence[Line], module: Callable[[str, int], str], part: Callable[[str], str]
) -> list[Line]:
    """Lines of a body without its variables: `module` gives the k-th module of a list that the turn uses, `part` the
    slice of a list that it hands to a loop within."""
    seen: Counter[str] = Counter()
    sliced = body.sliced

    def place(name: str, _: re.Match[str]) -> str:
        seen[name] += name not in body.raw
        return module(name, max(seen[name] - 1, 0))

    found = []
    for indent, line in lines:
        text = PART_TOKEN.sub(lambda m: part(m[1]), line)
        for name in dict.fromkeys(body.names):
            if name not in sliced:
                variable = rf"(?<![\w.{PART}]){re.escape(body.variables[name])}\b"
                text = re.sub(variable, partial(place, name), text)
        found.append((indent, text))
    return found


def _count_line(count: dims.Expr, numbers: Numbers, resolver: Resolver) -> str:
    """`assert config.layers == 4, "…"`; nothing where it is a plain number."""
    text = numbers.init_expr(count, resolver)
    if not re.search(r"[A-Za-z]", text):
        return ""
    return f'assert {text} == {numbers.worth(count)}, "{WRITTEN_OUT}"'
