"""`forward` and a step of decoding as one method: what both do stands once, what one of them does alone under
`if cache is None`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from archdsl.backends.torch.program import (
    UNBOUND,
    Bind,
    Conditional,
    Fork,
    Step,
    Suite,
    Target,
    all_read,
    bodies,
    bound_by,
    bound_within,
    effectful,
    with_bodies,
)
from archdsl.backends.torch.tree import Code, PyNode, Read, Variable, own_trees, py
from archdsl.ir.op import Tree


class Weaver:
    """Finds what both programs do, statement by statement."""

    def __init__(self, cache: Tree, losses: Tree, source: Mapping[Target, Target]) -> None:
        """`source` says which value of `forward` a value of the step stands for. Calls are alike though a step hands on
        the cache, and `forward` the losses."""
        self.cache, self.losses, self.source = cache, losses, source
        self.renamed: dict[Target, Target] = {}
        """Of variables of `forward` those of the step that are in their place."""

    def together(self, plain: Any, step: Any) -> Any:
        """One statement or expression for both. Raises ApartError where they differ."""
        if isinstance(plain, Read) and isinstance(step, Read):
            a, b = self.renamed.get(plain.value, plain.value), step.value
            if a is b or self.source.get(b) is a:
                return step
        elif isinstance(plain, tuple) and isinstance(step, tuple) and len(plain) == len(step):
            return tuple(self.together(a, b) for a, b in zip(plain, step, strict=True))
        elif isinstance(plain, PyNode) and isinstance(step, PyNode) and plain.kind == step.kind:
            fields = self.call(plain, step) if plain.kind == "Call" else self.together(plain.fields, step.fields)
            return PyNode(step.kind, fields)
        elif isinstance(plain, Code) and type(plain) is type(step):
            return self.code(plain, step)
        elif plain == step or (isinstance(plain, Variable) and self.renamed.get(plain) is step):
            return step
        raise ApartError

    def code(self, plain: Any, step: Any) -> Any:
        names = [n for n in plain.__dataclass_fields__ if n not in ("nested", "note", "targets")]
        found: dict[str, Any] = {n: self.together(getattr(plain, n), getattr(step, n)) for n in names}
        if isinstance(plain, Bind):
            found["targets"] = self.together(plain.targets, step.targets)  # which the expression cannot read
            found |= {"nested": plain.nested and step.nested, "note": plain.note or step.note}
        elif isinstance(plain, Conditional):
            found["note"] = step.note
        return replace(step, **found)

    def call(self, plain: PyNode, step: PyNode) -> tuple[Any, ...]:
        (f, args, keywords), (g, given, named) = plain.fields, step.fields
        losses = [x for x in args if x == self.losses]
        more = [k for k in keywords if k.fields[1] == self.losses]
        cache, kept = [x for x in given if x == self.cache], [k for k in named if k.fields[1] == self.cache]
        function = self.together(f, g)
        own = self.together(_but(args, losses), _but(given, cache))
        also = self.together(_but(keywords, more), _but(named, kept))
        return function, (*own, *losses, *cache), (*also, *more, *kept)


class ApartError(Exception):
    """Two statements do not do the same."""


def _but(xs: Sequence[Any], left: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(x for x in xs if x not in left)


def aligned(weaver: Weaver, plain: Sequence[Step], step: Sequence[Step], known: Iterable[Variable]) -> list[Step]:
    """Both programs as one: what they do alike stands once. `known` are locals that a step has already, of which none
    stands for one of `forward`."""
    free = [v for v in (*bound_within(step), *known) if isinstance(v, Variable)]
    for ours in bound_within(plain):
        twin = next((v for v in free if isinstance(ours, Variable) and v.hint == ours.hint), None)
        if twin is not None and ours not in weaver.renamed:
            free.remove(twin)
            weaver.renamed[ours] = twin
    most = _longest(weaver, plain, step)
    found: list[Step] = []
    i = j = 0
    for a, b, made in [*most, (len(plain), len(step), None)]:
        if i < a or j < b:
            found.append(Fork(tuple(renamed(plain[i:a], weaver.renamed)), tuple(step[j:b])))
        found += [made] if made is not None else []
        i, j = a + 1, b + 1
    return found


def _longest(weaver: Weaver, plain: Sequence[Step], step: Sequence[Step]) -> list[tuple[int, int, Step]]:
    """The longest list of statements that both have, in order: where they are in each, and the one for both."""
    best: dict[tuple[int, int], list[tuple[int, int, Step]]] = {}
    for i in range(len(plain), -1, -1):
        for j in range(len(step), -1, -1):
            found = max(best.get((i + 1, j), []), best.get((i, j + 1), []), key=len)
            if i < len(plain) and j < len(step) and len(best[i + 1, j + 1]) >= len(found):
                with suppress(ApartError):
                    found = [(i, j, weaver.together(plain[i], step[j])), *best[i + 1, j + 1]]
            best[i, j] = found
    return best[0, 0]


def renamed(x: Any, names: Mapping[Target, Target]) -> Any:
    """Statements with other variables."""
    if isinstance(x, Read | Variable):
        return Read(renamed(x.value, names)) if isinstance(x, Read) else names.get(x, x)
    if isinstance(x, list | tuple):
        return type(x)(renamed(i, names) for i in x)
    if isinstance(x, PyNode):
        return PyNode(x.kind, renamed(x.fields, names))
    return replace(x, **{n: renamed(i, names) for n, i in vars(x).items()}) if isinstance(x, Code) else x


# --- one method ---


def resolved(
    steps: Sequence[Step], results: Sequence[Tree], cache: Tree, losses: Tree, source: Mapping[Target, Target]
) -> tuple[Step, ...]:
    """The statements with conditions in the place of forks: what is read later is bound in both arms."""
    return _Resolver(cache, losses, source).suite(steps, {*all_read((), results)}, {*all_read((), results)})


class _Resolver:
    def __init__(self, cache: Tree, losses: Tree, source: Mapping[Target, Target]) -> None:
        self.cache, self.losses, self.source = cache, losses, source

    def suite(self, steps: Sequence[Step], whole: set[Target], step: set[Target]) -> tuple[Step, ...]:
        """`whole` and `step` are what is read behind the statements without a cache and with one."""
        found: list[Step] = []
        for s in reversed(_joined(steps)):
            if isinstance(s, Fork):
                copies = self.late(bound_within(s.plain), whole, {*bound_within(s.step)})
                found[:0] = self.fork(replace(s, plain=(*s.plain, *copies)), whole, step)
                continue
            if copies := self.late(bound_by(s), whole, set()):
                found[:0] = self.fork(Fork(copies, ()), whole, step)
            found.insert(0, self.inner(s, whole, step))
            before(of_whole((s,)), whole)
            before(of_step((s,), self.cache, self.losses), step)
        return tuple(found)

    def late(self, made: Sequence[Target], whole: set[Target], step: set[Target]) -> tuple[Step, ...]:
        """What `forward` binds only now, where it has that of which it is made, and a step has bound before."""
        late = (t for t, of in self.source.items() if t in whole and of in made and t not in made and t not in step)
        return tuple(Bind((t,), Read(self.source[t]), nested=False) for t in late)

    def fork(self, fork: Fork, whole: set[Target], step: set[Target]) -> list[Step]:
        """Return a fork as conditions. `whole` and `step`, what is read behind it, become what is read before it."""
        if fork.free:
            before(fork.plain, whole)
            return [*fork.plain]
        then, otherwise, outputs = self.arms(fork, whole, step)
        for live, arm in ((whole, then), (step, otherwise)):
            live.difference_update(outputs)
            live |= all_read((), arm.outputs)
            before(arm.steps, live)
        if not then.steps:
            return [Conditional(py("{c} is not None", c=self.cache), otherwise, then, outputs)]
        return [Conditional(py("{c} is None", c=self.cache), then, otherwise, outputs)]

    def inner(self, s: Step, whole: set[Target], step: set[Target]) -> Step:
        """A statement with what is within it."""

        def suite(body: Suite) -> Suite:
            ends = all_read((), body.outputs)
            return replace(body, steps=self.suite(body.steps, whole | ends, step | ends))

        return with_bodies(s, suite)

    def arms(self, fork: Fork, whole: set[Target], step: set[Target]) -> tuple[Suite, Suite, tuple[Target, ...]]:
        """What a fork does in both programs, and what of it is read later."""
        ours, theirs = {*bound_within(fork.plain)}, {*bound_within(fork.step)}
        bound = dict.fromkeys((*bound_within(fork.step), *bound_within(fork.plain)))
        outputs = tuple(t for t in bound if t in whole or t in step)
        plain = (
            Read(t if t in ours else self.source.get(t, t)) if t in ours or t in whole else UNBOUND for t in outputs
        )
        other = (Read(t) if t in theirs or t in step else UNBOUND for t in outputs)
        return Suite((), fork.plain, tuple(plain)), Suite((), fork.step, tuple(other)), outputs


def before(steps: Sequence[Step], live: set[Target]) -> None:
    """Make of what is read behind some statements what is read before them."""
    for s in reversed(steps):
        live -= {*bound_by(s)}
        live |= all_read((), own_trees(s))
        for body in bodies(s):
            inner = all_read((), body.outputs)
            before(body.steps, inner)
            live |= inner - {*body.inputs}


def _joined(steps: Sequence[Step]) -> list[Step]:
    """The statements with one fork for several: also of those between which nothing needs the first."""
    found: list[Step] = []
    left = [*steps]
    while left:
        s = left.pop(0)
        if isinstance(s, Fork) and not s.free and (then := _next_fork(s, left)) is not None:
            other = left[then]
            assert isinstance(other, Fork)
            left[then] = Fork(s.plain + other.plain, s.step + other.step)
        else:
            found.append(s)
    return found


def _next_fork(fork: Fork, steps: Sequence[Step]) -> int | None:
    """Which of the statements behind a fork is one that it can be joined to."""
    bound, pure = (
        {*bound_within((*fork.plain, *fork.step))},
        all(isinstance(s, Bind) and not effectful(s.expr) for s in (*fork.plain, *fork.step)),
    )
    for i, s in enumerate(steps):
        if isinstance(s, Fork) and not s.free:
            return i
        if not pure or not isinstance(s, Bind) or all_read((s,)) & bound:
            return None
    return None


def of_whole(steps: Sequence[Step]) -> tuple[Step, ...]:
    """What some statements do without a cache."""
    found: list[Step] = []
    for s in steps:
        inner = with_bodies(s, lambda body: replace(body, steps=of_whole(body.steps)))
        found += s.plain if isinstance(s, Fork) else (inner,)
    return tuple(found)


def of_step(steps: Sequence[Step], cache: Tree, losses: Tree) -> tuple[Step, ...]:
    """What some statements do with a cache."""
    found: list[Step] = []
    for s in steps:
        if isinstance(s, Fork):
            found += s.step
            continue
        made = with_bodies(s, lambda body: replace(body, steps=of_step(body.steps, cache, losses)))
        if isinstance(made, Conditional) and made.test == training(cache):
            ends = zip(made.outputs, made.otherwise.outputs, strict=True)
            found += [*made.otherwise.steps, *(Bind((target,), tree) for target, tree in ends)]
            continue
        if isinstance(made, Conditional) and made.test == once(cache):
            made = replace(made, test=py("{c}.first", c=cache))
        if isinstance(made, Bind):
            made = replace(made, expr=_without(made.expr, losses))
        found.append(made)
    return tuple(found)


def _without(x: Any, losses: Tree) -> Any:
    """An expression in which no call is handed the losses."""
    if isinstance(x, tuple):
        return tuple(_without(i, losses) for i in x if i != losses and not _is_named(i, losses))
    return PyNode(x.kind, _without(x.fields, losses)) if isinstance(x, PyNode) else x


def _is_named(x: Any, given: Tree) -> bool:
    """Whether it is an argument by name."""
    return isinstance(x, PyNode) and x.kind == "keyword" and x.fields[1] == given


def training(cache: Tree) -> Tree:
    """Whether it is training, in which nothing is decoded."""
    return py("{c} is None and self.training", c=cache)


def once(cache: Tree) -> Tree:
    """Whether what the first step computes for all is computed."""
    return py("{c} is None or {c}.first", c=cache)
