"""How a block takes a step: which nodes of the step stand for each of its own, where what is kept is appended, and what
is computed row by row."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import replace
from enum import Enum, auto
from typing import TypeGuard

from archdsl.backends.torch.features.by_row import refuse
from archdsl.backends.torch.features.decoding import Decoding
from archdsl.ir.dims import Num, Var, expr_text
from archdsl.ir.graph import (
    AppendNode,
    Block,
    CallNode,
    CheckNode,
    CondNode,
    Graph,
    NewestNode,
    Node,
    OnceNode,
    OpNode,
    ScanNode,
    Value,
    node_outputs,
    operands,
    reads,
)
from archdsl.ir.static import numbers_of
from archdsl.ir.walk import block_tensors
from archdsl.passes.flatten import FlatForm, FlatNode, FlatOp, Unrolled
from archdsl.passes.forms import has, is_time, shown
from archdsl.passes.kinds import Kind, values_of, without_training


class When(Enum):
    """When a node is computed."""

    NEVER = auto()
    """No step needs it."""
    ALWAYS = auto()
    """It depends on nothing: on weights and numbers alone."""
    FIRST = auto()
    """It does not depend on the sequence: the first step computes it."""
    STEP = auto()


def nodes_within(graph: Graph) -> Iterator[Node]:
    """The nodes of a graph and of those inside it, of `if training` only what is not training; none of a scan."""
    for node in graph.nodes:
        yield node
        for inner in inner_graphs(node):
            yield from nodes_within(inner)


def inner_graphs(node: Node) -> tuple[Graph, ...]:
    """Graphs inside a node that a step writes node by node."""
    return () if isinstance(node, ScanNode) else without_training(node)


def handed(call: CallNode) -> list[tuple[Value, Value]]:
    """The tensors that a block takes, each with that which it is called with."""
    given = zip(block_tensors(call.block), (*call.inputs, *values_of(call.contexts)), strict=True)
    return [(inner, outer) for inner, outer in given if outer is not None]


def windows(block: Block) -> dict[OpNode, Num | None]:
    """The primitives of a block, in order: how many positions each sees, None where it has no window."""
    found = ((n, n.op.window(n)) for n in nodes_within(block.graph) if isinstance(n, OpNode))
    return {n: seen[1] if seen is not None else None for n, seen in found}


class Taking:
    """How one call of a block takes a step. `block` is that of the model, `step` what is called in a step."""

    def __init__(
        self, decoding: Decoding, block: Block, unrolled: Unrolled, appended: frozenset[Value] = frozenset()
    ) -> None:
        """`appended` are inputs with all positions that the caller appends; the block takes the new ones, too."""
        self.decoding, self.block, self.step = decoding, block, unrolled.block
        self.unrolled, self.kind = unrolled, decoding.step.kinds[unrolled.block]
        self.origin = decoding.step.origin
        self.copies: dict[Node, list[Node]] = {}
        """Of each node of the block those of the step."""
        self.forms: dict[Value, list[AppendNode | NewestNode]] = {}
        """Of each tensor of the block what gives it in its other forms."""
        self.shown: dict[Value, Value] = {}
        """Tensors of the step that are the only form of one of the block: they go by its name."""
        self.held: list[Value] = []
        """What the first step computes and all read."""
        self.once: set[Node] = set()
        self.standing: dict[Value, list[Value]] = {}
        """Of each tensor of the block those of the step."""
        self.note_nodes()
        self.readers: dict[Value, list[Node | None]] = {}
        """Who reads each tensor of the step; None for a graph that gives it back."""
        self.note_readers(self.step.graph)
        self.when: dict[Node, When] = {}
        for node in nodes_within(block.graph):
            self.when[node] = self.when_computed(node)
        self.latent: dict[Node, tuple[tuple[Value, ...], tuple[OpNode, ...]]] = {}
        """Attention that reads what its keys and values are projections of: that, at all positions, and the nodes
        between."""
        self.attention: dict[Node, Node] = {}
        """The same of each node between."""
        self.window: dict[OpNode, Num] = {}
        """How many positions attention of the block, or a mask, sees, where these are the last ones alone."""
        self.at_positions: dict[Node, int] = {}
        """What each step makes of its new positions: how many axes its readers have between those of batch and time."""
        self.flatly: set[Node] = set()
        """Those that are computed for all rows one after another, or for all positions."""
        self.flat: set[Node] = set()
        """Those of them that make nothing else."""
        self.by_length: set[Node] = set()
        """What is made of the new positions with numbers that depend on how many there are."""
        self.rows: dict[Value, tuple[int, int]] = {}
        """What is cut by row: the axis of the new positions of all rows, and how many axes there are in the readers
        between that of batch and that one."""
        self.varying: dict[tuple[Node, int], int] = {}
        """Inputs that are made of positions and have a further axis of batch in front, and how many axes they need more
        behind it than for other readers."""
        self.at_keys: set[tuple[Node, int]] = set()
        """Inputs made of positions that are read at all of them."""
        self.note_flats()
        self.read_flat = {*self.inputs_read_flat()}
        """Inputs that are read for all rows one after another alone: they are given so."""
        self.same: dict[Value, Value] = {}
        """What the results of conditions are in a step."""
        for node in nodes_within(block.graph):
            if isinstance(node, CondNode):
                self.same |= {v: o for v, o in zip(node.outputs, node.otherwise.outputs, strict=True) if o is not None}
        leads = (n for n in self.nodes if not decoding.leading.isdisjoint(unrolled.nodes.get(n, ())))
        self.leading = {self.origin(n) for n in leads}
        """What puts places in front of the sequence in the first step, or cuts them off."""
        self.demand_sizes()
        self.chain = {*map(self.origin, self.attention)}
        self.kept: dict[Node, list[AppendNode]] = {}
        """What attention reads alone is appended there."""
        self.own: list[AppendNode] = []
        """What the block is called with in both forms, and appends itself."""
        self.appended: set[AppendNode] = set()
        """What is appended where it is made."""
        self.note_inputs(appended)
        whole = {self.origin(v) for v in block_tensors(self.step) if self.pattern(v)}
        self.whole = frozenset(whole - {self.origin(a.value) for a in self.own})
        """What the block is given at all positions."""
        taken = {self.origin(v) for v in block_tensors(self.step)}
        self.unread = frozenset(v for v in block_tensors(block) if v not in taken)
        """What it is not given in a step."""
        self.callees: dict[Node, Taking] = {n: self.callee(n) for n in self.nodes if self.is_rewritten(n)}
        self.note_kept()
        self.idle = {n for n in self.nodes if isinstance(n, OpNode) and not n.kept and self.is_idle(n)}
        """What makes forms that nobody is given: a block that takes two of one tensor is given one."""
        for unread in (v for n in self.idle for v in n.outputs):
            others = [v for v in self.standing[self.origin(unread)] if v is not unread]
            if len(others) == 1:
                self.shown |= {others[0]: self.origin(unread), unread: replace(unread)}

    # --- nodes ---

    def note_nodes(self) -> None:
        """Note what stands for what."""
        self.nodes = [*nodes_within(self.step.graph)]
        tensors = [*block_tensors(self.step)]
        outer: list[Value] = []
        for node in self.nodes:
            if isinstance(node, AppendNode | NewestNode):
                self.forms.setdefault(self.origin(node.value), []).append(node)
            elif isinstance(node, OnceNode):
                self.once |= {self.origin(n) for n in nodes_within(node.body)}
                outer += node.outputs
            else:
                self.copies.setdefault(self.origin(node), []).append(node)
            tensors += [v for g in inner_graphs(node) for v in g.inputs]
            tensors += [] if isinstance(node, OnceNode) else node_outputs(node)
        for value in tensors:
            self.standing.setdefault(self.origin(value), []).append(value)
        for own, found in self.standing.items():
            if own not in found:
                self.shown[found[0]] = own
        for value in block_tensors(self.step):
            own = self.origin(value)
            if own is not value and own not in block_tensors(self.step):  # what it is given has its name
                self.shown |= {value: own, own: replace(own)} if own in self.standing[own] else {}
        for value in outer:
            self.shown[value] = self.origin(value)
        is_root = self.unrolled is self.decoding.flat.root
        crossing = self.decoding.crossing
        late = [v for v in self.step.graph.inputs if is_root and self.origin(v) not in self.decoding.taken]
        self.held = [self.origin(v) for v in (*late, *outer) if self.unrolled.values[v] in crossing]

    def note_readers(self, graph: Graph) -> None:
        """Note who reads what in a graph of the step."""
        for node in graph.nodes:
            for value in operands(node) if inner_graphs(node) else reads(node):
                self.readers.setdefault(value, []).append(node)
            for inner in inner_graphs(node):
                self.note_readers(inner)
        for end in graph.outputs:
            if end is not None:
                self.readers.setdefault(end, []).append(None)

    def when_computed(self, node: Node) -> When:
        """When a node of the block is computed."""
        time = self.decoding.step.time
        if isinstance(node, CheckNode):
            if not has(node.left, time) and not has(node.right, time):
                return When.FIRST
            if node.op == "<=" and self.decoding.counts(node.left):  # asked of the length that it will grow to
                return When.FIRST
            least = node.op == "<=" and is_time(node.right, time) and not has(node.left, time)
            return When.ALWAYS if least else When.NEVER
        if isinstance(node, CondNode):
            inside = {self.when_computed(n) for n in nodes_within(node.otherwise)} - {When.NEVER}
            known = any(v in self.standing for v in node.otherwise.outputs if v is not None)
            inside |= {self.when_known(v) for v in node.outputs if known}
            return max(inside, default=When.NEVER, key=lambda w: w.value)
        if node in self.once:
            return When.FIRST
        if node not in self.copies:
            return When.NEVER
        if self.is_early(node):
            return When.FIRST
        return max(map(self.when_known, node_outputs(node)), default=When.ALWAYS, key=lambda w: w.value)

    def is_early(self, node: Node) -> bool:
        """Whether a node makes nothing but what the first step computes with."""
        made = [v for c in self.copies[node] for v in node_outputs(c)]
        fixed = all(self.kind[v] == Kind.WEIGHTS for v in node_outputs(node))
        return bool(made) and fixed and all(self.unrolled.values.get(v) in self.decoding.early for v in made)

    def when_known(self, value: Value) -> When:
        kind = self.kind[value]
        return When.ALWAYS if kind == Kind.WEIGHTS else When.FIRST if kind == Kind.ONCE else When.STEP

    def all_read(self, node: Node) -> bool:
        """Whether a node of the step reads all positions of something."""
        return any(map(self.decoding.flat.of_all, reads(node)))

    # --- what is read off the nodes of the unrolled step ---

    def note_flats(self) -> None:
        """Note what differs from call to call of the block."""
        decoding, by_row, unrolled = self.decoding, self.decoding.by_row, self.unrolled
        for node in self.nodes:
            flats = [f for f in unrolled.nodes.get(node, ()) if f in decoding.flat_nodes]
            if not flats:
                continue
            one, origin = flats[-1], self.origin(node)
            if one in by_row.directly:
                self.at_positions[node] = by_row.directly[one]
            if any(f in by_row.flatly for f in flats):
                self.flatly.add(node)
            if all(f in by_row.flat for f in flats):
                self.flat.add(node)
            if isinstance(origin, OpNode) and all(f in decoding.windows for f in flats):
                self.window[origin] = decoding.windows[one]
            if by_row.is_by_length(one) and one not in by_row.flat:
                self.by_length.add(node)
            self.note_latent(node, one)
            for flat in flats:
                self.note_places(node, flat)
        for value, flat_value in unrolled.values.items():
            if flat_value in by_row.rows:
                self.rows[value] = by_row.rows[flat_value]

    def demand_sizes(self) -> None:
        """Raise ArchError E0504 for an op of a step that is told how many positions there are with those in front."""
        for node in self.nodes if self.decoding.step.led else ():
            moving = all(self.kind[self.origin(v)] == Kind.SEQUENCE for v in node_outputs(node))
            if isinstance(node, OpNode) and self.origin(node) not in self.leading and moving:
                for n in numbers_of(node.options):
                    name = n.expr.name if isinstance(n.expr, Var) else None
                    if self.decoding.step.front(n) and (name is None or name in self.block.local):
                        raise refuse(f"`{node.op.name}` is given the length `{expr_text(n.expr)}`", node.span)

    def inner(self, value: Value) -> Value:
        """Return what stands in a step for the result of a condition; any other tensor as it is."""
        while value in self.same:
            value = self.same[value]
        return value

    def instead(self, node: Node) -> dict[Value, Value]:
        """Results of conditions that a node of the block reads, by what they are in a step."""
        return {self.inner(v): v for v in operands(node) if v in self.same}

    def inputs_read_flat(self) -> Iterator[Value]:
        """Yield the inputs that are read for all rows one after another alone."""
        for value in block_tensors(self.step):
            readers = self.readers.get(value, ())
            if readers and all(r in self.flatly and r in self.flat for r in readers):
                yield value

    def note_latent(self, node: Node, flat: FlatNode) -> None:
        latent = self.decoding.flat.latents.get(flat) if isinstance(flat, FlatOp) else None
        if latent is None:
            return
        here = {flat: v for v, flat in self.unrolled.values.items()}
        base = tuple(here[f.output] for f in latent.base if f.output in here)
        chain = (self.origin(n.node) for n in latent.chain)
        if len(base) < len(latent.base):
            raise refuse(f"`{self.block.name}` reads keys that follow from what another block makes")
        self.latent[node] = base, tuple(chain)
        self.attention |= {c.node: node for c in latent.chain}

    def note_places(self, node: Node, flat: FlatNode) -> None:
        """Note which inputs made of positions are there for all, and which have an axis of batch."""
        by_row = self.decoding.by_row
        if flat in by_row.flat or isinstance(flat, FlatForm):
            return
        for i, v in enumerate(flat.inputs):
            if not isinstance(v, Value):
                continue
            if v in by_row.made and (flat, i) not in by_row.further:
                self.at_keys.add((node, i))
            elif v in self.decoding.flat.positional and by_row.axes(v):
                self.varying[node, i] = by_row.further.get((flat, i), 0)

    # --- what is kept ---

    def note_kept(self) -> None:
        """Note at which node each tensor that is kept is appended."""
        for node in (*self.own, *self.nodes):
            if not isinstance(node, AppendNode):
                continue
            if node.value.shape[0].value != self.decoding.by_row.batch:
                raise refuse(
                    f"{shown(node.value)} is kept, and its first axis is not that of the batch",
                    node.value.span,
                    "put the batch first, and heads on an axis of their own: [batch, heads, time, …]",
                )
            readers = [self.attention.get(r, r) if r is not None else r for r in self.readers.get(node.output, ())]
            if any(self.is_rewritten(r) and self.appends(r, node.output) for r in readers):
                continue
            reader = readers[0] if len({*readers}) == 1 else None
            if isinstance(reader, OpNode) and self.times(reader) == self.times(node):
                self.kept.setdefault(reader, []).append(node)
                continue
            self.appended.add(node)
            if node.value in block_tensors(self.step) and self.readers[node.value] == [node]:
                self.shown[node.output] = self.origin(node.value)

    def times(self, node: Node) -> int:
        """How often a node is computed in a call of the block: in a loop, once for each turn."""
        calls = self.unrolled.calls.get(node, ()) if isinstance(node, CallNode) else ()
        return len(self.unrolled.nodes.get(node) or calls) or 1

    def note_inputs(self, appended: frozenset[Value]) -> None:
        """Note what gives the inputs that the block takes in two forms: what follows tokens is appended, and of what is
        made of positions the new ones are taken."""
        for own in block_tensors(self.block):
            found = [v for v in block_tensors(self.step) if self.origin(v) is own]
            if len(found) < 2:
                continue
            new, every = sorted(found, key=lambda v: len(self.pattern(v)))
            axis = next(a for a in self.pattern(every) if a not in self.pattern(new))
            if self.kind[own] == Kind.SEQUENCE and every not in appended:
                node = AppendNode(new, every, axis, own.name or "kept", span=own.span)
                self.own.append(node)
                self.forms.setdefault(own, []).append(node)
                continue
            rows = NewestNode(every, new, axis, span=own.span)
            self.forms.setdefault(own, []).append(rows)
            self.shown |= {every: own, new: replace(own)}
            maker = self.decoding.flat.makers.get(self.unrolled.values[new])
            if maker in self.decoding.by_row.flatly:
                self.flatly.add(rows)
            if maker in self.decoding.by_row.flat:
                self.flat.add(rows)

    def is_alone(self, value: Value, call: CallNode) -> bool:
        """Whether a call is the only reader of a tensor, reads it once, and no caller has appended it already."""
        if value in block_tensors(self.step) and all(a.output is not value for a in self.own):
            return False
        forms = (f for each in self.forms.values() for f in each if f.output is value)
        times = (self.times(f) == self.times(call) for f in forms)
        return self.readers[value] == [call] and (*call.inputs, *call.contexts).count(value) == 1 and all(times)

    def appends(self, call: CallNode, value: Value) -> bool:
        """Whether a block that is called appends something itself."""
        inner = {a.output for a in self.callees[call].own}
        return any(outer is value and v in inner for v, outer in handed(call))

    # --- calls ---

    def given(self, call: CallNode) -> dict[Value, tuple[Value, Value]]:
        """Map each tensor of this block to the one form that a call of the step gives it: as the block has it, and as
        the caller has it. It is the new positions where the block appends them itself, else the longest."""
        found: dict[Value, tuple[Value, Value]] = {}
        appended = {self.origin(a.value) for a in self.own}
        for inner, outer in handed(call):
            own = self.origin(inner)
            fewer = own in found and len(self.pattern(inner)) < len(self.pattern(found[own][0]))
            if own not in found or (own in appended) == fewer:
                found[own] = inner, outer
        return found

    def is_idle(self, node: OpNode) -> bool:
        """Whether what a node of the step makes is read by none but blocks that are given another form of it."""
        readers = [(r, v) for v in node.outputs for r in self.readers.get(v, ())]
        calls = [(r, v) for r, v in readers if self.is_rewritten(r)]
        given = (any(v is outer for _, outer in self.callees[r].given(r).values()) for r, v in calls)
        return bool(readers) and len(calls) == len(readers) and not any(given)

    def is_rewritten(self, node: Node | None) -> TypeGuard[CallNode]:
        """Whether a node is the call of a block that a step calls in another form."""
        return isinstance(node, CallNode) and node.block in self.decoding.step.kinds

    def callee(self, node: CallNode) -> Taking:
        """That of a call; in a loop, of all of its iterations."""
        appended = frozenset(v for v, outer in handed(node) if not self.is_alone(outer, node))
        block, calls = self.origin(node).block, self.unrolled.calls.get(node, ())
        found = [Taking(self.decoding, block, call, appended) for call in calls]
        if len({f.signature() for f in found}) > 1:
            raise refuse(f"`{block.name}` is called in a loop whose iterations keep different things")
        return found[0]

    def signature(self) -> Hashable:
        """Equal for calls of one block that are taken alike."""
        return (
            tuple(map(self.of_node, self.nodes)),
            tuple(self.when.values()),
            tuple(map(self.pattern, (*block_tensors(self.step), *(v for v in self.step.graph.outputs if v)))),
            tuple(
                (i, expr_text(w.expr))
                for i, n in enumerate(self.when)
                if isinstance(n, OpNode) and (w := self.window.get(n))
            ),
            len(self.own),
            tuple(c.signature() for c in self.callees.values()),
        )

    def of_node(self, node: Node) -> Hashable:
        """What is to be known of a node of the step."""
        places = range(len(node.inputs)) if isinstance(node, OpNode) else ()
        return (
            type(node),
            tuple(map(self.pattern, node_outputs(node))),
            self.at_positions.get(node),
            node in self.flatly,
            node in self.flat,
            node in self.by_length,
            node in self.appended,
            any(node in found for found in self.kept.values()),
            tuple(self.rows.get(v) for v in node_outputs(node)),
            tuple((self.varying.get((node, i)), (node, i) in self.at_keys) for i in places),
        )

    def pattern(self, value: Value) -> tuple[int, ...]:
        """The axes of a tensor of the step along which it has all positions."""
        return tuple(self.decoding.flat.of_all(value))
