"""Decoding step by step: what a decoder must keep of the tokens before.

A step takes the new positions of the model's sequence (all of the prompt first, then usually one) and gives the outputs
at those positions.  Along time a tensor is therefore wanted in one of two forms: its *new* positions, or *all* of them
so far.

1. What an op reads at its own position alone (`Primitive.reads`) it needs in the form of its result; what it reads
   whole, or says that it keeps (`Primitive.cached_inputs`: the keys and values of attention), it needs of all
   positions: such a tensor is cached, once, however many read it.
2. A tensor with two axes of time (scores, masks) has new positions along the first and all along the second. Where an
   op reads it beside its own position along the first (a convolution over queries and keys), it is computed anew for
   all positions along both, and so is what it is made of, back to tensors with one axis of time.
3. A recurrence hands on a state of a fixed size (`Primitive.states`), which is zeros before the first token.
4. Tensors made of positions alone (masks, rope tables, positions) are computed in whichever form is asked for. One with
   an axis of the batch (`ones(batch, time, 1)`) is computed at the new positions, as what depends on tokens is.
5. Keys and values that are, position by position, projections of something much narrower are not cached; that is. The
   narrowest such tensors are a minimum cut between what is not linear and the keys and values (MLA's latent).
6. What depends on other inputs than the sequence (an encoder's result, keys and values of cross-attention) is computed
   once, before the first step.

7. [batch, time] may be merged into one axis (`flatten(0, 1)`) and cut again: of its positions, too, the new ones are
   computed. Nothing else makes such an axis.

Where the model cannot be taken step by step, `plan` says which op is to blame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from archdsl.diagnostics import ArchError
from archdsl.frozen import Entity
from archdsl.ir import verify
from archdsl.ir.dims import Num, Shape, Symbol, with_symbol
from archdsl.ir.graph import Model, Value
from archdsl.ir.op import At, State, same
from archdsl.passes.cut import minimum_cut
from archdsl.passes.dce import live
from archdsl.passes.flatten import FlatGraph, FlatNode, FlatOp, FlatScan, Unrolled, unroll, violations
from archdsl.passes.forms import (
    ALL,
    FIXED,
    NEW,
    Form,
    Forms,
    Taken,
    blame,
    has,
    reads_numbers,
    refuse,
    shown,
)
from archdsl.passes.sequence import DecodedSequence

NARROWER = 3
"""How many times narrower than keys and values the tensors that they follow from must be to be cached instead: reading
them costs more work a step."""


class CacheSpec(Entity):
    """A tensor of which all positions are kept."""

    value: Value
    axis: int
    role: str
    """`key` or `value` of attention, `latent`, or the tensor's name."""
    layer: int


class CarriedState(Entity):
    """What a recurrence hands on."""

    node: FlatOp | FlatScan
    states: tuple[State, ...]
    layer: int


class Latent(Entity):
    """Attention whose keys and values are projections of `base`: the chain of nodes between."""

    base: tuple[Value, ...]
    chain: tuple[FlatOp, ...]


@dataclass
class DecodePlan:
    """How a model is taken step by step."""

    model: Model
    time: Symbol
    before: FlatGraph
    """What is computed once: its outputs are read in every step."""
    step: FlatGraph
    """A step. Its inputs are the model's that have an axis of time, then the outputs of `before`."""
    forms: dict[Value, Form] = field(default_factory=dict)
    """The form in which each tensor that depends on the sequence is computed."""
    needs: dict[tuple[FlatNode, int], Form] = field(default_factory=dict)
    """The form in which a node needs an input that depends on the sequence, or on positions."""
    caches: dict[Value, CacheSpec] = field(default_factory=dict)
    carries: dict[FlatNode, CarriedState] = field(default_factory=dict)
    latents: dict[FlatNode, Latent] = field(default_factory=dict)
    positional: set[Value] = field(default_factory=set)
    """Tensors made of positions alone, without an axis of the batch."""
    spread: set[FlatNode] = field(default_factory=set)
    """Ops that make such an axis of one of size 1: with positions counted by row it is there already."""
    whole: set[Value] = field(default_factory=set)
    """Tensors of which each step computes all positions along two axes."""
    lengths: dict[FlatNode, str] = field(default_factory=dict)
    """Of ops that make pairs of positions and are given the length of the sequence: the form of the axis that is as
    long; FIXED where it may be that of queries or that of keys."""
    beside: set[FlatNode] = field(default_factory=set)
    """Nodes that read queries or keys by their distance, or compute with indices of keys: no padding may stand between
    two of them."""
    makers: dict[Value, FlatNode] = field(default_factory=dict)
    root: Unrolled | None = None
    """What became of the model's block."""
    shapes: dict[tuple[int, Form], tuple[Shape, Shape]] = field(default_factory=dict)
    """Shapes that a step narrows, by those that they are narrowed from."""

    @property
    def taken(self) -> list[Value]:
        """The model's inputs that every step takes, in their order; the others only the first, and padding none."""
        once = {*self.before.outputs}
        return [v for v in self.step.inputs if v.dtype != "padding" and v not in once]

    @property
    def ids(self) -> Value | None:
        """The input of tokens that every step takes."""
        return next((v for v in self.taken if v.dtype == "token"), None)

    def narrowed(self, value: Value, form: Form | None) -> Value:
        """A tensor as a step has it: one place along an axis of which only the new position is computed."""
        if form is None or NEW not in form:
            return value
        key = id(value.shape), form
        if key not in self.shapes:
            shape = tuple(
                Num(with_symbol(d.value, self.time.name, 1), d.expr, d.origin) if f == NEW else d
                for d, f in zip(value.shape, form, strict=True)
            )
            self.shapes[key] = value.shape, shape
        return replace(value, shape=self.shapes[key][1])

    def stepped(self, node: FlatOp) -> FlatOp:
        """An op as a step has it. Those of layers that are alike have the same shapes."""
        inputs = tuple(
            self.narrowed(v, self.needs.get((node, i))) if isinstance(v, Value) else v
            for i, v in enumerate(node.inputs)
        )
        outputs = tuple(self.narrowed(v, self.forms.get(v)) for v in node.outputs)
        return replace(node, node=replace(node.node, inputs=inputs, outputs=outputs), inputs=inputs, outputs=outputs)

    def entries(self) -> list[CacheSpec | CarriedState]:
        """All that is kept, in the order of the layers."""
        found: list[CacheSpec | CarriedState] = [*self.caches.values(), *self.carries.values()]
        return sorted(found, key=lambda c: c.layer)

    def tail(self) -> tuple[int, tuple[Value, ...]]:
        """Where the nodes of a step begin that look at no position but their own, up to its end, and the tensors
        [batch, new, …] that they read of those before: of each row one place can be taken from these, and the others
        left out.

        Raises ArchError E0504 where the output itself has its positions along another axis."""
        nodes, (output,) = self.step.nodes, self.step.outputs
        first = len(nodes)
        while first and self._is_own(nodes[first - 1]):
            first -= 1
        while True:
            made = {v for n in nodes[first:] for v in n.outputs}
            ends = [v for n in nodes[first:] for v in n.inputs if isinstance(v, Value)] + [output]
            found = tuple(dict.fromkeys(v for v in ends if v not in made and NEW in self.forms.get(v, ())))
            if all(self.forms[v].index(NEW) == 1 for v in found):
                return first, found
            if first == len(nodes):
                raise refuse(f"the positions of {shown(output)}, the output, are not along its second axis")
            first += 1

    def _is_own(self, node: FlatNode) -> bool:
        """Whether a node looks at no position but its own."""
        if node in self.carries or node in self.latents or isinstance(node, FlatScan):
            return False
        positional = any(v in self.positional for v in node.inputs if isinstance(v, Value))
        forms = [self.needs.get((node, i), ()) for i in range(len(node.inputs))]
        return not positional and not any(ALL in f for f in (*forms, *(self.forms.get(v, ()) for v in node.outputs)))


def plan(model: Model, latents: bool = True) -> DecodePlan:
    """How the model is taken step by step. Without `latents` keys and values are cached as they are.

    Raises ArchError E0504 where its output depends on later positions, or an op has no step."""
    sequence = DecodedSequence.of(model)
    flat, root = unroll(model)
    found = _Planner(model, flat, sequence.time).plan(latents)
    sequence.demand_known()
    for part in (found.before, found.step):
        verify.checked(part, violations, "the plan of decoding")
    found.root = root
    return found


@lru_cache(maxsize=4)
def planned(model: Model) -> DecodePlan:
    """`plan`, made once for all who only read it; the last few are remembered."""
    return plan(model)


def decoding(model: Model) -> tuple[DecodePlan | None, str | None]:
    """Return how a model is taken step by step, as `planned` does; None, and why, where it cannot be."""
    try:
        return planned(model), None
    except ArchError as problem:
        if problem.diagnostics[0].code != "E0504":
            raise
        return None, problem.diagnostics[0].message


class _Planner:
    def __init__(self, model: Model, flat: FlatGraph, time: Symbol) -> None:
        self.model = model
        self.time = time
        output = flat.outputs[0]
        inputs = tuple(v for v in flat.inputs if any(has(d, time) for d in v.shape))
        self.forms = Forms(time, inputs[0].shape[0].value)
        once, step = self.split(flat, inputs)
        taken = set(step)
        made = {v for n in once if n not in taken for v in n.outputs} | {v for v in flat.inputs if v not in inputs}
        nodes = live(step, (output,))
        crossing = tuple(dict.fromkeys(v for n in nodes for v in n.inputs if isinstance(v, Value) and v in made))
        first = tuple(v for v in flat.inputs if v not in inputs)
        before = FlatGraph(first, live(once, crossing), crossing)
        self.found = DecodePlan(model, time, before, FlatGraph((*inputs, *crossing), nodes, (output,)))
        self.found.makers = {v: n for n in step for v in n.outputs}
        self.moving: set[Value] = set(inputs)
        """Tensors that depend on the sequence."""
        self.layer = -1
        self.read: dict[int, tuple[tuple[int, ...], bool]] = {}
        """Of an op of the graph, wherever its block is called: which of its tensors it reads the numbers of, and
        whether it speaks of time itself."""
        self.taken: dict[int, Taken] = {}
        self.order: dict[Value, int] = {}
        """Which node of the step makes a tensor."""
        self.whole_readers: dict[Value, list[FlatNode]] = {}
        """Nodes that need all positions of a tensor."""

    # --- before the first step ---

    def split(self, flat: FlatGraph, inputs: Sequence[Value]) -> tuple[list[FlatNode], list[FlatNode]]:
        """Nodes that do not depend on the sequence, and those that do not depend on the other inputs alone: what
        depends on neither (weights, numbers) is in both."""
        late, early = set(inputs), {v for v in flat.inputs if v not in inputs}
        before: list[FlatNode] = []
        step: list[FlatNode] = []
        for node in flat.nodes:
            reads = [v for v in node.inputs if isinstance(v, Value)]
            if any(v in late for v in reads) or self.forms.speaks(node.inputs, node.outputs):
                late |= set(node.outputs)
                step.append(node)
            elif any(v in early for v in reads):
                early |= set(node.outputs)
                before.append(node)
            else:
                before.append(node)
                step.append(node)
        return before, step

    # --- the step ---

    def plan(self, latents: bool) -> DecodePlan:
        found = self.found
        for value in found.step.inputs:
            axes = self.forms.axes(value)
            full = ALL if value.dtype == "padding" else NEW
            found.forms[value] = tuple(full if i in axes else FIXED for i in range(value.rank))
        found.whole = self.find_whole()
        for node in found.step.nodes:
            if isinstance(node, FlatOp):
                self.op(node)
            elif isinstance(node, FlatScan):
                self.scan(node)
            elif self.forms.axes(node.output):
                found.positional.add(node.output)
        self.note_indices()
        if latents:
            self.latent()
        return found

    def note_indices(self) -> None:
        """Note the ops that compute with indices of keys: where padding stands before them, these are others."""
        found = self.found
        indices: set[Value] = set()
        for node in found.step.nodes:
            read = [i for i, v in enumerate(node.inputs) if isinstance(v, Value) and v in indices]
            if not isinstance(node, FlatOp):
                found.beside |= {node} if read else set()
                continue
            op = node.node.op
            if op.indices and ALL in found.needs.get((node, 0), ()):
                indices.update(node.outputs[i] for i in op.indices)
            elif read and op.moves:
                indices.update(node.outputs)
            elif read:
                every = any(ALL in found.forms.get(v, ()) for v in node.outputs)
                table = op.chosen and node.inputs[0] in found.forms and ALL in found.needs.get((node, 0), ())
                if op.elementwise or not (every or table):
                    found.beside.add(node)

    def find_whole(self) -> set[Value]:
        """Tensors with two axes of time that are computed for all positions along both."""
        found: set[Value] = set()
        for node in reversed(self.found.step.nodes):
            pairs = [v for v in node.outputs if len(self.forms.axes(v)) == 2]
            if not isinstance(node, FlatOp) or not pairs:
                continue
            along = [self.forms.distance(node.node, axis) for axis in (0, 1)]
            if any(along):
                self.found.beside.add(node)
            if any(v in found for v in pairs) or along[0]:
                found.update(pairs)
                found.update(v for _, v in self.forms.timed(node.inputs) if len(self.forms.axes(v)) == 2)
        return found

    def op(self, node: FlatOp) -> None:
        found = self.found
        key = id(node.node)
        if key not in self.read:
            self.forms.demand_steps(node.node)
            tensors = [i for i, v in enumerate(node.inputs) if isinstance(v, Value)]
            self.read[key] = (
                tuple(i for i in tensors if reads_numbers(node.node, i)),
                self.forms.speaks(node.inputs, node.outputs),
            )
        reads, speaks = self.read[key]
        if not any(node.inputs[i] in self.moving for i in reads) and not self.forms.has_rows(node.node):
            if speaks or any(v in found.positional for v in node.inputs if isinstance(v, Value)):
                found.positional |= set(node.outputs)
            return
        self.moving |= set(node.outputs)
        if key not in self.taken:
            self.taken[key] = self.forms.take(node.node, any(v in self.found.whole for v in node.outputs))
        taken = self.taken[key]
        if self.spreads(node):
            found.spread.add(node)
        if taken.keeps:
            self.layer += 1
        for value, form in zip(node.outputs, taken.forms, strict=True):
            found.forms[value] = form
        if taken.length is not None:
            found.lengths[node] = taken.length
        if taken.states:
            self.layer += 0 if taken.keeps else 1
            found.carries[node] = CarriedState(node, taken.states, self.layer)
        for i, wanted, role in taken.wanted:
            self.need(node, i, node.tensor(i), wanted, role)

    def spreads(self, node: FlatOp) -> bool:
        """Whether an op makes an axis of the batch of one of size 1, and nothing else, of what has none."""
        x = node.inputs[0] if node.inputs else None
        if not isinstance(x, Value) or x not in self.found.positional or not node.node.op.moves:
            return False
        (reads,) = node.node.op.reads(node.node)
        return reads == (At(), *(same(i) for i in range(1, x.rank))) and node.outputs[0].rank == x.rank

    def need(self, node: FlatOp | FlatScan, i: int, value: Value, wanted: Form, role: str = "") -> None:
        """Note the form that is needed, and keep the value where all its positions are and only the new ones are
        made."""
        found = self.found
        found.needs[node, i] = wanted
        if value in found.positional and self.forms.of_all_rows(value) is not None:
            raise blame(node.node, f"reads {shown(value)}, made of positions, which has those of all rows")
        if value in found.positional or value not in found.forms:
            return
        axis = self.forms.grown(node.node, value, found.forms[value], wanted)
        if axis is None:
            return
        if value not in found.caches:
            if not role:
                self.layer += 1
            found.caches[value] = CacheSpec(value, axis, role or value.name or "kept", max(self.layer, 0))

    def scan(self, node: FlatScan) -> None:
        found = self.found
        inputs = [v for v in node.inputs if isinstance(v, Value)]
        if not any(v in self.moving for v in inputs):
            if any(self.forms.axes(v) for v in node.outputs):
                found.positional |= set(node.outputs)
            return
        self.moving |= set(node.outputs)
        along = any(has(v.shape[1], self.time) for v in node.sequences)
        for value in node.outputs:
            found.forms[value] = self.forms.result(node.node, value)
        own = {id(v) for v in node.sequences}
        for i, value in self.forms.timed(node.inputs):
            if along and id(value) not in own:
                raise blame(node.node, f"reads {shown(value)}, which has an axis of time, at every step")
            if value in found.positional:
                raise blame(node.node, "reads a table of positions")
            form = tuple(NEW if a in self.forms.axes(value) else FIXED for a in range(value.rank))
            self.need(node, i, value, form)
        self.demand_own_positions(node)
        if along:
            self.layer += 1
            states = tuple(
                State(v.name or f"state_{i}", v.shape, v.dtype, 1)
                for i, v in enumerate(node.body.inputs[: len(node.starts)])
            )
            found.carries[node] = CarriedState(node, states, self.layer)

    def demand_own_positions(self, scan: FlatScan) -> None:
        """Raise ArchError E0504 where the body of a scan asks for other positions than its own: they would have to be
        kept for each of its steps."""
        for node in scan.body.nodes:
            if isinstance(node, FlatScan):
                if any(has(v.shape[1], self.time) for v in node.sequences):
                    raise blame(node.node, "runs along time within another one")
                self.demand_own_positions(node)
            elif isinstance(node, FlatOp):
                self.forms.demand_steps(node.node)
                taken = self.forms.take(node.node)
                op, within = node.node.op, "within a scan"
                if taken.states or any(ALL in form for _, form, _ in taken.wanted):
                    raise blame(node.node, f"reads other positions than its own {within}")
                if op.positional and not (op.moves or op.alike) and self.forms.speaks(node.inputs, node.outputs):
                    raise blame(node.node, f"asks which positions there are {within}")

    # --- keys and values that follow from something narrower ---

    def latent(self) -> None:
        found = self.found
        self.order = {v: i for i, n in enumerate(found.step.nodes) for v in n.outputs}
        for (node, i), form in found.needs.items():
            value = node.inputs[i]
            if ALL in form and isinstance(value, Value):
                self.whole_readers.setdefault(value, []).append(node)
        for node in found.step.nodes:
            if isinstance(node, FlatOp) and node.node.op.reads_latent(node.node) and node not in found.carries:
                kept = [node.inputs[i] for i in sorted(node.node.op.cached_inputs(node.node))]
                values = [v for v in kept if isinstance(v, Value) and v in found.caches]
                if len(values) == len(kept):
                    self.narrow(node, values)

    def narrow(self, node: FlatOp, values: Sequence[Value]) -> None:
        """Cache the narrowest tensors that keys and values are projections of, if they are much narrower."""
        found = self.found
        edges: list[tuple[Any, Any, int | None]] = []
        chain: dict[FlatOp, None] = {}
        seen: dict[Value, None] = {}

        def visit(value: Value) -> None:
            if value in seen:
                return
            seen[value] = None
            edges.append((("in", value), ("out", value), _width(value)))
            maker = found.makers.get(value)
            if not isinstance(maker, FlatOp) or not maker.node.op.is_projection(maker.node):
                edges.append(("source", ("in", value), None))
                return
            chain[maker] = None
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
        order = self.order
        base = [v for v in sorted(seen, key=lambda v: order.get(v, -1)) if ("in", v) in near and ("out", v) not in near]
        if any(n is not node for v in values for n in self.whole_readers.get(v, ())):
            return
        layer = found.caches[values[0]].layer
        inside = self.between(base, values)
        made = {v for n in inside for v in n.outputs}
        if any(not made.isdisjoint(n.inputs) for n in found.step.nodes if n is not node and n not in inside):
            return  # queries are made together with them
        for value in values:
            del found.caches[value]
        for i, value in enumerate(base):
            axis = self.forms.axes(value)[0]
            role = value.name or ("latent" if i == 0 else f"latent_{i + 1}")
            found.caches.setdefault(value, CacheSpec(value, axis, role, layer))
        found.latents[node] = Latent(tuple(base), inside)

    def between(self, base: Sequence[Value], values: Sequence[Value]) -> tuple[FlatOp, ...]:
        """The nodes that lead from the base to the values, in order."""
        wanted: set[FlatNode] = set()
        todo = [v for v in values if v not in base]
        while todo:
            maker = self.found.makers[todo.pop()]
            if maker not in wanted:
                wanted.add(maker)
                todo += [v for v in maker.inputs if isinstance(v, Value) and v not in base]
        in_order = sorted(wanted, key=lambda n: self.order[n.outputs[0]])
        return tuple(n for n in in_order if isinstance(n, FlatOp))


def _width(value: Value) -> int:
    """How many numbers a position holds."""
    total = 1
    for d in value.shape:
        if d.static:
            total *= int(d)
    return total
