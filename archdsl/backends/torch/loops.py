"""Iterations over layers as Python loops: one where they read alike, else one for each run or period of equal ones, or
run of some that differ by numbers that count them; what no loop can say is written out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from archdsl.backends.torch import lists
from archdsl.backends.torch.program import LayerLoop, Target
from archdsl.backends.torch.python import singular
from archdsl.backends.torch.statements import ForLoop, Statement, statement_keys
from archdsl.backends.torch.tree import Code, Part, PyNode, Read, Variable, leaves, lift, mapped, py, zipped
from archdsl.ir.graph import Value
from archdsl.ir.op import Tree

if TYPE_CHECKING:
    from archdsl.backends.torch.schedule import Scheduler

LONGEST_PERIOD = 12
"""Patterns of more iterations than this are not looked for."""


class Folding:
    """Finds the loops for the iterations over layers that a `Repeat` means, each body being scheduled."""

    def __init__(
        self,
        scheduler: Scheduler,
        loop: LayerLoop,
        scheduled: Sequence[tuple[Statement, ...]],
        outside: Sequence[Sequence[Target]],
    ) -> None:
        self.scheduler, self.loop, self.bodies, self.outside = scheduler, loop, scheduled, outside
        self.nested = scheduler.depth > 0
        self.total: Counter[str] = sum((loop.counts[t] for t in loop.iterations), Counter())
        """How many modules of each list all iterations use."""
        self.varying = self._varying()

    def statements(self) -> list[Statement]:
        loop, iterations = self.loop, self.loop.iterations
        if self.nested and self.total:  # of the list around it has a part, whose length is a number
            self.scheduler.written_out.append(loop)
        keys = {self.key(b) for b in range(len(self.bodies))}
        once = all(n == 1 for counts in loop.counts for n in counts.values())
        sliced = any(self.sliced(b) for b in range(len(self.bodies)))
        if len(keys) == 1 and once and not sliced:
            return [self.one_loop()]
        if len(keys) == 1 and not any(self.varying) and len(iterations) > 1:
            return [self.indexed_loop()]
        period = lists.period(iterations, LONGEST_PERIOD)
        if len(lists.runs(iterations)) > 3 and period and not sliced:
            return [self.period(iterations[:period], len(iterations) // period)]
        return self.runs()

    # --- what differs ---

    def _varying(self) -> list[dict[Target, Variable]]:
        """For each body: what it reads from around that is another value in other bodies, and the loop's variable for
        it."""
        found: list[dict[Target, Variable]] = [{} for _ in self.bodies]
        if len({len(values) for values in self.outside}) > 1:
            return found
        name = self.scheduler.name
        for values in zip(*self.outside, strict=True):
            if len({*values}) > 1 and not any(v in self.scheduler.aliases for v in values):
                shown = next((v for v in values if v not in self.loop.absent), values[0])
                base = name(shown) if isinstance(shown, Variable) or shown.name else "given"
                same = any(v not in self.loop.absent and name(v) == base for v in values)
                called = f"{self.loop.variable}_{_ending([base, *map(name, values)])}"
                variable = Variable(called if same else singular(base))
                for b, value in enumerate(values):
                    found[b][value] = variable
        return found

    def key(self, b: int) -> Any:
        """Equal for bodies that read alike."""
        known: dict[Any, Any] = {v: ("varying", i) for i, v in enumerate(self.varying[b])}
        return (statement_keys(self.bodies[b], known, self.scheduler.name), *sorted(self.loop.counts[b].items()))

    def sliced(self, b: int) -> bool:
        """Whether a body uses slices of lists, for loops within."""
        found = (x for x in leaves(self.bodies[b]) if isinstance(x, Part))
        return any(isinstance(x.index, tuple) for x in found)

    # --- parts of lists ---

    def whole(self, name: str) -> Tree:
        """The list of a loop's modules: the block's own, or the part of it that belongs to the iteration around."""
        if not self.nested:
            return Part(name)
        low = self.loop.offset[name]
        return Part(name, (low, low + self.total[name]))

    def span(self, name: str, low: int, high: int) -> Tree:
        """The modules from `low` to before `high`."""
        if self.nested:
            offset = self.loop.offset[name]
            return Part(name, (offset + low, offset + high))
        ends = (lift(low) if low else None, lift(high) if high < self.total[name] else None)
        return Part(name) if ends == (None, None) else _slice(Part(name), *ends)

    def placed(self, b: int, used: Mapping[str, int]) -> list[Statement]:
        """A body by itself, whose modules come after those that iterations before it used."""

        def leaf(x: Any) -> Any:
            if not isinstance(x, Part) or x.index is None or x.name not in self.loop.counts[b]:
                return x
            start = self.loop.offset[x.name] + used[x.name]
            if isinstance(x.index, int):
                return Part(x.name, start + x.index)
            low, high = start + x.index[0], start + x.index[1]
            return Part(x.name, (low, high)) if self.nested else _slice(Part(x.name), lift(low), lift(high))

        return [mapped(s, leaf) for s in self.outer(b)]

    def outer(self, b: int) -> tuple[Statement, ...]:
        """A body that reads what differs between bodies as it is: nothing where a mask needs no tensor."""
        absent = self.loop.absent

        def leaf(x: Any) -> Any:
            return lift(None) if isinstance(x, Read) and x.value in absent else x

        return tuple(mapped(s, leaf) for s in self.bodies[b]) if absent else self.bodies[b]

    def over(self, body: Sequence[Statement], variables: Mapping[str, Variable | Tree]) -> tuple[Statement, ...]:
        """A body that reads one module of each list as a variable, or as it is said."""

        def leaf(x: Any) -> Any:
            if not isinstance(x, Part) or x.index is None or x.name not in variables:
                return x
            found = variables[x.name]
            return Read(found) if isinstance(found, Variable) else found

        return tuple(mapped(s, leaf) for s in body)

    # --- loops ---

    def one_loop(self) -> Statement:
        """Iterations that read alike and use one module of each list."""
        variables = {name: Variable(singular(name)) for name in self.loop.counts[0]}
        targets: list[Variable] = list(variables.values())
        sources = [self.whole(name) for name in variables]
        for value, variable in self.varying[0].items():
            targets.append(variable)
            items: list[Tree] = []
            for b in range(len(self.bodies)):
                other = next(v for v, known in self.varying[b].items() if known is variable)
                items.append(lift(None) if other in self.loop.absent else Read(other))
            assert value is not None
            sources.append(self.list_of(items))

        def leaf(x: Any) -> Any:
            if isinstance(x, Read) and x.value in self.varying[0]:
                return Read(self.varying[0][x.value])
            return Read(variables[x.name]) if isinstance(x, Part) and x.index is not None and x.name in variables else x

        body = tuple(mapped(s, leaf) for s in self.bodies[0])
        if not targets:
            return ForLoop((None,), py("range({n})", n=self.loop.length), body)
        return ForLoop(tuple(targets), zipped(sources), body)

    def list_of(self, items: Sequence[Tree]) -> Tree:
        """A list with one entry an iteration, written as the spec writes its list."""
        if self.loop.pattern is None:
            return py("[{*xs}]", xs=[items[t] for t in self.loop.iterations])
        counts = iter(self.loop.repeats)
        known = dict(zip(lists.counts(self.loop.pattern), counts, strict=True))
        return lists.list_tree(self.loop.pattern, items, known.__getitem__)

    def indexed_loop(self) -> Statement:
        """Equal iterations that use several modules of a list each: iteration i has its slice."""
        each = self.loop.counts[0]
        index = Variable("ijk"[min(self.scheduler.depth, 2)])
        i = Read(index)

        def leaf(x: Any) -> Any:
            if not isinstance(x, Part) or x.index is None or x.name not in each:
                return x
            n = each[x.name]
            if isinstance(x.index, int):
                start = i if n == 1 else py("{n} * {i}", n=n, i=i)
                return py(
                    "{xs}[{k}]", xs=self.whole(x.name), k=py("{a} + {k}", a=start, k=x.index) if x.index else start
                )
            low, high = x.index
            ends = py("{n} * {i}", n=n, i=i), py("{n} * ({i} + 1)", n=n, i=i)
            if low:
                ends = py("{n} * {i} + {k}", n=n, i=i, k=low), ends[1]
            if high < n:
                ends = ends[0], py("{n} * {i} + {k}", n=n, i=i, k=high)
            return _slice(self.whole(x.name), *ends)

        body = tuple(mapped(s, leaf) for s in self.bodies[0])
        return ForLoop((index,), py("range({n})", n=self.loop.length), body)

    def period(self, iterations: Sequence[int], repeats: int) -> Statement:
        """`local, local, global` again and again: one loop over the groups."""
        groups, names = lists.runs(iterations), {tuple(self.loop.counts[b].items()) for b in iterations}
        if len(groups) < len(iterations) and not self.nested and len(names) == 1 and len(one := names.pop()) == 1:
            return self.grouped(groups, one[0][0])
        total: Counter[str] = sum((self.loop.counts[t] for t in iterations), Counter())
        used: Counter[str] = Counter()
        targets: list[Variable] = []
        sources: list[Tree] = []
        inner: list[Statement] = []
        for k, t in enumerate(iterations):
            variables = {}
            for name in self.loop.counts[t]:
                base = singular(name)
                variables[name] = Variable(f"{base}_{k + 1}" if total[name] > 1 else base)
                targets.append(variables[name])
                step = lift(total[name]) if total[name] > 1 else None
                low = lift(used[name]) if used[name] else None
                sources.append(self.whole(name) if step is None else _slice(self.whole(name), low, None, step))
                used[name] += 1
            inner += self.over(self.outer(t), variables)
        if not targets:
            return ForLoop((None,), py("range({n})", n=repeats), tuple(inner))
        return ForLoop(tuple(targets), zipped(sources), tuple(inner))

    def grouped(self, groups: Sequence[tuple[int, int]], name: str) -> Statement:
        """The same where bodies of a group follow themselves: a loop over such layers, by their numbers in the list."""
        index, inner, k = Variable("i"), list[Statement](), 0
        xs, layer = self.whole(name), Variable(singular(name))
        for b, count in groups:
            first = py("{i} + {k}", i=Read(index), k=k) if k else Read(index)
            if count == 1:
                inner += self.over(self.outer(b), {name: py("{xs}[{k}]", xs=xs, k=first)})
            else:
                span = _slice(xs, first, py("{i} + {k}", i=Read(index), k=k + count))
                inner.append(ForLoop((layer,), span, self.over(self.outer(b), {name: layer})))
            k += count
        return ForLoop((index,), py("range(0, len({xs}), {n})", xs=xs, n=k), tuple(inner))

    def runs(self) -> list[Statement]:
        """Iterations of different kinds: one loop for each run of equal ones, or of some that differ by numbers that
        count them; one by itself is no loop."""
        self.scheduler.written_out.append(self.loop)
        found: list[Statement] = []
        used: Counter[str] = Counter()
        t = 0
        while t < len(self.loop.iterations):
            b = self.loop.iterations[t]
            each = self.loop.counts[b]
            single = all(n == 1 for n in each.values()) and not self.sliced(b)
            count, index, body = len([*takewhile(b.__eq__, self.loop.iterations[t:])]), None, self.outer(b)
            if count == 1 and single and not self.nested:
                count, index, body = self.counted(t)
            start, t = t, t + count
            if count == 1 or not single:
                for _ in range(count):
                    found += self.placed(b, used)
                    used += each
                continue
            variables = {name: Variable(singular(name)) for name in each}
            sources = []
            for name in each:
                sources.append(self.span(name, used[name], used[name] + count))
                used[name] += count
            body = self.over(body, variables)
            if index is not None:
                low = (start,) if start else ()
                counting = py("enumerate({xs}, {*low})", xs=sources[0], low=low) if len(sources) == 1 else None
                numbers = py("range({*low}, {high})", low=low, high=t)
                found.append(ForLoop((index, *variables.values()), counting or zipped([numbers, *sources]), body))
            elif variables:
                found.append(ForLoop(tuple(variables.values()), zipped(sources), body))
            else:
                found.append(ForLoop((None,), py("range({n})", n=count), body))
        return found

    def counted(self, t: int) -> tuple[int, Variable | None, tuple[Statement, ...]]:
        """How many iterations from t on, three at least, differ by nothing but numbers that count them; the index that
        counts, and their body, which reads it. Else 1, None, and the body of t."""
        index, first = Variable("i"), self.outer(self.loop.iterations[t])
        found: list[tuple[Statement, ...]] = []
        for b in self.loop.iterations[t + 1 :]:
            try:
                found.append(_counting(first, self.outer(b), len(found) + 1, t, index, {}))
            except _DifferError:
                break
            keys = [statement_keys(x, {}, self.scheduler.name) for x in (found[0], found[-1])]
            if keys[0] != keys[1]:
                found.pop()
                break
        counts = len(found) > 1 and any(isinstance(x, Read) and x.value is index for x in leaves(found[0]))
        return (len(found) + 1, index, found[0]) if counts else (1, None, first)


def _ending(names: Sequence[str]) -> str:
    """The words that some names end with, `mask` of `near_mask` and `far_mask`; the first name where there are none."""
    words = zip(*(reversed(name.split("_")) for name in names), strict=False)
    shared = [of[0] for of in takewhile(lambda of: len({*of}) == 1, words)]
    return "_".join(reversed(shared)) or names[0]


class _DifferError(Exception):
    """Two bodies differ by more than numbers that count."""


def _counting(a: Any, b: Any, by: int, t: int, index: Variable, same: dict[Any, Any]) -> Any:
    """Return `a`, of iteration t, with `index` in place of numbers that are `by` more in `b`. `same` has the values of
    `a` for those that `b` binds. Raise `_DifferError` where the two differ otherwise."""

    def inner(x: Any, y: Any) -> Any:
        return _counting(x, y, by, t, index, same)

    if a == b or (isinstance(a, Read) and isinstance(b, Read) and same.get(b.value) == a.value):
        return a
    if type(a) is not type(b):
        raise _DifferError
    if isinstance(a, Value) and a.name == b.name:
        same[b] = a
        return a
    if isinstance(a, tuple) and len(a) == len(b):
        return tuple(map(inner, a, b))
    if isinstance(a, Code):
        return replace(a, **{name: inner(x, vars(b)[name]) for name, x in vars(a).items()})
    if isinstance(a, PyNode) and a.kind == b.kind == "Constant" and a.fields[0].isdigit() and b.fields[0].isdigit():
        number, later = int(a.fields[0]), int(b.fields[0])
        if later - number == by:
            form = "{i} + {n}" if number > t else "{i} - {n}" if number < t else "{i}"
            return py(form, i=Read(index), n=abs(number - t))
    elif isinstance(a, PyNode) and a.kind == b.kind:
        return PyNode(a.kind, inner(a.fields, b.fields))
    raise _DifferError


def _slice(xs: Tree, low: Tree | None, high: Tree | None, step: Tree | None = None) -> Tree:
    """`xs[low:high:step]`."""
    return PyNode("Subscript", (xs, PyNode("Slice", (low, high, step))))
