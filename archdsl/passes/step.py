"""A step of decoding as a Model: each block with nodes that say what is kept.

The axis of time is two sizes here: the positions that are new in this step, and all so far. A tensor that depends on
the sequence has the new positions along its first axis of time and all along its second; what is made of positions
alone is computed in each form that is asked for. Where one form is made and another read there is a node: `append` to
what is kept of a sequence, `newest` of what is there for all. A recurrence is kept under a name. What depends on other
inputs alone is in a node `once`.

A block is rewritten once for the kinds of its inputs and the forms that are asked of its results; what it asks of its
caller in turn is part of the answer. What an op asks is told by `archdsl.passes.forms`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache
from itertools import product
from typing import Any

from archdsl.diagnostics import ArchError
from archdsl.frozen import Entity, Frozen
from archdsl.ir import verify
from archdsl.ir.dims import Expr, Num, Shape, Symbol, Var, free_names, of_atom, same_shape, substitute, with_symbol
from archdsl.ir.graph import (
    AppendNode,
    Block,
    CallNode,
    CausalNode,
    CheckNode,
    CondNode,
    Context,
    Graph,
    Handle,
    Input,
    LoopNode,
    LossNode,
    Model,
    NewestNode,
    Node,
    OnceNode,
    OpNode,
    ParamNode,
    ScanNode,
    Value,
    WeightNode,
    node_outputs,
    reads,
    subgraphs,
)
from archdsl.ir.reapplied import results
from archdsl.ir.signature import spread
from archdsl.ir.static import each_number, numbers_of
from archdsl.ir.walk import block_tensors
from archdsl.passes.cut import minimum_cut
from archdsl.passes.dce import live
from archdsl.passes.forms import ALL, FIXED, NEW, Form, Forms, blame, has, own_axis, reads_numbers, refuse, shown
from archdsl.passes.sequence import DecodedSequence

NARROWER = 3
"""How many times narrower than keys and values the tensors that they follow from must be to be kept instead: reading
them costs more work a step."""


class Kind(IntEnum):
    """What a tensor depends on: each on what stands before it, too."""

    WEIGHTS = 0
    ONCE = 1
    """Other inputs than the sequence."""
    POSITIONS = 2
    SEQUENCE = 3


class Stepped(Entity):
    """A model, and a step of it."""

    whole: Model
    model: Model
    """The step. Its only output is the first of the whole model."""
    time: Symbol
    new: Symbol
    all: Symbol
    origins: Mapping[Node, Node] = field(repr=False)
    """What a node of a step stands for in the whole model, where it is another."""

    def has(self, size: Num) -> bool:
        """Whether a size depends on how many positions there are."""
        return has(size, self.new) or has(size, self.all)

    def sizes(self, sizes: Mapping[str, int], new: int = 1) -> dict[str, int]:
        """The sizes of the model, with those of a step of so many new positions; the length counts these, too."""
        return {**sizes, self.new.name: new, self.all.name: sizes[self.time.name]}


@lru_cache(maxsize=4)
def stepped(model: Model, latents: bool = True) -> Stepped:
    """Return a step of a model; the last few are remembered. Without `latents` keys and values are kept as they are.
    Raises ArchError E0504 where its output depends on later positions, or an op has no step."""
    sequence = DecodedSequence.of(model)
    found = _Stepper(model, sequence.time, latents).found
    sequence.demand_known()
    return found


@dataclass
class _Read:
    """How a form of a tensor is read."""

    bounded: bool = True
    """Whether no reader looks at all positions."""
    window: int = 0
    """How many of the last positions those look at that do not."""
    role: str = ""

    def join(self, other: _Read) -> None:
        self.bounded &= other.bounded
        self.window = max(self.window, other.window)
        self.role = self.role or other.role


class _Taken(Frozen):
    """A form in which a rewritten block takes one of its tensors: inputs by their number, then those of contexts."""

    tensor: int
    form: Form
    read: _Read = field(compare=False)


Wants = tuple[tuple[int, Form], ...]
"""Results of a block, and the forms in which they are asked for."""


class _Made(Frozen):
    """A block, rewritten."""

    block: Block
    takes: tuple[_Taken, ...]


class _Stepper:
    """Rewrites the blocks of a model."""

    def __init__(self, model: Model, time: Symbol, latents: bool) -> None:
        self.time = time
        self.latents = latents
        self.origins: dict[Node, Node] = {}
        self.symbols = {NEW: Symbol(f"new {time}"), ALL: Symbol(f"all {time}")}
        graph = model.block.graph
        moving = [v for v in graph.inputs if any(has(d, time) for d in v.shape)]
        self.forms = Forms(time, moving[0].shape[0].value)
        self.known: dict[Hashable, tuple[dict[Value, Kind], tuple[Kind, ...]]] = {}
        self.made: dict[Hashable, _Made] = {}
        self.shapes: dict[Hashable, Shape] = {}
        kinds = tuple(Kind.SEQUENCE if v in moving else Kind.ONCE for v in graph.inputs)
        output = next(i for i, v in enumerate(v for v in graph.outputs if v is not None))
        value = next(v for _, v in model.outputs)
        wants: Wants = ((output, self.forms.natural(value)),)
        self.asked: set[Hashable] = set()
        self.demand_graph(graph, self.kinds(model.block, kinds)[0], False, [value])
        made = self.run(model.block, kinds, wants, frozenset({time.name}), False, root=True)
        inputs = made.block.graph.inputs
        found = dict.fromkeys(s for v in inputs for d in v.shape if not d.static for s in _symbols(d))
        root = replace(model, block=made.block, symbols=tuple(found))
        verify.checked(root, verify.violations, "taking a step")
        self.found = Stepped(model, root, time, self.symbols[NEW], self.symbols[ALL], self.origins)

    # --- kinds --------------------------------------------------------------------------------------------------------

    def kinds(self, block: Block, given: tuple[Kind, ...]) -> tuple[dict[Value, Kind], tuple[Kind, ...]]:
        """What each tensor of a block depends on, and each of its results."""
        key = block, given
        if key not in self.known:
            kind = dict(zip(block_tensors(block), given, strict=True))
            self.of_graph(block.graph, kind)
            self.known[key] = kind, tuple(kind[v] for v in block.graph.outputs if v is not None)
        return self.known[key]

    def of_graph(self, graph: Graph, kind: dict[Value, Kind]) -> None:
        for node in graph.nodes:
            self.of_node(node, kind)

    def of_node(self, node: Node, kind: dict[Value, Kind]) -> None:
        match node:
            case OpNode():
                kind.update(dict.fromkeys(node.outputs, self.of_op(node, kind)))
            case CallNode():
                given = [None if v is None else kind.get(v) for v in (*node.inputs, *_values(node.contexts))]
                found = self.kinds(node.block, tuple(Kind.WEIGHTS if k is None else k for k in given))[1]
                kind.update(zip(node.outputs, found, strict=True))
            case LoopNode():
                carried = [kind[v] for v in node.starts]
                while True:
                    before = list(carried)
                    for t, which in enumerate(node.iterations):
                        body = node.bodies[which]
                        for value, one in zip(body.inputs, carried, strict=True):
                            kind[value] = max(kind.get(value, Kind.WEIGHTS), one)
                        self.of_graph(body, kind)
                        ends = [kind[v] for v in body.outputs if v is not None]
                        carried = [max(a, b) for a, b in zip(carried, ends, strict=False)]
                        if node.emitted:
                            kind.update(zip(node.emitted[t], ends[len(carried) :], strict=True))
                    if carried == before:
                        break
                kind.update(zip(node.outputs, carried, strict=True))
            case ScanNode():
                one = max((kind[v] for v in reads(node)), default=Kind.WEIGHTS)
                kind.update(dict.fromkeys((*node.body.inputs, *node_outputs(node)), one))
                self.of_graph(node.body, kind)
            case CondNode():
                self.of_graph(node.otherwise, kind)
                kind.update((v, kind[o]) for v, o in zip(node.outputs, node.otherwise.outputs, strict=True) if o)
            case ParamNode():
                kind[node.output] = Kind.POSITIONS if self.forms.axes(node.output) else Kind.WEIGHTS
            case WeightNode():
                kind[node.output] = Kind.WEIGHTS

    def of_op(self, node: OpNode, kind: Mapping[Value, Kind]) -> Kind:
        given = {i: kind[v] for i, v in enumerate(node.inputs) if isinstance(v, Value)}
        around = [kind[v] for call in node.blocks.values() for v in _values(call.contexts)]
        moving = Kind.SEQUENCE in around or any(k == Kind.SEQUENCE and reads_numbers(node, i) for i, k in given.items())
        if moving or self.forms.has_rows(node):
            return Kind.SEQUENCE
        others = [k for k in (*given.values(), *around) if k != Kind.SEQUENCE]
        least = Kind.POSITIONS if self.forms.speaks(node.inputs, node.outputs) else Kind.WEIGHTS
        return max(least, *others) if others else least

    # --- what has no step ---------------------------------------------------------------------------------------------

    def demand(self, block: Block, given: tuple[Kind, ...], scan: bool) -> None:
        """Raise ArchError E0504 for the first op of a block that has no step, whoever reads its results."""
        if (block, given, scan) not in self.asked:
            self.asked.add((block, given, scan))
            kind = self.kinds(block, given)[0]
            self.demand_graph(block.graph, kind, scan, [v for v in block.graph.outputs if v is not None])

    def demand_graph(self, graph: Graph, kind: Mapping[Value, Kind], scan: bool, outputs: Iterable[Value]) -> None:
        wanted = {*live(graph.nodes, [*outputs], inputs_of=reads, outputs_of=node_outputs)}
        for node in graph.nodes:
            if node not in wanted:
                continue
            if isinstance(node, OpNode):
                self.demand_op(node, max((kind[v] for v in node.outputs), default=Kind.WEIGHTS), scan)
            elif isinstance(node, CallNode):
                given = (None if v is None else kind.get(v) for v in (*node.inputs, *_values(node.contexts)))
                self.demand(node.block, tuple(Kind.WEIGHTS if k is None else k for k in given), scan)
            else:
                for inner in (node.otherwise,) if isinstance(node, CondNode) else subgraphs(node):
                    ends = [v for v in inner.outputs if v is not None]
                    self.demand_graph(inner, kind, scan or isinstance(node, ScanNode), ends)

    def demand_op(self, node: OpNode, kind: Kind, scan: bool) -> None:
        if kind >= Kind.POSITIONS:
            self.forms.demand_steps(node)
        if kind == Kind.SEQUENCE:
            taken = self.forms.take(node)
            if scan and (taken.states or any(ALL in form for _, form, _ in taken.wanted)):
                raise blame(node, "reads other positions than its own within a scan")
        within = scan and kind >= Kind.POSITIONS and self.forms.speaks(node.inputs, node.outputs)
        if within and node.op.positional and not (node.op.moves or node.op.alike):
            raise blame(node, "asks which positions there are within a scan")

    # --- blocks -------------------------------------------------------------------------------------------------------

    def run(
        self, block: Block, given: tuple[Kind, ...], wants: Wants, timed: frozenset[str], scan: bool, root: bool = False
    ) -> _Made:
        """Rewrite a block, whose names `timed` depend on the length of the sequence. `scan` says that it stands in a
        scan, in which there is one position."""
        key = block, given, wants, scan
        if key not in self.made:
            self.made[key] = _Block(self, block, given, wants, timed, scan, root).made
        return self.made[key]

    # --- sizes --------------------------------------------------------------------------------------------------------

    def has(self, n: Num) -> bool:
        """Whether a number depends on the length of the sequence."""
        return has(n, self.time)

    def value_in(self, n: Num, form: str) -> Any:
        return with_symbol(n.value, self.time.name, of_atom(self.symbols[form]))


class _Block:
    """One rewriting of a block."""

    def __init__(
        self,
        stepper: _Stepper,
        block: Block,
        given: tuple[Kind, ...],
        wants: Wants,
        timed: frozenset[str],
        scan: bool,
        root: bool,
    ) -> None:
        self.stepper, self.forms, self.block = stepper, stepper.forms, block
        self.kind = stepper.kinds(block, given)[0]
        self.timed = timed | self.local_names(timed)
        self.scans = int(scan)
        """How many scans there are around."""
        self.asked: dict[Value, dict[Form, _Read]] = {}
        self.late: set[Value] = set()
        """What is read beside what is computed once."""
        self.whole: set[Node] = set()
        """Ops whose results, of two axes of time, are computed for all positions along both."""
        self.chain: set[Node] = set()
        """Projections of what is kept, which are computed for all positions."""
        self.calls: dict[CallNode, list[tuple[Wants, _Made]]] = {}
        self.slots: dict[LoopNode, dict[tuple[int, Form], None]] = {}
        self.same: dict[Value, Value] = {}
        """What stands for the result of a condition."""
        self.have: dict[tuple[Value, Form], Value] = {}
        self.inside = False
        """Whether what is written is computed once."""
        self.names: dict[str, int] = {}
        self.parts: dict[Block, Block] = {}
        """Of blocks that a scan has split, the second part."""
        self.makers = {v: n for n in _nodes(block.graph) for v in node_outputs(n)}
        self.readers: dict[Value, list[Node]] = {}
        for node in _nodes(block.graph):
            for value in reads(node):
                self.readers.setdefault(value, []).append(node)
        ends = [v for v in block.graph.outputs if v is not None]
        for i, form in wants:
            self.ask(ends[i], form, late=True)
        self.ask_graph(block.graph)
        self.made = self.written(given, wants, root)

    def local_names(self, timed: frozenset[str]) -> frozenset[str]:
        found: set[str] = set()
        for name, expr in self.block.local.items():
            if name not in timed and {*free_names(expr)} & (timed | found):
                found.add(name)
        return frozenset(found)

    # --- what is asked, backwards -------------------------------------------------------------------------------------

    def ask(self, value: Value, form: Form, read: _Read | None = None, late: bool = False) -> None:
        """Ask for a tensor in a form."""
        value = self.same.get(value, value)
        self.asked.setdefault(value, {}).setdefault(form, _Read()).join(read or _Read(bounded=False))
        if late:
            self.late.add(value)

    def ask_graph(self, graph: Graph) -> None:
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

    def ask_node(self, node: Node) -> None:
        kind = self.kind_of(node)
        if kind <= Kind.ONCE and not isinstance(node, LoopNode | ScanNode):
            for value in (*reads(node), *(v for c in _applied(node) for v in _values(c.contexts))):
                self.ask(value, self.natural(value), late=False)
            return
        match node:
            case OpNode() if kind == Kind.POSITIONS:
                for form in self.patterns(node):
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
        return max((self.kind[v] for v in node_outputs(node)), default=Kind.WEIGHTS)

    def natural(self, value: Value) -> Form:
        """The form in which a tensor is made, whoever reads it."""
        if self.kind.get(value) == Kind.SEQUENCE and value.dtype != "padding":
            return self.forms.natural(value)
        return self.forms.whole(value)

    def patterns(self, node: OpNode) -> list[tuple[str, ...]]:
        """The forms in which an op is computed that depends on positions alone: of its axes of time, in order."""
        found: dict[tuple[str, ...], None] = {}
        for value in node.outputs:
            for form in [*self.asked.get(value, ())]:
                pattern = tuple(f for f in form if f)
                if not self.fits(node, pattern):
                    pattern = (ALL,) * len(pattern)
                    self.ask(value, self.forms.whole(value))
                found[pattern] = None
        return list(found)

    def fits(self, node: OpNode, pattern: tuple[str, ...]) -> bool:
        """Whether an op of positions alone can be computed in a form."""
        outputs = [_patterned(v, pattern, self.forms.axes(v)) for v in node.outputs]
        if None in outputs:
            return False
        inputs = self.positions_read(node, [o for o in outputs if o is not None])
        return self.assigned(node, inputs, [o for o in outputs if o is not None]) is not None

    def positions_read(self, node: OpNode, outputs: Sequence[Form]) -> dict[int, Form]:
        """The forms in which the inputs are read of an op that is computed in a form: its own position in that form,
        everything else whole."""
        found = {}
        for i, value in self.forms.timed(node.inputs):
            if not reads_numbers(node, i):
                found[i] = self.natural(value)
                continue
            form = [FIXED] * value.rank
            for axis in self.forms.axes(value):
                wanted = set()
                for r, output in enumerate(outputs):
                    read = node.op.reads_of(node, r)[i][axis]
                    own = None if read is None or read.earlier else own_axis(read)
                    wanted.add((output[own] if own is not None else FIXED) or ALL)
                form[axis] = NEW if wanted == {NEW} else ALL
            found[i] = tuple(form)
        return found

    def ask_positions(self, node: OpNode, pattern: tuple[str, ...]) -> None:
        outputs = [_patterned(v, pattern, self.forms.axes(v)) for v in node.outputs]
        inputs = self.positions_read(node, [o for o in outputs if o is not None])
        for i, value in enumerate(node.inputs):
            if isinstance(value, Value):
                self.ask(value, inputs.get(i, (FIXED,) * value.rank), late=True)

    def ask_sequence(self, node: OpNode) -> None:
        if node in self.chain:
            self.ask_positions(node, tuple(f for f in self.forms.whole(node.outputs[0]) if f))
            return
        pairs = [v for v in node.outputs if len(self.forms.axes(v)) == 2]
        if pairs and (self.forms.distance(node, 0) or any(self.forms.whole(v) in self.asked.get(v, {}) for v in pairs)):
            self.whole.add(node)
        taken = self.forms.take(node, node in self.whole)
        if self.stepper.latents and node.op.reads_latent(node) and not taken.states:
            self.narrow(node, [i for i, form, _ in taken.wanted if i in node.op.cached_inputs(node) and ALL in form])
        wanted = {i: (form, role) for i, form, role in taken.wanted}
        for i, value in enumerate(node.inputs):
            if isinstance(value, Value):
                form, role = wanted.get(i, ((FIXED,) * value.rank, ""))
                bound = node.op.lookback(node, i) if i in node.op.cached_inputs(node) and ALL in form else None
                self.need(node, value, form, _Read(bound is not None, 0 if bound is None else bound + 1, role))
        for call in node.blocks.values():
            for value in _values(call.contexts):
                self.ask(value, self.natural(value), late=True)

    def need(self, node: Node, value: Value, form: Form, read: _Read | None = None, late: bool = True) -> None:
        """Ask for a tensor that a node reads. Raises ArchError E0504 where it cannot be kept."""
        kind = self.kind[value]
        if kind == Kind.POSITIONS and self.forms.of_all_rows(value) is not None:
            raise blame(node, f"reads {shown(value)}, made of positions, which has those of all rows")
        pairs = len(self.forms.axes(value)) == 2 and form == self.forms.whole(value)
        if kind == Kind.SEQUENCE and not pairs and self.makers.get(value) not in self.chain:
            self.forms.grown(node, value, self.natural(value), form)
        self.ask(value, form, read, late=late)

    def ask_call(self, node: CallNode, kind: Kind) -> None:
        tensors = [*node.inputs, *_values(node.contexts)]
        given = tuple(Kind.WEIGHTS if v is None else self.kind[v] for v in tensors)
        forms: list[tuple[int, Form]] = []
        for i, value in enumerate(node.outputs):
            own = self.natural(value)
            for form in self.asked.get(value, ()):
                one = self.kind[value] == Kind.SEQUENCE and len(self.forms.axes(value)) < 2
                forms.append((i, own if one else form))
        forms = list(dict.fromkeys(forms))
        each = [(f,) for f in forms] if kind == Kind.POSITIONS and len(node.outputs) == 1 else [tuple(forms)]
        timed = frozenset(n for n, e in node.bind.items() if {*free_names(e)} & self.timed)
        self.calls[node] = []
        for wants in each:
            made = self.stepper.run(node.block, given, wants, timed, self.scans > 0)
            self.calls[node].append((wants, made))
            for taken in made.takes:
                tensor = tensors[taken.tensor]
                assert tensor is not None
                if self.kind[tensor] == Kind.SEQUENCE:
                    self.need(node, tensor, taken.form, taken.read)
                else:
                    self.ask(tensor, taken.form, taken.read, late=True)

    def ask_loop(self, node: LoopNode) -> None:
        slots = self.slots.setdefault(node, {})
        count, late = len(node.starts), self.kind_of(node) > Kind.ONCE
        for i, value in enumerate(node.outputs):
            slots.update(((i, form), None) for form in self.slot_forms(value))
        before = -1
        while len(slots) > before:
            before = len(slots)
            for t, which in enumerate(node.iterations):
                outputs = [v for v in node.bodies[which].outputs if v is not None]
                for i, form in slots:
                    self.ask(outputs[i], form, late=late)
                for value, emitted in zip(outputs[count:], node.emitted[t] if node.emitted else (), strict=True):
                    for form in self.slot_forms(emitted):
                        self.ask(value, form, late=late)
            for body in node.bodies:
                self.ask_graph(body)
                for i, value in enumerate(body.inputs):
                    slots.update(((i, form), None) for form in self.slot_forms(value))
        for i, form in slots:
            self.ask(node.starts[i], form, late=late)

    def slot_forms(self, value: Value) -> list[Form]:
        """The forms in which a loop hands a tensor on: where several are asked of what depends on the sequence, its
        own."""
        asked = self.asked.get(value, {})
        one = self.kind[value] == Kind.SEQUENCE and len(self.forms.axes(value)) < 2
        return [self.natural(value)] if asked and one else list(asked)

    def ask_scan(self, node: ScanNode, kind: Kind) -> None:
        late = kind > Kind.ONCE
        if kind == Kind.SEQUENCE:
            self.demand_slices(node)
        for value in (*node.starts, *node.sequences):
            if isinstance(value, Value):
                self.need(node, value, self.natural(value), late=late)
        self.scans += 1
        for inner in node.body.outputs:
            assert inner is not None
            self.ask(inner, self.natural(inner), late=late)
        self.ask_graph(node.body)
        self.scans -= 1

    def demand_slices(self, node: ScanNode) -> None:
        """Raise ArchError E0504 for a scan of the sequence that reads other positions than those of its slices."""
        along = self.runs_along(node)
        for value in reads(node):
            if self.forms.axes(value) and along and value not in node.sequences:
                raise blame(node, f"reads {shown(value)}, which has an axis of time, at every step")
            if self.forms.axes(value) and self.kind[value] == Kind.POSITIONS:
                raise blame(node, "reads a table of positions")
        if along and self.scans:
            raise blame(node, "runs along time within another one")
        for value in node_outputs(node):
            self.forms.result(node, value)

    def runs_along(self, node: ScanNode) -> bool:
        """Whether a scan of the sequence has one step for each of its positions."""
        return self.kind_of(node) == Kind.SEQUENCE and any(self.stepper.has(v.shape[1]) for v in node.sequences)

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

    # --- what is written, forwards ------------------------------------------------------------------------------------

    def written(self, given: tuple[Kind, ...], wants: Wants, root: bool) -> _Made:
        block = self.block
        tensors = block_tensors(block)
        takes: list[_Taken] = []
        inputs: list[Value] = []
        names: list[str] = []
        contexts: list[Context] = []
        nodes: list[Node] = []
        count = len(block.graph.inputs)
        for i, value in enumerate(tensors[:count]):
            for form, read in self.taken_forms(value, root):
                takes.append(_Taken(i, form, read))
                inputs.append(self.define(value, form))
                names.append(self.titled(block.tensor_names[i], value, form))
            self.derive(value, nodes)
        i = count
        for context in block.contexts:
            if isinstance(context.value, Handle):
                contexts.append(context)
                continue
            for form, read in self.taken_forms(context.value, root):
                takes.append(_Taken(i, form, read))
                made = self.define(context.value, form)
                contexts.append(replace(context, name=self.titled(context.name, context.value, form), value=made))
            self.derive(context.value, nodes)
            i += 1
        nodes += self.graph(block.graph)
        ends = [v for v in block.graph.outputs if v is not None]
        result_names = [n for n, v in zip(block.result_names, block.graph.outputs, strict=True) if v is not None]
        outputs = tuple(self.get(ends[i], form) for i, form in wants)
        several = len({i for i, _ in wants}) < len(wants)
        given_back = [
            name if name is None or not several else f"{name} {j}"
            for j, name in enumerate(result_names[i] for i, _ in wants)
        ]
        found = replace(
            block,
            key=(block.key, "step", given, wants),
            graph=Graph(tuple(inputs), tuple(nodes), outputs),
            tensor_names=tuple(names),
            result_names=tuple(given_back),
            contexts=tuple(contexts),
            hypers={k: v for k, v in block.hypers.items() if not self.mentions(v)},
            local={k: v for k, v in block.local.items() if k not in self.timed},
            axes=self.own_axes(root),
            asserts=tuple(c for c in block.asserts if not self.names_time(c.left, c.right)),
            decisions=tuple(c for c in block.decisions if not self.names_time(c.left, c.right)),
            before=None,
        )
        return _Made(found, tuple(takes))

    def own_axes(self, root: bool) -> dict[str, Num]:
        found = {k: n for k, n in self.block.axes.items() if not self.mentions(n)}
        if root:
            found |= {s.name: Num(of_atom(s), Var(s.name)) for s in self.stepper.symbols.values()}
        return found

    def titled(self, name: str, value: Value, form: Form) -> str:
        """The name of an input; one that is taken in two forms says which."""
        return name if len(self.asked.get(value, ())) < 2 or ALL not in form else f"{name} of all"

    def taken_forms(self, value: Value, root: bool) -> list[tuple[Form, _Read]]:
        """The forms in which a block takes a tensor: those that it reads, for what is kept of a tensor is kept once,
        where it is made, for all that read it. A model takes each of its inputs in one form."""
        asked = self.asked.get(value, {})
        own = self.natural(value)
        return [(own, asked.get(own, _Read()))] if root else list(asked.items())

    def graph(self, graph: Graph) -> list[Node]:
        """Write the nodes of a graph that something asks for."""
        wanted = [n for n in graph.nodes if self.is_wanted(n)]
        first = [] if self.inside else [n for n in wanted if self.is_of(n, Kind.ONCE)]
        nodes: list[Node] = []
        if first:
            known = [n for n in wanted if self.is_of(n, Kind.WEIGHTS)]
            for node in known:
                self.node(node, nodes)
            inside: list[Node] = []
            self.inside = True
            for node in first:
                self.node(node, inside)
            self.inside = False
            crossing = tuple(v for n in first for v in node_outputs(n) if v in self.late)
            taken = {*known, *first}
            wanted = [n for n in wanted if n not in taken]
            if crossing:
                once = OnceNode(Graph((), tuple(inside), crossing), tuple(map(replace, crossing)), self.free("once"))
                nodes.append(once)
                for value, outer in zip(crossing, once.outputs, strict=True):
                    self.have[value, self.natural(value)] = outer
        for node in wanted:
            self.node(node, nodes)
        return nodes

    def is_of(self, node: Node, kind: Kind) -> bool:
        return not isinstance(node, CheckNode | CondNode) and self.kind_of(node) == kind

    def is_wanted(self, node: Node) -> bool:
        if isinstance(node, CheckNode):
            return node.op != "%" or not self.speaks((node.left, node.right))
        if isinstance(node, CondNode):
            return bool(node.otherwise.nodes)
        return any(v in self.asked for v in node_outputs(node))

    def node(self, node: Node, nodes: list[Node]) -> None:
        start = len(nodes)
        match node:
            case CondNode():
                nodes += self.graph(node.otherwise)
                return
            case CausalNode() | LossNode():
                return
            case CheckNode():
                nodes.append(replace(node, left=self.num(node.left, ALL), right=self.num(node.right, ALL)))
                return
            case OpNode():
                self.op(node, nodes)
            case CallNode():
                self.call(node, nodes)
            case LoopNode():
                self.loop(node, nodes)
            case ScanNode():
                self.scan(node, nodes)
            case ParamNode():
                form = self.forms.whole(node.output)
                made = self.define(node.output, form)
                weight = node.weight
                if made is not node.output:
                    shape = tuple(self.num(d, ALL) for d in weight.shape)
                    weight = replace(weight, shape=shape)
                nodes.append(replace(node, weight=weight, output=made))
            case WeightNode():
                self.define(node.output, self.forms.whole(node.output))
                nodes.append(node)
        self.stepper.origins.update((n, node) for n in nodes[start:] if n is not node)
        for value in node_outputs(node):
            self.derive(value, nodes)

    def define(self, value: Value, form: Form) -> Value:
        """A tensor in a form: itself where it has no axis of time."""
        made = value
        if any(form) or self.names_time(*(d.expr for d in value.shape)):
            made = replace(value, shape=self.shape(value, form))
        self.have[value, form] = made
        return made

    def num(self, n: Num, form: str) -> Num:
        """A number with the length of the sequence in a form; one that only mentions it (`batch * time / time`) is the
        same in either."""
        if not self.names_time(n.expr):
            return n
        return Num(self.stepper.value_in(n, form), self.expr(n.expr, form), n.origin)

    def expr(self, expr: Expr, form: str) -> Expr:
        """An expression with the length in a form: each name that depends on it has one for either."""
        names = {n: e for n in free_names(expr) if n in self.timed and (e := self.block.local.get(n)) is not None}
        if names:
            return self.expr(substitute(expr, names), form)
        return substitute(expr, {n: Var(f"{form} {n}") for n in free_names(expr) if n in self.timed})

    def speaks(self, value: Any) -> bool:
        """Whether a number in a static value depends on the length of the sequence."""
        return any(map(self.stepper.has, numbers_of(value)))

    def mentions(self, value: Any) -> bool:
        """Whether a number in a static value is spelled by it."""
        return any(self.names_time(n.expr) for n in numbers_of(value))

    def names_time(self, *exprs: Expr) -> bool:
        return any(not self.timed.isdisjoint(free_names(e)) for e in exprs)

    def derive(self, value: Value, nodes: list[Node]) -> None:
        """Write the nodes that give a tensor in the other forms that are asked for."""
        for form, read in self.asked.get(value, {}).items():
            if (value, form) in self.have:
                continue
            found = next(
                ((f, made) for (v, f), made in self.have.items() if v is value and _differ(f, form) == 1), None
            )
            if found is None:
                raise refuse(f"{shown(value)} is read in a form in which no step has it", value.span)
            have, made = found
            axis = next(a for a, (h, f) in enumerate(zip(have, form, strict=True)) if h != f)
            output = self.define(value, form)
            if form[axis] == NEW:
                nodes.append(NewestNode(made, output, axis, value.span))
            else:
                name = self.free(value.name or read.role or self.called(value))
                window = read.window if read.bounded else None
                nodes.append(AppendNode(made, output, axis, name, read.role, window, value.span))

    def called(self, value: Value) -> str:
        """What to call a tensor without a name: as what it is made of."""
        while not value.name:
            maker = self.makers.get(value)
            value = next(iter(reads(maker)), Value((), name="kept")) if maker is not None else Value((), name="kept")
        return value.name

    def free(self, name: str) -> str:
        self.names[name] = count = self.names.get(name, 0) + 1
        return name if count == 1 else f"{name}_{count}"

    def get(self, value: Value | None, form: Form) -> Value:
        assert value is not None
        return self.have[self.same.get(value, value), form]

    def standing(self, x: Any, form: Form | None = None) -> Any:
        """A tensor in a form, its own unless one is given; anything else as it is."""
        if not isinstance(x, Value):
            return x
        x = self.same.get(x, x)
        return self.have[x, self.natural(x) if form is None else form]

    def op(self, node: OpNode, nodes: list[Node]) -> None:
        kind = self.kind_of(node)
        if kind <= Kind.ONCE:
            tensors = {i: (FIXED,) * v.rank for i, v in enumerate(node.inputs) if isinstance(v, Value)}
            self.put(node, tensors, [(FIXED,) * v.rank for v in node.outputs], nodes)
        elif kind == Kind.POSITIONS or node in self.chain:
            whole = tuple(f for f in self.forms.whole(node.outputs[0]) if f)
            for pattern in self.patterns(node) if kind == Kind.POSITIONS else [whole]:
                outputs = [p for v in node.outputs if (p := _patterned(v, pattern, self.forms.axes(v))) is not None]
                self.put(node, self.positions_read(node, outputs), outputs, nodes)
        else:
            taken = self.forms.take(node, node in self.whole)
            kept = self.free(f"{node.name or node.op.name}_state") if taken.states else ""
            self.put(node, {i: form for i, form, _ in taken.wanted}, taken.forms, nodes, kept)

    def put(
        self, node: OpNode, inputs: Mapping[int, Form], outputs: Sequence[Form], nodes: list[Node], kept: str = ""
    ) -> None:
        """Write an op in a form."""
        changed = self.assigned(node, inputs, outputs)
        if changed is None:
            raise blame(node, "is given a length that may be that of queries or of keys")
        read = tuple(
            self.standing(v, inputs.get(i, (FIXED,) * v.rank) if isinstance(v, Value) else None)
            for i, v in enumerate(changed.inputs)
        )
        made = tuple(self.define(v, form) for v, form in zip(node.outputs, outputs, strict=True))
        blocks = {k: replace(c, contexts=tuple(map(self.standing, c.contexts))) for k, c in node.blocks.items()}
        nodes.append(replace(changed, inputs=read, outputs=made, blocks=blocks, kept=kept))

    def assigned(self, node: OpNode, inputs: Mapping[int, Form], outputs: Sequence[Form]) -> OpNode | None:
        """The op with each number that is the length of the sequence in the form with which the op makes the outputs;
        its tensors are still those of the whole model. None where no form does."""
        if not any(self.names_time(n.expr) for n in numbers_of((node.options, node.inputs, node.axes))):
            tensors = [v for v in (*node.inputs, *node.outputs) if isinstance(v, Value)]
            if not any(self.names_time(*(d.expr for d in v.shape)) for v in tensors):
                return node
        read = tuple(
            replace(v, shape=self.shape(v, inputs.get(i, (FIXED,) * v.rank))) if isinstance(v, Value) else v
            for i, v in enumerate(node.inputs)
        )
        due = [self.shape(v, form) for v, form in zip(node.outputs, outputs, strict=True)]
        lengths = [n for n in numbers_of((node.inputs, node.options)) if self.stepper.has(n)]
        for forms in product((NEW, ALL), repeat=len(lengths)):
            left = iter(forms)

            def number(n: Num, left: Iterator[str] = left) -> Num:
                return self.num(n, next(left) if self.stepper.has(n) else ALL)

            numbers = tuple(number(v) if isinstance(v, Num) else v for v in read)
            options = each_number(node.options, number)
            made = replace(node, inputs=numbers, options=options, axes=self.axes(node, read, options))
            if _gives(made, due):
                return replace(
                    made,
                    inputs=tuple(n if isinstance(n, Num) else v for n, v in zip(numbers, node.inputs, strict=True)),
                )
        return None

    def axes(self, node: OpNode, inputs: Sequence[Input], options: Mapping[str, Any]) -> Mapping[str, Num]:
        """The sizes of the axes that the signature names."""
        params = node.op.header.tensors or ()
        found = dict(node.axes)
        if not params or node.op.elementwise:
            return found
        for i, value in enumerate(inputs):
            if isinstance(value, Value):
                names = spread(params[min(i, len(params) - 1)].type.dims, value.rank)
                found |= {n: d for n, d in zip(names, value.shape, strict=False) if n in found}
        return {n: options[n] if isinstance(options.get(n), Num) else d for n, d in found.items()}

    def shape(self, value: Value, form: Form) -> Shape:
        return tuple(self.num(d, f or ALL) for d, f in zip(value.shape, form, strict=True))

    def call(self, node: CallNode, nodes: list[Node]) -> None:
        bind = {k: e for k, e in node.bind.items() if not self.names_time(e)}
        timed = {k: e for k, e in node.bind.items() if k not in bind}
        bind |= {f"{form} {k}": self.expr(e, form) for k, e in timed.items() for form in (NEW, ALL)}
        tensors, count = [*node.inputs, *_values(node.contexts)], len(node.inputs)
        for wants, made in self.calls.get(node, ()):
            given = [(t.tensor < count, self.get(tensors[t.tensor], t.form)) for t in made.takes]
            values = iter([v for is_input, v in given if not is_input])
            handles = iter([h for h in node.contexts if isinstance(h, Handle)])
            block = self.parts.get(node.block, made.block)
            contexts = (next(handles) if isinstance(c.value, Handle) else next(values) for c in block.contexts)
            one = replace(node, inputs=tuple(v for is_input, v in given if is_input), contexts=tuple(contexts))
            outputs = tuple(self.define(node.outputs[i], form) for i, form in wants)
            nodes.append(replace(one, block=block, outputs=outputs, bind=bind, step=self.second(node, block)))
        if node not in self.calls:
            one = replace(node, inputs=tuple(map(self.standing, node.inputs)))
            outputs = tuple(self.define(v, self.natural(v)) for v in node.outputs)
            one = replace(one, contexts=tuple(map(self.standing, node.contexts)))
            nodes.append(replace(one, outputs=outputs, bind=bind, step=self.second(node, node.block)))

    def second(self, node: CallNode, first: Block) -> Block | None:
        """Of a call that only prepares, the block that takes the steps, which is written later."""
        steps = next((made for n, (made, *_) in self.calls.items() if n.block is node.step), None)
        if node.step is None or steps is None:
            return node.step
        self.parts[node.step] = found = replace(steps[1].block, before=first)
        return found

    def loop(self, node: LoopNode, nodes: list[Node]) -> None:
        slots, count = self.slots[node], len(node.starts)
        bodies = []
        emitted = [(j, form) for j, form in self.emitted_forms(node)]
        for body in node.bodies:
            inner: list[Node] = []
            inputs = tuple(self.define(body.inputs[i], form) for i, form in slots)
            for value in body.inputs:
                self.derive(value, inner)
            inner += self.graph(body)
            ends = [self.get(body.outputs[i], form) for i, form in slots]
            ends += [self.get(body.outputs[count + j], form) for j, form in emitted]
            bodies.append(Graph(inputs, tuple(inner), tuple(ends)))
        starts = tuple(self.get(node.starts[i], form) for i, form in slots)
        outputs = tuple(self.define(node.outputs[i], form) for i, form in slots)
        given = tuple(tuple(self.define(vs[j], form) for j, form in emitted) for vs in node.emitted)
        nodes.append(replace(node, bodies=tuple(bodies), starts=starts, outputs=outputs, emitted=given))

    def emitted_forms(self, node: LoopNode) -> dict[tuple[int, Form], None]:
        """The forms in which a loop gives what each iteration makes: the same for all of them."""
        found: dict[tuple[int, Form], None] = {}
        for values in node.emitted:
            found.update(((j, form), None) for j, v in enumerate(values) for form in self.slot_forms(v))
        return found

    def scan(self, node: ScanNode, nodes: list[Node]) -> None:
        along = self.kind_of(node) == Kind.SEQUENCE and any(has(v.shape[1], self.stepper.time) for v in node.sequences)
        form = NEW if self.kind_of(node) == Kind.SEQUENCE else ALL
        inputs = tuple(self.define(v, self.natural(v)) for v in node.body.inputs)
        self.scans += 1
        inner = self.graph(node.body)
        self.scans -= 1
        outputs = tuple(self.standing(v) for v in node.body.outputs)
        nodes.append(
            replace(
                node,
                body=Graph(inputs, tuple(inner), outputs),
                starts=tuple(self.standing(v) for v in node.starts),
                sequences=tuple(self.standing(v) for v in node.sequences),
                stacked=tuple(self.define(v, self.natural(v)) for v in node.stacked),
                finals=tuple(self.define(v, self.natural(v)) for v in node.finals),
                length=self.num(node.length, form),
                kept=self.free("scan_state") if along else "",
            )
        )


def _gives(node: OpNode, due: Sequence[Shape]) -> bool:
    """Whether the results of an op have these shapes."""
    try:
        made = results(node)
    except (ArchError, ArithmeticError, AssertionError, LookupError, TypeError, ValueError):
        return False
    return len(made) == len(due) and all(same_shape(v.shape, shape) for v, shape in zip(made, due, strict=True))


def _patterned(value: Value, pattern: Sequence[str], axes: Sequence[int]) -> Form | None:
    """The form of a tensor whose axes of time have these forms, None where it has not as many."""
    if len(axes) != len(pattern):
        return None
    found = [FIXED] * value.rank
    for axis, form in zip(axes, pattern, strict=True):
        found[axis] = form
    return tuple(found)


def _differ(a: Form, b: Form) -> int:
    return sum(x != y for x, y in zip(a, b, strict=True))


def _values(given: Iterable[Any]) -> list[Value]:
    return [v for v in given if isinstance(v, Value)]


def _applied(node: Node) -> Iterable[CallNode]:
    return node.blocks.values() if isinstance(node, OpNode) else ()


def _nodes(graph: Graph) -> Iterator[Node]:
    """The nodes of a graph and of those inside it, of `if training` only what is not training."""
    for node in graph.nodes:
        yield node
        for inner in (node.otherwise,) if isinstance(node, CondNode) else subgraphs(node):
            yield from _nodes(inner)


def _symbols(n: Num) -> tuple[Symbol, ...]:
    return tuple(n.value.symbols) if not n.static else ()  # type: ignore[union-attr]


def _width(value: Value) -> int:
    """How many numbers a position holds."""
    total = 1
    for d in value.shape:
        if d.static:
            total *= int(d)
    return total
