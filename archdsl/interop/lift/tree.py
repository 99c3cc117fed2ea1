"""The module tree of what is left: the ops of a graph in the author's order, grouped by the modules that made them.

1. What no result needs is gone; a weight, or what no tensor goes into, stands where it is first used.
2. A module that is one op with weights becomes that op, which keeps the module's path as its label.
3. Modules without weights, containers, and the wrappers around the layers dissolve into what is around them.
4. What is used twice is shared: a table of words that the head reads too, a module that is called again.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from torch import nn

from archdsl.diagnostics import error
from archdsl.interop.lift.export import Place, Size, Value
from archdsl.interop.lift.terms import Term


@dataclass(eq=False)
class Shared:
    """One set of weights for several ops or calls; bound by a `let` before them."""

    path: str
    """The module that holds the weights."""
    table: bool
    """Whether it is an embedding that `unembed` reads as well."""
    users: list[Op | Group]


@dataclass(eq=False)
class Op:
    """One application of a primitive. The results of one with several are `item`s, which stand right behind it."""

    term: Term
    args: tuple[Any, ...] = ()
    """Ops, and numbers or sizes; at the end what is given by name."""
    places: tuple[Place, ...] = ()
    label: str = ""
    """The path of the module that is this op."""
    scope: str | None = None
    """The path of the module whose source says it; None for that of the group around it."""
    shared: Shared | None = None

    @property
    def shape(self) -> tuple[Size, ...]:
        return self.term.shape

    def operands(self) -> Iterator[Op]:
        yield from (a for a in self.args if isinstance(a, Op))


@dataclass(eq=False)
class Group:
    """A call of a module: the ops and calls inside, in their order."""

    path: str
    cls: str
    items: list[Op | Group] = field(default_factory=list)
    scope: str | None = None
    shared: Shared | None = None

    @property
    def module(self) -> str:
        return module_of(self.path)

    def ops(self) -> Iterator[Op]:
        for item in self.items:
            if isinstance(item, Group):
                yield from item.ops()
            else:
                yield item

    def weights(self) -> tuple[Value, ...]:
        return tuple(dict.fromkeys(w for op in self.ops() for w in op.term.weights.values()))


def module_of(path: str) -> str:
    """The path of a module, whichever call it is."""
    return path.partition("@")[0]


def tree(results: Sequence[Term], module: nn.Module) -> tuple[Group, list[Op]]:
    """The root of the tree, and the ops that are the results.

    Raises ArchError E0542 where two ops of different kinds read one weight, or one op reads it twice."""
    ops, outs = _ops(results)
    root = _grouped(_ordered(ops), type(module).__name__)
    _dissolve(root, module, outer=True)
    _share(root)
    return root, outs


# --- ops in order -------------------------------------------------------------------------------------------------


def _ops(results: Sequence[Term]) -> tuple[list[Op], list[Op]]:
    """An op for each term that a result needs, operands first; constants are made anew where they are read."""
    made: dict[object, Op] = {}
    order: list[Op] = []

    def key(term: Term) -> object:
        return id(term.weights[""]) if term.op == "param" else id(term)

    def read(argument: Any) -> Any:
        if not isinstance(argument, Term):
            return argument
        if argument.op not in ("param", "input") and not any(argument.operands()):
            order.append(Op(argument, argument.args))
            return order[-1]
        return made[key(argument)]

    stack = [(r, False) for r in reversed(results)]
    while stack:
        term, ready = stack.pop()
        if key(term) in made:
            continue
        if ready:
            op = Op(term, tuple(map(read, (*term.args, *term.named.values()))))
            made[key(term)] = op
            order.append(op)
        else:
            stack.append((term, True))
            stack += [(a, False) for a in reversed(tuple(term.operands()))]
    outs = [made[key(r)] for r in results]
    used = {id(a) for op in order for a in op.operands()} | {id(o) for o in outs}
    return [op for op in order if id(op) in used], outs


def _ordered(ops: list[Op]) -> list[Op]:
    """The ops in the order of the author's calls, each behind its operands."""
    users: dict[int, list[Op]] = {id(op): [] for op in ops}
    for op in ops:
        for a in op.operands():
            users[id(a)].append(op)
    rank: dict[int, tuple[int, int]] = {}
    for i, op in reversed(list(enumerate(ops))):
        source = op.term.source
        own = any(op.operands()) or op.term.op == "input"
        index = source.index if source and own else min((rank[id(u)][0] for u in users[id(op)]), default=0)
        rank[id(op)] = index, i
        if op.term.op == "item" or (source and own):
            op.places = source.places if source else ()
        else:
            op.places = _common([u.places for u in users[id(op)]])
    for op in ops:  # a part stands with what it is a part of
        if op.term.op == "item":
            whole = next(op.operands())
            op.places, rank[id(op)] = whole.places, (rank[id(whole)][0], rank[id(op)][1])
    missing = {id(op): len({id(a) for a in op.operands()}) for op in ops}
    known = {id(op): op for op in ops}
    heap = [(*rank[i], i) for i, n in missing.items() if not n]
    heapq.heapify(heap)
    order = []
    while heap:
        op = known[heapq.heappop(heap)[-1]]
        order.append(op)
        for user in dict.fromkeys(users[id(op)]):
            missing[id(user)] -= 1
            if not missing[id(user)]:
                heapq.heappush(heap, (*rank[id(user)], id(user)))
    return order


def _common(paths: Sequence[tuple[Place, ...]]) -> tuple[Place, ...]:
    """The modules that are around all of them."""
    return tuple(p[0] for p in takewhile(lambda p: len(set(p)) == 1, zip(*paths, strict=False)))


def _grouped(ops: list[Op], cls: str) -> Group:
    root = Group("", cls)
    for op in ops:
        here = root
        for path, name in op.places:
            last = next((x for x in reversed(here.items) if isinstance(x, Group)), None)
            between = here.items[here.items.index(last) + 1 :] if last else []
            if last is None or last.path != path or any(any(x.operands()) for x in between if isinstance(x, Op)):
                last = Group(path, name.rpartition(".")[2])
                here.items.append(last)
            here = last
        here.items.append(op)
    _hoist(root)
    return root


def _hoist(group: Group) -> None:
    """Weights and constants stand before the first item that reads them."""
    for item in group.items:
        if isinstance(item, Group):
            _hoist(item)
    loose = [x for x in group.items if isinstance(x, Op) and x.term.op != "input" and not any(x.operands())]
    reads = {id(x): _reads(x) for x in group.items}
    for op in loose:
        group.items.remove(op)
        at = next((i for i, x in enumerate(group.items) if id(op) in reads[id(x)]), len(group.items))
        group.items.insert(at, op)


def _reads(item: Op | Group) -> set[int]:
    return {id(a) for op in (item.ops() if isinstance(item, Group) else (item,)) for a in op.operands()}


# --- what dissolves -----------------------------------------------------------------------------------------------

FEW = 4
"""So many ops without weights need no block of their own."""


def _dissolve(group: Group, module: nn.Module, outer: bool) -> None:
    """Put what is inside of some modules in their place; `outer`: no layer is around."""
    items: list[Op | Group] = []
    for item in group.items:
        if isinstance(item, Op):
            items.append(item)
            continue
        wraps = outer and _holds_layers(item)
        _dissolve(item, module, wraps)
        parts = [x for x in item.items if not (isinstance(x, Op) and x.term.op == "item")]
        if len(parts) == 1 and isinstance(parts[0], Op) and _is_module(parts[0], item, module):
            parts[0].label = parts[0].label or item.module
            items += item.items
        elif (not item.weights() and sum(1 for _ in item.ops()) <= FEW) or _reads_nothing(item):
            items += item.items
        elif wraps or _is_container(item, module):
            for x in item.items:
                x.scope = item.module if x.scope is None and wraps else x.scope
            items += item.items
        else:
            items.append(item)
    group.items = items


def _is_module(op: Op, group: Group, module: nn.Module) -> bool:
    """Whether an op is all that a module does, with the module's own weights."""
    weights = op.term.weights
    if not weights or op.term.op == "param":
        return False
    part = module.get_submodule(group.module)
    own = {id(t) for t in (*part.parameters(), *part.buffers())}
    return bool(op.label) or any(id(operator.attrgetter(w.name)(module)) in own for w in weights.values())


def _reads_nothing(group: Group) -> bool:
    inside = {id(op) for op in group.ops()}
    return not any(id(a) not in inside for op in group.ops() for a in op.operands())


def _is_container(group: Group, module: nn.Module) -> bool:
    return type(module.get_submodule(group.module)).__module__ == "torch.nn.modules.container"


def _holds_layers(group: Group) -> bool:
    """Whether a module that is itself no layer calls layers, `layers.0`, or one that does."""
    if group.module.rpartition(".")[2].isdigit():
        return False
    inside = [x for x in group.items if isinstance(x, Group)]
    return any(x.module.rpartition(".")[2].isdigit() or _holds_layers(x) for x in inside)


# --- what is shared -----------------------------------------------------------------------------------------------


def _share(root: Group) -> None:
    """Find weights with several users, dissolve what is between them, and make them one `Shared`."""
    while True:
        chains: dict[int, list[tuple[Group | Op, ...]]] = {}
        _chains(root, (root,), chains)
        for weight, users in _weights(root):
            paths = chains[id(weight)]
            if len(users) < 2 or all(op.term.op == "param" for op in users):
                continue
            if len({*map(id, users)}) < len(users):
                text = f"one weight, `{weight.name}`, is read twice by a `{users[0].term.op}`"
                raise error("E0542", f"{text}: there is no word for that yet")
            depth = len(list(takewhile(lambda level: len({id(x) for x in level}) == 1, zip(*paths, strict=False))))
            around = paths[0][depth - 1]
            assert isinstance(around, Group)
            heads = list(dict.fromkeys(p[depth] for p in paths))
            if heads[0].shared is not None and all(h.shared is heads[0].shared for h in heads):
                continue
            if _alike(heads):
                _bind(heads, False)
                continue
            inner = {h: h.items for h in heads if isinstance(h, Group)}
            if inner:
                for h in inner:
                    for x in h.items:
                        x.scope = h.module if x.scope is None else x.scope
                around.items = [y for x in around.items for y in (inner.get(x, [x]) if isinstance(x, Group) else [x])]
                break
            kinds = [op.term.op for op in users]
            if set(kinds) > {"embedding"} and set(kinds) <= {"embedding", "linear", "unembed"}:
                users.sort(key=lambda op: op.term.op != "embedding")
                _bind(users, True)
            else:
                said = " and ".join(f"`{k}`" for k in dict.fromkeys(kinds))
                said = said if len({*kinds}) > 1 else f"{said} with different options"
                raise error("E0542", f"one weight, `{weight.name}`, is read by {said}: there is no word for that yet")
        else:
            return


def _weights(root: Group) -> list[tuple[Value, list[Op]]]:
    users: dict[Value, list[Op]] = {}
    for op in root.ops():
        for w in op.term.weights.values():
            users.setdefault(w, []).append(op)
    return list(users.items())


def _chains(group: Group, path: tuple[Group | Op, ...], found: dict[int, list[tuple[Group | Op, ...]]]) -> None:
    for item in group.items:
        if isinstance(item, Group):
            _chains(item, (*path, item), found)
        else:
            for w in item.term.weights.values():
                found.setdefault(id(w), []).append((*path, item))


def _alike(heads: Sequence[Op | Group]) -> bool:
    """Whether all of them are calls with the very same weights, and of a primitive with the same options."""
    groups = [h for h in heads if isinstance(h, Group)]
    if groups:
        return len(groups) == len(heads) and len({(g.cls, g.weights()) for g in groups}) == 1
    ops = [h for h in heads if isinstance(h, Op)]
    return len({(op.term.op, str(op.term.options), *op.term.weights.values()) for op in ops}) == 1


def _bind(heads: Sequence[Any], table: bool) -> None:
    first = heads[0]
    path = first.module if isinstance(first, Group) else first.label
    if not path:
        path = next(iter(first.term.weights.values())).name.rpartition(".")[0]
    shared = Shared(path, table, list(heads))
    for head in heads:
        head.shared = shared
