"""Which tensors several devices may cut along the sequence, between maps that they share: derived from the graph.

Sequence parallelism (Korthikanti et al., 2022, section 4.2.2): where tensor parallelism has every tensor whole on each
device, what works place by place (norms, dropout, residual sums) can as well work on a part of the places. Sums of a
map that is cut by rows then come out in parts (reduce-scatter), and are put together (all-gather) before a map that is
cut by columns. An emitted model is modules: the cut can begin and end only where a tensor goes into one or comes out.
What stands between such borders is of one kind, all in parts or all whole; it is taken to be in parts, and taken back
where something reads other places than its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from fractions import Fraction
from typing import Any, Literal

from archdsl.ir.dims import Num, Poly
from archdsl.ir.graph import Block, CallNode, CheckNode, CondNode, Model, Node, OpNode, ParamNode, ScanNode, Value
from archdsl.ir.op import At
from archdsl.ir.paths import Step
from archdsl.passes.flatten import FlatNode, FlatOp, FlatParam, FlatScan, Flattener, Scope, weights_read
from archdsl.passes.placement import Sharding, blocks_of_two_graphs

Change = Literal["gather", "hand", "divide"]
"""What is done about a tensor at the border of a module: its parts are put together (`hand`: for maps that are cut by
columns alone, so that the gradients that come back are sums still to be added up), or each device takes its part."""


@dataclass(frozen=True)
class Spread:
    """What works on parts of the places, by paths of modules."""

    modules: Mapping[str, Block | None] = field(default_factory=dict)
    """All there are, and the blocks that they are."""
    inputs: Mapping[str, Mapping[int, Change]] = field(default_factory=dict)
    """What is done about inputs of blocks."""
    results: Mapping[str, Mapping[int, tuple[Change, int]]] = field(default_factory=dict)
    """What is done about results, along which axis."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Of the modules in `results`, how many results they have."""
    maps: frozenset[str] = frozenset()
    """Maps that are cut and have their whole side in parts: sums come out in parts, or inputs come in parts."""
    shared: tuple[str, ...] = ()
    """Modules whose own weights are used for parts of the places: their gradients are to be added up."""
    dropouts: tuple[str, ...] = ()
    """Blocks whose dropout works on parts."""
    lengths: tuple[tuple[str, int, int], ...] = ()
    """Inputs of the model that tell how many places there are to be cut: name, number, axis."""


def spread(model: Model, sharding: Sharding) -> Spread:
    """What works on parts of the places where `sharding` cuts the maps; empty where no sums come out in parts."""
    return _Spreader(model, sharding).run()


@dataclass(frozen=True, eq=False)
class _Border:
    """A tensor that goes into a block, or comes out of it."""

    path: str
    number: int
    source: Value
    target: Value
    enters: bool


@dataclass(frozen=True, eq=False)
class _Use:
    """An op, the block that it stands in, and whether it is kept whole whatever it does."""

    node: FlatNode
    block: str
    whole: bool


class _Borders(Flattener):
    """The ops of a model in order, where every block has values of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[_Use | _Border] = []
        self.inputs: dict[str, list[Value]] = {}
        """The tensors of each block, by its path."""
        self.counts: dict[str, int] = {}
        """How many results each has."""
        self.blocks: dict[str, Block] = {}
        self.sized: set[str] = set()
        """Blocks that check a size of theirs."""
        self.training: list[_Use | _Border] = []
        """What is done in training alone."""
        self.whole = 0
        """How many recurrences are around."""
        self.in_expert = 0

    def enters(self, value: Value, node: CallNode, path: str, i: int) -> Value:
        self.counts[path], self.blocks[path] = len(node.outputs), node.block
        return self.border(value, path, i, True)

    def leaves(self, value: Value, node: CallNode, path: str, i: int) -> Value:
        return self.border(value, path, i, False)

    def border(self, value: Value, path: str, i: int, enters: bool) -> Value:
        if self.whole or self.in_expert:
            return value
        target = replaced(value)
        self.found.append(_Border(path, i, value, target, enters))
        if enters:
            self.inputs.setdefault(path, []).append(target)
        return target

    def node(self, node: Node, scope: Scope, step: Step) -> None:
        if isinstance(node, CheckNode):
            self.sized.add(scope.prefix.rstrip("."))
        known = len(self.nodes)
        # `prepare` of a block that a scan applies is a method: nothing can be hung on its calls.
        in_recurrence = isinstance(node, ScanNode) or (isinstance(node, CallNode) and node.step is not None)
        self.whole += in_recurrence
        super().node(node, scope, step)
        self.whole -= in_recurrence
        if not self.in_expert:
            for made in self.nodes[known:] if isinstance(node, OpNode | ScanNode) else ():
                self.found.append(_Use(made, scope.prefix.rstrip("."), bool(self.whole) or in_recurrence))

    def condition(self, node: CondNode, scope: Scope, step: Step) -> None:
        super().condition(node, scope, step)
        nodes, found = self.nodes, self.found
        self.nodes, self.found = [], []
        self.graph(node.then, replaced(scope, values={**scope.values}), lambda name: f"{name} in training")
        self.training += self.found
        self.nodes, self.found = nodes, found

    def inner(self, call: CallNode, prefix: str, scope: Scope) -> Any:
        self.in_expert += 1
        found = super().inner(call, prefix, scope)
        self.in_expert -= 1
        return found


class _Spreader:
    def __init__(self, model: Model, sharding: Sharding) -> None:
        self.model, self.sharding = model, sharding
        self.symbols = {s.name for s in model.symbols if s.name != "batch"}
        self.axes: dict[int, tuple[object, int | None]] = {}
        self.borders = _Borders()
        block = model.block
        scope = Scope(block, "", {v: v for v in block.graph.inputs}, {i: i.path for i in block.instances})
        self.borders.graph(block.graph, scope, str)
        self.outputs = [scope.values[v] for v in block.graph.outputs if v is not None]
        self.found = self._live()
        live = set(self.found)
        self.aside = [*self.borders.training, *(item for item in self.borders.found if item not in live)]
        """What the outputs do not depend on: losses, and what is done in training alone. It is whole."""
        self.two_graphs = set(blocks_of_two_graphs(block))
        self.above: dict[Value, Value] = {}
        """What stands between borders hangs together: a tree of values."""
        self.whole: set[Value] = set()
        """Roots of what is whole."""
        self.busy: set[Value] = set()
        """Values that an op between borders reads or makes."""
        self.readers: dict[Value, list[_Use | _Border]] = {}
        for item in self.found:
            for read in (item.source,) if isinstance(item, _Border) else item.node.inputs:
                if isinstance(read, Value):
                    self.readers.setdefault(read, []).append(item)
        self.kinds: dict[FlatOp, str] = {}
        self.learned = self._learned()
        self.params: dict[Value, str] = {
            n.output: n.weight.path for n in self.borders.nodes if isinstance(n, FlatParam) and n.weight.weight.trained
        }
        self.raw = {
            n.output
            for n in self.borders.nodes
            if isinstance(n, FlatParam) and isinstance(n.weight.node, ParamNode) and n.weight.weight.trained
        }

    def run(self) -> Spread:
        for value in (*self.model.block.graph.inputs, *self.outputs):
            self._keep(value)
        aside = {_module(item) for item in self.aside}
        for border in self.crossings():
            if border.path in aside or (border.enters and self.axis(border.source) != 1):
                self.join(border.source, border.target)
        for item in self.aside:
            if isinstance(item, _Border):
                self.join(item.source, item.target)
            for value in (item.source,) if isinstance(item, _Border) else self.placed(item.node):
                self._keep(value)
        for use in self.uses():
            self._first(use, bool(_module(use)) and _module(use) in aside)
        for path in self.borders.sized:
            self._keep_inputs(path)
        while self._settle() or self._disagree():
            pass
        found = self._spread()
        return found if found.maps else Spread()

    # --- the graph ---

    def uses(self) -> Iterator[_Use]:
        return (u for u in self.found if isinstance(u, _Use))

    def crossings(self) -> Iterator[_Border]:
        return (b for b in self.found if isinstance(b, _Border) and self.axis(b.source) is not None)

    def _live(self) -> list[_Use | _Border]:
        """What the outputs depend on."""
        needed = set(self.outputs)
        kept: list[_Use | _Border] = []
        for item in reversed(self.borders.found):
            made = (item.target,) if isinstance(item, _Border) else item.node.outputs
            if needed.intersection(made):
                kept.append(item)
                read = (item.source,) if isinstance(item, _Border) else item.node.inputs
                needed |= {v for v in read if isinstance(v, Value)}
                if isinstance(item, _Use) and isinstance(item.node, FlatScan):
                    needed |= set(item.node.body.outputs)
        return kept[::-1]

    def _learned(self) -> set[Value]:
        """Values that depend on trained weights."""
        found = {n.output for n in self.borders.nodes if isinstance(n, FlatParam) and n.weight.weight.trained}
        for item in self.found:
            if isinstance(item, _Border):
                if item.source in found:
                    found.add(item.target)
                continue
            node = item.node
            trained = isinstance(node, FlatScan) or (
                isinstance(node, FlatOp) and (bool(node.blocks) or any(w.weight.trained for w in node.weights.values()))
            )
            if trained or any(v in found for v in node.inputs if isinstance(v, Value)):
                found |= {v for v in node.outputs if v.is_float}
        return found

    def axis(self, value: Value) -> int | None:
        """The axis of places; -1 where there is none that can be cut (there are several, or it is longer), None where a
        value has no places."""
        key = id(value.shape)
        if key not in self.axes:
            axes = [i for i, d in enumerate(value.shape) if self._of_places(d)]
            found = axes[0] if axes else None
            if axes and (len(axes) > 1 or str(value.shape[axes[0]].value) not in self.symbols):
                found = -1
            self.axes[key] = value.shape, found
        return self.axes[key][1]

    def _of_places(self, size: Num) -> bool:
        return isinstance(size.value, Poly) and bool({s.name for s in size.value.symbols} & self.symbols)

    def placed(self, node: FlatNode) -> list[Value]:
        """The tensors of an op that have places."""
        return [v for v in (*node.inputs, *node.outputs) if isinstance(v, Value) and self.axis(v) is not None]

    # --- what is whole ---

    def top(self, value: Value) -> Value:
        while (higher := self.above.setdefault(value, value)) is not value:
            self.above[value] = value = self.above[higher]
        return value

    def join(self, a: Value, b: Value) -> None:
        a, b = self.top(a), self.top(b)
        if a is not b:
            self.above[a] = b
            if a in self.whole:
                self.whole.add(b)

    def in_parts(self, value: Value) -> bool:
        return self.axis(value) is not None and self.top(value) not in self.whole

    def _keep(self, value: Value) -> bool:
        """Keep a value whole, and all that hangs together with it; whether that is news."""
        news = self.in_parts(value)
        self.whole.add(self.top(value))
        return news

    def _keep_inputs(self, path: str) -> None:
        """A block that reads the length off one of its tensors has these whole."""
        for value in self.borders.inputs.get(path, ()):
            self._keep(value)

    def kind(self, node: FlatOp) -> str:
        """How the op's weights are placed; '' for an op that is no module."""
        if node not in self.kinds:
            kinds = [self.sharding.placements[w.path].kind for w in node.weights.values()]
            self.kinds[node] = next((k for k in kinds if k != "replicated"), "replicated" if kinds else "")
        return self.kinds[node]

    def _first(self, use: _Use, whole: bool) -> None:
        """What an op says by itself; whether it is whole for another reason."""
        node = use.node
        placed = self.placed(node)
        for value in placed:
            if self.axis(value) == -1:
                self._keep(value)
        whole = whole or use.whole or not isinstance(node, FlatOp) or node.node in self.two_graphs
        kind = self.kind(node) if isinstance(node, FlatOp) else ""
        if isinstance(node, FlatOp) and not whole:
            if kind in ("column", "row", "vocab") or node.node in self.sharding.scores:
                for side in node.inputs if self.sums(node) else node.outputs:
                    if isinstance(side, Value):
                        self._keep(side)
                x, y = node.inputs[0], node.outputs[0]
                other = y if self.sums(node) else x
                if isinstance(other, Value) and (self.axis(other) != 1 or node.node in self.sharding.scores):
                    self._keep(other)
                return
            if any(self._of_places(n) for n in _numbers((node.inputs, node.node.options))):
                self._keep_inputs(use.block)
            whole = not self._by_place(node)
        if whole:
            for value in placed:
                self._keep(value)
        if not kind:
            self.busy.update(placed)
            for value in placed[1:]:
                self.join(placed[0], value)

    def sums(self, node: FlatOp) -> bool:
        """Whether what comes out are sums over parts: of a map cut by rows, or a table cut by words."""
        kind = self.kind(node)
        opened = node.node.op.opens(node.node) if kind == "vocab" else None
        return kind == "row" or (opened is not None and opened.axis is None)

    def _by_place(self, node: FlatOp) -> bool:
        """Whether every place of every result is made of that place of the inputs."""
        op = node.node.op
        if op.states(node.node) or op.undivided(node.node) or op.undivided_in_training(node.node):
            return False
        placed = [v for v in node.inputs if isinstance(v, Value) and self.axis(v) is not None]
        if not placed or any(self.axis(v) is None for v in node.outputs):
            return not self.placed(node)
        trained = any(w.weight.trained for w in node.weights.values())
        if trained and any(v.dtype != "float" for v in node.outputs):
            return False  # hooks see to gradients, and in a type of its own a map is not called as a module
        for number, output in enumerate(node.outputs):
            for i, (value, reads) in enumerate(zip(node.inputs, op.reads_of(node.node, number), strict=True)):
                axis = self.axis(value) if isinstance(value, Value) else None
                of_type = all(at == At() for at in reads) and not op.differentiates(node.node, i)
                if axis is None or of_type:
                    continue
                at = reads[axis]
                if not isinstance(at, At) or at.offset or at.also or [*at.axes] != [(self.axis(output), Fraction(1))]:
                    return False
        return True

    # --- until all holds ---

    def _settle(self) -> bool:
        """Keep whole what nobody wants in parts, and what would be wrong in parts; whether there was any."""
        news = False
        wanted: dict[Value, list[bool]] = {}
        once: set[Value] = set()
        for item in self.found:
            if isinstance(item, _Border):
                if self.axis(item.source) is not None:
                    wanted.setdefault(self.top(item.source), []).append(not self.in_parts(item.target))
                    if item.enters or not self.in_parts(item.source):
                        once.add(self.top(item.target))
            elif isinstance(item.node, FlatOp) and (kind := self.kind(item.node)):
                for value in item.node.inputs:
                    if isinstance(value, Value) and self.axis(value) is not None:
                        wanted.setdefault(self.top(value), []).append(kind in ("column", "vocab"))
                        if kind == "replicated" and not self.in_parts(value):
                            once |= {self.top(v) for v in item.node.outputs}
                if self.sums(item.node):
                    once |= {self.top(v) for v in item.node.outputs}
        busy = {self.top(v) for v in self.busy}
        for value, whole in wanted.items():
            # Put together once where a block begins, or for several readers; a single map sees to it by itself.
            if value not in busy and all(whole) and (len(whole) > 1 or value in once):
                news |= self._keep(value)
        for use in self.uses():
            if isinstance(use.node, FlatOp) and not self._gradients_hold(use.node):
                for value in self.placed(use.node):
                    news |= self._keep(value)
        return news

    def _gradients_hold(self, node: FlatOp) -> bool:
        """Whether gradients of what has no places, used for parts of them, can be added up: those of a raw weight whose
        block uses all its raw weights for parts."""
        if self.kind(node) or not any(self.in_parts(v) for v in node.outputs):
            return True
        for value in node.inputs:
            if isinstance(value, Value) and self.axis(value) is None and value in self.learned:
                if value not in self.raw:
                    return False
                owner = self.params[value].rpartition(".")[0]
                beside = {v for v, path in self.params.items() if v in self.raw and path.rpartition(".")[0] == owner}
                if any(not self._used_in_parts(v) for v in beside):
                    return False
        return True

    def _used_in_parts(self, param: Value) -> bool:
        return all(
            isinstance(item, _Use) and any(self.in_parts(v) for v in item.node.outputs)
            for item in self.readers.get(param, ())
        )

    def _disagree(self) -> bool:
        """A module that is used several times has one set of hooks: where two uses want different things, nothing is
        done at that border. Whether there was such."""
        wanted: dict[Hashable, object] = {}
        places: dict[Hashable, list[tuple[Value, Value]]] = {}
        differ: dict[Hashable, None] = {}

        def note(key: Hashable, want: object, values: tuple[Value, Value]) -> None:
            places.setdefault(key, []).append(values)
            if wanted.setdefault(key, want) != want:
                differ[key] = None

        for border in self.crossings():
            want = self._change(border.source, border.target)
            note((border.path, border.number, border.enters), want, (border.source, border.target))
        for use in self.uses():
            node = use.node
            if isinstance(node, FlatOp) and self.kind(node) and isinstance(node.inputs[0], Value):
                values = node.inputs[0], node.outputs[0]
                note(node.path, tuple(self.in_parts(v) for v in values), values)
        for key in differ:
            for source, target in places[key]:
                if isinstance(key, str):
                    self._keep(source)
                    self._keep(target)
                else:
                    self.join(source, target)
        return bool(differ)

    # --- what follows ---

    def _change(self, source: Value, target: Value) -> Change | None:
        if self.in_parts(source) == self.in_parts(target):
            return None
        if self.in_parts(target):
            return "divide"
        return "hand" if self._for_columns(target) else "gather"

    def _for_columns(self, value: Value) -> bool:
        """Whether only maps that are cut by columns read a value that is whole."""
        readers = self.readers.get(value, [])
        for item in readers:
            if isinstance(item, _Border):
                if self.in_parts(item.target) or not item.enters or not self._for_columns(item.target):
                    return False
            elif not isinstance(item.node, FlatOp):
                return False
            elif item.node.node in self.sharding.scores:
                if item.node.inputs[0] is not value:
                    return False
            elif self.kind(item.node) != "column":  # words may be whole, if devices cannot share them equally
                return False
        return bool(readers)

    def _spread(self) -> Spread:
        inputs: dict[str, dict[int, Change]] = {}
        results: dict[str, dict[int, tuple[Change, int]]] = {}
        counts: dict[str, int] = {}
        maps: set[str] = set()
        shared: dict[str, None] = {}
        sums = False
        for border in self.crossings():
            change = self._change(border.source, border.target)
            if change is not None and border.enters:
                inputs.setdefault(border.path, {})[border.number] = change
            elif change is not None:
                axis = self.axis(border.source)
                assert axis is not None
                results.setdefault(border.path, {})[border.number] = change, axis
                counts[border.path] = self.borders.counts[border.path]
        dropouts: dict[str, list[bool]] = {}
        for use in self.uses():
            node = use.node
            if not isinstance(node, FlatOp):
                continue
            x, y = node.inputs[0] if node.inputs else None, node.outputs[0]
            came, comes = isinstance(x, Value) and self.in_parts(x), self.in_parts(y)
            kind = self.kind(node)
            if kind in ("column", "row", "vocab"):
                if comes if self.sums(node) else came:
                    maps.add(node.path)
                    sums |= self.sums(node)
            elif kind:
                if came and any(w.weight.trained for w in node.weights.values()):
                    shared[node.path] = None
                if came != comes and (axis := self.axis(y)) is not None:
                    change = "divide" if comes else "hand" if self._for_columns(y) else "gather"
                    results[node.path], counts[node.path] = {0: (change, axis)}, 1
            elif comes:
                read = [w for inner in node.blocks.values() for w in weights_read(inner).values()]
                paths = [w.path for w in read if w.weight.trained]
                paths += [self.params[v] for v in node.inputs if isinstance(v, Value) and v in self.raw]
                shared |= dict.fromkeys(path.rpartition(".")[0] for path in paths)
            if node.node.op.name == "dropout":
                dropouts.setdefault(use.block, []).append(comes)
        modules: dict[str, Block | None] = {"": self.model.block, **self.borders.blocks}
        for use in self.uses():
            node = use.node
            if isinstance(node, FlatOp) and (node.weights or node.blocks):
                modules.setdefault(node.path)
                inside = (path for inner in node.blocks.values() for path in weights_read(inner))
                for path in inside:
                    modules.setdefault(path.rpartition(".")[0])
        return Spread(
            modules,
            inputs,
            results,
            counts,
            frozenset(maps) if sums else frozenset(),
            tuple(shared),
            tuple(path for path, several in dropouts.items() if all(several)),
            tuple(self._lengths()),
        )

    def _lengths(self) -> Iterator[tuple[str, int, int]]:
        cut = {
            str(v.shape[axis].value)
            for item in self.found
            for v in ((item.target,) if isinstance(item, _Border) else item.node.outputs)
            if self.in_parts(v) and (axis := self.axis(v)) is not None
        }
        seen: set[str] = set()
        for number, (name, value) in enumerate(self.model.inputs):
            for axis, size in enumerate(value.shape):
                if str(size.value) in cut - seen:
                    seen.add(str(size.value))
                    yield name, number, axis


def _module(item: _Use | _Border) -> str:
    """The path of the module that is called; '' for an op that is none."""
    if isinstance(item, _Border):
        return item.path
    return item.node.path if isinstance(item.node, FlatOp) and item.node.weights else ""


def _numbers(of: object) -> Iterator[Num]:
    """Every number among inputs and options."""
    if isinstance(of, Num):
        yield of
    elif isinstance(of, Mapping):
        yield from _numbers(tuple(of.values()))
    elif isinstance(of, tuple | list):
        for item in of:
            yield from _numbers(item)
