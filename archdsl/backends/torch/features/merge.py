"""`forward` and the step of decoding as one method: what both do stands once, the rest under `if cache is None`.

Both were lowered from the same graph.  Their statements are aligned by what they compute, values of the IR being the
same in both; the validator judges the written method as each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import Any

from archdsl.backends.torch.lower import Merged, Method, Parameter
from archdsl.backends.torch.program import (
    Bind,
    Conditional,
    LayerLoop,
    Leave,
    ScanLoop,
    Step,
    Suite,
    Target,
    absent,
    all_read,
    bodies,
    bound_by,
    bound_within,
)
from archdsl.backends.torch.tree import PyNode, Read, Variable, leaves, lift, mapped, own_trees, py
from archdsl.ir.op import Tree


class ApartError(Exception):
    """The two cannot be one."""


def merged(plain: Method, step: Method, aliases: Mapping[Target, Tree]) -> Merged | None:
    """One method that does what `plain` does without a cache, and what `step` does with one; None where one of them
    lacks what the other needs. `aliases` says what values of the plain method are in the step."""
    try:
        return Merged(_Merge(plain, step, aliases).run(), plain, step)
    except ApartError:
        return None


@dataclass
class _Side:
    """One of the two methods: what its variables are, independently of how they are called."""

    meaning: dict[Target, Any] = field(default_factory=dict)

    def bind(self, targets: Iterable[Target], key: Any) -> None:
        for i, target in enumerate(targets):
            if isinstance(target, Variable):
                self.meaning.setdefault(target, ("bound", key, i))


class _Merge:
    def __init__(self, plain: Method, step: Method, aliases: Mapping[Target, Tree]) -> None:
        self.plain, self.step = plain, step
        self.cache = Read(step.cache)
        self.losses = [Read(plain.losses)] if plain.losses is not None else []
        self.sides = (_Side(), _Side())
        self.back: dict[Target, Tree] = {}
        """What variables and values of the plain method are in the merged one, which is in terms of the step."""
        self.source: dict[Target, Target] = {}
        """Variables of the step, and the value of the plain method that each stands for."""
        known = {*bound_within(plain.steps), *(p.target for p in plain.parameters)}
        for value, tree in aliases.items():
            if isinstance(tree, Read) and tree.value is not value and value in known:
                self.back[value] = tree
                self.source.setdefault(tree.value, value)
                self.sides[1].meaning.setdefault(tree.value, Read(value))
        self.bound = {p.target for p in step.parameters}
        """What is bound so far."""
        self.starts: dict[Target, Tree] = {}
        """What the plain method begins a recurrence with, where the step reads a state."""
        self.ends: tuple[Sequence[Tree], Sequence[Tree]] = ((), ())
        """What is read at the end of the statements that are merged."""
        self.absent = absent(plain.steps)
        """Masks of which the plain method has no tensor."""
        self.optional = {p.target for p in (*plain.parameters, *step.parameters) if p.default}

    def run(self) -> Method:
        variables = (p.target for p in self.step.parameters if isinstance(p.target, Variable))
        own = {v.hint: v for v in variables if not v.state}
        parameters: list[Parameter] = []
        for p in self.plain.parameters:
            if isinstance(p.target, Variable) and p.target.hint in own:
                twin = own[p.target.hint]
                self.back[p.target] = Read(twin)
                for side, target in zip(self.sides, (p.target, twin), strict=True):
                    side.meaning[target] = ("parameter", twin.hint)
                parameters.append(p._replace(target=twin))
            else:
                parameters.append(p)
        given = {p.target for p in parameters}
        if not {p.target for p in parameters if not p.default} <= {p.target for p in self.step.parameters}:
            raise ApartError  # a step would have to be given what it does not take
        self.bound |= given
        if len(self.plain.results) != len(self.step.results):
            raise ApartError
        steps = self.steps(self.plain.steps, self.step.steps, self.plain.results, self.step.results)
        if any(self.key(a, 0) != self.key(b, 1) for a, b in zip(self.plain.results, self.step.results, strict=True)):
            raise ApartError
        parameters.append(Parameter(self.cache.value, "Cache | None", "None"))
        parameters += [p for p in self.step.parameters if p.target not in given and p.target is not self.cache.value]
        return replace(
            self.plain,
            parameters=parameters,
            steps=steps,
            results=self.step.results,
            hints={**self.plain.hints, **self.step.hints},
        )

    # --- what is alike ---

    def key(self, x: Any, side: int) -> Any:
        """Equal for expressions of the two methods that compute the same, but for what the step hands on."""
        if isinstance(x, tuple):
            return tuple(self.key(i, side) for i in x)
        if isinstance(x, Read):
            return self.sides[side].meaning.get(x.value, x)
        if not isinstance(x, PyNode):
            return x
        if x.kind == "Call":
            function, args, keywords = x.fields
            left = (self.cache, *self.losses)
            args = tuple(a for a in args if a not in left)
            keywords = tuple(k for k in keywords if k.fields[1] not in left)
            return "Call", *(self.key(i, side) for i in (function, args, keywords))
        return x.kind, *(self.key(i, side) for i in x.fields)

    def step_key(self, s: Step, side: int) -> Any:
        """Equal for statements that do the same; loops over layers that differ only within are alike."""
        of = self.sides[side]
        own = self.key(own_trees(s), side)
        match s:
            case Bind():
                found = ("let", own)
                of.bind(s.targets, found)
                return found, tuple(t for t in s.targets if not isinstance(t, Variable))
            case LayerLoop():
                shape = (s.iterations, str(s.pattern), s.outputs, s.collected, tuple(b.inputs for b in s.bodies))
                return "repeat", own, tuple(map(str, s.counts)), shape
            case ScanLoop():  # a step may begin with a state that is kept
                inner = self.steps_key(s.body.steps, side), self.key(s.body.outputs, side)
                scan = ("scan", self.key(s.sequences, side), inner, s.finals)
                of.bind(s.collected, scan)
                return scan
            case Conditional():
                arms = tuple((self.steps_key(b.steps, side), self.key(b.outputs, side)) for b in bodies(s))
                of.bind(s.outputs, ("branch", own, arms))
                return "branch", own, arms
        return type(s).__name__, own

    def steps_key(self, steps: Sequence[Step], side: int) -> tuple[Any, ...]:
        return tuple(self.step_key(s, side) for s in steps)

    # --- what is merged ---

    def steps(
        self, plain: Sequence[Step], step: Sequence[Step], plain_results: Sequence[Tree], results: Sequence[Tree]
    ) -> tuple[Step, ...]:
        around, self.ends = self.ends, (plain_results, results)
        ours, theirs = self.steps_key(plain, 0), self.steps_key(step, 1)
        found: list[Step] = []
        spans = SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes()
        for tag, i, j, k, m in spans:
            for p, q in zip(plain[i:j], step[k:m], strict=True) if tag == "equal" else ():
                if isinstance(p, ScanLoop) and isinstance(q, ScanLoop):
                    self.begin(p, q)
        while spans:
            tag, i, j, k, m = spans.pop(0)
            if tag == "equal":
                found += self.all_woven(zip(plain[i:j], step[k:m], strict=True))
                continue
            mine, others = [*plain[i:j]], [*step[k:m]]
            waiting: list[tuple[Step, Step]] = []  # what both do, after what they do otherwise
            while others and self.asks(others[0]):
                found.append(others.pop(0))
                self.bound |= {*bound_by(found[-1])}
            while True:
                left = [p for p, _ in waiting] + [*plain[j:]], [q for _, q in waiting] + [*step[m:]]
                if (made := self.either(mine, others, *left)) is not None:
                    break
                if len(spans) < 2:
                    raise ApartError
                start, start_step = j, m  # what one of them binds, the other binds later
                spans.pop(0)
                _, i, j, k, m = spans.pop(0)
                alike = [*waiting, *zip(plain[start:i], step[start_step:k], strict=True)]
                waiting = []
                busy = {self.cache.value, *bound_within(mine), *bound_within(others)}
                if not any(all_read(pair) & busy for pair in alike):
                    found += self.all_woven(alike)
                elif k == m and not all_read(plain[i:j]) & {*bound_within([p for p, _ in alike])}:
                    waiting = alike
                else:
                    mine += [p for p, _ in alike]
                    others += [q for _, q in alike]
                mine += plain[i:j]
                others += step[k:m]
            found += made
            self.bound |= {t for s in made for t in bound_by(s)}
            found += self.all_woven(waiting)
        self.ends = around
        return tuple(found)

    def begin(self, plain: ScanLoop, step: ScanLoop) -> None:
        """Note what one recurrence begins with in both methods."""
        for start, state in zip(plain.starts, step.starts, strict=True):
            if self.key(start, 0) != self.key(state, 1):
                if not isinstance(state, Read):
                    raise ApartError
                self.starts[state.value] = start

    def all_woven(self, pairs: Iterable[tuple[Step, Step]]) -> list[Step]:
        """One statement for each two that do the same."""
        found = []
        for p, q in pairs:
            found.append(self.woven(p, q))
            self.bound |= {*bound_by(found[-1])}
        return found

    def woven(self, a: Step, b: Step) -> Step:
        """One statement for two that do the same."""
        match a, b:
            case Bind(), Bind():
                self.back |= {
                    p: Read(q) for p, q in zip(a.targets, b.targets, strict=True) if p is not q and p not in self.back
                }
                nested = a.nested and b.nested
                return replace(b, expr=self.together(a.expr, b.expr), nested=nested, note=a.note or b.note)
            case LayerLoop(), LayerLoop():
                inner = []
                for p, q in zip(a.bodies, b.bodies, strict=True):
                    self.bound |= {*q.inputs}
                    inner.append(replace(q, steps=self.steps(p.steps, q.steps, p.outputs, q.outputs)))
                    if self.key(p.outputs, 0) != self.key(q.outputs, 1):
                        raise ApartError
                return replace(b, bodies=tuple(inner))
            case ScanLoop(), ScanLoop():
                self.back |= {p: Read(q) for p, q in zip(a.collected, b.collected, strict=True)}
        return b

    def together(self, a: Any, b: Any) -> Any:
        """An expression of the step with what the plain one hands on, too."""
        if isinstance(a, tuple):
            return tuple(self.together(i, j) for i, j in zip(a, b, strict=True))
        if not isinstance(a, PyNode) or not isinstance(b, PyNode) or a.kind != b.kind:
            return b
        if a.kind != "Call":
            return PyNode(b.kind, self.together(a.fields, b.fields))
        (f, args, keywords), (g, given, named) = a.fields, b.fields
        losses = [x for x in args if x in self.losses]
        more = [k for k in keywords if k.fields[1] in self.losses]
        cache = [x for x in given if x == self.cache]
        own = [self.together(x, y) for x, y in zip(_but(args, losses), _but(given, cache), strict=True)]
        own += [*map(self.mapped, losses), *cache]
        return PyNode("Call", (self.together(f, g), tuple(own), (*named, *map(self.mapped, more))))

    def either(
        self, plain: Sequence[Step], step: Sequence[Step], plain_left: Sequence[Step], left: Sequence[Step]
    ) -> list[Step] | None:
        """What the plain method does, or what the step does; None if one of them binds too little."""
        if not step and all(self.asks(s) for s in plain):
            return [self.of_plain(s) for s in plain]
        if not plain and not step:
            return []
        if (once := self.once(plain, step)) is not None:
            count = len(once.then.steps) - 1  # then what is left for all is read
            self.bound |= {*once.outputs}
            rest = self.either(plain[count:], step[1:], plain_left, left)
            return None if rest is None else [once, *rest]
        read, later = all_read(left, self.ends[1]), all_read(plain_left)
        outputs = [t for t in bound_within(step) if t in read]
        ours = {*bound_within(plain)}
        results: list[tuple[Tree, Tree]] = []
        for target in outputs:
            value = self.source.get(target, target)
            if target in self.starts:
                results.append((self.starts[target], Read(target)))
                continue
            if value in self.absent:
                results.append((lift(None), Read(target)))
                continue
            if value not in ours and (value is target or value not in self.bound):
                return None
            results.append((Read(value), Read(target)))
        for value in dict.fromkeys(bound_within(plain)):
            tree = self.back.get(value)
            if value in later and value not in read and not (isinstance(tree, Read) and tree.value in outputs):
                outputs.append(value)
                results.append((Read(value), lift(None)))
        given = all_read([self.of_plain(s, ours) for s in plain], [p for p, _ in results])
        if not given <= {*self.bound, *ours, *(t for s in plain for b in bodies(s) for t in b.inputs)}:
            return None
        then = Suite((), tuple(self.of_plain(s, ours) for s in plain), tuple(p for p, _ in results))
        otherwise = Suite((), tuple(step), tuple(q for _, q in results))
        if not plain and self.starts.keys().isdisjoint(outputs):
            return [Conditional(py("{c} is not None", c=self.cache), otherwise, then, tuple(outputs))]
        return [Conditional(py("{c} is None", c=self.cache), then, otherwise, tuple(outputs))]

    def once(self, plain: Sequence[Step], step: Sequence[Step]) -> Conditional | None:
        """What the plain method does, and the first step as well, which keeps it for all others."""
        first = step[0] if step else None
        if not isinstance(first, Conditional) or first.test != py("{c}.first", c=self.cache):
            return None
        *inner, keeps = first.then.steps
        own = plain[: len(inner)]
        if not first.otherwise.steps or self.steps_key(own, 0) != self.steps_key(inner, 1):
            return None
        results = tuple(Read(self.source[t]) for t in first.outputs if t in self.source)
        if len(results) < len(first.outputs) or not {r.value for r in results} <= {*bound_within(own)}:
            return None
        nothing = Suite((), (), ())
        kept = Conditional(py("{c} is not None", c=self.cache), Suite((), (keeps,), ()), nothing, ())
        then = Suite((), (*(self.of_plain(s, bound_within(own)) for s in own), kept), results)
        return replace(first, test=py("{c} is None or {c}.first", c=self.cache), then=then)

    def asks(self, s: Step) -> bool:
        """Whether a statement does nothing unless something is given that may be left out."""
        if not isinstance(s, Leave | Conditional):
            return False
        asked = {x.value for x in leaves(s.test) if isinstance(x, Read)}
        return bool(asked & self.optional) and self.cache.value not in asked

    def of_plain(self, s: Step, own: Iterable[Target] = ()) -> Step:
        """A statement of the plain method in the merged one's terms."""
        inner = {*own, *bound_within([s])}

        def leaf(x: Any) -> Any:
            return self.back.get(x.value, x) if isinstance(x, Read) and x.value not in inner else x

        made: Step = mapped(s, leaf)
        return made

    def mapped(self, x: Any) -> Any:
        return mapped(x, lambda x: self.back.get(x.value, x) if isinstance(x, Read) else x)


def _but(xs: Iterable[Any], left: Sequence[Any]) -> list[Any]:
    return [x for x in xs if x not in left]
