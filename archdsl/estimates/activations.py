"""What a training step keeps in memory besides weights, estimated from the graph: the tensors saved for the backward
pass, the temporaries of both passes and of the loss, and when the most is alive.

Ops run one by one, as PyTorch runs them, with the fused kernels of an accelerator: each op says what its gradients
need (`Primitive.saves`, and the sides of its contractions), a tensor that several ops keep counts once, and views share
the memory of what they view. Attention keeps queries, keys, values, its result and a number for each query; a norm its
input and two numbers a row. The loss is the cross-entropy of every output over its last axis;
`archdsl.estimates.loss` says what its kernels need.

Activation checkpointing is that of `archdsl compile --checkpoint`: `full` keeps the input of each layer (Chen et al.,
2016), `selective` also what products with weights give.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Literal

from pydantic import BaseModel, Field

from archdsl.estimates.dtypes import Dtype, width
from archdsl.estimates.flops import demand_sizes, sizes_at
from archdsl.estimates.head import head_of
from archdsl.estimates.kernels import Cut, Sized, is_view, viewed
from archdsl.estimates.loss import CHUNK, Loss, LossMemory, default_loss, of_logits
from archdsl.frozen import Frozen
from archdsl.ir.cost import Cost, elements, whole_at
from archdsl.ir.graph import CallNode, Input, Model, Node, OpNode, Value
from archdsl.ir.op import Saved
from archdsl.ir.paths import layers_of, starred
from archdsl.passes.checkpoint import Checkpoint, checkpointed
from archdsl.passes.flatten import (
    FlatGraph,
    FlatNode,
    FlatOp,
    FlatParam,
    FlatScan,
    FlatWeight,
    Unrolled,
    unroll,
    walk,
    weights_read,
)
from archdsl.passes.gradients import wanting

# --- the report -------------------------------------------------------------------------------------------------------


class Event(BaseModel):
    """A stretch of the step: one part of the model forwards or backwards, the objective, or the optimizer."""

    event: str
    """`forward blocks.3`, `objective`, `backward blocks.3`, `optimizer step`; the part is a path of weights, `model`
    for what stands in the model itself."""
    bytes: int
    """Alive at its end: everything, weights and the optimizer's states included."""
    peak: int
    """The most that is alive within it."""


class BlockActivations(BaseModel):
    """What the blocks of one path save, those of all layers together."""

    path: str
    """`*` stands for every index; `model` is the model itself."""
    layers: list[int] = []
    """Those that the first `*` of `path` stands for."""
    block: str
    count: int
    bytes: int
    """Saved by the blocks themselves and by all within; a tensor counts for the first that saves it."""


class StepMemory(BaseModel):
    """The memory of one step of training, as the graph tells it."""

    checkpoint: Checkpoint
    saved: int
    """Activations that the forward pass keeps for the backward pass: without weights, buffers and the model's
    inputs."""
    loss: Loss
    """Which kernel computes the cross-entropy."""
    objective: int
    """The most that the objective, logits included, adds to them, forwards and backwards."""
    inputs: int
    """The model's inputs and the targets."""
    optimizer: int
    """Temporaries of the optimizer's step."""
    peak: int
    """The most that is alive, weights, gradients and the optimizer's states included."""
    peak_at: str
    """The event in which that is."""
    by_block: list[BlockActivations]
    timeline: list[Event] = Field(exclude=True)


class Measured(BaseModel):
    """The memory of one step of training as PyTorch has it on a CPU: see `archdsl.run.measure`."""

    exact: bool
    """False where numbers decide how many rows there are (experts with a capacity), of which the most is taken, and for
    batch normalization, where a copy may not be counted."""
    saved: int
    """Storages that autograd keeps after the forward pass: without weights, buffers and the model's inputs."""
    forward: int
    """The most that is alive until the loss is known, weights and the optimizer's states included."""
    backward: int
    """The most that is alive in the backward pass."""
    peak: int
    kernels: list[str]
    """Those of the CPU that hold more than the fused ones, which the estimate means."""


def estimate(
    model: Model,
    *,
    batch: int = 1,
    seq: int | None = None,
    dtype: Dtype = "float32",
    checkpoint: Checkpoint = "none",
    loss: Loss | None = None,
    fixed: int = 0,
    gradients: int = 0,
    optimizer: int = 0,
) -> StepMemory:
    """Estimate one step. `fixed` are bytes that are there throughout (weights, buffers, optimizer state), `gradients`
    those of all weights, `optimizer` what the optimizer's step takes beside them. `loss` is the kernel of the
    cross-entropy, that of emitted code where it is None.

    Raises ArchError E0503 where the model has no sizes at these lengths, E0526 where its loss cannot be computed in
    chunks, and E0527 where it has no layers to compute again."""
    sizes = sizes_at(model, batch, seq)
    demand_sizes(model, sizes)
    graph, root = unroll(model)
    saving = Saving(graph, sizes, dtype)
    objective = cross_entropy(model, graph, root, saving, loss)
    walk = StepWalk(graph.nodes, graph.outputs, saving, checkpoint, recomputed_layers(model, checkpoint), objective)
    inputs = inputs_of(graph, saving)
    fixed += inputs
    walked = walk.run(lambda w: saving.bytes(Value(w.weight.shape, w.weight.dtype)))
    events = [Event(event=s.event, bytes=round(s.live) + fixed, peak=round(s.most) + fixed) for s in walked]
    after = fixed + gradients
    events.append(Event(event="optimizer step", bytes=after, peak=after + optimizer))
    top = max(events, key=lambda e: e.peak)
    return StepMemory(
        checkpoint=checkpoint,
        saved=round(sum(walk.kept.values())),
        loss=objective.kind,
        objective=round(walk.objective),
        inputs=inputs,
        optimizer=optimizer,
        peak=top.peak,
        peak_at=top.event,
        by_block=list(by_block(walk, root)),
        timeline=events,
    )


def inputs_of(graph: FlatGraph, saving: Saving) -> int:
    """Return the bytes of the model's inputs and of the targets, a whole number each."""
    labels = labels_of([v for v in graph.outputs if saving.depends(v)], saving)
    return round(sum(saving.bytes(v) for v in graph.inputs)) + labels * 8


def labels_of(outputs: Iterable[Value], saving: Saving) -> int:
    """Return how many targets there are of outputs."""
    return sum(whole_at(elements(v.shape[:-1]), saving.sizes) for v in outputs if v.rank > 1)


# --- what ops keep ----------------------------------------------------------------------------------------------------

Kept = dict[Value | tuple[object, ...], float]
"""Tensors that are kept, values of the graph that are no views or what an op makes for its own gradients; and bytes."""


class Saving(Sized):
    """What the gradients of ops need, in bytes of the part that a device has."""

    def __init__(
        self,
        graph: FlatGraph,
        sizes: Mapping[str, int],
        dtype: Dtype,
        *,
        wants: Mapping[Value, bool] | None = None,
        cut: Cut | None = None,
        scores: Callable[[FlatOp], str | None] | None = None,
    ) -> None:
        super().__init__(sizes, dtype, cut or Cut())
        self.scores = scores
        """Returns the type in which an attention keeps all its scores for the backward pass; None where it keeps
        none."""
        self.stored: dict[str, float] = {}
        """The bytes of such scores, by the path of the attention."""
        self.wants = wanting(graph) if wants is None else wants
        self.makers: dict[Value, FlatNode] = {v: n for n in walk(graph) for v in n.outputs}
        self.given = {*graph.inputs, *(v for v, n in self.makers.items() if isinstance(n, FlatParam))}
        """Inputs and weights: none of them is kept."""
        self.roots: dict[Value, Value] = {}
        self.known: dict[OpNode, tuple[Saved, Cost]] = {}
        """What an op saves and computes, which all its uses share."""

    def root(self, value: Value) -> Value:
        """The tensor whose memory a value shares."""
        if value not in self.roots:
            self.roots[value] = viewed(value, self.makers)
        return self.roots[value]

    def depends(self, value: Input) -> bool:
        """Whether a gradient of a tensor is wanted."""
        return isinstance(value, Value) and self.wants.get(value, False)

    def of(self, nodes: Iterable[FlatNode]) -> Kept:
        """Return what some nodes keep, each tensor once."""
        return {key: size for node in nodes for key, size in self.kept(node)}

    def entering(self, nodes: Sequence[FlatNode]) -> Kept:
        """Return the tensors that some nodes read from those before them and that want a gradient."""
        own = {v for n in nodes for v in n.outputs}
        read = (v for n in nodes for v in n.inputs if isinstance(v, Value) and v not in own and self.depends(v))
        return {root: self.bytes(root) for root in map(self.root, read) if root not in self.given}

    def products(self, nodes: Iterable[FlatNode]) -> Kept:
        """Return what products with weights give."""
        found: Kept = {}
        for node in nodes:
            if isinstance(node, FlatOp):
                sides = (side for c in self.asked(node)[1].contractions for side in (*c.left, *c.right))
                if any(isinstance(side, str) for side in sides):
                    found.update({self.root(v): self.bytes(v) for v in node.outputs if self.depends(v)})
                for inner in node.blocks.values():
                    found.update(self.with_rows(node, inner, self.products))
        return found

    def asked(self, node: FlatOp) -> tuple[Saved, Cost]:
        if node.node not in self.known:
            self.known[node.node] = node.node.op.saves(node.node), node.node.op.flops(node.node)
        return self.known[node.node]

    def kept(self, node: FlatNode) -> Iterator[tuple[Value | tuple[object, ...], float]]:
        """Yield what a node keeps."""
        if isinstance(node, FlatScan):
            length = whole_at(node.node.length.value, self.sizes)
            yield from (((id(node), key), size * length) for key, size in self.of(node.body.nodes).items())
        elif isinstance(node, FlatOp) and any(self.depends(v) for v in node.outputs):
            saved, cost = self.asked(node)
            contractions = cost.contractions if saved.sides else ()
            sides = [side for c in contractions for side in ((c.left, c.right), (c.right, c.left))]
            sides += [((one,), (other,)) for one in saved.factors for other in saved.factors if one != other]
            inputs = {*saved.inputs}
            for one, other in sides:
                if any(self.gradient(node, side) for side in one):
                    inputs |= {side for side in other if isinstance(side, int)}
            for value in [*(node.inputs[i] for i in sorted(inputs)), *(node.outputs[i] for i in saved.outputs)]:
                if isinstance(value, Value) and (root := self.root(value)) not in self.given:
                    yield root, self.bytes(root)
            kind = self.scores(node) if self.scores is not None and saved.scores else None
            scores = [
                (amount, dtype if dtype == "bool" else kind) for amount, dtype in saved.scores if kind is not None
            ]
            for i, (amount, dtype) in enumerate((*saved.own, *scores)):
                numbers = whole_at(amount.flops, self.sizes) / self.cut.share(node.outputs[0])
                size = numbers * width(dtype, self.dtype)
                yield (id(node), i), size
                if i == len(saved.own):  # the scores themselves
                    self.stored[node.path] = size
            for inner in node.blocks.values():
                yield from self.with_rows(node, inner, self.of).items()

    def exchanged(self, node: FlatNode, *, backward: bool = False) -> float:
        """Return the bytes of the tensors that devices gather for an op, or scatter after it."""
        found = self.cut.exchanged(node)
        return sum(
            self.elements(e.value) * self.width(e.value) / e.share * (e.backward if backward else 1) for e in found
        )

    def gradient(self, node: FlatOp, side: int | str) -> bool:
        """Whether one side of a contraction wants a gradient."""
        return node.weights[side].weight.trained if isinstance(side, str) else self.depends(node.inputs[side])

    def with_rows(self, node: FlatOp, inner: FlatGraph, ask: Callable[[Iterable[FlatNode]], Kept]) -> Kept:
        """Ask about a block that an op applies to rows, each going to `active` of its copies: the rows that a device
        is sent."""
        x = node.tensor(0)
        assert node.node.active is not None
        around, numbers = self.sizes, self.numbers
        rows = self.elements(x) // int(x.shape[-1]) * int(node.node.active)
        self.sizes, self.numbers = {**around, "rows": rows}, {}
        found: Kept = {(id(node), key): size / self.cut.rows(node) for key, size in ask(inner.nodes).items()}
        self.sizes, self.numbers = around, numbers
        return found


# --- one step ---------------------------------------------------------------------------------------------------------


def recomputed_layers(model: Model, checkpoint: Checkpoint, every: int = 1) -> Callable[[FlatNode], str]:
    """Return what says of a node in which layer the backward pass computes it again; "" of none. Of `every` so many
    layers the first is computed again.

    Raises ArchError E0527 where there are no layers."""
    again = set(checkpointed(model, checkpoint))
    paths = dict.fromkeys(call.path for node, call in calls(unroll(model)[1]) if node in again)
    layers = {path for i, path in enumerate(paths) if i % every == 0}

    def layer(node: FlatNode) -> str:
        path = path_of(node)
        while path and path not in layers:
            path = path.rpartition(".")[0]
        return path

    return layer


class Stretch(Frozen):
    """What is alive while one part of the model is computed forwards or backwards, or the objective; bytes."""

    phase: Literal["forward", "objective", "backward"]
    part: str
    """The path of a layer; `model` outside of layers, and "" for the objective."""
    live: float
    """At its end."""
    most: float

    @property
    def event(self) -> str:
        """Return its name in reports: `forward blocks.3`."""
        return f"{self.phase} {self.part}" if self.part else self.phase


class StepWalk:
    """One micro-batch of a step, in some nodes that follow each other: the tensors alive, op by op, forwards and
    backwards.

    `outputs` are what others read of it, of which gradients come in; `layer` says which nodes are computed again.
    `loss` follows the last nodes of a model, and may compute some of them itself."""

    def __init__(
        self,
        nodes: Sequence[FlatNode],
        outputs: Sequence[Value],
        saving: Saving,
        checkpoint: Checkpoint,
        layer: Callable[[FlatNode], str],
        loss: CrossEntropy | None = None,
    ) -> None:
        self.loss, self.saving, self.checkpoint = loss, saving, checkpoint
        if loss is not None:
            nodes, outputs = [n for n in nodes if n not in loss.nodes], loss.reads
        self.nodes, self.read = nodes, outputs
        self.outputs = [v for v in outputs if saving.depends(v)]
        self.objective = 0.0
        """The most that the loss adds to what is kept."""
        self.own = [dict(saving.kept(n)) for n in nodes]
        self.kept: Kept = {}
        """What the forward pass leaves."""
        self.until: dict[Value | tuple[object, ...], int] = {}
        """The first node that keeps it: the last whose gradients read it."""
        self.again: dict[int, Kept] = {}
        """By the last node of a layer, what its backward pass has computed again."""
        layers = [layer(n) for n in nodes]
        for name, numbers in groupby(range(len(nodes)), lambda i: layers[i]):
            self.keep([*numbers], again=bool(name))
        self.held: Kept = {}
        """What only the loss keeps."""
        for root in map(saving.root, self.outputs if loss is not None and loss.nodes else ()):
            if root not in self.kept and root not in saving.given:
                self.held[root] = self.kept[root] = saving.bytes(root)
                self.until[root] = len(nodes) - 1
        made = {v for n in nodes for v in n.outputs}
        read = dict.fromkeys(saving.root(v) for n in nodes for v in n.inputs if isinstance(v, Value) and v not in made)
        others = (v for v in read if v not in made and v not in saving.given and exists(saving.makers[v]))
        self.entering = sum(map(saving.bytes, others))
        """Bytes that other nodes hand on."""
        self.live = self.most = 0.0
        self.stretches: list[Stretch] = []

    def keep(self, numbers: list[int], again: bool) -> None:
        """Note what nodes that follow each other keep."""
        first: Kept = {}
        if again:
            nodes = [self.nodes[i] for i in numbers]
            products = self.saving.products(nodes) if self.checkpoint == "selective" else {}
            first = self.saving.entering(nodes) | products
        for key in first:
            self.until.setdefault(key, numbers[0])
        for i in numbers:
            for key in self.own[i]:
                self.until.setdefault(key, i)
        kept = {key: size for i in numbers for key, size in self.own[i].items() if key not in first}
        if again:
            self.again[numbers[-1]] = kept
        self.kept |= first if again else kept

    def run(self, gradient: Callable[[FlatWeight], float]) -> list[Stretch]:
        """Walk forwards and backwards. `gradient` returns the bytes of that of a weight."""
        self.forward(self.kept)
        made: Mapping[str, FlatWeight] = {}
        if self.loss is not None:
            needed, made = self.loss.memory, self.loss.weights
            kept = sum(self.kept.values())
            self.most = max(self.live + needed.forward, kept + needed.backward)
            self.objective = self.most - kept
            self.live = kept + sum(map(self.saving.bytes, self.outputs)) + sum(map(gradient, made.values()))
            self.close("objective")
        self.backward(gradient, made)
        return self.stretches

    def add(self, size: float) -> None:
        self.live += size
        self.most = max(self.most, self.live)

    def close(self, phase: Literal["forward", "objective", "backward"], part: str = "") -> None:
        """End a stretch, or more of the last one."""
        last = self.stretches[-1] if self.stretches else None
        if last is not None and (last.phase, last.part) == (phase, part):
            self.most = max(self.most, self.stretches.pop().most)
        self.stretches.append(Stretch(phase, part, self.live, self.most))
        self.most = self.live

    def forward(self, keep: Container[Value | tuple[object, ...]] = ()) -> None:
        """Each tensor from the op that makes it to the last that reads it, unless it is to be kept."""
        root = self.saving.root
        last = {root(v): i for i, n in enumerate(self.nodes) for v in (*n.inputs, *n.outputs) if isinstance(v, Value)}
        last |= {root(v): len(self.nodes) for v in self.read}
        alive: dict[Value, float] = {}
        self.add(self.entering)
        for i, node in enumerate(self.nodes):
            if isinstance(node, FlatParam) or is_view(node):
                continue
            made = {v: self.saving.bytes(v) for v in node.outputs if exists(node)}
            inside = {key: size for key, size in self.own[i].items() if key not in last}
            alive |= made
            self.add(sum(made.values()) + sum(inside.values()))
            self.most = max(self.most, self.live + self.saving.exchanged(node))
            over = {root(v) for v in (*node.inputs, *node.outputs) if isinstance(v, Value)}
            self.live -= sum(alive.pop(v, 0.0) for v in over if last[v] == i and v not in keep)
            self.live -= sum(size for key, size in inside.items() if key not in keep)
            self.close("forward", part_of(node))

    def backward(self, gradient: Callable[[FlatWeight], float], made: Mapping[str, FlatWeight]) -> None:
        """Each gradient from the op that gives it first to the op that made its tensor; those of weights stay. Of some
        weights they are made already."""
        alive = {key: size for key, size in self.kept.items() if key not in self.held}
        gradients = {self.saving.root(v): self.saving.bytes(v) for v in self.outputs}
        weights = {*made}
        ends: dict[int, list[Value | tuple[object, ...]]] = {}
        for key, i in self.until.items():
            ends.setdefault(i, []).append(key)
        self.live = sum(alive.values()) + sum(map(gradient, made.values()))
        self.add(sum(gradients.values()))
        for i, node in reversed([*enumerate(self.nodes)]):
            fresh = {key: size for key, size in self.again.get(i, {}).items() if key not in alive}
            alive |= fresh
            self.add(sum(fresh.values()))
            if not isinstance(node, FlatParam) and not is_view(node) and any(map(self.saving.depends, node.outputs)):
                self.gradients(i, gradients, weights, gradient)
            self.live -= sum(alive.pop(key, 0.0) for key in ends.get(i, ()))
            self.close("backward", part_of(node))

    def gradients(
        self, i: int, gradients: dict[Value, float], weights: set[str], gradient: Callable[[FlatWeight], float]
    ) -> None:
        """From those of an op's results make those of its inputs and weights."""
        node, saving = self.nodes[i], self.saving
        roots = dict.fromkeys(saving.root(v) for v in node.inputs if isinstance(v, Value) and saving.depends(v))
        added = max((gradients[r] for r in roots if r in gradients), default=0.0)
        fresh = {r: saving.bytes(r) for r in roots if r not in gradients and r not in saving.given}
        gradients |= fresh
        read = [maker for maker in map(saving.makers.get, roots) if isinstance(maker, FlatParam)]
        found = weights_read(FlatGraph((), (node, *read), ()))
        trained = {p: w for p, w in found.items() if w.weight.trained and p not in weights}
        again = [w for p, w in found.items() if w.weight.trained and p in weights]
        weights.update(trained)
        self.add(sum(fresh.values()) + sum(map(gradient, trained.values())))
        inside = isinstance(node, FlatScan) or (isinstance(node, FlatOp) and bool(node.blocks))
        added += max(self.own[i].values(), default=0.0) if inside else 0.0
        added += saving.exchanged(node, backward=True)
        added += 2 * sum(map(gradient, again))  # the second gradient of a weight, and the sum of both
        self.most = max(self.most, self.live + added)
        self.live -= sum(gradients.pop(v, 0.0) for v in node.outputs)


# --- the loss ---------------------------------------------------------------------------------------------------------


class CrossEntropy:
    """The loss of a step, of whole outputs."""

    nodes: Sequence[FlatNode] = ()
    """What the loss computes itself."""
    weights: Mapping[str, FlatWeight] = {}
    """Weights that these read, whose gradients are there when the loss has been differentiated."""

    def __init__(self, kind: Loss, outputs: Sequence[Value], saving: Saving) -> None:
        self.kind, self.saving = kind, saving
        self.outputs = [v for v in outputs if saving.depends(v)]
        self.reads: Sequence[Value] = outputs
        """What the loss reads of the nodes before it."""

    @property
    def memory(self) -> LossMemory:
        return of_logits(self.saving, self.outputs, self.kind)


class ChunkedCrossEntropy(CrossEntropy):
    """The loss that computes the logits of a chunk of positions, and their gradients, from hidden states."""

    def __init__(self, outputs: Sequence[Value], saving: Saving, nodes: Sequence[FlatNode], hidden: Value) -> None:
        super().__init__("chunked", outputs, saving)
        self.nodes, self.reads = nodes, [hidden]
        read = (saving.makers[v] for n in nodes for v in n.inputs if v in saving.makers)
        found = weights_read(FlatGraph((), (*nodes, *(n for n in read if isinstance(n, FlatParam))), ()))
        self.weights = {path: w for path, w in found.items() if w.weight.trained}

    @property
    def part(self) -> float:
        """What part of a device's positions a chunk has."""
        (logits,) = self.outputs
        positions = self.saving.elements(logits) / int(logits.shape[-1]) / self.saving.cut.share(logits)
        return min(1.0, CHUNK / (positions * self.saving.cut.vocabulary(logits)))

    @property
    def memory(self) -> LossMemory:
        saving, part = self.saving, self.part
        whole = StepWalk(
            self.nodes, self.outputs, saving, "none", lambda _: "", CrossEntropy("eager", self.outputs, saving)
        )
        stretches = whole.run(lambda _: 0.0)
        forward, backward = (
            part * (max(s.most for s in stretches if (s.phase == "backward") == back) - whole.entering)
            for back in (False, True)
        )
        hidden = sum(map(saving.bytes, self.reads))
        gradients = sum(
            saving.bytes(Value(w.weight.shape, w.weight.dtype)) / saving.cut.held(w) for w in self.weights.values()
        )
        added_up = gradients if part < 1 else 0.0
        most = max(added_up + forward, added_up + backward + gradients, gradients + hidden)
        return LossMemory(forward, hidden + most)


def cross_entropy(
    model: Model, graph: FlatGraph, root: Unrolled, saving: Saving, loss: Loss | None = None
) -> CrossEntropy:
    """Return the loss of a model, by default as emitted code computes it.

    Raises ArchError E0526 where it is to be computed in chunks and cannot be."""
    kind = loss or default_loss(model)
    if kind != "chunked":
        return CrossEntropy(kind, graph.outputs, saving)
    head = head_of(model)
    inside = {flat for node in head.nodes for flat in flat_nodes(root, node)}
    return ChunkedCrossEntropy(graph.outputs, saving, [n for n in graph.nodes if n in inside], root.values[head.hidden])


def flat_nodes(root: Unrolled, node: Node) -> Iterator[FlatNode]:
    """Yield what became of a node of a call, the nodes of the blocks that it calls included."""
    yield from root.nodes.get(node, ())
    for call in root.calls.get(node, ()) if isinstance(node, CallNode) else ():
        for inner in (*call.nodes, *call.calls):
            yield from flat_nodes(call, inner)


def by_block(walk: StepWalk, root: Unrolled) -> Iterator[BlockActivations]:
    """Yield a row for each block that saves something, in the order of the calls, those of all indices together."""
    bytes_of: dict[str, float] = defaultdict(float)
    for key, size in walk.kept.items():
        path = path_of(walk.nodes[walk.until[key]])
        for outer in {"", path, *(path[:i] for i, c in enumerate(path) if c == ".")}:
            bytes_of[outer] += size
    rows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path, call in {c.path: c for c in (root, *(c for _, c in calls(root)))}.items():
        if path in bytes_of:
            rows[starred(path) or "model", call.block.name].append(path)
    for (path, block), paths in rows.items():
        size = round(sum(bytes_of[p] for p in paths))
        yield BlockActivations(path=path, layers=layers_of(paths), block=block, count=len(paths), bytes=size)


def calls(root: Unrolled) -> Iterator[tuple[CallNode, Unrolled]]:
    """Yield every call within one, callers first."""
    for node, found in root.calls.items():
        for call in found:
            yield node, call
            yield from calls(call)


def exists(node: FlatNode) -> bool:
    """Whether there is a tensor for each result: not of a mask that is just causal."""
    return not isinstance(node, FlatOp) or node.node.op.needs_tensor(node.node.options, node.inputs)


def path_of(node: FlatNode) -> str:
    return node.weight.path if isinstance(node, FlatParam) else node.path


def part_of(node: FlatNode) -> str:
    """The part of the model that a node belongs to: a layer, or what stands in the model itself."""
    steps = path_of(node).split(".")
    return ".".join(steps[: 2 if len(steps) > 1 and steps[1].isdecimal() else 1]) or "model"
