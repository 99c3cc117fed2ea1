"""Lists of a loop as the spec writes them, `3 * dense + 58 * sparse`, as trees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, TypeVar

from archdsl.backends.torch.tree import PyNode, Read, Variable, nodes, py, word
from archdsl.ir import dims
from archdsl.ir.dims import Bin, Expr, Lit
from archdsl.ir.op import Tree
from archdsl.ir.static import ElementRef, JoinedPattern, Pattern, RepeatedPattern

ONE, ZERO = Lit("1"), Lit("0")
EMPTY = py("[]")

X = TypeVar("X")

Count = Callable[[Expr], Tree]
"""A static expression of the block as a tree."""


def runs(items: Iterable[X]) -> list[tuple[X, int]]:
    """Equal neighbours together: each with how many of it follow one another."""
    return [(x, len([*run])) for x, run in groupby(items)]


def length(pattern: Pattern) -> Expr:
    """How many entries the list has."""
    if isinstance(pattern, ElementRef):
        return ONE
    if isinstance(pattern, RepeatedPattern):
        inner = length(pattern.part)
        return pattern.count if inner == ONE else _computed(Bin("*", pattern.count, inner))
    total: Expr = ZERO
    for part in pattern.parts:
        total = length(part) if total == ZERO else _computed(Bin("+", total, length(part)))
    return total


def _computed(expr: Expr) -> Expr:
    """A number if no name is in it."""
    if not dims.free_names(expr):
        value = dims.expr_value(expr)
        if isinstance(value, int):
            return dims.literal(value)
    return expr


def counts(pattern: Pattern | None) -> list[Expr]:
    """Every count in it."""
    if isinstance(pattern, RepeatedPattern):
        return [pattern.count, *counts(pattern.part)]
    if isinstance(pattern, JoinedPattern):
        return [c for p in pattern.parts for c in counts(p)]
    return []


def _refs(pattern: Pattern) -> set[int]:
    """Every index in it."""
    if isinstance(pattern, ElementRef):
        return {pattern.index}
    if isinstance(pattern, RepeatedPattern):
        return _refs(pattern.part)
    return {i for p in pattern.parts for i in _refs(p)}


def _flat(pattern: Pattern) -> list[int] | None:
    """The indices of a list that repeats nothing, else None."""
    if isinstance(pattern, ElementRef):
        return [pattern.index]
    if isinstance(pattern, JoinedPattern) and all(isinstance(p, ElementRef) for p in pattern.parts):
        return [p.index for p in pattern.parts if isinstance(p, ElementRef)]
    return None


def list_tree(pattern: Pattern, items: Sequence[Tree], count: Count) -> Tree:
    """The list with these trees for its entries: `layers * [mask]`, `[a, b] + 2 * [c]`."""
    if isinstance(pattern, ElementRef):
        return py("[{x}]", x=items[pattern.index])
    if isinstance(pattern, RepeatedPattern):
        return py("{n} * {part}", n=count(pattern.count), part=list_tree(pattern.part, items, count))
    parts = [list_tree(p, items, count) for p in pattern.parts]
    if all(isinstance(p, PyNode) and p.kind == "List" for p in parts):
        return py("[{*xs}]", xs=[x for p in parts if isinstance(p, PyNode) for x in p.fields[0]])
    total = parts[0]
    for part in parts[1:]:
        total = py("{a} + {b}", a=total, b=part)
    return total


def modules_tree(kind: str, pattern: Pattern, makers: Sequence[Sequence[Tree]], count: Count) -> Tree:
    """`nn.ModuleList(…)`, each entry made anew; `makers` are those of each element, of which it may have several."""
    flat = _flat(pattern)
    generated = _generated(pattern, makers, count)
    if generated is None and flat is not None:
        generated = _periodic([maker for i in flat for maker in makers[i]])
    if generated is not None:
        return py(f"{kind}({{x}})", x=generated)
    return py(f"{kind}([{{*xs}}])", xs=_entries(pattern, makers, count))


def repeated(maker: Tree, times: Tree | int) -> Tree:
    """`maker for _ in range(times)`."""
    return py("({x} for _ in range({n}))", x=maker, n=times)


def _generated(pattern: Pattern, makers: Sequence[Sequence[Tree]], count: Count) -> Tree | None:
    """A generator of the entries; None where the list is better spelled out."""
    made = {maker for i in _refs(pattern) for maker in makers[i]}
    each = {len(makers[i]) for i in _refs(pattern)}
    if len(made) == len(each) == 1 and not isinstance(pattern, ElementRef):
        n = each.pop()
        times = length(pattern) if n == 1 else Bin("*", length(pattern), dims.literal(n))
        return repeated(made.pop(), count(times))
    if not isinstance(pattern, RepeatedPattern):
        return None
    flat = _flat(pattern.part)
    if flat is not None:
        group = py("({*xs},)", xs=[maker for i in flat for maker in makers[i]])
    elif isinstance(pattern.part, JoinedPattern):
        group = py("[{*xs}]", xs=_entries(pattern.part, makers, count))
    else:
        group = py("({x},)", x=_entries(pattern.part, makers, count)[0])
    return _in_groups(group, count(pattern.count))


def _in_groups(group: Tree, times: Tree | int) -> Tree:
    """`layer for _ in range(times) for layer in group`."""
    return py("({x} for _ in range({n}) for {x} in {group})", x=Read(Variable("layer")), n=times, group=group)


def _periodic(makers: Sequence[Tree]) -> Tree | None:
    """A generator of equal groups of different entries; None where there are none."""
    size = period(makers, len(makers)) if len(runs(makers)) > 3 else 0
    return _in_groups(py("({*xs},)", xs=makers[:size]), len(makers) // size) if size else None


def period(items: Sequence[X], longest: int) -> int:
    """The length of equal groups that follow each other: 0 where there are none of 2 to `longest` items."""
    found = (p for p in range(2, min(longest, len(items) // 2) + 1) if len(items) % p == 0)
    return next((p for p in found if all(x == items[i % p] for i, x in enumerate(items))), 0)


def listed(kind: str, makers: Sequence[Tree]) -> Tree:
    """`nn.ModuleList(…)` of entries that no list of the spec says: runs of equal ones, or groups, once."""
    entries = runs(makers)
    generated = repeated(*entries[0]) if len(entries) == 1 and entries[0][1] > 1 else _periodic(makers)
    if generated is not None:
        return py(f"{kind}({{x}})", x=generated)
    items = [t if n == 1 else PyNode("Starred", (repeated(t, n),)) for t, n in entries]
    return py(f"{kind}([{{*xs}}])", xs=items)


def _entries(pattern: Pattern, makers: Sequence[Sequence[Tree]], count: Count) -> list[Tree]:
    """What stands in a list display; nothing of a shared block, whose module is made elsewhere."""
    if not any(makers[i] for i in _refs(pattern)):
        return []
    generated = _generated(pattern, makers, count)
    if generated is not None:
        return [PyNode("Starred", (generated,))]
    if isinstance(pattern, ElementRef):
        return [*makers[pattern.index]]
    assert isinstance(pattern, JoinedPattern)
    return [e for p in pattern.parts for e in _entries(p, makers, count)]


def in_one(tree: Any) -> Any:
    """A list of modules that are made alike but for their classes or one argument, as one generator over what differs:
    `Decoder(config, window=window) for window in config.layers // 2 * [config.window, 0]`. Any other as it is."""
    makers: list[Any] = []

    def noted(maker: Any) -> Any:
        makers.append(maker)
        return maker

    inner = tree.fields[1][0] if isinstance(tree, PyNode) and tree.kind == "Call" and tree.fields[1] else None
    if not any(n.kind == "GeneratorExp" for n in nodes(inner)) or _sum(inner, noted) is None or len({*makers}) == 1:
        return tree
    if not all(isinstance(m, PyNode) and m.kind == "Call" for m in makers):
        return tree
    first = makers[0]
    alike = [len({m.fields[i] for m in makers}) == 1 for i in range(3)]
    names = {tuple(k.fields[0] for k in m.fields[2]) for m in makers}
    if alike == [False, True, True]:
        kind = Read(Variable("kind"))
        made, of = PyNode("Call", (kind, *first.fields[1:])), [m.fields[0] for m in makers]
    elif alike == [True, True, False] and len(names) == 1:
        keywords = [{k.fields[1] for k in of} for of in zip(*(m.fields[2] for m in makers), strict=True)]
        differ = [i for i, values in enumerate(keywords) if len(values) > 1]
        if len(differ) > 1:
            return tree
        (i,) = differ
        name = first.fields[2][i].fields[0]
        kind = Read(Variable(name))
        keys = (*first.fields[2][:i], PyNode("keyword", (name, kind)), *first.fields[2][i + 1 :])
        made, of = PyNode("Call", (*first.fields[:2], keys)), [m.fields[2][i].fields[1] for m in makers]
    else:
        return tree
    items = iter(of)
    generator = py("({x} for {kind} in {xs})", x=made, kind=kind, xs=_sum(inner, lambda _: next(items)))
    return PyNode("Call", (tree.fields[0], (generator,), ()))


def _sum(tree: Any, item: Callable[[Any], Any]) -> Tree | None:
    """What a list of modules is made of, `item` of each maker, as sums of lists and products with numbers; None where
    it is otherwise."""
    if not isinstance(tree, PyNode):
        return None
    if tree.kind == "GeneratorExp":
        maker, (times, *group) = tree.fields
        if times.fields[0] != word("_"):
            return None  # entries know their number
        (count,) = times.fields[1].fields[1]
        part = _sum(group[0].fields[1], item) if group else py("[{x}]", x=item(maker))
        return part if part in (None, EMPTY) else py("{n} * {part}", n=count, part=part)
    if tree.kind not in ("List", "Tuple"):
        return None
    parts: list[Tree | None] = []
    for starred, entries in groupby(tree.fields[0], lambda e: isinstance(e, PyNode) and e.kind == "Starred"):
        if starred:
            parts += [_sum(e.fields[0], item) for e in entries]
        else:
            parts.append(py("[{*xs}]", xs=[item(e) for e in entries]))
    total: Tree | None = EMPTY  # as of a shared block, whose module is made elsewhere
    for part in parts:
        if total == EMPTY or total is None or part is None:
            total = None if total is None else part
        elif part != EMPTY:
            total = py("{a} + {b}", a=total, b=part)
    return total
