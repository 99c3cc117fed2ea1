"""A step of decoding unrolled, and what is read off its nodes: what it keeps, layer by layer; which keys and values are
projections of what it keeps; what is made of positions alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from functools import cached_property, lru_cache
from typing import Literal

from archdsl.diagnostics import ArchError
from archdsl.frozen import Entity
from archdsl.ir import verify
from archdsl.ir.dims import Num, Shape, Symbol, of_atom
from archdsl.ir.dims import Value as Size
from archdsl.ir.graph import AppendNode, Model, OpNode, Value
from archdsl.ir.op import At, same
from archdsl.passes.dce import live
from archdsl.passes.flatten import FlatForm, FlatGraph, FlatNode, FlatOp, FlatScan, Unrolled, unroll_all, violations
from archdsl.passes.forms import Forms, has, in_front, reads_numbers, refuse, shown
from archdsl.passes.step import Stepped, stepped
from archdsl.passes.step_sizes import renumbered


class Kept(Entity):
    """A tensor that one step hands to the next."""

    kind: Literal["cache", "state"]
    node: FlatForm | FlatOp | FlatScan
    """What appends to it, or the recurrence."""
    role: str
    """`key` or `value` of attention, or what the tensor or the state is called."""
    shape: Shape
    """Of a cache with all positions."""
    dtype: str
    layer: int
    path: str
    """Of the block that reads it."""
    axis: int = 0
    """Of a cache, that of its positions."""
    window: int | None = None
    """Of a cache, how many of the last positions any reader looks at."""

    @property
    def name(self) -> str:
        return f"{self.layer}.{self.role}"


class Latent(Entity):
    """Attention whose keys and values are projections of what `base` appends: `chain` are the ops between."""

    base: tuple[FlatForm, ...]
    chain: tuple[FlatOp, ...]


class FlatStep(Entity):
    """A step of decoding, unrolled."""

    of: Stepped
    before: FlatGraph
    """What the first step computes for all: its outputs are read in every step."""
    step: FlatGraph
    """Its inputs are the model's that each step takes, then the outputs of `before`."""
    makers: Mapping[Value, FlatNode] = field(repr=False)
    """Of the tensors of `step`."""
    root: Unrolled = field(repr=False)
    """What became of the model's block."""

    @property
    def taken(self) -> list[Value]:
        """The model's inputs that every step takes, in their order. The first step alone takes the others, and none
        takes the padding of the sequence, which the caller's mask tells."""
        once = {*self.before.outputs}
        return [v for v in self.step.inputs if v.dtype != "padding" and v not in once]

    @property
    def ids(self) -> Value | None:
        """The input of tokens that every step takes."""
        return next((v for v in self.taken if v.dtype == "token"), None)

    @cached_property
    def names(self) -> dict[Value, str]:
        """What the model calls its inputs."""
        names = (name for name, _ in self.of.whole.inputs)
        return dict(zip((v for _, v in self.of.model.inputs), names, strict=True))

    def form_of(self, value: Value) -> FlatForm | None:
        """What appends the new positions of a tensor that is kept."""
        maker = self.makers.get(value)
        return maker if isinstance(maker, FlatForm) and isinstance(maker.node, AppendNode) else None

    def is_new(self, value: Value) -> bool:
        """Whether a tensor has the new positions along an axis."""
        return any(has(d, self.of.new) for d in value.shape)

    def axis_of_new(self, value: Value) -> int:
        """The axis along which a tensor has the new positions."""
        return next(i for i, d in enumerate(value.shape) if has(d, self.of.new))

    def of_all(self, value: Value) -> list[int]:
        """The axes of a tensor along which it has all positions."""
        return [i for i, d in enumerate(value.shape) if has(d, self.of.all)]

    @cached_property
    def positional(self) -> set[Value]:
        """Tensors made of positions alone, without an axis of the batch."""
        return self._kinds[0]

    @cached_property
    def moving(self) -> set[Value]:
        """Tensors that depend on the sequence."""
        return self._kinds[1]

    @cached_property
    def _kinds(self) -> tuple[set[Value], set[Value]]:
        batch = self.step.inputs[0].shape[0].value
        once = {*self.before.outputs}
        moving = {v for v in self.step.inputs if v not in once}
        found: set[Value] = set()
        numbers: dict[OpNode, list[int]] = {}
        """Of an op, wherever its block is called: the tensors of which it reads more than the type."""
        for node in self.step.nodes:
            read = [v for v in node.inputs if isinstance(v, Value)]
            if isinstance(node, FlatOp):
                op = node.node
                if op not in numbers:
                    tensors = (i for i, v in enumerate(op.inputs) if isinstance(v, Value))
                    numbers[op] = [i for i in tensors if reads_numbers(op, i)]
                read = [node.tensor(i) for i in numbers[op]]
            timed = any(map(self.of.has, (d for v in node.outputs for d in v.shape)))
            rows = isinstance(node, FlatOp) and all(
                v.rank and v.shape[0].value == batch and sum(map(self.of.has, v.shape)) == 1 for v in node.outputs
            )
            if rows or any(v in moving for v in read):
                moving.update(node.outputs)
            elif timed or any(v in found for v in node.inputs):
                found.update(node.outputs)
        return found, moving

    def spreads(self, node: FlatOp) -> bool:
        """Whether an op does nothing but expand the first axis of a tensor of positions from 1 to the batch. Where
        positions are counted by row, the tensor has that axis."""
        x = node.inputs[0] if node.inputs else None
        if not isinstance(x, Value) or x not in self.positional or not node.node.op.moves:
            return False
        own = node.outputs[0] not in self.positional and node.outputs[0].rank == x.rank
        return own and [*node.node.op.reads(node.node)] == [(At(), *(same(i) for i in range(1, x.rank)))]

    @cached_property
    def beside(self) -> set[FlatNode]:
        """Nodes that read queries or keys by their distance, or compute with indices of keys: no padding may stand
        between two of them."""
        of = self.of
        forms = Forms(of.time, self.step.inputs[0].shape[0].value, of.led)
        whole = of.as_whole(of_atom(of.time))
        found: set[FlatNode] = set()
        indices: set[Value] = set()
        for node in self.step.nodes:
            if isinstance(node, FlatForm) and node.value in indices:
                indices.add(node.output)
            if isinstance(node, FlatScan) and not indices.isdisjoint(node.inputs):
                found.add(node)
            if not isinstance(node, FlatOp) or any(v in self.positional for v in node.outputs):
                continue
            if any(sum(map(of.has, v.shape)) == 2 for v in node.outputs):
                one = resized(node.node, whole)
                found |= {node} if forms.distance(one, 0) or forms.distance(one, 1) else set()
            op, read = node.node.op, not indices.isdisjoint(v for v in node.inputs if isinstance(v, Value))
            first = node.inputs[0] if node.inputs else None
            of_keys = isinstance(first, Value) and bool(self.of_all(first))
            if op.indices and of_keys:
                indices.update(node.outputs[i] for i in op.indices)
            elif read and op.moves:
                indices.update(node.outputs)
            elif read:
                every = any(map(self.of_all, node.outputs))
                table = op.chosen and of_keys and first not in self.positional
                found |= {node} if op.elementwise or not (every or table) else set()
        return found

    @cached_property
    def latents(self) -> dict[FlatOp, Latent]:
        """Attention that reads what its keys and values are projections of."""
        found: dict[FlatOp, Latent] = {}
        chain: dict[Value, FlatOp] = {}
        for node in self.step.nodes:
            if not isinstance(node, FlatOp):
                continue
            if node.node.op.reads_latent(node.node):
                kept = [node.tensor(i) for i in sorted(node.node.op.cached_inputs(node.node))]
                if any(v in chain for v in kept):
                    found[node] = self._between(kept, chain)
                continue
            read = [v for v in node.inputs if isinstance(v, Value)]
            whole = node.node.op.is_projection(node.node) and all(map(self._is_whole, node.outputs))
            if whole and any(v in chain or self.form_of(v) for v in read):
                chain.update(dict.fromkeys(node.outputs, node))
        return found

    def _is_whole(self, value: Value) -> bool:
        """Whether a tensor has all positions along one axis, and no new ones along another."""
        return len(self.of_all(value)) == 1 and not self.is_new(value)

    def _between(self, kept: list[Value], chain: Mapping[Value, FlatOp]) -> Latent:
        """Return what keys and values are projections of, and the ops of the chain that lead to them."""
        base: set[FlatForm] = set()
        inside: set[FlatOp] = set()
        todo = [*kept]
        while todo:
            value = todo.pop()
            if (form := self.form_of(value)) is not None:
                base.add(form)
            elif value in chain and chain[value] not in inside:
                inside.add(chain[value])
                todo += [v for v in chain[value].inputs if isinstance(v, Value)]
        nodes = self.step.nodes
        return Latent(
            tuple(n for n in nodes if isinstance(n, FlatForm) and n in base),
            tuple(n for n in nodes if isinstance(n, FlatOp) and n in inside),
        )

    @cached_property
    def chain(self) -> set[FlatNode]:
        """Ops that compute keys and values from what they are projections of."""
        return {n for latent in self.latents.values() for n in latent.chain}

    @cached_property
    def one_projected(self) -> int:
        """How many positions of tokens there are in all where keys and values that are computed from what they are
        projections of have one."""
        axes = (v.shape[self.of_all(v)[0]] for n in self.chain for v in n.outputs)
        return 1 - max((in_front(d, self.of.all) for d in axes), default=0)

    def appended(self, value: Value) -> list[FlatForm]:
        """What appends the new positions that a tensor has with all others, which may stand behind a fixed prefix."""
        if (form := self.form_of(value)) is not None:
            return [form]
        maker = self.makers.get(value)
        if not isinstance(maker, FlatOp) or not self.is_behind(maker):
            return []
        return [form for v in maker.inputs if isinstance(v, Value) for form in self.appended(v)]

    def makes_front(self, node: FlatNode) -> bool:
        """Whether a node reads or makes what has other positions in the first step than those of the tokens."""
        tensors = [v for v in (*node.inputs, *node.outputs) if isinstance(v, Value)]
        first = self.of.first
        return first is not None and any(has(d, first) for v in tensors for d in v.shape)

    def is_behind(self, node: FlatNode) -> bool:
        """Whether an op that depends on the sequence makes all of its positions behind a prefix that each step puts
        there."""
        if self.of.led:
            return False
        one = [v for v in node.outputs if v in self.moving and len(self.of_all(v)) == 1 and not self.is_new(v)]
        return any(in_front(v.shape[self.of_all(v)[0]], self.of.all) for v in one)

    @cached_property
    def kept(self) -> list[Kept]:
        """All that is kept, layer by layer: of each first what is appended."""
        caches: dict[FlatForm, Kept] = {}
        states: list[Kept] = []
        layer = -1

        def append(form: FlatForm, reader: FlatOp | FlatScan, role: str) -> None:
            node = form.node
            assert isinstance(node, AppendNode)
            value = form.output
            name = role or form.value.name or node.name
            if form not in caches:
                place = layer, reader.path, node.axis, node.window
                caches[form] = Kept("cache", form, name, value.shape, value.dtype, *place)

        for node in self.step.nodes:
            if not isinstance(node, FlatOp | FlatScan) or node in self.chain or self.is_behind(node):
                continue
            roles = node.node.op.cached_inputs(node.node) if isinstance(node, FlatOp) else {}
            keeps = any(self.of_all(v) for i in roles if isinstance(v := node.inputs[i], Value))
            layer += keeps
            latent = self.latents.get(node) if isinstance(node, FlatOp) else None
            for form in latent.base if latent is not None else ():
                append(form, node, "")
            for i, value in enumerate(node.inputs):
                for appends in self.appended(value) if isinstance(value, Value) else ():
                    role = roles.get(i, (0, ""))[1]
                    layer += not role and appends not in caches
                    append(appends, node, role)
            if node.node.kept:
                layer += not keeps
                states += _states(node, layer)
        return sorted((*caches.values(), *states), key=lambda k: k.layer)

    @cached_property
    def without_rows(self) -> Kept | None:
        """A state whose first axis is not that of the rows: where they are of several lengths, those that have ended
        could not keep it."""
        batch = self.step.inputs[0].shape[0].value
        return next((k for k in self.kept if k.kind == "state" and batch not in [d.value for d in k.shape[:1]]), None)

    def tail(self) -> tuple[int, tuple[Value, ...]]:
        """Where the nodes of a step begin that look at no position but their own, up to its end, and the tensors
        [batch, new, …] that they read of those before: of each row one place can be taken from these, and the others
        left out.

        Further outputs that such nodes do not make may have their positions along another axis. Raises ArchError E0504
        where those of the first one are."""
        nodes, outputs = self.step.nodes, self.step.outputs
        first = len(nodes)
        while first and self._is_own(nodes[first - 1]):
            first -= 1
        while True:
            made = {v for n in nodes[first:] for v in n.outputs}
            ends = [v for n in nodes[first:] for v in n.inputs if isinstance(v, Value)] + [*outputs]
            found = tuple(dict.fromkeys(v for v in ends if v not in made and self.is_new(v)))
            if first == len(nodes) and not has(outputs[0].shape[1], self.of.new):
                raise refuse(f"the positions of {shown(outputs[0])}, the output, are not along its second axis")
            if first == len(nodes) or all(self.axis_of_new(v) == 1 for v in found):
                return first, found
            first += 1

    def _is_own(self, node: FlatNode) -> bool:
        """Whether a node looks at no position but its own."""
        if isinstance(node, FlatForm | FlatScan) or (isinstance(node, FlatOp) and node.node.kept):
            return False
        if self.makes_front(node):
            return False
        tensors = [v for v in node.inputs if isinstance(v, Value)]
        return not any(v in self.positional for v in tensors) and not any(map(self.of_all, (*tensors, *node.outputs)))


@lru_cache(maxsize=4)
def unroll_step(step: Stepped) -> FlatStep:
    """Return a step with each call written out; the last few are remembered."""
    graph, root, once = unroll_all(step.model)
    taken = tuple(v for v in graph.inputs if any(map(step.has, v.shape)))
    early = {v for n in once for v in n.outputs} | {*graph.inputs} - {*taken}
    nodes = live([n for n in graph.nodes if n not in once], graph.outputs)
    read = (v for n in nodes for v in n.inputs)
    crossing = tuple(dict.fromkeys(v for v in read if isinstance(v, Value) and v in early))
    first = tuple(v for v in graph.inputs if v not in taken)
    before = FlatGraph(first, live(graph.nodes, crossing), crossing)
    found = FlatGraph((*taken, *crossing), nodes, graph.outputs)
    for part in (before, found):
        verify.checked(part, violations, "unrolling a step")
    return FlatStep(step, before, found, {v: n for n in nodes for v in n.outputs}, root)


def decode_step(model: Model) -> tuple[FlatStep | None, str | None]:
    """Return a step of a model, unrolled; None, and why, where there is none."""
    try:
        return unroll_step(stepped(model)), None
    except ArchError as problem:
        if problem.diagnostics[0].code != "E0504":
            raise
        return None, problem.diagnostics[0].message


def resized(node: OpNode, sizes: Mapping[Symbol, Size]) -> OpNode:
    """Return an op with other sizes in place of symbols."""

    def number(n: Num) -> Num:
        for symbol, size in sizes.items():
            n = n.where(symbol.name, size)
        return n

    return renumbered(node, number, lambda v: replace(v, shape=tuple(map(number, v.shape))))


def _states(node: FlatOp | FlatScan, layer: int) -> list[Kept]:
    """What a recurrence hands on."""
    if isinstance(node, FlatOp):
        states = [(s.name, s.shape, s.dtype) for s in node.node.op.states(node.node)]
    else:
        carried = enumerate(node.body.inputs[: len(node.starts)])
        states = [(v.name or f"state_{i}", v.shape, v.dtype) for i, v in carried]
    return [Kept("state", node, *state, layer, node.path) for state in states]
