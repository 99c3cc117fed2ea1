"""How the ranks of a mesh share a model: the placement of each weight, of each tensor, and where ranks communicate.

Tensor parallelism (Shoeybi et al., 2019, section 3): a linear layer sharded by columns gives a tensor of which each
rank of `tp` holds a shard; ops that work on each shard alone go on from there; a linear layer sharded by rows ends it,
and its sums are all-reduced. Between such pairs every tensor is replicated. Each linear layer is first taken for one
sharded by columns; where an op cannot work on shards, those that lead to it are replicated, until what is left holds.

What is sharded is what styles of modules (`torch.distributed.tensor.parallel`) can do, as `parallelize` of an emitted
file is written of them: an op that would have to take its shard of a replicated tensor, or to sum gradients of one, is
computed by every rank, and so is an LM head whose weight is the embedding's.

Experts are such pairs too, if all that they do lies between linear layers sharded by columns and one sharded by rows:
every rank of `tp` computes a shard of the hidden channels of each expert, and what the experts give together is summed
once, after it was weighted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from heapq import heappop, heappush
from itertools import takewhile
from typing import Literal

from archdsl.frozen import Entity, Frozen
from archdsl.ir.closure import instantiated_names
from archdsl.ir.dims import Expr, Num, expr_text, substitute
from archdsl.ir.graph import Block, CondNode, LossNode, Model, OpNode, Value
from archdsl.ir.op import Parts
from archdsl.ir.walk import calls_of, every_node, nodes_below
from archdsl.ir.weights import weights
from archdsl.passes.flatten import (
    FlatForm,
    FlatGraph,
    FlatNode,
    FlatOp,
    FlatParam,
    FlatWeight,
    Unrolled,
    flatten,
    unroll,
    walk,
    weights_read,
)
from archdsl.passes.gradients import wanting

Kind = Literal["column", "row", "vocab", "expert", "replicated"]


class Placement(Frozen):
    """How a weight is sharded: `column` and `row` of a pair of linear layers, or `vocab` (rows of an embedding, of an
    LM head) over `tp`, `expert` over `ep`. `axis` is the axis of the weight, None where it is replicated. `group` is
    the path that the weights of a pair have in common, that of the experts, or of the module. `hidden` is the axis
    along which a weight of experts is sharded over `tp` besides, None where it is not."""

    kind: Kind
    axis: int | None = None
    group: str = ""
    hidden: int | None = None

    @property
    def axes(self) -> dict[str, int]:
        """Return the axis of the weight that each axis of the mesh shards."""
        ep, tp = (self.axis, self.hidden) if self.kind == "expert" else (None, self.axis)
        return ({} if ep is None else {"ep": ep}) | ({} if tp is None else {"tp": tp})

    def shard(self, shape: Sequence[int], ranks: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape of the first rank's shard, of which none is larger (`torch.chunk`)."""
        parts = {axis: ranks[name] for name, axis in self.axes.items()}
        return tuple(-(-n // parts.get(i, 1)) for i, n in enumerate(shape))


REPLICATED = Placement("replicated")


class Redistribution(Frozen):
    """A tensor about which ranks communicate.

    `enter`: a replicated tensor is read by an op that works on shards, and its gradient is all-reduced over `tp`;
    `reenter`: the same tensor is read by another such op, whose gradient is all-reduced apart from the first one's;
    `leave`: sums are all-reduced over `tp`; `gather`: shards of logits are all-gathered over `tp`; `experts`: tokens
    are sent to the ranks of `ep` that have their experts, and come back; `keys`: keys and values are all-gathered over
    the axis that shards the sequence, if there is one."""

    kind: Literal["enter", "reenter", "leave", "gather", "experts", "keys"]
    node: FlatNode
    value: Value


@dataclass(eq=False)
class Sharded:
    """A graph of the model over the ranks of `tp` and `ep`."""

    axes: dict[Value, int] = field(default_factory=dict)
    """Tensors that are sharded over `tp`, and along which axis."""
    worked: set[int] = field(default_factory=set)
    """Ops, by `id`, that compute a shard."""
    divided: set[int] = field(default_factory=set)
    """Ops, by `id`, that apply blocks of which each rank computes a shard of the hidden channels."""
    redistributions: list[Redistribution] = field(default_factory=list)
    partial: dict[str, tuple[FlatWeight, int | None]] = field(default_factory=dict)
    """Replicated weights that work on shards, those of norms, with the axis along which their input is sharded: their
    gradients are all-reduced over `tp`."""
    entries: set[str] = field(default_factory=set)
    """Paths of norms that only sharded linear layers read, several: gradients of what they give are all-reduced once
    for all of these layers."""


class Partition(Entity):
    """What the ranks of a mesh share of a model, whatever the sizes of its axes."""

    placements: Mapping[str, Placement]
    """Of every weight, buffers too, by its path."""
    sizes: tuple[tuple[str, Num], ...]
    """What the ranks of `tp` have to divide, each with the group that it is of, in the names of the model."""
    sliced: bool = False
    """Whether ops take their shard of a replicated tensor, which no emitted plan does."""
    divided: frozenset[OpNode] = frozenset()
    """Ops that apply blocks of which each rank of `tp` computes a shard of the hidden channels."""


@lru_cache(maxsize=4)
def partition(model: Model, slices: bool = False, experts: bool = True) -> Partition:
    """Return what ranks share of a model; with `slices` ops may take their shard of a replicated tensor that wants no
    gradient (biases of heads), which styles of modules cannot do; without `experts` the hidden channels of experts are
    not sharded. Linear in the number of layers; the last ones are remembered."""
    partitioner = _Partitioner(model, slices, experts)
    partitioner.run()
    sliced = any(use.parts.own for use in partitioner.uses.values())
    divided = frozenset(n.node for n in partitioner.divided())
    return Partition(partitioner.placements(), tuple(partitioner.sizes()), sliced, divided)


def sharded(graph: FlatGraph, placements: Mapping[str, Placement]) -> Sharded:
    """Return how ranks compute a graph of a model, whole or a decode step."""
    found = Sharded()
    for node in graph.nodes:
        if isinstance(node, FlatForm) and (axis := found.axes.get(node.value)) is not None:
            found.axes[node.output] = axis
        if isinstance(node, FlatOp):
            tensors = [v for v in node.inputs if isinstance(v, Value)]
            kept = (node.inputs[i] for i in node.node.op.cached_inputs(node.node))
            found.redistributions += [Redistribution("experts", node, v) for v in tensors[:1] if node.blocks]
            found.redistributions += [Redistribution("keys", node, v) for v in kept if isinstance(v, Value)]
            if node.blocks:
                _shard_blocks(node, placements, found)
            else:
                _shard_op(node, placements, found)
    entering = Counter(r.value for r in found.redistributions if r.kind == "enter" and id(r.node) not in found.divided)
    reading = Counter(v for n in graph.nodes for v in n.inputs if isinstance(v, Value)) + Counter(graph.outputs)
    norms = [n for n in graph.nodes if isinstance(n, FlatOp) and n.node.op.shares_weights and n.weights]
    apart = {n.path for n in norms if not 1 < entering[n.outputs[0]] == reading[n.outputs[0]]}
    joined = {n.outputs[0]: n.path for n in norms if n.path not in apart}
    found.entries = set(joined.values())
    found.redistributions = list(_once(found.redistributions, joined))
    return found


def _once(redistributions: Iterable[Redistribution], joined: Container[Value]) -> Iterator[Redistribution]:
    """Yield `reenter` for a tensor that has entered, or nothing where that is done together."""
    entered: set[Value] = set()
    for r in redistributions:
        if r.kind != "enter" or r.value not in entered:
            yield r
        elif r.value not in joined:
            yield replace(r, kind="reenter")
        if r.kind == "enter":
            entered.add(r.value)


def _shard_blocks(node: FlatOp, placements: Mapping[str, Placement], found: Sharded) -> None:
    """Note which ops of blocks that an op applies work on shards: what enters them are the op's own inputs, what leaves
    them its output."""
    inner = Sharded(found.axes, found.worked)
    for graph in node.blocks.values():
        if any("tp" in placements.get(path, REPLICATED).axes for path in weights_read(graph)):
            found.divided.add(id(node))
            for op in graph.nodes:
                if isinstance(op, FlatOp):
                    _shard_op(op, placements, inner)
    if id(node) in found.divided:
        whole = (v for v in node.inputs if isinstance(v, Value) and v.is_float)
        found.redistributions += [Redistribution("enter", node, v) for v in whole]
        found.redistributions.append(Redistribution("leave", node, node.outputs[0]))


def _shard_op(node: FlatOp, placements: Mapping[str, Placement], found: Sharded) -> None:
    """Note what an op makes of the shards that it reads, or that its weights make."""
    axes = [found.axes.get(v) if isinstance(v, Value) else None for v in node.inputs]
    of_weights = {w.path: placements.get(w.path, REPLICATED) for w in node.weights.values()}
    kinds = {p.kind for p in of_weights.values()}
    if any(axis is not None for axis in axes):
        parts = node.node.op.parts(node.node, axes)
    else:
        parts = node.node.op.opens(node.node) if any("tp" in p.axes for p in of_weights.values()) else None
    if parts is None:
        return
    found.worked.add(id(node))
    if parts.axis is not None:
        found.partial |= {w.path: (w, axes[0]) for w in node.weights.values() if of_weights[w.path].axis is None}
    for value, axis in zip(node.inputs, axes, strict=True):
        if isinstance(value, Value) and axis is None and value.is_float:
            found.redistributions.append(Redistribution("enter", node, value))
    if parts.axis is not None and "vocab" not in kinds:
        found.axes |= dict.fromkeys(node.outputs, parts.axis)
    else:
        found.redistributions += [Redistribution("leave" if parts.axis is None else "gather", node, node.outputs[0])]


class _Shard(Frozen):
    """A tensor of which each rank has a shard: along which axis, and the linear layers that opened it."""

    axis: int
    origins: frozenset[int]


class _Use(Frozen):
    """An op that works on shards: how its inputs are sharded, and what it makes of them."""

    axes: tuple[int | None, ...]
    parts: Parts


class _Partitioner:
    def __init__(self, model: Model, slices: bool, experts: bool) -> None:
        self.model, self.slices = model, slices
        self.graph = flatten(model)
        self.nodes: list[FlatNode] = []
        """Those of blocks that ops apply among them, each before the op."""
        self.applied: list[tuple[FlatOp, FlatGraph, range]] = []
        """Such blocks, and the numbers of their nodes."""
        for node in self.graph.nodes:
            if isinstance(node, FlatOp) and experts:
                for graph in node.blocks.values():
                    first = len(self.nodes)
                    self.nodes += graph.nodes
                    self.applied.append((node, graph, range(first, len(self.nodes))))
            self.nodes.append(node)
        self.closed: set[int] = set()
        """Linear layers that are not sharded by columns, by their number among the nodes."""
        self.unclear = set(blocks_of_two_graphs(model.block))
        self.opened: dict[int, Parts] = {}
        """What each linear layer makes where it is sharded by columns."""
        for number, node in enumerate(self.nodes):
            parts = node.node.op.opens(node.node) if isinstance(node, FlatOp) and not node.blocks else None
            if parts is not None and parts.axis is not None:
                self.opened[number] = parts
        self.state: dict[int, _Shard | Literal["lost"] | None] = {}
        """How each tensor is sharded, by its `id`; `lost` where that cannot be said in this pass."""
        self.uses: dict[int, _Use] = {}
        self.changed = set(range(len(self.nodes)))
        """Ops to look at in the next pass."""
        self.wants = wanting(self.graph)
        self.readers: dict[int, list[int]] = {}
        for number, node in enumerate(self.nodes):
            for v in node.inputs:
                if isinstance(v, Value):
                    self.readers.setdefault(id(v), []).append(number)

    def run(self) -> None:
        """Find each op that works on shards."""
        while self.changed:
            self._propagate()
            if not self.changed:
                self._close_halved_blocks()
            if not self.changed:
                self.uses = dict(sorted(self.uses.items()))
                self._close_disagreeing()

    # --- which linear layers are sharded ---

    def _propagate(self) -> None:
        """Pass once through the graph. Linear layers that lead to an op that cannot work on shards are closed; what
        comes after it is left to the next pass, which looks only at what reads a tensor whose state has changed."""
        queued, self.changed = self.changed, set()
        waiting = sorted(queued)
        while waiting:
            number = heappop(waiting)
            node = self.nodes[number]
            state = self._looked_at(number, node)
            for value in node.outputs:
                if self.state.get(id(value)) != state:
                    self.state[id(value)] = state
                    for reader in self.readers.get(id(value), ()):
                        if reader not in queued:
                            queued.add(reader)
                            heappush(waiting, reader)
            queued.discard(number)
        for value in (*self.graph.outputs, *(v for _, graph, _ in self.applied for v in graph.outputs)):
            state = self.state.get(id(value))
            if isinstance(state, _Shard):
                self._close(state.origins)

    def _looked_at(self, number: int, node: FlatNode) -> _Shard | Literal["lost"] | None:
        """Return how the results of an op are sharded, as its inputs are now."""
        self.uses.pop(number, None)
        states = [self.state.get(id(v)) if isinstance(v, Value) else None for v in node.inputs]
        if "lost" in states:
            return "lost"
        shards = [s for s in states if isinstance(s, _Shard)]
        axes = tuple(s.axis if isinstance(s, _Shard) else None for s in states)
        if shards:
            origins = frozenset[int]().union(*(s.origins for s in shards))
            parts = self._parts(node, axes)
            if parts is None:
                self._close(origins)
                return "lost"
        elif number in self.opened and number not in self.closed:
            origins, parts = frozenset({number}), self.opened[number]
        else:
            return None
        self.uses[number] = _Use(axes, parts)
        return _Shard(parts.axis, origins) if parts.axis is not None else None

    def _close(self, numbers: frozenset[int]) -> None:
        self.changed |= numbers - self.closed
        self.closed |= numbers

    def _parts(self, node: FlatNode, axes: Sequence[int | None]) -> Parts | None:
        """Return what an op makes of shards, None where it cannot be computed as it is written for whole tensors, or
        gradients would be sums over some of the shards alone."""
        if not isinstance(node, FlatOp) or node.blocks or node.node in self.unclear:
            return None
        op = node.node.op
        parts = op.parts(node.node, axes)
        if parts is None or (parts.own and not self.slices) or parts.numbers:
            return None
        if node.weights.keys() - parts.weights.keys() and parts.axis is not None and not op.shares_weights:
            return None
        whole = [(i, v) for i, v in enumerate(node.inputs) if axes[i] is None and isinstance(v, Value)]
        return None if any(self.wants.get(v, False) and op.differentiates(node.node, i) for i, v in whole) else parts

    def _close_halved_blocks(self) -> None:
        """A block that an op applies is sharded from its input to its output or not at all: what it gives are sums of
        one linear layer sharded by rows, and every weight works on shards."""
        for _, graph, numbers in self.applied:
            if self._is_divided(graph, numbers):
                continue
            for number in numbers:
                use = self.uses.get(number)
                if use is not None and number in self.opened and all(axis is None for axis in use.axes):
                    self._close(frozenset({number}))

    def _is_divided(self, graph: FlatGraph, numbers: range) -> bool:
        """Return whether each rank computes a shard of a block that an op applies, and its result is a sum of those."""
        if not any(number in self.uses for number in numbers):
            return False
        for number, node in zip(numbers, graph.nodes, strict=True):
            use = self.uses.get(number)
            weights = {*node.weights} if isinstance(node, FlatOp) else {"read as a tensor"}
            whole = weights.difference(use.parts.weights if use is not None else ())
            sums = use is not None and use.parts.axis is None
            if sums != (node.outputs == graph.outputs) or (whole and not sums):
                return False
        return True

    def divided(self) -> Iterator[FlatOp]:
        """Yield the ops that apply blocks of which each rank computes a shard."""
        yield from (op for op, graph, numbers in self.applied if self._is_divided(graph, numbers))

    def _close_disagreeing(self) -> None:
        """All uses of an op of a block are written once, and a weight has one placement: where two uses differ, nothing
        is sharded."""
        groups = self._groups()
        first: dict[object, object] = {}
        users: dict[object, list[int]] = {}
        differ: set[object] = set()
        for number, node in enumerate(self.nodes):
            keys: list[object] = []
            if isinstance(node, FlatOp):
                keys = [node.node, *(w.path for w in node.weights.values())]
            elif isinstance(node, FlatParam):
                keys = [node.weight.path]
            use = self.uses.get(number)
            how = None if use is None else (use.axes, use.parts.axis)
            for key in keys:
                users.setdefault(key, []).append(number)
                if first.setdefault(key, how) != how:
                    differ.add(key)
        for key in differ:
            for number in users[key]:
                self._close(groups.get(number, frozenset()))

    def _groups(self) -> dict[int, frozenset[int]]:
        """Return, for each op that works on shards, the linear layers that open its group: those whose shards meet."""
        above: dict[int, int] = {}

        def top(n: int) -> int:
            while above.setdefault(n, n) != n:
                n = above[n]
            return n

        makers: dict[int, int] = {}
        for number, use in self.uses.items():
            node = self.nodes[number]
            for value in node.inputs:
                if id(value) in makers:
                    above[top(number)] = top(makers[id(value)])
            if use.parts.axis is not None:
                makers |= {id(v): number for v in node.outputs}
        members: dict[int, set[int]] = {}
        for number, use in self.uses.items():
            if number in self.opened and all(axis is None for axis in use.axes):
                members.setdefault(top(number), set()).add(number)
        return {number: frozenset(members.get(top(number), ())) for number in self.uses}

    # --- what follows ---

    def placements(self) -> dict[str, Placement]:
        """Return the placement of every weight, by its path."""
        found = dict(self._vocabulary())
        for number, group in self._named().items():
            node, use = self.nodes[number], self.uses[number]
            assert isinstance(node, FlatOp)
            kind: Kind = "row" if any(axis is not None for axis in use.axes) else "column"
            found |= {node.weights[name].path: Placement(kind, axis, group) for name, axis in use.parts.weights.items()}
        for path, placement in expert_placements(self.graph).items():
            hidden = found.get(path, REPLICATED).axis  # behind that of the experts
            found[path] = replace(placement, hidden=None if hidden is None else hidden + 1)
        return {w.path: found.get(w.path, REPLICATED) for w in weights(self.model)}

    def _vocabulary(self) -> Iterator[tuple[str, Placement]]:
        """Yield embeddings of tokens that no op reads as a tensor, and linear layers that score as many tokens."""
        inputs = {id(v): v.dtype for v in self.graph.inputs}
        read = {n.weight.path for n in self.nodes if isinstance(n, FlatParam)}
        rows = set()
        for node in self.nodes:
            if isinstance(node, FlatOp) and node.inputs and inputs.get(id(node.inputs[0])) == "token":
                parts = node.node.op.opens(node.node)
                if parts is not None and parts.axis is None:
                    for path in {node.weights[name].path for name in parts.weights} - read:
                        rows.add(int(parts.sizes[0]))
                        yield path, Placement("vocab", 0, path.rpartition(".")[0])
        within = {number for _, _, numbers in self.applied for number in numbers}
        for number, parts in self.opened.items():
            node = self.nodes[number]
            if number not in self.closed or number in within:
                continue
            if isinstance(node, FlatOp) and {int(n) for n in parts.sizes} <= rows:
                yield from ((node.weights[n].path, Placement("vocab", a, node.path)) for n, a in parts.weights.items())

    def sizes(self) -> Iterator[tuple[str, Num]]:
        """Yield what the ranks of `tp` have to divide, but for multiples of another size of the same group."""
        names = dict(_names_of(unroll(self.model)[1], _root_names(self.model)))
        found: dict[str, dict[str, Num]] = {}
        for number, group in self._named().items():
            node = self.nodes[number]
            for size in self.uses[number].parts.sizes:
                if size.static:
                    outer = size.outward(names.get(node, {}))
                    found.setdefault(group, {}).setdefault(expr_text(outer.expr), outer)
        for group, sizes in found.items():
            numbers = {int(size) for size in sizes.values()}
            for size in sizes.values():
                if not any(n < int(size) and int(size) % n == 0 for n in numbers):
                    yield group, size

    def _named(self) -> dict[int, str]:
        """Return the group of each op that works on shards: what the paths of its ops have in common."""
        groups = self._groups()
        paths: dict[frozenset[int], list[list[str]]] = {}
        for number in self.uses:
            node = self.nodes[number]
            if isinstance(node, FlatOp):
                paths.setdefault(groups[number], []).append(node.path.split("."))
        found = {}
        for group, several in paths.items():
            common = takewhile(lambda steps: len(set(steps)) == 1, zip(*several, strict=False))
            found[group] = ".".join(steps[0] for steps in common)
        return {number: found[groups[number]] for number in self.uses}


def expert_placements(graph: FlatGraph) -> dict[str, Placement]:
    """Return the placements of the weights of experts, by path: sharded along their leading axis."""
    ops = (n for n in walk(graph) if isinstance(n, FlatOp))
    return {p: Placement("expert", 0, op.path) for op in ops for g in op.blocks.values() for p in weights_read(g)}


def _root_names(model: Model) -> dict[str, Expr]:
    """Return what names of the model's own block are computed from: fields of its Config."""
    fields = {f.name for f in model.config}
    return {name: e for name, e in instantiated_names(model.block, {}).items() if name not in fields}


def _names_of(unrolled: Unrolled, names: Mapping[str, Expr]) -> Iterator[tuple[FlatNode, Mapping[str, Expr]]]:
    """Yield every node of a block that is not shared, with its names in those of the model."""
    yield from ((node, names) for nodes in unrolled.nodes.values() for node in nodes)
    for call, inner in (*unrolled.calls.items(), *unrolled.applied.items()):
        outer = {name: substitute(e, names) for name, e in instantiated_names(call.block, call.bind).items()}
        for block in inner:
            yield from _names_of(block, outer)


def blocks_of_two_graphs(root: Block) -> Iterator[OpNode]:
    """Yield ops of blocks that are another graph in training than the one looked at here, which is that of
    inference."""
    called = (call.block.graph for n in nodes_below(root.graph) for call in calls_of(n))
    for graph in dict.fromkeys((root.graph, *called)):
        nodes = list(every_node(graph))
        if any(isinstance(n, CondNode | LossNode) for n in nodes):
            yield from (n for n in nodes if isinstance(n, OpNode))
