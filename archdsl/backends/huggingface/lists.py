"""Lists of layers that know their index: `nn.ModuleList(Decoder(config, i) for i in range(config.layers))`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from archdsl.backends.torch.lists import list_tree
from archdsl.backends.torch.tree import PyNode, Read, Variable, lift, py
from archdsl.frozen import Frozen
from archdsl.ir import dims
from archdsl.ir.dims import Bin, Expr, Lit
from archdsl.ir.op import Tree
from archdsl.ir.static import ElementRef, JoinedPattern, Pattern, RepeatedPattern

ZERO, ONE = Lit("0"), Lit("1")
INDEXED = "Indexed"
"""The kind of a tree that is no Python yet: what makes a layer, and the index that it is to be given last."""


class Index(Frozen):
    """The number of a layer: a local that counts, or none, and a number to be added."""

    local: Tree | None = None
    offset: Expr = ZERO

    def plus(self, expr: Expr) -> Index:
        return Index(self.local, added(self.offset, expr))

    def tree(self, count: Callable[[Expr], Tree]) -> Tree:
        if self.local is None:
            return count(self.offset)
        return self.local if self.offset == ZERO else py("{i} + {n}", i=self.local, n=count(self.offset))


def added(a: Expr, b: Expr) -> Expr:
    """The sum of two counts, a number where both are."""
    if a == ZERO:
        return b
    return a if b == ZERO else computed(Bin("+", a, b))


def times(a: Expr, b: Expr) -> Expr:
    """The product of two counts: of `layers / 2`, which is whole, and 2 it is `layers`."""
    if b == ONE:
        return a
    if isinstance(a, Bin) and a.op == "/" and a.right == b:
        return a.left
    return computed(Bin("*", a, b))


def size(pattern: Pattern, each: Sequence[int]) -> Expr:
    """How many layers a list has, given how many each of its bodies is."""
    if isinstance(pattern, ElementRef):
        return Lit(str(each[pattern.index]))
    if isinstance(pattern, RepeatedPattern):
        return times(pattern.count, size(pattern.part, each))
    found: Expr = ZERO
    for part in pattern.parts:
        found = added(found, size(part, each))
    return found


def bodies(pattern: Pattern) -> set[int]:
    """The bodies of a loop that a list names."""
    if isinstance(pattern, ElementRef):
        return {pattern.index}
    parts = [pattern.part] if isinstance(pattern, RepeatedPattern) else pattern.parts
    return {i for part in parts for i in bodies(part)}


def computed(expr: Expr) -> Expr:
    """A number if no name is in it."""
    worth = dims.expr_value(expr) if not dims.free_names(expr) else None
    return dims.literal(worth) if isinstance(worth, int) else expr


class IndexedList:
    """Writes the list of a loop. `makers` make a layer for each index of a body, which takes `taken` numbers."""

    def __init__(self, makers: Sequence[Tree], taken: Sequence[int], count: Callable[[Expr], Tree]) -> None:
        self.makers, self.taken, self.count = makers, taken, count
        self.depth = 0

    def written(self, pattern: Pattern | None, iterations: Sequence[int], start: Index) -> Tree:
        """The `nn.ModuleList` of all layers, the first of which has the index `start`."""
        if pattern is None:
            entries = []
            for which in iterations:
                entries.append(self.made(which, start))
                start = start.plus(Lit(str(self.taken[which])))
        else:
            entries = self.entries(pattern, start)
        if len(entries) == 1 and isinstance(first := entries[0], PyNode) and first.kind == "Starred":
            return py("nn.ModuleList({x})", x=first.fields[0])
        return py("nn.ModuleList([{*xs}])", xs=entries)

    def made(self, which: int, index: Index) -> Tree:
        return PyNode(INDEXED, (self.makers[which], index.tree(self.count)))

    def size_of(self, pattern: Pattern) -> Expr:
        return size(pattern, self.taken)

    def entries(self, pattern: Pattern, start: Index) -> list[Tree]:
        """What stands in a list display."""
        if isinstance(pattern, ElementRef):
            return [self.made(pattern.index, start)]
        if isinstance(pattern, JoinedPattern):
            found: list[Tree] = []
            for part in pattern.parts:
                found += self.entries(part, start)
                start = start.plus(self.size_of(part))
            return found
        return [PyNode("Starred", (self.repeated(pattern, start),))]

    def repeated(self, pattern: RepeatedPattern, start: Index) -> Tree:
        """A generator of the layers of a repetition."""
        i = Read(Variable("ijkl"[min(self.depth, 3)]))
        inner: Pattern = pattern.part
        step = self.size_of(inner)
        if len({self.makers[b] for b in bodies(inner)}) == 1 and all(self.taken[b] == 1 for b in bodies(inner)):
            inner, step = ElementRef(next(iter(bodies(inner)))), ONE  # all are alike
        end = start.plus(self.size_of(pattern))
        bounds: tuple[Any, ...] = (end.tree(self.count),)
        if start != Index() or step != ONE:
            bounds = (start.tree(self.count), *bounds)
        if step != ONE:
            bounds = (*bounds, self.count(step))
        if isinstance(inner, ElementRef):
            return py("({x} for {i} in range({*bounds}))", x=self.made(inner.index, Index(i)), i=i, bounds=bounds)
        self.depth += 1
        group = lift(self.entries(inner, Index(i)))
        self.depth -= 1
        return py(
            "({x} for {i} in range({*bounds}) for {x} in {group})",
            x=Read(Variable("layer")),
            i=i,
            bounds=bounds,
            group=group,
        )


def kinds_tree(pattern: Pattern | None, iterations: Sequence[int], kinds: Sequence[Sequence[str]], count: Any) -> Tree:
    """Return the list of the kinds of layers: `config.layers // 2 * ["sliding_attention", "full_attention"]`.
    `kinds[i]` are the kinds of the layers in body i."""
    if pattern is None:
        return py("[{*xs}]", xs=[lift(kind) for i in iterations for kind in kinds[i]])
    words = [kind for each in kinds for kind in each]
    ends = [sum(map(len, kinds[: i + 1])) for i in range(len(kinds))]
    return list_tree(
        _of_each(pattern, [range(e - len(k), e) for e, k in zip(ends, kinds, strict=True)]),
        [lift(w) for w in words],
        count,
    )


def _of_each(pattern: Pattern, entries: Sequence[Sequence[int]]) -> Pattern:
    """A list with several entries for each element, by their indices."""
    if isinstance(pattern, ElementRef):
        found = tuple(map(ElementRef, entries[pattern.index]))
        return found[0] if len(found) == 1 else JoinedPattern(found)
    if isinstance(pattern, RepeatedPattern):
        return replace(pattern, part=_of_each(pattern.part, entries))
    return JoinedPattern(tuple(_of_each(p, entries) for p in pattern.parts))
