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

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from archdsl.diagnostics import ArchError
from archdsl.frozen import Entity
from archdsl.ir import verify
from archdsl.ir.dims import Num, Shape, Symbol, with_symbol
from archdsl.ir.graph import AppendNode, CallNode, Model, NewestNode, Node, Value
from archdsl.ir.op import At, State, same
from archdsl.passes.flat_step import unroll_step
from archdsl.passes.flatten import FlatForm, FlatGraph, FlatNode, FlatOp, FlatScan, Unrolled, unroll, violations
from archdsl.passes.forms import (
    ALL,
    FIXED,
    NEW,
    Form,
    Forms,
    has,
    refuse,
    shown,
)
from archdsl.passes.step import stepped


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
    found = _Plan(model, latents).found
    for part in (found.before, found.step):
        verify.checked(part, violations, "the plan of decoding")
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


class _Plan:
    """Reads a plan off a step: what stands there for each node of the unrolled model."""

    def __init__(self, model: Model, latents: bool) -> None:
        self.step = step = unroll_step(stepped(model, latents))
        self.time = step.of.time
        flat, root = unroll(model)
        self.whole = dict(_pairs(step.root, root, step.of.origins))
        """Of each node of the step the model's."""
        inputs = tuple(v for v in flat.inputs if any(has(d, self.time) for d in v.shape))
        self.forms = Forms(self.time, inputs[0].shape[0].value)
        own = dict(model.inputs)
        self.values = {v: own[n] for n, v in step.of.model.inputs}
        """Of each tensor of the step the model's."""
        self.values |= {a: b for n, o in self.whole.items() for a, b in zip(n.outputs, o.outputs, strict=True)}
        for node in step.step.nodes:
            if isinstance(node, FlatForm):
                self.values[node.output] = self.values[node.value]
        before, nodes = self.ordered(flat, step.before.nodes), self.ordered(flat, step.step.nodes)
        made = {v for n in before if n not in {*nodes} for v in n.outputs} | {v for v in flat.inputs if v not in inputs}
        crossing = tuple(dict.fromkeys(v for n in nodes for v in n.inputs if isinstance(v, Value) and v in made))
        first = FlatGraph(tuple(v for v in flat.inputs if v not in inputs), before, crossing)
        self.found = DecodePlan(model, self.time, first, FlatGraph((*inputs, *crossing), nodes, flat.outputs[:1]))
        self.found.makers = {v: n for n in nodes for v in n.outputs}
        self.found.root = root
        self.found.positional = {self.values[v] for v in step.positional}
        for value in step.step.inputs:
            self.found.forms[self.values[value]] = self.form(value)
        for node in step.step.nodes:
            if isinstance(node, FlatOp | FlatScan) and any(v in step.moving for v in node.outputs):
                self.note(node)
        self.note_kept()
        for node in nodes:
            if isinstance(node, FlatOp) and self.reads_distances(node):
                self.found.beside.add(node)
        self.note_indices()

    def reads_distances(self, node: FlatOp) -> bool:
        """Whether an op reads queries or keys by their distance."""
        pairs = any(len(self.forms.axes(v)) == 2 for v in node.outputs)
        return pairs and any(self.forms.distance(node.node, axis) for axis in (0, 1))

    def ordered(self, flat: FlatGraph, nodes: Iterable[FlatNode]) -> tuple[FlatNode, ...]:
        """The model's nodes that these stand for, in the model's order."""
        there = {self.whole[n] for n in nodes if not isinstance(n, FlatForm)}
        return tuple(n for n in flat.nodes if n in there)

    def form(self, value: Value, chain: bool = False) -> Form:
        """The form of a tensor; where keys and values are projections of what is kept, that of the new ones."""
        every = NEW if chain else ALL
        step = self.step.of
        return tuple(NEW if has(d, step.new) else every if has(d, step.all) else FIXED for d in value.shape)

    def note(self, node: FlatOp | FlatScan) -> None:
        """Note the forms of a node that depends on the sequence."""
        found, whole, chain = self.found, self.whole[node], node in self.step.chain
        for value in node.outputs:
            found.forms[self.values[value]] = self.form(value, chain)
            if len(self.step.of_all(value)) == 2:
                found.whole.add(self.values[value])
        for i, given in enumerate(node.inputs):
            if isinstance(given, Value) and any(map(self.step.of.has, given.shape)):
                found.needs[whole, i] = self.form(given, chain)
        if isinstance(whole, FlatOp):
            length = self.forms.length(whole.node, found.forms[whole.outputs[0]])
            found.lengths |= {whole: length} if length is not None else {}
            found.spread |= {whole} if self.spreads(whole) else set()

    def note_kept(self) -> None:
        """Note what is kept, and which of it keys and values are projections of."""
        found = self.found
        for kept in self.step.kept:
            if isinstance(kept.node, FlatForm):
                value = self.values[kept.node.output]
                found.caches[value] = CacheSpec(value, kept.axis, kept.role, kept.layer)
                continue
            node = self.whole[kept.node]
            if isinstance(node, FlatOp):
                found.carries[node] = CarriedState(node, tuple(node.node.op.states(node.node)), kept.layer)
            elif isinstance(node, FlatScan):
                carried = enumerate(node.body.inputs[: len(node.starts)])
                states = tuple(State(v.name or f"state_{i}", v.shape, v.dtype, 1) for i, v in carried)
                found.carries[node] = CarriedState(node, states, kept.layer)
        for node, latent in self.step.latents.items():
            base = tuple(self.values[form.value] for form in latent.base)
            chain = tuple(n for c in latent.chain if isinstance(n := self.whole[c], FlatOp))
            found.latents[self.whole[node]] = Latent(base, chain)

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

    def spreads(self, node: FlatOp) -> bool:
        """Whether an op makes an axis of the batch of one of size 1, and nothing else, of what has none."""
        x = node.inputs[0] if node.inputs else None
        if not isinstance(x, Value) or x not in self.found.positional or not node.node.op.moves:
            return False
        (reads,) = node.node.op.reads(node.node)
        return reads == (At(), *(same(i) for i in range(1, x.rank))) and node.outputs[0].rank == x.rank


def _pairs(step: Unrolled, whole: Unrolled, origins: Mapping[Node, Node]) -> Iterator[tuple[FlatNode, FlatNode]]:
    """Each node of an unrolled step with that of the unrolled model."""
    for node, flats in step.nodes.items():
        if not isinstance(node, AppendNode | NewestNode):
            yield from zip(flats, whole.nodes[origins.get(node, node)], strict=True)
    for node, calls in step.calls.items():
        origin = origins.get(node, node)
        assert isinstance(origin, CallNode)
        for one, other in zip(calls, whole.calls[origin], strict=True):
            yield from _pairs(one, other, origins)
