"""Which part each node of a block plays in a step of decoding, read off the step of the whole model.

The step is read unrolled; the emitted `step` of a class speaks of a block.  Calls of one block that are taken alike
share one `step`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from archdsl.backends.torch.features.by_row import ByRow
from archdsl.backends.torch.features.reading import Reading, refuse, span_of
from archdsl.ir.dims import Num, Var, expr_text
from archdsl.ir.graph import (
    Block,
    CallNode,
    CheckNode,
    CondNode,
    Graph,
    LoopNode,
    Node,
    OpNode,
    ScanNode,
    Value,
    node_outputs,
    reads,
)
from archdsl.ir.static import numbers_of
from archdsl.passes.flatten import FlatNode, FlatOp, Unrolled
from archdsl.passes.forms import ALL, FIXED, NEW, has, in_front, is_time


class Role(Enum):
    """What becomes of a node in a step."""

    NOTHING = auto()
    """No step needs it."""
    ALWAYS = auto()
    """It depends on nothing: on weights and numbers alone."""
    FIRST = auto()
    """It does not depend on the sequence: the first step computes it."""
    PAIRS = auto()
    """It is made of positions alone, for pairs of queries and keys, or for those of all rows one after another: each
    step computes it for its own."""
    STEP = auto()
    """It depends on the new positions: each step computes it for them."""


@dataclass(eq=False)
class Roles:
    """The parts that the nodes of one block play."""

    block: Block
    role: dict[Node, Role] = field(default_factory=dict)
    kept: dict[OpNode, tuple[int, ...]] = field(default_factory=dict)
    """Inputs of which a node reads all positions, and which nothing else keeps: they are appended to a cache there."""
    kept_axes: dict[OpNode, tuple[int, ...]] = field(default_factory=dict)
    """The axis of each of them along which its positions are."""
    kept_values: dict[Value, int] = field(default_factory=dict)
    """Values of which all positions are kept where they are made, because several nodes read them: the axis."""
    both: set[Value] = field(default_factory=set)
    """Those of them that are read at their new positions as well."""
    everywhere: set[tuple[Node, int]] = field(default_factory=set)
    """Inputs that have the positions of earlier steps, too, once they are kept: there or before."""
    window: dict[OpNode, Num] = field(default_factory=dict)
    """Attention that sees the last positions alone, and its masks: how many these are. No more of them are kept."""
    readers: set[OpNode] = field(default_factory=set)
    """Those that read all positions of something."""
    latent: dict[OpNode, tuple[tuple[Value, ...], tuple[OpNode, ...]]] = field(default_factory=dict)
    """Attention that reads what its keys and values are projections of: that, and the nodes between."""
    carries: set[Node] = field(default_factory=set)
    """Recurrences, which hand on states."""
    held: list[Value] = field(default_factory=list)
    """What the first step computes and all read."""
    rows: dict[Value, tuple[int, int]] = field(default_factory=dict)
    """What is cut by row: the axis of the new positions of all rows, and how many axes there are in the readers between
    that of batch and that one."""
    forms: dict[Node, dict[str, dict[int, str]]] = field(default_factory=dict)
    """What the spec computes pairs of positions from: the forms in which each step computes it, and for each the form
    that inputs are read in."""
    own_form: dict[Value, str] = field(default_factory=dict)
    """Of what is made by these: the form that it has between blocks; FIXED where it has rows."""
    given: dict[Value, str] = field(default_factory=dict)
    """Of inputs: the one form in which they are read."""
    varying: dict[tuple[Node, int], int] = field(default_factory=dict)
    """Inputs that are made of positions and have a further axis of batch in front, and how many axes they need more
    behind it than for other readers."""
    at_keys: set[tuple[Node, int]] = field(default_factory=set)
    """Inputs made of pairs, or of keys, that are read at all positions."""
    leading: set[Node] = field(default_factory=set)
    """What puts places in front of the sequence in the first step, or cuts them off."""
    lengthened: set[OpNode] = field(default_factory=set)
    """Those that make an axis of keys as long as the sequence: of all positions so far."""
    at_positions: dict[OpNode, int] = field(default_factory=dict)
    """What each step makes of its new positions: how many axes its readers have between those of batch and time."""
    callees: dict[CallNode, Roles] = field(default_factory=dict)

    def signature(self) -> Hashable:
        """Equal for calls of one block that are taken alike."""
        return (
            tuple(self.role.values()),
            tuple(self.kept.values()),
            tuple(self.kept_axes.values()),
            tuple(self.kept_values.values()),
            len(self.latent),
            tuple((i, expr_text(self.window[n].expr)) for i, n in enumerate(self.role) if n in self.window),
            len(self.carries),
            len(self.held),
            tuple(self.rows.values()),
            tuple((*f,) for f in self.forms.values()),
            tuple(self.own_form.values()),
            tuple(self.varying.values()),
            len(self.at_keys),
            tuple(self.at_positions.values()),
            len(self.lengthened),
            tuple(c.signature() for c in self.callees.values()),
        )


def windows(block: Block) -> dict[OpNode, Num | None]:
    """The primitives of a block, in order: how many positions each sees, None where it has no window."""
    found = ((n, n.op.window(n)) for n in nodes_within(block.graph) if isinstance(n, OpNode))
    return {n: seen[1] if seen is not None else None for n, seen in found}


def nodes_within(graph: Graph) -> Iterator[Node]:
    """The nodes of a graph and of those inside it, of `if training` only what is not training."""
    for node in graph.nodes:
        yield node
        for inner in inner_graphs(node):
            yield from nodes_within(inner)


def inner_graphs(node: Node) -> tuple[Graph, ...]:
    """Graphs inside a node that a step writes node by node."""
    if isinstance(node, LoopNode):
        return node.bodies
    if isinstance(node, CondNode):
        return (node.otherwise,)
    return ()


class Assigner:
    """Finds the roles of every call of every block."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.by_row = ByRow(reading)
        self.readers = {v: [r for r in each if r[0] not in self.by_row.flat] for v, each in reading.readers.items()}
        self.bases = {reading.values[form.output] for latent in reading.latents.values() for form in latent.base}
        """What keys and values are projections of."""
        if reading.reads_beside():
            beside = {reading.whole[n] for n in reading.step.beside}
            raise refuse(
                "it reads scores at queries or keys other than its own",
                next((span_of(n) for n in reading.nodes if n in beside), None),
            )
        self.home = dict(reading.root.homes())
        self.both: set[Value] = set()
        """Of what is kept where it is made: what is read at its new positions, too."""
        self.kept_at_maker = self.of_shared()
        self.windows = self.of_windows()
        self.skipped = {reading.whole[n] for n in reading.step.chain}

    def of_windows(self) -> dict[FlatNode, Num]:
        """Attention of which every reader of its mask sees the last positions alone, and of its keys it is the only
        reader; and the makers of these masks."""
        found: dict[FlatNode, Num] = {}
        masks: dict[Value, list[FlatOp]] = {}
        for node in self.reading.nodes:
            if isinstance(node, FlatOp) and (seen := node.node.op.window(node.node)) is not None:
                kept = [v for i in node.node.op.cached_inputs(node.node) if isinstance(v := node.inputs[i], Value)]
                mask = node.inputs[seen[0]]
                alone = all(v in self.reading.caches and {n for n, _ in self.all_readers(v)} == {node} for v in kept)
                if alone and isinstance(mask, Value) and node not in self.reading.latents:
                    masks.setdefault(mask, []).append(node)
        for mask, nodes in masks.items():
            maker = self.reading.makers.get(mask)
            if len(nodes) == len(self.readers[mask]) and isinstance(maker, FlatOp) and maker.node.op.positional:
                for flat in nodes:
                    seen = flat.node.op.window(flat.node)
                    assert seen is not None
                    found[flat] = seen[1]
                seen = maker.node.op.window(maker.node)
                assert seen is not None
                found[maker] = seen[1]
        return found

    def root(self) -> Roles:
        return self.of(self.reading.root)

    def of(self, unrolled: Unrolled) -> Roles:
        """The roles in one call of a block."""
        found = Roles(unrolled.block)
        for node in nodes_within(unrolled.block.graph):
            if isinstance(node, CallNode):
                found.callees[node] = self.callee(unrolled.calls.get(node, ()))
        for node in nodes_within(unrolled.block.graph):
            found.role[node] = self.role(node, unrolled, found)
        for node in nodes_within(unrolled.block.graph):
            if isinstance(node, OpNode | ScanNode):
                if found.role[node] in (Role.STEP, Role.PAIRS):
                    self.note_places(node, unrolled, found)
                if found.role[node] is Role.STEP:
                    self.details(node, unrolled, found)
            if isinstance(node, OpNode) and found.role[node] in (Role.STEP, Role.PAIRS):
                self.note_lengths(node, unrolled.nodes.get(node, ()), found)
        self.note_forms(unrolled, found)
        for node in nodes_within(unrolled.block.graph):
            if found.role[node] is Role.PAIRS and any(f in self.windows for f in unrolled.nodes.get(node, ())):
                assert isinstance(node, OpNode)
                seen = node.op.window(node)
                assert seen is not None
                found.window[node] = seen[1]
        self.note_held(unrolled, found)
        return found

    def callee(self, calls: Sequence[Unrolled]) -> Roles:
        """Those in a call; in a loop, of all of its iterations."""
        found = [self.of(c) for c in calls]
        first = found[0]
        if any(f.signature() != first.signature() for f in found[1:]):
            raise refuse(f"`{first.block.name}` is called in a loop whose iterations keep different things")
        return first

    # --- roles ---

    def role(self, node: Node, unrolled: Unrolled, found: Roles) -> Role:
        if isinstance(node, CheckNode):
            if not self.speaks_of_time(node):
                return Role.FIRST
            if node.op == "<=" and self.reading.counts(node.left):  # asked of the length that it will grow to
                return Role.FIRST
            least = node.op == "<=" and is_time(node.right, self.reading.time) and not has(node.left, self.reading.time)
            return Role.ALWAYS if least else Role.NOTHING
        if isinstance(node, CallNode):
            callee = found.callees[node]
            inside = {r for n, r in callee.role.items() if not isinstance(n, CheckNode)} - {Role.NOTHING}
            return self.together(inside)
        if isinstance(node, CondNode) and not node.otherwise.nodes:  # it hands on what there was before
            given = {unrolled.values.get(v) for v in node.outputs} - {None}
            if any(self.reading.makers.get(v) in self.by_row.flat for v in given if v):
                return Role.PAIRS
            if any(v in self.reading.moving for v in given if v):
                return Role.STEP
            return Role.FIRST if given else Role.NOTHING
        if isinstance(node, LoopNode | CondNode):
            inside = {self.role(n, unrolled, found) for g in inner_graphs(node) for n in nodes_within(g)}
            return self.together(inside - {Role.NOTHING})
        roles = {self.flat_role(f) for f in unrolled.nodes.get(node, ())} - {Role.NOTHING}
        return self.together(roles)

    @staticmethod
    def together(roles: set[Role]) -> Role:
        """The role of what has nodes of these roles inside."""
        if not roles:
            return Role.NOTHING
        if len(roles) == 1:
            return next(iter(roles))
        if roles <= {Role.ALWAYS, Role.FIRST}:
            return Role.FIRST
        return Role.STEP

    def flat_role(self, flat: FlatNode) -> Role:
        if flat in self.skipped and not self.needed_beside(flat):
            return Role.NOTHING
        if flat in self.by_row.flat:
            return Role.PAIRS
        if flat in self.reading.copies:
            if any(v in self.by_row.tables for v in flat.outputs):
                if flat in self.by_row.directly:  # in every iteration or none, as what reads it
                    return Role.STEP
                return Role.PAIRS if any(map(self.by_row.axes, flat.outputs)) else Role.ALWAYS
            if not any(v in self.reading.moving or v in self.reading.positional for v in flat.outputs):
                return Role.ALWAYS
            return Role.STEP
        return Role.FIRST if flat in self.reading.before else Role.NOTHING

    def speaks_of_time(self, node: CheckNode) -> bool:
        return has(node.left, self.reading.time) or has(node.right, self.reading.time)

    def needed_beside(self, flat: FlatNode) -> bool:
        """Whether a node between a latent and keys is read by something else as well."""
        ends = {*self.skipped, *self.reading.latents}
        return any(reader not in ends for v in flat.outputs for reader, _ in self.readers.get(v, ()))

    def note_places(self, node: OpNode | ScanNode, unrolled: Unrolled, found: Roles) -> None:
        """Note which inputs made of positions are there for all, and which have an axis of batch."""
        for flat in unrolled.nodes.get(node, ()):
            for i, v in enumerate(flat.inputs if flat not in self.by_row.flat else ()):
                if v in self.by_row.made and (flat, i) not in self.by_row.further:
                    found.at_keys.add((node, i))
                elif v in self.reading.positional and self.by_row.axes(v) and found.role[node] is Role.STEP:
                    found.varying[node, i] = self.by_row.further.get((flat, i), 0)

    # --- what is kept ---

    def details(self, node: OpNode | ScanNode, unrolled: Unrolled, found: Roles) -> None:
        flats = [f for f in unrolled.nodes.get(node, ()) if f in self.reading.copies]
        if isinstance(node, OpNode) and flats[-1] in self.by_row.directly:
            found.at_positions[node] = self.by_row.directly[flats[-1]]
        if any(f in self.reading.carries for f in flats):
            found.carries.add(node)
        if any(f in self.reading.leading for f in flats):
            found.leading.add(node)
        elif self.reading.led and isinstance(node, OpNode) and self.reading.moving.issuperset(flats[-1].outputs):
            self.demand_sizes(node, unrolled.block)
        if isinstance(node, OpNode):
            if flats[-1] in self.reading.latents:
                latent = self.reading.latents[flats[-1]]
                base = [self.reading.values[form.output] for form in latent.base]
                names = {flat: v for v, flat in unrolled.values.items() if flat in base}
                if len(names) != len(base):
                    raise refuse(f"`{found.block.name}` reads keys that follow from what another block makes")
                chain = (n.node for c in latent.chain if isinstance(n := self.reading.whole[c], FlatOp))
                found.latent[node] = tuple(names[v] for v in base), tuple(chain)
            self.note_kept(node, flats, found)

    def demand_sizes(self, node: OpNode, block: Block) -> None:
        """Raise ArchError E0504 for an op of a step that is told how many positions there are with those in front."""
        for n in numbers_of(node.options):
            if in_front(n, self.reading.time) and not (isinstance(n.expr, Var) and n.expr.name not in block.local):
                raise refuse(f"`{node.op.name}` is given the length `{expr_text(n.expr)}`", node.span)

    def note_lengths(self, node: OpNode, flats: Sequence[FlatNode], found: Roles) -> None:
        """Note that an op is given the length of the keys. Raises ArchError E0504 where that is not known."""
        for flat in flats:
            own = found.role[node] is Role.PAIRS and flat not in self.by_row.flat
            if own and any(has(n, self.reading.time) for n in numbers_of(node.options)):
                raise refuse(f"`{node.op.name}` is given a length that may be that of queries or of keys", node.span)
            by_length = self.by_row.is_by_length(flat) and flat not in self.by_row.flat
            if self.reading.is_given_all(flat) or by_length:
                found.lengthened.add(node)

    def note_kept(self, node: OpNode, flats: Sequence[FlatNode], found: Roles) -> None:
        here: dict[int, int] = {}
        for flat in flats:
            for i, v in enumerate(flat.inputs):
                if isinstance(v, Value) and self.reading.reads_all(flat, i):
                    found.readers.add(node)
                    if v in self.reading.caches:
                        found.everywhere.add((node, i))
                    if self.kept_at_reader(v):
                        here[i] = self.reading.caches[v]
            for value, v in zip(node.outputs, flat.outputs, strict=True):
                if v in self.kept_at_maker:
                    found.kept_values[value] = self.reading.caches[v]
                if v in self.both:
                    found.both.add(value)
        if here:
            found.kept[node], found.kept_axes[node] = tuple(here), tuple(here.values())
            seen = node.op.window(node)
            if (
                seen is not None
                and all(f in self.windows for f in flats)
                and len(here) == len(node.op.cached_inputs(node))
            ):
                found.window[node] = seen[1]

    def kept_at_reader(self, value: Value) -> bool:
        """Whether what reads all positions of a value also appends its new ones."""
        known = value in self.reading.caches and value in self.reading.makers
        return known and value not in self.kept_at_maker and value not in self.bases

    def of_shared(self) -> set[Value]:
        """What several read, or another block than that which makes it: it is appended to its cache there. Who reads
        its new positions stands in the same block."""
        found = set()
        for value in self.reading.caches:
            maker, readers = self.reading.makers.get(value), self.all_readers(value)
            if value in self.bases:
                if readers:
                    name = value.name or "a tensor"
                    raise refuse(f"`{name}`, of which keys and values are projections, is read at all positions, too")
                continue
            if value.shape[0].value != self.by_row.batch:
                name = value.name or "a tensor"
                raise refuse(f"`{name}` is kept, and its first axis is not that of the batch", value.span)
            home = self.home[maker] if maker is not None else None
            alone = len(readers) == len(self.readers[value])
            here = all(self.home[n] is home for n, _ in readers)
            apart = len({n for n, _ in readers}) > 1 or (alone and not here)
            if not alone and (maker is None or (apart and not here)):
                raise refuse(f"`{value.name or 'a tensor'}` is read both at its new positions and at all of them")
            if apart and maker is not None:
                if not isinstance(maker, FlatOp):
                    name = value.name or "a tensor"
                    raise refuse(f"`{name}`, which a scan makes, is read at all positions several times")
                found.add(value)
                self.both |= set() if alone else {value}
        return found

    def all_readers(self, value: Value) -> list[tuple[FlatNode, int]]:
        """Who reads all positions of a value."""
        return [(n, i) for n, i in self.readers.get(value, ()) if self.reading.reads_all(n, i)]

    # --- pairs of positions ---

    def note_forms(self, unrolled: Unrolled, found: Roles) -> None:
        """In which forms a step computes what pairs of positions are made of."""
        by_row = self.by_row
        for value, flat in unrolled.values.items():
            if flat in by_row.rows:
                found.rows[value], found.own_form[value] = by_row.rows[flat], FIXED
            elif flat in by_row.forms and self.reading.makers[flat] in by_row.flat:
                found.own_form[value] = ALL if ALL in by_row.forms[flat] else NEW
        for node, flats in unrolled.nodes.items():
            one, forms = flats[-1], {f for each in flats for v in each.outputs for f in by_row.forms.get(v, ())}
            if not forms:
                continue
            made = (f for f in sorted(forms) if f == ALL or by_row.at_new(one) is not None)
            found.forms[node] = {f: by_row.reads(one, f) for f in made}
        self.note_given(unrolled, found)

    def note_given(self, unrolled: Unrolled, found: Roles) -> None:
        """Which tensors that the block is called with are read in one form: the caller gives them in that."""
        graph = unrolled.block.graph
        for value in graph.inputs if unrolled is not self.reading.root else ():
            readers = [n for n in nodes_within(graph) if value in reads(n)]
            ops = [n for n in readers if isinstance(n, OpNode) and n in found.forms]
            at = [(n, i) for n in ops for i, v in enumerate(n.inputs) if v is value]
            forms = {f for n, i in at for form in found.forms[n].values() if (f := form.get(i))}
            if value in found.own_form and len(ops) == len(readers) and len(forms) == 1 and value not in graph.outputs:
                found.given[value] = found.own_form[value] = forms.pop()

    # --- what the first step computes for all ---

    def note_held(self, unrolled: Unrolled, found: Roles) -> None:
        """What the first step hands to all: in the block where it is made."""
        inputs = unrolled.block.graph.inputs if unrolled is self.reading.root else ()
        made = [v for n, r in found.role.items() if r is Role.FIRST for v in node_outputs(n)]
        found.held += [v for v in (*inputs, *made) if unrolled.values.get(v) in self.reading.crossing]
