"""What a block asks for in a step of decoding, from its results back to its inputs: of each tensor the forms that are
read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from archdsl.frozen import Frozen
from archdsl.ir.graph import (
    Block,
    CallNode,
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
from archdsl.passes.cut import minimum_cut
from archdsl.passes.forms import ALL, FIXED, NEW, Form, blame, reads_numbers, refuse, shown
from archdsl.passes.kinds import Kind, Kinds, inference_nodes, kinds_given, values_of
from archdsl.passes.step_sizes import StepSizes

NARROWER = 3
"""How many times narrower than keys and values the tensors that they follow from must be to be kept instead: reading
them costs more work a step."""


@dataclass
class Read:
    """How a form of a tensor is read."""

    bounded: bool = True
    """Whether no reader looks at all positions."""
    window: int = 0
    """How many of the last positions those look at that do not."""
    role: str = ""

    def join(self, other: Read) -> None:
        """Read so as well."""
        self.bounded &= other.bounded
        self.window = max(self.window, other.window)
        self.role = self.role or other.role


class Taken(Frozen):
    """A form in which a rewritten block takes one of its tensors: inputs by their number, then those of contexts."""

    tensor: int
    form: Form
    read: Read = field(compare=False)


Wants = tuple[tuple[int, Form], ...]
"""Results of a block, and the forms in which they are asked for."""


class Made(Frozen):
    """A block, rewritten."""

    block: Block
    takes: tuple[Taken, ...]


Pattern = tuple[str, ...]
"""The forms of a tensor's axes of time, in order."""
Run = Callable[[Block, tuple[Kind, ...], Wants, frozenset[str], bool], Made]
"""What rewrites a block that is called."""


class Asks:
    """What one rewriting of a block asks for."""

    def __init__(
        self,
        block: Block,
        given: tuple[Kind, ...],
        wants: Wants,
        scan: bool,
        kinds: Kinds,
        sizes: StepSizes,
        run: Run,
        latents: bool,
    ) -> None:
        """`given` are the kinds of its tensors. `scan` says that it stands in a scan, where there is one position."""
        self.block, self.forms, self.sizes, self.run, self.latents = block, kinds.forms, sizes, run, latents
        self.kind = kinds.kinds(block, given)[0]
        self.scans = int(scan)
        """How many scans there are around."""
        self.asked: dict[Value, dict[Form, Read]] = {}
        self.late: set[Value] = set()
        """What is read beside what is computed once, or by what is computed once in a graph within."""
        self.own: set[Value] = set()
        """What the nodes of the graph give of which the nodes are asked."""
        self.patterns: dict[OpNode, list[Pattern]] = {}
        """The forms in which ops are computed that have the forms of their results: those of positions alone, and
        projections of what is kept."""
        self.whole: set[Node] = set()
        """Ops whose results, of two axes of time, are computed for all positions along both."""
        self.chain: set[Node] = set()
        """Projections of what is kept, which are computed for all positions."""
        self.calls: dict[CallNode, list[tuple[Wants, Made]]] = {}
        self.slots: dict[LoopNode, dict[tuple[int, Pattern], None]] = {}
        """What loops carry: the number of the tensor, and the forms of its axes of time."""
        self.emits: dict[LoopNode, dict[tuple[int, Pattern], None]] = {}
        """The same of what every turn of a loop gives."""
        self.same: dict[Value, Value] = {}
        """What stands for the result of a condition."""
        self.makers = {v: n for n in inference_nodes(block.graph) for v in node_outputs(n)}
        self.readers: dict[Value, list[Node]] = {}
        for node in inference_nodes(block.graph):
            for value in reads(node):
                self.readers.setdefault(value, []).append(node)
        ends = [v for v in block.graph.outputs if v is not None]
        for i, form in wants:
            self.ask(ends[i], form, late=True)
        self.ask_graph(block.graph)

    def ask(self, value: Value, form: Form, read: Read | None = None, late: bool = False) -> None:
        """Ask for a tensor in a form."""
        value = self.same.get(value, value)
        self.asked.setdefault(value, {}).setdefault(form, Read()).join(read or Read(bounded=False))
        if late:
            self.late.add(value)

    def ask_graph(self, graph: Graph, once: bool = False) -> None:
        """Ask for what the nodes of a graph read, the last one first; `once` if it is within what is computed once."""
        around, own = self.own, {v for n in graph.nodes for v in node_outputs(n)}
        self.own = own | around if once else own
        for node in reversed(graph.nodes):
            if isinstance(node, CondNode):
                for value, inner in zip(node.outputs, node.otherwise.outputs, strict=True):
                    assert inner is not None
                    self.same[value] = self.same.get(inner, inner)
                    for form, read in self.asked.pop(value, {}).items():
                        self.ask(inner, form, read, late=value in self.late)
                self.ask_graph(node.otherwise)
            elif any(v in self.asked for v in node_outputs(node)):
                self.ask_node(node)
        self.own = around

    def ask_node(self, node: Node) -> None:
        """Ask for what a node reads, in the forms in which its results are asked for."""
        kind = self.kind_of(node)
        if kind <= Kind.ONCE and not isinstance(node, LoopNode | ScanNode):
            for value in (*reads(node), *(v for c in _applied(node) for v in values_of(c.contexts))):
                self.ask(value, self.natural(value), late=value not in self.own)
            return
        match node:
            case OpNode() if kind == Kind.POSITIONS:
                for form in self.find_patterns(node):
                    self.ask_positions(node, form)
            case OpNode():
                self.ask_sequence(node)
            case CallNode():
                self.ask_call(node, kind)
            case LoopNode():
                self.ask_loop(node)
            case ScanNode():
                self.ask_scan(node, kind)

    def kind_of(self, node: Node) -> Kind:
        """What the results of a node depend on."""
        return max((self.kind[v] for v in node_outputs(node)), default=Kind.WEIGHTS)

    def natural(self, value: Value) -> Form:
        """The form in which a tensor is made, whoever reads it."""
        if self.kind.get(value) == Kind.SEQUENCE and value.dtype != "padding":
            return self.forms.natural(value)
        return self.forms.whole(value)

    def find_patterns(self, node: OpNode) -> list[Pattern]:
        """The forms in which an op is computed that depends on positions alone: of its axes of time, in order."""
        found: dict[tuple[str, ...], None] = {}
        for value in node.outputs:
            for form in [*self.asked.get(value, ())]:
                pattern = tuple(f for f in form if f)
                if not self.fits(node, pattern):
                    pattern = (ALL,) * len(pattern)
                    self.ask(value, self.forms.whole(value))
                found[pattern] = None
        self.patterns[node] = [*found]
        return self.patterns[node]

    def fits(self, node: OpNode, pattern: Pattern) -> bool:
        """Whether an op of positions alone can be computed in a form: that of the new positions only where these are
        the last ones of each axis that it makes or reads at its own place."""
        outputs = [o for v in node.outputs if (o := patterned(v, pattern, self.forms.axes(v))) is not None]
        if len(outputs) < len(node.outputs):
            return False
        inputs = self.positions_read(node, outputs)
        tensors = [*zip(node.outputs, outputs, strict=True), *((node.tensor(i), form) for i, form in inputs.items())]
        whole = all(self.forms.grows(v.shape[a]) for v, form in tensors for a, f in enumerate(form) if f == NEW)
        return whole and self.sizes.assigned(node, inputs, outputs) is not None

    def positions_read(self, node: OpNode, outputs: Sequence[Form]) -> dict[int, Form]:
        """The forms in which the inputs are read of an op that is computed in a form: its own position in that form,
        everything else whole."""
        found = self.forms.in_first_step(node, outputs[0]) if outputs else {}
        for i, value in self.forms.timed(node.inputs):
            if not reads_numbers(node, i):
                found[i] = self.natural(value)
                continue
            form = [FIXED] * value.rank
            for axis in self.forms.axes(value):
                wanted = set()
                for r, output in enumerate(outputs):
                    read = node.op.reads_of(node, r)[i][axis]
                    own = self.forms.own(node, r, read, value.shape[axis])
                    wanted.add((output[own] if own is not None else FIXED) or ALL)
                form[axis] = NEW if wanted == {NEW} else ALL
            found[i] = tuple(form)
        return found

    def ask_positions(self, node: OpNode, pattern: Pattern) -> None:
        """Ask for what an op of positions alone reads."""
        outputs = [patterned(v, pattern, self.forms.axes(v)) for v in node.outputs]
        inputs = self.positions_read(node, [o for o in outputs if o is not None])
        for i, value in enumerate(node.inputs):
            if isinstance(value, Value):
                self.ask(value, inputs.get(i, (FIXED,) * value.rank), late=True)

    def ask_sequence(self, node: OpNode) -> None:
        """Ask for what an op that depends on the sequence reads, whose results have one form."""
        if node in self.chain:
            (pattern,) = self.patterns[node] = [tuple(f for f in self.forms.whole(node.outputs[0]) if f)]
            self.ask_positions(node, pattern)
            return
        pairs = [v for v in node.outputs if len(self.forms.axes(v)) == 2]
        if pairs and (self.forms.distance(node, 0) or any(self.forms.whole(v) in self.asked.get(v, {}) for v in pairs)):
            self.whole.add(node)
        taken = self.forms.take(node, node in self.whole)
        if self.latents and node.op.reads_latent(node) and not taken.states:
            self.narrow(node, [i for i, form, _ in taken.wanted if i in node.op.cached_inputs(node) and ALL in form])
        behind = not self.forms.led and any(map(self.forms.front, node.outputs))
        above = [r.role for v in node.outputs if behind for r in self.asked.get(v, {}).values()]
        wanted = {i: (form, role or next(iter(above), "")) for i, form, role in taken.wanted}
        for i, value in enumerate(node.inputs):
            if isinstance(value, Value):
                form, role = wanted.get(i, ((FIXED,) * value.rank, ""))
                bound = node.op.lookback(node, i) if i in node.op.cached_inputs(node) and ALL in form else None
                self.need(node, value, form, Read(bound is not None, 0 if bound is None else bound + 1, role))
        for call in node.blocks.values():
            for value in values_of(call.contexts):
                self.ask(value, self.natural(value), late=True)

    def need(self, node: Node, value: Value, form: Form, read: Read | None = None, late: bool = True) -> None:
        """Ask for a tensor that a node reads. Raises ArchError E0504 where it cannot be kept."""
        kind = self.kind[value]
        if kind == Kind.POSITIONS and self.forms.of_all_rows(value) is not None:
            raise blame(node, f"reads {shown(value)}, made of positions, which has those of all rows")
        pairs = len(self.forms.axes(value)) == 2 and form == self.forms.whole(value)
        if kind == Kind.SEQUENCE and not pairs and self.makers.get(value) not in self.chain:
            self.forms.grown(node, value, self.natural(value), form)
        self.ask(value, form, read, late=late)

    def ask_call(self, node: CallNode, kind: Kind) -> None:
        """Ask for what a block takes: one that depends on positions alone is called once for each form."""
        tensors = [*node.inputs, *values_of(node.contexts)]
        given = kinds_given(node, self.kind)
        forms: list[tuple[int, Form]] = []
        for i, value in enumerate(node.outputs):
            own = self.natural(value)
            for form in self.asked.get(value, ()):
                one = self.kind[value] == Kind.SEQUENCE and len(self.forms.axes(value)) < 2
                forms.append((i, own if one else form))
        forms = list(dict.fromkeys(forms))
        each = [(f,) for f in forms] if kind == Kind.POSITIONS and len(node.outputs) == 1 else [tuple(forms)]
        timed = frozenset(n for n, e in node.bind.items() if self.sizes.names_time(e))
        self.calls[node] = []
        for wants in each:
            made = self.run(node.block, given, wants, timed, self.scans > 0)
            self.calls[node].append((wants, made))
            for taken in made.takes:
                tensor = tensors[taken.tensor]
                assert tensor is not None
                if self.kind[tensor] == Kind.SEQUENCE:
                    self.need(node, tensor, taken.form, taken.read)
                else:
                    self.ask(tensor, taken.form, taken.read, late=True)

    def ask_loop(self, node: LoopNode) -> None:
        """Ask for what a loop begins with: what its turns hand on, in as many forms as the next turn reads."""
        slots, emits = self.slots.setdefault(node, {}), self.emits.setdefault(node, {})
        count, late = len(node.starts), self.kind_of(node) > Kind.ONCE
        for i, value in enumerate(node.outputs):
            slots.update(((i, pattern), None) for pattern in self.carried(value))
        for values in node.emitted:
            emits.update(((j, pattern), None) for j, value in enumerate(values) for pattern in self.carried(value))
        before = -1
        while len(slots) > before:
            before = len(slots)
            for body in node.bodies:
                for i, pattern in (*slots, *((count + j, pattern) for j, pattern in emits)):
                    end = body.outputs[i]
                    assert end is not None
                    self.ask(end, self.formed(end, pattern), late=late)
            for body in node.bodies:
                self.ask_graph(body, once=not late)
                for i, value in enumerate(body.inputs):
                    slots.update(((i, pattern), None) for pattern in self.carried(value))
        for i, pattern in slots:
            self.ask(node.starts[i], self.formed(node.starts[i], pattern), late=late)

    def carried(self, value: Value) -> list[Pattern]:
        """The forms in which a loop hands a tensor on: its own, where several are asked of what depends on the
        sequence, or of what has no axis of time."""
        asked, axes = self.asked.get(value, {}), len(self.forms.axes(value))
        one = axes < 2 if self.kind[value] == Kind.SEQUENCE else not axes
        forms = [self.natural(value)] if asked and one else list(asked)
        return [tuple(f for f in form if f) for form in forms]

    def formed(self, value: Value | None, pattern: Pattern) -> Form:
        """The form of a tensor whose axes of time have these. Raises ArchError E0504 where it has not as many."""
        assert value is not None
        found = patterned(value, pattern, self.forms.axes(value))
        if found is None:
            raise refuse(f"{shown(value)} has other axes of time in the next turn of a loop", value.span)
        return found

    def ask_scan(self, node: ScanNode, kind: Kind) -> None:
        """Ask for what a scan reads: its slices have no axis of time."""
        late = kind > Kind.ONCE
        for value in (*node.starts, *node.sequences):
            if isinstance(value, Value):
                self.need(node, value, self.natural(value), late=late)
        self.scans += 1
        for inner in node.body.outputs:
            assert inner is not None
            self.ask(inner, self.natural(inner), late=late)
        self.ask_graph(node.body)
        self.scans -= 1

    def runs_along(self, node: ScanNode) -> bool:
        """Whether a scan of the sequence has one step for each of its positions."""
        return self.kind_of(node) == Kind.SEQUENCE and any(self.sizes.has(v.shape[1]) for v in node.sequences)

    # --- keys and values that follow from something narrower ----------------------------------------------------------

    def narrow(self, node: OpNode, inputs: Sequence[int]) -> None:
        """Have the narrowest tensors kept that keys and values are projections of, if they are much narrower."""
        values = list(dict.fromkeys(node.tensor(i) for i in inputs))
        if len(inputs) != len(node.op.cached_inputs(node)):
            return
        edges: list[tuple[Any, Any, int | None]] = []
        seen: dict[Value, None] = {}
        chain: set[Node] = set()

        def visit(value: Value) -> None:
            if value in seen:
                return
            seen[value] = None
            edges.append((("in", value), ("out", value), _width(value)))
            maker = self.makers.get(value)
            if not isinstance(maker, OpNode) or not maker.op.is_projection(maker):
                edges.append(("source", ("in", value), None))
                return
            chain.add(maker)
            for given in maker.inputs:
                if isinstance(given, Value):
                    edges.append((("out", given), ("in", value), None))
                    visit(given)

        for value in values:
            visit(value)
            edges.append((("out", value), "sink", None))
        size, near = minimum_cut(edges, "source", "sink")
        if NARROWER * size > sum(_width(v) for v in values):
            return
        base = {v for v in seen if ("in", v) in near and ("out", v) not in near}
        inside: set[Node] = set()
        todo = [v for v in values if v not in base]
        while todo:
            maker = self.makers[todo.pop()]
            if maker not in inside:
                inside.add(maker)
                todo += [v for v in reads(maker) if v not in base and v in self.makers]
        made = {v for n in inside for v in node_outputs(n)}
        others = {n for v in made for n in self.readers.get(v, ())} - inside - {node}
        if others or made & {*self.block.graph.outputs}:
            return  # queries are made together with them
        self.chain |= inside


def patterned(value: Value, pattern: Pattern, axes: Sequence[int]) -> Form | None:
    """The form of a tensor whose axes of time have these forms, None where it has not as many."""
    if len(axes) != len(pattern):
        return None
    found = [FIXED] * value.rank
    for axis, form in zip(axes, pattern, strict=True):
        found[axis] = form
    return tuple(found)


def _applied(node: Node) -> Iterable[CallNode]:
    return node.blocks.values() if isinstance(node, OpNode) else ()


def _width(value: Value) -> int:
    """How many numbers a position holds."""
    total = 1
    for d in value.shape:
        if d.static:
            total *= int(d)
    return total
