"""A step read by the nodes and tensors of the whole model, unrolled, so that it can be held against their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from archdsl.frozen import Entity
from archdsl.ir import verify
from archdsl.ir.graph import FormNode, Model, Value
from archdsl.ir.op import State
from archdsl.passes.flat_step import FlatStep, unroll_step
from archdsl.passes.flatten import FlatForm, FlatGraph, FlatNode, FlatOp, FlatScan, Unrolled, unroll, violations
from archdsl.passes.forms import ALL, FIXED, NEW, Form, has
from archdsl.passes.step import Stepped, stepped


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


@lru_cache(maxsize=4)
def plan(model: Model) -> DecodePlan:
    """How the model is taken step by step; the last few are remembered.

    Raises ArchError E0504 where its output depends on later positions, or an op has no step."""
    found = _Plan(model).found
    for part in (found.before, found.step):
        verify.checked(part, violations, "the plan of decoding")
    return found


class Reading:
    """Reads a step by the nodes and tensors of the whole model, unrolled."""

    def __init__(self, model: Model) -> None:
        self.step: FlatStep = unroll_step(stepped(model))
        self.time = self.step.of.time
        flat, root = unroll(model)
        self.whole = dict(_pairs(self.step.root, root, self.step.of))
        """Of each node of the step the model's."""
        own = dict(model.inputs)
        self.values = {v: own[n] for n, v in self.step.of.model.inputs}
        """Of each tensor of the step the model's."""
        self.values |= {a: b for n, o in self.whole.items() for a, b in zip(n.outputs, o.outputs, strict=True)}
        for node in self.step.step.nodes:
            if isinstance(node, FlatForm):
                self.values[node.output] = self.values[node.value]
        stepping = {self.whole[n] for n in self.step.step.nodes if not isinstance(n, FlatForm)}
        self.nodes = [n for n in flat.nodes if n in stepping]
        self.positional = {self.values[v] for v in self.step.positional}


def _pairs(step: Unrolled, whole: Unrolled, of: Stepped) -> Iterator[tuple[FlatNode, FlatNode]]:
    """Each node of an unrolled step with that of the unrolled model."""
    for node, flats in step.nodes.items():
        if not isinstance(node, FormNode):
            yield from zip(flats, whole.nodes[of.origin(node)], strict=True)
    for node, calls in step.calls.items():
        for one, other in zip(calls, whole.calls[of.origin(node)], strict=True):
            yield from _pairs(one, other, of)


class _Plan:
    """Reads a plan off a step: what stands there for each node of the unrolled model."""

    def __init__(self, model: Model) -> None:
        self.reading = reading = Reading(model)
        self.step = step = reading.step
        flat, _ = unroll(model)
        inputs = tuple(v for v in flat.inputs if any(has(d, reading.time) for d in v.shape))
        before, nodes = self.ordered(flat, step.before.nodes), tuple(reading.nodes)
        made = {v for n in before if n not in {*nodes} for v in n.outputs} | {v for v in flat.inputs if v not in inputs}
        outputs = tuple(flat.outputs[i] for i in step.of.results)
        crossing = tuple(dict.fromkeys(v for n in nodes for v in n.inputs if isinstance(v, Value) and v in made))
        first = FlatGraph(tuple(v for v in flat.inputs if v not in inputs), before, crossing)
        self.found = DecodePlan(model, first, FlatGraph((*inputs, *crossing), nodes, outputs))
        self.found.positional = reading.positional
        for value in step.step.inputs:
            self.found.forms[reading.values[value]] = self.form(value)
        for node in step.step.nodes:
            if isinstance(node, FlatOp | FlatScan) and any(v in step.moving for v in node.outputs):
                self.note(node)
        self.note_kept()

    def ordered(self, flat: FlatGraph, nodes: Iterable[FlatNode]) -> tuple[FlatNode, ...]:
        """The model's nodes that these stand for, in the model's order."""
        there = {self.reading.whole[n] for n in nodes if not isinstance(n, FlatForm)}
        return tuple(n for n in flat.nodes if n in there)

    def form(self, value: Value, chain: bool = False) -> Form:
        """The form of a tensor; where keys and values are projections of what is kept, that of the new ones."""
        every = NEW if chain else ALL
        step = self.step.of
        return tuple(NEW if has(d, step.new) else every if has(d, step.all) else FIXED for d in value.shape)

    def note(self, node: FlatOp | FlatScan) -> None:
        """Note the forms of a node that depends on the sequence."""
        found, chain = self.found, node in self.step.chain
        for value in node.outputs:
            found.forms[self.reading.values[value]] = self.form(value, chain)
        for i, given in enumerate(node.inputs):
            if isinstance(given, Value) and any(map(self.step.of.has, given.shape)):
                found.needs[self.reading.whole[node], i] = self.form(given, chain)

    def note_kept(self) -> None:
        """Note what is kept, and which of it keys and values are projections of."""
        found = self.found
        for kept in self.step.kept:
            if isinstance(kept.node, FlatForm):
                value = self.reading.values[kept.node.output]
                found.caches[value] = CacheSpec(value, kept.axis, kept.role, kept.layer)
                continue
            node = self.reading.whole[kept.node]
            if isinstance(node, FlatOp):
                found.carries[node] = CarriedState(node, tuple(node.node.op.states(node.node)), kept.layer)
            elif isinstance(node, FlatScan):
                carried = enumerate(node.body.inputs[: len(node.starts)])
                states = tuple(State(v.name or f"state_{i}", v.shape, v.dtype, 1) for i, v in carried)
                found.carries[node] = CarriedState(node, states, kept.layer)
        for node, latent in self.step.latents.items():
            base = tuple(self.reading.values[form.value] for form in latent.base)
            chain = tuple(n for c in latent.chain if isinstance(n := self.reading.whole[c], FlatOp))
            found.latents[self.reading.whole[node]] = Latent(base, chain)
