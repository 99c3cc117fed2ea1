"""Where each weight lies when several devices share a model: derived from the graph, by what each op says of parts.

Tensor parallelism (Shoeybi et al., 2019, section 3): a map whose columns are cut gives a tensor of which every device
holds one part; whatever works on each part alone goes on from there; a map whose rows are cut ends it, and its sums are
added up.  Between such pairs every tensor is whole on each device.  Every map is first taken for one of columns; where
an op cannot work on parts, those that lead to it are taken back, until all that is left holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import takewhile
from typing import Literal

from archdsl.ir.closure import outward_names
from archdsl.ir.dims import Expr, Num, expr_text, substitute
from archdsl.ir.graph import Block, CallNode, CondNode, Graph, LossNode, Model, OpNode, Value, subgraphs
from archdsl.ir.op import Parts
from archdsl.ir.weights import weights
from archdsl.passes.flatten import FlatNode, FlatOp, FlatParam, Unrolled, flatten, unroll, walk, weights_read

Kind = Literal["column", "row", "vocab", "expert", "replicated"]


@dataclass(frozen=True)
class Placement:
    """How a weight is cut over devices: `column` and `row` of a pair of maps over those of tensor parallelism, `vocab`
    (rows of the table of words, and of the head) over the same, `expert` over those that share the experts. `axis` is
    the axis of the weight, None where every device has all of it. `group` names what belongs together: the path that
    the weights of a pair have in common, the path of the experts, or of the table."""

    kind: Kind
    axis: int | None = None
    group: str = ""


REPLICATED = Placement("replicated")


@dataclass(frozen=True, eq=False)
class TensorParallel:
    """What torch's styles of modules can shard, with everything between modules as it stands."""

    placements: Mapping[str, Placement]
    norms: Mapping[str, int]
    """Paths of weights of norms that work on parts, and the axis along which their input is cut."""
    sizes: tuple[tuple[str, Num], ...]
    """What the number of devices has to divide, each with the group that it is of, in the names of the model."""


def placements(model: Model) -> dict[str, Placement]:
    """The placement of every weight, buffers too, by its path. Linear in the number of layers."""
    sharder = _Sharder(model)
    return sharder.placements(sharder.run())


def tensor_parallel(model: Model) -> TensorParallel:
    """The same, as far as styles of modules go: an op that would have to take its part of a whole tensor, or to add up
    gradients of one, is computed whole, and so is a head whose weights are the embedding's."""
    sharder = _Sharder(model, by_modules=True)
    uses = sharder.run()
    return TensorParallel(sharder.placements(uses), sharder.norms(uses), tuple(sharder.sizes(uses)))


@dataclass(frozen=True)
class _Cut:
    """A value of which each device has a part: along which axis, and the maps that opened it."""

    axis: int
    origins: frozenset[int]


@dataclass(frozen=True)
class _Use:
    """What became of one use of an op."""

    cuts: tuple[int | None, ...]
    parts: Parts | None


class _Sharder:
    def __init__(self, model: Model, by_modules: bool = False) -> None:
        """`by_modules`: only what styles of modules can do is sharded."""
        self.model, self.by_modules = model, by_modules
        self.graph = flatten(model)
        self.nodes = self.graph.nodes
        self.outputs = {id(v) for v in self.graph.outputs}
        self.inputs = {id(v): v.dtype for v in self.graph.inputs}
        self.closed: set[int] = set()
        """Maps that are not cut, by their number among the nodes."""
        self.unclear = set(blocks_of_two_graphs(model.block))
        self.opened: dict[int, Parts] = {}
        for number, node in enumerate(self.nodes):
            parts = node.node.op.opens(node.node) if isinstance(node, FlatOp) and not node.blocks else None
            if parts is not None and parts.axis is not None and isinstance(node, FlatOp):
                self.opened[number] = parts
        self.cut: dict[int, _Cut | Literal["lost"] | None] = {}
        """How each tensor is cut, by its `id`."""
        self.uses: dict[int, _Use] = {}
        self.changed = set(range(len(self.nodes)))
        """Ops to look at in the next turn."""
        self.learned = self._learned()
        self.readers: dict[int, list[int]] = {}
        for number, node in enumerate(self.nodes):
            for v in node.inputs:
                if isinstance(v, Value):
                    self.readers.setdefault(id(v), []).append(number)

    def run(self) -> dict[int, _Use]:
        """What becomes of each op that works on parts, by its number among the nodes."""
        while True:
            self._propagate()
            if not self.changed:
                uses = {number: self.uses[number] for number in sorted(self.uses)}
                self._demand_agreement(uses)
                if not self.changed:
                    return uses

    # --- which maps are cut ---

    def _propagate(self) -> None:
        """Once through the graph: what each op that meets a cut tensor does. Maps that lead to an op that cannot work
        on parts are closed; what comes after it is not looked at in this turn. Of a later turn only what differs from
        the one before is done: what reads a tensor that is now cut in another way."""
        queued, self.changed = self.changed, set()
        waiting = sorted(queued)
        while waiting:
            number = heappop(waiting)
            node = self.nodes[number]
            state = self._looked_at(number, node)
            for value in node.outputs:
                if self.cut.get(id(value)) != state:
                    self.cut[id(value)] = state
                    for reader in self.readers.get(id(value), ()):
                        if reader not in queued:
                            queued.add(reader)
                            heappush(waiting, reader)
            queued.discard(number)
        for value in self.graph.outputs:
            found = self.cut.get(id(value))
            if isinstance(found, _Cut):
                self._close(found.origins)

    def _looked_at(self, number: int, node: FlatNode) -> _Cut | Literal["lost"] | None:
        """How the results of an op are cut, as its inputs are now; `lost` where that cannot be said in this turn."""
        self.uses.pop(number, None)
        found = [self.cut.get(id(v)) if isinstance(v, Value) else None for v in node.inputs]
        met = [c for c in found if isinstance(c, _Cut)]
        if "lost" in found:
            return "lost"
        if not met:
            if number not in self.opened or number in self.closed:
                return None
            parts = self.opened[number]
            assert parts.axis is not None
            self.uses[number] = _Use((None,) * len(found), parts)
            return _Cut(parts.axis, frozenset({number}))
        origins = frozenset[int]().union(*(c.origins for c in met))
        cuts = tuple(c.axis if isinstance(c, _Cut) else None for c in found)
        made = self._parts(node, cuts)
        if made is None or (self.by_modules and not self._by_modules(node, cuts, made)):
            self._close(origins)
            return "lost"
        self.uses[number] = _Use(cuts, made)
        return _Cut(made.axis, origins) if made.axis is not None else None

    def _close(self, maps: frozenset[int]) -> None:
        self.changed |= maps - self.closed
        self.closed |= maps

    def _parts(self, node: FlatNode, cuts: Sequence[int | None]) -> Parts | None:
        if not isinstance(node, FlatOp) or node.blocks or node.node in self.unclear:
            return None
        return node.node.op.parts(node.node, cuts)

    def _by_modules(self, node: FlatNode, cuts: Sequence[int | None], parts: Parts) -> bool:
        """Whether an op works on parts as it is written for whole tensors, and gradients are right."""
        assert isinstance(node, FlatOp)
        op, whole = node.node.op, node.weights.keys() - parts.weights.keys()
        if parts.own or parts.numbers or (whole and parts.axis is not None and not op.shares_weights):
            return False
        return not any(
            id(value) in self.learned and cut is None and op.differentiates(node.node, i)
            for i, (value, cut) in enumerate(zip(node.inputs, cuts, strict=True))
        )

    def _demand_agreement(self, uses: Mapping[int, _Use]) -> None:
        """All uses of an op of a block are written once, and a weight lies in one place: where two uses want different
        things, nothing is cut."""
        groups = self._groups(uses)
        wanted: dict[object, object] = {}
        differ: set[object] = set()
        everywhere: dict[object, list[int]] = {}
        for number, node in enumerate(self.nodes):
            if not isinstance(node, FlatOp):
                for path in [node.weight.path] if isinstance(node, FlatParam) else []:
                    everywhere.setdefault(path, []).append(number)
                    if wanted.setdefault(path, None) is not None:
                        differ.add(path)
                continue
            use = uses.get(number)
            text = (
                None if use is None or use.parts is None else (use.cuts, use.parts.axis, tuple(use.parts.own.items()))
            )
            for key, want in [(node.node, text), *((w.path, text) for w in node.weights.values())]:
                everywhere.setdefault(key, []).append(number)
                if wanted.setdefault(key, want) != want:
                    differ.add(key)
        for key in differ:
            for number in everywhere[key]:
                self._close(groups.get(number, frozenset()))

    def _groups(self, uses: Mapping[int, _Use]) -> dict[int, frozenset[int]]:
        """For each op that works on parts the maps that open its group: those whose parts meet."""
        above: dict[int, int] = {}

        def top(n: int) -> int:
            while above.setdefault(n, n) != n:
                n = above[n]
            return n

        made: dict[int, int] = {}
        for number in uses:
            node = self.nodes[number]
            for value in node.inputs:
                if isinstance(value, Value) and id(value) in made:
                    above[top(number)] = top(made[id(value)])
            parts = uses[number].parts
            if parts is not None and parts.axis is not None:
                made |= {id(v): number for v in node.outputs}
        members: dict[int, set[int]] = {}
        for number in uses:
            if number in self.opened and not any(uses[number].cuts):
                members.setdefault(top(number), set()).add(number)
        return {number: frozenset(members.get(top(number), ())) for number in uses}

    # --- what follows ---

    def placements(self, uses: Mapping[int, _Use]) -> dict[str, Placement]:
        found: dict[str, Placement] = {}
        for number, group in self._named(uses).items():
            node, use = self.nodes[number], uses[number]
            assert isinstance(node, FlatOp)
            assert use.parts is not None
            kind: Kind = "row" if any(axis is not None for axis in use.cuts) else "column"
            for name, axis in use.parts.weights.items():
                found[node.weights[name].path] = Placement(kind, axis, group)
        self._words(found)
        for flat in walk(self.graph):
            if isinstance(flat, FlatOp):
                for inner in flat.blocks.values():
                    found |= {path: Placement("expert", 0, flat.path) for path in weights_read(inner)}
        return {w.path: found.get(w.path, REPLICATED) for w in weights(self.model)}

    def norms(self, uses: Mapping[int, _Use]) -> dict[str, int]:
        """Weights of norms that work on parts, and the axis along which their input is cut."""
        found: dict[str, int] = {}
        for number, use in uses.items():
            node, axis = self.nodes[number], use.cuts[0] if use.cuts else None
            if isinstance(node, FlatOp) and node.node.op.shares_weights and axis is not None:
                found |= {weight.path: axis for weight in node.weights.values()}
        return found

    def sizes(self, uses: Mapping[int, _Use]) -> Iterator[tuple[str, Num]]:
        """What the number of devices has to divide, but for multiples of what is said of the same group."""
        names = dict(_names_of(unroll(self.model)[1], _root_names(self.model)))
        found: dict[str, dict[str, Num]] = {}
        for number, group in self._named(uses).items():
            node, parts = self.nodes[number], uses[number].parts
            assert isinstance(node, FlatOp)
            assert parts is not None
            for size in parts.sizes:
                if size.static:
                    outer = size.outward(names.get(node, {}))
                    found.setdefault(group, {}).setdefault(expr_text(outer.expr), outer)
        for group, sizes in found.items():
            worth = {int(size) for size in sizes.values()}
            for size in sizes.values():
                if not any(n < int(size) and int(size) % n == 0 for n in worth):
                    yield group, size

    def _learned(self) -> set[int]:
        """Values that depend on trained weights: they have gradients."""
        found: set[int] = set()
        for node in self.nodes:
            if isinstance(node, FlatParam):
                known = node.weight.weight.trained
            elif isinstance(node, FlatOp):
                known = any(w.weight.trained for w in node.weights.values()) or bool(node.blocks)
            else:
                known = True
            if known or any(id(v) in found for v in node.inputs if isinstance(v, Value)):
                found |= {id(v) for v in node.outputs if v.is_float}
        return found

    def _named(self, uses: Mapping[int, _Use]) -> dict[int, str]:
        """The group of each op that works on parts: what the paths of its weights have in common."""
        groups = self._groups(uses)
        paths: dict[frozenset[int], list[list[str]]] = {}
        for number in uses:
            node = self.nodes[number]
            if isinstance(node, FlatOp) and node.weights:
                paths.setdefault(groups[number], []).append(node.path.split("."))
        found = {}
        for group, several in paths.items():
            alike = takewhile(lambda steps: len(set(steps)) == 1, zip(*several, strict=False))
            found[group] = ".".join(steps[0] for steps in alike)
        return {number: found[groups[number]] for number in uses}

    def _words(self, found: dict[str, Placement]) -> None:
        """Tables that words are looked up in, and heads with a score for each word: cut by words."""
        tables: dict[str, int] = {}
        for node in self.nodes:
            if not isinstance(node, FlatOp) or not isinstance(node.inputs[0] if node.inputs else None, Value):
                continue
            parts = node.node.op.opens(node.node)
            if parts is None or parts.axis is not None or self.inputs.get(id(node.inputs[0])) != "token":
                continue
            for name in parts.weights:
                tables[node.weights[name].path] = int(parts.sizes[0])
        read = {id(n.output): n.weight.path for n in self.nodes if isinstance(n, FlatParam)}
        for node in self.nodes:
            for i, value in enumerate(node.inputs):
                path = read.get(id(value), "") if isinstance(value, Value) else ""
                if path in tables:
                    cuts = [0 if k == i else None for k in range(len(node.inputs))]
                    made = self._parts(node, cuts)
                    if self.by_modules or made is None or made.axis != node.outputs[0].rank - 1:
                        del tables[path]
        for path, rows in tables.items():
            found[path] = Placement("vocab", 0, path.rpartition(".")[0])
            for number, node in enumerate(self.nodes):
                parts = self.opened.get(number)
                if parts is not None and number in self.closed and isinstance(node, FlatOp):
                    paths = {name: node.weights[name].path for name in parts.weights}
                    if [int(n) for n in parts.sizes] == [rows] and not found.keys() & set(paths.values()):
                        for name, axis in parts.weights.items():
                            found[paths[name]] = Placement("vocab", axis, node.path)


def _root_names(model: Model) -> dict[str, Expr]:
    """What names of the model's own block are computed from: fields of its Config."""
    fields = {f.name for f in model.config}
    return {name: e for name, e in outward_names(model.block, {}).items() if name not in fields}


def _names_of(unrolled: Unrolled, names: Mapping[str, Expr]) -> Iterator[tuple[FlatNode, Mapping[str, Expr]]]:
    """Every node of a block that is not shared with its names in those of the model."""
    yield from ((node, names) for nodes in unrolled.nodes.values() for node in nodes)
    for call, inner in unrolled.calls.items():
        outer = {name: substitute(e, names) for name, e in outward_names(call.block, call.bind).items()}
        for block in inner:
            yield from _names_of(block, outer)


def blocks_of_two_graphs(root: Block) -> Iterator[OpNode]:
    """Ops of blocks that are another graph in training than the one looked at here, which is that of inference."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        block = waiting.pop()
        if id(block) in seen:
            continue
        seen.add(id(block))
        nodes = list(_nodes(block.graph))
        waiting += [n.block for n in nodes if isinstance(n, CallNode)]
        waiting += [call.block for n in nodes if isinstance(n, OpNode) for call in n.blocks.values()]
        if any(isinstance(n, CondNode | LossNode) for n in nodes):
            yield from (n for n in nodes if isinstance(n, OpNode))


def _nodes(graph: Graph) -> Iterator[object]:
    for node in graph.nodes:
        yield node
        for inner in subgraphs(node):
            yield from _nodes(inner)
