"""One training step on a mesh: what each rank holds, and what ranks send to each other.

What is sharded over `tp` and `ep`, and where ranks communicate, is what `parallelize` of an emitted file does: both
read `archdsl.passes.partition`. With sequence parallelism what is not sharded so is sharded along the sequence
(Korthikanti et al., 2022). Layers are iterations of the model's loops, dealt out to `pp` stages, one
micro-batch forwards and one backwards in turn (1F1B; Narayanan et al., 2021). What passes from stage to stage is what
the graph passes. Replicas hold weights, gradients and optimizer state as ZeRO's stages say (Rajbhandari et al., 2020).

Bytes sent are those of rings: of a tensor of P bytes over n ranks, each sends 2 P (n - 1) / n for an all-reduce and
half of that for a reduce-scatter or an all-gather (Patarasuk and Yuan, 2009).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Literal

from pydantic import BaseModel

from archdsl.diagnostics import ArchError, error
from archdsl.estimates.activations import Saving, StepWalk, Stretch, cross_entropy, inputs_of, recomputed_layers
from archdsl.estimates.attention_kernels import StoredScores
from archdsl.estimates.dtypes import BYTES, Dtype, Low, width
from archdsl.estimates.flops import demand_sizes, sizes_at
from archdsl.estimates.hardware import Device
from archdsl.estimates.kernels import Cut, Exchange
from archdsl.estimates.loss import Loss
from archdsl.estimates.memory import Optimizer, Tensor, optimizer_states, step_temporaries
from archdsl.estimates.mesh import Mesh, divisors, nearest_divisors, one_of
from archdsl.frozen import Frozen
from archdsl.ir.dims import Poly, expr_text, free_names
from archdsl.ir.graph import Model, Value
from archdsl.ir.paths import layer_of, starred
from archdsl.ir.weights import shape_of
from archdsl.passes.checkpoint import Checkpoint
from archdsl.passes.flatten import (
    FlatGraph,
    FlatNode,
    FlatOp,
    FlatParam,
    FlatScan,
    FlatWeight,
    unroll,
    walk,
    weights_read,
)
from archdsl.passes.gradients import wanting
from archdsl.passes.partition import (
    REPLICATED,
    Partition,
    Placement,
    Redistribution,
    expert_placements,
    partition,
    sharded,
)

Zero = Literal[0, 1, 2, 3]
Attention = Literal["fused", "eager"]
Compute = Literal["float8", "float4", "int8"]
Kind = Literal["all-reduce", "reduce-scatter", "all-gather", "all-to-all", "send"]
Phase = Literal["forward", "backward", "step"]

# --- the report -------------------------------------------------------------------------------------------------------


class Collective(BaseModel):
    """What one device sends in a step, for one purpose."""

    collective: Kind
    axis: str
    """The axis of the mesh along which devices talk: `tp`, `dp`, …; `dp·cp` for replicas of a weight."""
    purpose: str
    phase: Phase
    """`step`: once a step, after the last backward."""
    devices: int
    """How many talk to each other."""
    calls: int
    payload: int
    """Bytes of all calls of a step: of the whole tensors, not of one device's part."""
    sent: int
    """Bytes that one device sends."""


class Stage(BaseModel):
    """One device of a stage of the pipeline. Bytes."""

    stage: int
    layers: int
    parameters: int
    """Trained numbers that the device holds before ZeRO cuts them."""
    weights: int
    gradients: int
    optimizer: int
    activations: int
    """Kept for the backward, of all micro-batches that are under way, without the loss."""
    working: int
    """Activations of the largest layer that is computed again."""
    gathered: int
    """Of weights that ZeRO 3 has put together, the most at a time: what is in no layer, two layers, and the gradients
    of one."""
    objective: int
    """The most that the loss, logits included, adds to activations."""
    inputs: int
    """The model's inputs and the targets."""
    in_flight: int
    """Micro-batches under way in the stage's first layers, at most."""
    total: int
    """The most that is alive at once: not all of these, and temporaries beside them."""
    peak_at: str
    """In which stretch of the step that is: `backward blocks.3`."""
    sent: int
    """To other devices, in a step."""


class Sharding(BaseModel):
    """A training step on a mesh. All figures are of one device."""

    mesh: Mesh
    devices: int
    zero: Zero
    micro_batches: int
    interleave: int
    """Pieces of the stack that each stage has."""
    sequence_parallel: bool
    checkpoint: Checkpoint
    loss: Loss
    """Which kernel computes the cross-entropy."""
    attention: Attention
    dtype: Dtype
    algorithm: Optimizer
    master_weights: bool
    gradient_dtype: Dtype
    batch: int
    """Sequences of a step, on all devices together."""
    micro_batch: int
    """Sequences that a device is given at a time."""
    seq: int
    placed: dict[str, int]
    """How many weights are cut by columns, by rows, by the vocabulary, by experts, and how many are on every device."""
    memory: Stage
    """The stage that holds most."""
    stages: list[Stage]
    communication: list[Collective]
    """Of the stage that sends most."""
    sent: dict[str, int]
    """Its bytes by collective."""
    bubble: float
    """The part of a step in which a device waits for the pipeline to fill and to empty: (p - 1) / (v m + p - 1)."""
    notes: list[str]


class StepPlan(Frozen):
    """How a step is run."""

    mesh: Mesh = field(default_factory=Mesh)
    zero: Zero = 0
    micro_batches: int = 1
    interleave: int = 1
    stages: tuple[int, ...] = ()
    """Layers of each piece of the stack; none: equal numbers, or one fewer where the embedding and the head are."""
    sequence_parallel: bool = False
    checkpoint: Checkpoint = "none"
    checkpoint_every: int = 1
    """Of so many layers the first is computed again."""
    loss: Loss | None = None
    """Which kernel computes the cross-entropy; None: as emitted code and `examples/train.py` do."""
    attention: Attention = "fused"
    device: Device | None = None
    """The device, where it is named: which kernels compute attention on it is known of some."""
    dtype: Dtype = "float32"
    weights: Low | None = None
    """In inference, the type of matrices; None: `dtype`."""
    cache: Low | None = None
    """The same of KV caches."""
    compute: Compute | None = None
    """What products with weights are computed in; None: `dtype`."""
    optimizer: Optimizer = "adamw"
    master_weights: bool = False
    gradient_dtype: Dtype | None = None
    """None: that of the weights."""


# --- what a rank has --------------------------------------------------------------------------------------------------


class Shares(Cut):
    """What a rank of a mesh has of a graph of a model."""

    def __init__(self, model: Model, graph: FlatGraph, mesh: Mesh, *, sequence_parallel: bool = False) -> None:
        self.graph, self.mesh, self.sequence_parallel = graph, mesh, sequence_parallel and mesh.tp > 1
        over_tp = mesh.replicas % mesh.ep > 0
        if mesh.tp > 1:
            self.partition = partition(model, slices=True, experts=not over_tp)
        else:
            self.partition = Partition(expert_placements(graph), ())
        self.sharded = sharded(graph, self.partition.placements)
        self.wants = wanting(graph)
        self.symbols = {s.name for s in model.symbols if s.name != "batch"}
        self.along: dict[int, tuple[object, bool]] = {}
        """Shapes with an axis that is sharded along the sequence."""
        self.experts_over_tp = over_tp or (self.sequence_parallel and not self.sharded.divided)
        """Whether the ranks of `tp` share the tokens of experts, not their hidden channels, and so their replicas."""

    @property
    def expert_replicas(self) -> int:
        """Return how many ranks hold the same experts, and different gradients of them."""
        return (self.mesh.replicas * (self.mesh.tp if self.experts_over_tp else 1)) // self.mesh.ep

    def depends(self, value: Value) -> bool:
        return self.wants.get(value, False)

    def in_sequence(self, value: Value) -> bool:
        key = id(value.shape)
        if key not in self.along:
            sizes = (d.value for d in value.shape if isinstance(d.value, Poly))
            found = any({s.name for s in size.symbols} & self.symbols for size in sizes)
            self.along[key] = value.shape, found
        return self.along[key][1]

    def share(self, value: Value) -> float:
        along = self.in_sequence(value)
        over_tp = value in self.sharded.axes or (self.sequence_parallel and along and self.depends(value))
        return (self.mesh.cp if along else 1) * (self.mesh.tp if over_tp else 1)

    def vocabulary(self, value: Value) -> int:
        sharded = any(r.kind == "gather" and r.value == value for r in self.sharded.redistributions)
        return self.mesh.tp if sharded and self.sequence_parallel else 1

    def partial(self) -> dict[str, FlatWeight]:
        """Return the replicated weights whose gradients are summed over `tp`."""
        if not self.sequence_parallel:
            return {p: w for p, (w, _) in self.sharded.partial.items() if w.weight.trained}
        read = (w for n in self.graph.nodes if isinstance(n, FlatOp) for w in n.weights.values())
        return {w.path: w for w in read if w.weight.trained and self.placement(w) == REPLICATED}

    def placement(self, weight: FlatWeight) -> Placement:
        return self.partition.placements.get(weight.path, REPLICATED)

    def held(self, weight: FlatWeight) -> float:
        return self.ranks(weight)

    def ranks(self, weight: FlatWeight) -> int:
        """Return over how many ranks a weight is sharded."""
        return math.prod(self.mesh.sizes[axis] for axis in self.placement(weight).axes)

    def work(self, node: FlatNode) -> int:
        over_tp = id(node) in self.sharded.worked
        if not over_tp and self.sequence_parallel:
            over_tp = any(self.in_sequence(v) and self.depends(v) for v in node.outputs)
        along = any(self.in_sequence(v) for v in (*node.outputs, *(v for v in node.inputs if isinstance(v, Value))))
        return (self.mesh.tp if over_tp else 1) * (self.mesh.cp if along else 1)

    def exchanged(self, node: FlatNode) -> Sequence[Exchange]:
        return self.exchanges.get(id(node), ())

    @cached_property
    def exchanges(self) -> dict[int, list[Exchange]]:
        """By the `id` of an op, what is gathered for it and scattered after it: along `tp` with sequence parallelism,
        where shards alone are kept (Korthikanti et al., 2022, section 4.2.2), and keys and values along `cp`."""
        found: dict[int, list[Exchange]] = defaultdict(list)
        entering: set[Value] = set()
        for r in self.sharded.redistributions:
            spread = self.sequence_parallel and self.in_sequence(r.value) and self.depends(r.value)
            if r.kind == "enter" and spread:
                entering.add(r.value)
            elif r.kind == "leave" and spread:
                found[id(r.node)].append(Exchange(r.value, self.mesh.cp, 1))
            elif r.kind == "keys" and self.mesh.cp > 1 and self.in_sequence(r.value):
                share = self.mesh.tp if r.value in self.sharded.axes else 1
                found[id(r.node)].append(Exchange(r.value, share, 2 if self.depends(r.value) else 1))
        for node in self.graph.nodes:
            if id(node) in self.sharded.worked | self.sharded.divided:
                for value in dict.fromkeys(v for v in node.inputs if isinstance(v, Value) and v in entering):
                    found[id(node)].append(Exchange(value, self.mesh.cp, 2))
        return found

    def rows(self, node: FlatOp) -> int:
        return self.mesh.cp * (self.mesh.tp if self.experts_over_tp else 1)

    @property
    def senders(self) -> int:
        """Return how many ranks send tokens to the experts of one."""
        return self.mesh.ep

    def collectives(
        self, r: Redistribution, dtype: Dtype, elements: Callable[[Value], int]
    ) -> Iterator[tuple[Kind, str, str, Phase, int, float]]:
        """Yield the collectives of one micro-batch: kind, axis, purpose, phase, ranks, and bytes of the tensor.
        `elements` returns how many numbers the whole tensor has."""
        mesh, value = self.mesh, r.value
        tp, cp, ep = mesh.tp, mesh.cp, mesh.ep
        along, depends = self.in_sequence(value), self.depends(value)
        spread = self.sequence_parallel and along
        payload = elements(value) * width(value.dtype, dtype) / (cp if along else 1)
        match r.kind:
            case "enter" if depends and spread:
                yield "all-gather", "tp", "into sharded matrices", "forward", tp, payload
                # Kept in shards, it is gathered once more for the gradients of the weights.
                yield "all-gather", "tp", "into sharded matrices", "backward", tp, payload
                yield "reduce-scatter", "tp", "gradients from there", "backward", tp, payload
            case "enter" | "reenter" if depends and not spread:
                yield "all-reduce", "tp", "gradients from sharded matrices", "backward", tp, payload
            case "leave" if spread:
                yield "reduce-scatter", "tp", "sums out of sharded matrices", "forward", tp, payload
                if depends:
                    yield "all-gather", "tp", "gradients into them", "backward", tp, payload
            case "leave":
                yield "all-reduce", "tp", "sums out of sharded matrices", "forward", tp, payload
            case "gather" if spread:
                # Logits stay sharded: their maximum, the sum of their exponentials and that of the target, in float32.
                tokens = elements(value) / int(value.shape[-1]) / cp
                yield "all-reduce", "tp", "the loss over a sharded vocabulary", "forward", tp, 3 * 4 * tokens
            case "gather":
                vocabulary = int(value.shape[-1])
                padded = payload * (-(-vocabulary // tp) * tp) / vocabulary  # shards of unequal sizes
                yield "all-gather", "tp", "logits", "forward", tp, padded
            case "keys":
                payload *= (cp if along else 1) / (tp if value in self.sharded.axes else 1)
                yield "all-gather", "cp", "keys and values", "forward", cp, payload
                yield "all-gather", "cp", "keys and values", "backward", cp, payload
                yield "reduce-scatter", "cp", "gradients of keys and values", "backward", cp, payload
            case "experts":
                assert isinstance(r.node, FlatOp)
                assert r.node.node.active is not None
                over_tp = self.experts_over_tp
                rows = payload / (tp if over_tp else 1) * int(r.node.node.active)
                for phase in ("forward", "backward"):
                    yield "all-to-all", "ep", "tokens to experts and back", phase, ep, 2 * rows
                    if over_tp and not spread:
                        yield "all-gather", "tp", "outputs of experts to each shard of the tokens", phase, tp, payload


# --- stages of the pipeline -------------------------------------------------------------------------------------------


@dataclass
class StackChunk:
    """A piece of the stack, and what stands before and behind all layers."""

    layers: list[list[FlatNode]] = field(default_factory=list)
    head: list[FlatNode] = field(default_factory=list)
    tail: list[FlatNode] = field(default_factory=list)

    @property
    def nodes(self) -> list[FlatNode]:
        """In the order in which they are computed."""
        return [*self.head, *(n for layer in self.layers for n in layer), *self.tail]


def layer(node: FlatNode) -> tuple[str, int] | None:
    """Return the list and the number of the layer that a node is of."""
    stack, number, _ = layer_of(node.weight.path if isinstance(node, FlatParam) else node.path)
    return (stack, number) if stack else None


def chunks(model: Model, graph: FlatGraph, count: int, stages: tuple[int, ...] = ()) -> list[StackChunk]:
    """The graph in so many pieces, with the numbers of layers that are given.

    Raises ArchError E0516 where there are no layers, and E0515 where they cannot be dealt out so."""
    head: list[FlatNode] = []
    layers: list[list[FlatNode]] = []
    current = None
    for node in graph.nodes:
        if layer(node) not in (None, current):
            current = layer(node)
            layers.append([])
        (layers[-1] if layers else head).append(node)
    tail: list[FlatNode] = []
    while layers and layer(layers[-1][-1]) is None:
        tail.insert(0, layers[-1].pop())
    if count > 1 and len(layers) < 2:
        raise error(
            "E0516",
            f"`{model.name}` has no stack of layers that could be dealt out to stages of a pipeline",
            help="layers with weights of their own are iterations of a list: `blocks: 12 * layer`; leave `pp` out",
        )
    numbers = stages or _dealt_out(len(layers), count)
    if len(numbers) != count or sum(numbers) != len(layers) or (layers and min(numbers) < 1):
        said = ", ".join(map(str, numbers))
        raise error(
            "E0515",
            f"{len(layers):,} layers cannot be dealt out to {count:,} pieces (pp, times those of each stage)"
            + (f" as {said}" if stages else " evenly"),
            help=f"pieces that can be: {nearest_divisors(len(layers), count)}; or "
            f"`--stages {_uneven(len(layers), count)}`",
        )
    ends = [*accumulate(numbers, initial=0)]
    found_chunks = [StackChunk(layers[i:j]) for i, j in pairwise(ends)]
    found_chunks[0].head, found_chunks[-1].tail = head, tail
    return found_chunks


def _dealt_out(layers: int, count: int) -> tuple[int, ...]:
    """Return how many layers each piece has: equal numbers, or one fewer for the first and the last, which have the
    embedding and the head (Dubey et al., 2024, section 3.3.2); none where neither can be."""
    if layers % count == 0:
        return (layers // count,) * count
    each = (layers + 2) // count
    even = count > 1 and (layers + 2) % count == 0 and each > 1
    return (each - 1, *(each,) * (count - 2), each - 1) if even else ()


def _uneven(layers: int, count: int) -> str:
    """Return numbers of layers that differ by one at most, the smaller ones last."""
    each, more = divmod(layers, count)
    return ",".join(str(each + (i < more)) for i in range(count))


def under_way(stage: int, mesh: Mesh, interleave: int, micro_batches: int) -> list[int]:
    """Of each of a stage's pieces, how many micro-batches are kept at most when the first backward begins."""
    if interleave == 1:
        return [min(mesh.pp - stage, micro_batches)]
    # In iterations of `pp` micro-batches a piece (Narayanan et al., 2021, section 2.2).
    first = min((mesh.pp - stage - 1) * 2 + (interleave - 1) * mesh.pp + 1, micro_batches * interleave)
    found = [0] * interleave
    for i in range(first):
        found[i // mesh.pp % interleave] += 1
    return found


# --- the estimate -----------------------------------------------------------------------------------------------------


def shard(model: Model, plan: StepPlan, *, batch: int | None = None, seq: int | None = None) -> Sharding:
    """Estimate one training step on a mesh. `batch` counts the sequences of a step on all devices together (one for
    each micro-batch of each data-parallel device where it is not given); `seq` is 2,048 or the context, if less.

    Raises ArchError E0503 where the model has no sizes at this length, E0515 where something does not divide, and E0516
    where the model cannot be cut in this way."""
    return Step(model, plan, batch, seq).sharding


class Step:
    """A training step on a mesh."""

    def __init__(self, model: Model, plan: StepPlan, batch: int | None, seq: int | None) -> None:
        self.model, self.plan, self.mesh = model, plan, plan.mesh
        parts = self.mesh.dp * plan.micro_batches
        self.batch = parts if batch is None else batch
        if self.batch % parts:
            raise error(
                "E0515",
                f"{self.batch:,} sequences are no whole number for each of {plan.micro_batches:,} micro-batches on "
                f"{self.mesh.dp:,} devices (dp)",
                help=f"`--batch {-(-self.batch // parts) * parts}`, or dp · micro-batches of "
                f"{nearest_divisors(self.batch, parts)}",
            )
        self.sizes = sizes_at(model, self.batch // parts, seq)
        self.seq = next((n for name, n in self.sizes.items() if name != "batch"), seq or 1)
        demand_sizes(model, self.sizes)
        self.graph, root = unroll(model)
        self.shares = Shares(model, self.graph, self.mesh, sequence_parallel=plan.sequence_parallel)
        self.experts = [
            (n.path, int(n.node.copies)) for n in walk(self.graph) if isinstance(n, FlatOp) and n.node.copies
        ]
        self.demand()
        self.chunks = chunks(model, self.graph, self.mesh.pp * plan.interleave, plan.stages)
        self.again = recomputed_layers(model, plan.checkpoint, plan.checkpoint_every)
        """In which layer the backward computes a node again."""
        self.stored = StoredScores(plan.device, self.sizes, plan.dtype, trains=True)
        eager = plan.attention == "eager"
        self.saving = Saving(
            self.graph,
            self.sizes,
            plan.dtype,
            wants=self.shares.wants,
            cut=self.shares,
            scores=(lambda node: node.tensor(2).dtype) if eager else self.stored,
        )
        self.elements, self.makers = self.saving.elements, self.saving.makers
        self.home = {v: i for i, c in enumerate(self.chunks) for n in c.nodes for v in n.outputs}
        """The piece that makes each tensor."""
        self.crossings: dict[int, list[Value]] = {}
        self.loss = cross_entropy(model, self.graph, root, self.saving, plan.loss)
        self.walks = [
            StepWalk(
                c.nodes,
                self.passed(i),
                self.saving,
                plan.checkpoint,
                self.again,
                self.loss if c is self.chunks[-1] else None,
            )
            for i, c in enumerate(self.chunks)
        ]
        self.read: dict[int, dict[str, FlatWeight]] = {}

    # --- what is refused ---

    def demand(self) -> None:
        mesh, plan = self.mesh, self.plan
        problems = []
        for axis, size, about in self.indivisible():
            wanted = getattr(mesh, axis)
            fine = [d for d in divisors(size) if d <= max(2 * wanted, 8)]
            problems.append(
                error(
                    "E0515",
                    f"{axis} = {wanted} does not divide {about}",
                    help=f"{axis} = {one_of(fine)}, or a size that is a multiple of {wanted}: "
                    f"{-(-size // wanted) * wanted:,}",
                )
            )
        along = mesh.cp * (mesh.tp if self.shares.sequence_parallel else 1)
        if along > 1 and self.seq % along:
            problems.append(
                error(
                    "E0515",
                    f"a sequence length of {self.seq:,} cannot be sharded into {along:,} equal parts",
                    help=f"`--seq {-(-self.seq // along) * along}`",
                )
            )
        if plan.interleave > 1 and plan.micro_batches % mesh.pp:
            up = -(-plan.micro_batches // mesh.pp) * mesh.pp
            problems.append(
                error(
                    "E0515",
                    f"with interleaved stages pp = {mesh.pp} divides the micro-batches, and {plan.micro_batches} were "
                    f"given",
                    help=f"`--micro-batches {up}`",
                )
            )
        if problems:
            raise ArchError([d for problem in problems for d in problem.diagnostics])
        if mesh.tp > 1 and not self.shares.sharded.worked:
            raise error(
                "E0516",
                f"`{self.model.name}` has no weights that could be sharded over tp = {mesh.tp} devices",
                help="tensor parallelism shards pairs of linear layers with only element-wise ops or heads between",
            )
        if mesh.ep > 1 and not self.experts:
            raise error("E0516", f"`{self.model.name}` has no experts that could be spread", help="leave `ep` out")
        for option, there, axes in (
            ("zero", plan.zero == 0 or mesh.replicas > 1 or (self.experts and self.shares.expert_replicas > 1), "dp"),
            ("interleave", plan.interleave == 1 or mesh.pp > 1, "pp"),
            ("sequence-parallel", not plan.sequence_parallel or mesh.tp > 1, "tp"),
        ):
            if not there:
                text = f"`--{option}` has no effect: the mesh has one rank along `{axes}`"
                raise error("E0516", text, help=f"leave it out, or add `{axes}=2` to the mesh")
        if along > 1:
            self.demand_positions()

    def indivisible(self) -> Iterator[tuple[Literal["tp", "ep"], int, str]]:
        """Yield what an axis does not divide, each size once: the axis, the size, and what it is of."""
        met: set[int] = set()
        for group, size in self.shares.partition.sizes:
            if int(size) % self.mesh.tp and int(size) not in met:
                met.add(int(size))
                said = (
                    f"{expr_text(size.expr)} = {int(size):,}" if free_names(size.expr) else f"a size of {int(size):,}"
                )
                yield "tp", int(size), f"{said} at `{group}`" if group else said
        for path, copies in {copies: (path, copies) for path, copies in reversed(self.experts)}.values():
            if copies % self.mesh.ep:
                yield "ep", copies, f"{copies:,} experts at `{path}`"

    def demand_positions(self) -> None:
        """Refuse a cut along the sequence where anything but attention mixes positions."""
        for node in walk(self.graph):
            if isinstance(node, FlatScan):
                if any(self.shares.depends(v) for v in node.sequences):
                    raise self.mixes(node.path, "a recurrence")
            elif isinstance(node, FlatOp) and any(self.shares.depends(v) for v in node.outputs):
                if node.node.op.states(node.node):
                    raise self.mixes(node.path, f"`{node.node.op.name}`")
                self.demand_own_positions(node)

    def demand_own_positions(self, node: FlatOp) -> None:
        op = node.node.op
        kept = op.cached_inputs(node.node)
        whole = self.mesh.cp == 1 and id(node) in self.shares.sharded.worked
        if whole or op.regroups(node.node) is not None:
            return
        for i, (value, reads) in enumerate(zip(node.inputs, op.reads(node.node), strict=True)):
            if not isinstance(value, Value) or not self.shares.depends(value) or i in kept:
                continue
            for size, at in zip(value.shape, reads, strict=True):
                along = isinstance(size.value, Poly) and {s.name for s in size.value.symbols} & self.shares.symbols
                if along and (at is None or at.offset or at.also):
                    raise self.mixes(node.path, f"`{op.name}`")

    def mixes(self, path: str, what: str) -> ArchError:
        where = f" at `{path}`" if path else ""
        option = "cp" if self.mesh.cp > 1 else "`--sequence-parallel`"
        return error(
            "E0516",
            f"{what}{where} reads other positions than its own, so a sequence cannot be sharded there",
            help=f"leave {option} out: positions are only exchanged where attention mixes them",
        )

    # --- the report ---

    @cached_property
    def sharding(self) -> Sharding:
        """The report."""
        stages, talks = [], []
        for stage in range(self.mesh.pp):
            talk = list(self.talk(stage))
            talks.append(talk)
            stages.append(self.stage(stage, sum(c.sent for c in talk)))
        busiest = max(range(len(stages)), key=lambda s: stages[s].sent)
        sent: dict[str, int] = {}
        for c in talks[busiest]:
            sent[c.collective] = sent.get(c.collective, 0) + c.sent
        kinds: dict[str, int] = dict.fromkeys(("column", "row", "vocab", "expert", "replicated"), 0)
        for placement in self.shares.partition.placements.values():
            kinds[placement.kind] += 1
        plan, waiting = self.plan, self.mesh.pp - 1
        return Sharding(
            mesh=self.mesh,
            devices=self.mesh.devices,
            zero=plan.zero,
            micro_batches=plan.micro_batches,
            interleave=plan.interleave,
            sequence_parallel=plan.sequence_parallel,
            checkpoint=plan.checkpoint,
            loss=self.loss.kind,
            attention=plan.attention,
            dtype=plan.dtype,
            algorithm=plan.optimizer,
            master_weights=plan.master_weights,
            gradient_dtype=plan.gradient_dtype or plan.dtype,
            batch=self.batch,
            micro_batch=self.batch // (self.mesh.dp * plan.micro_batches),
            seq=self.seq,
            placed=kinds,
            memory=max(stages, key=lambda s: s.total),
            stages=stages,
            communication=talks[busiest],
            sent=sent,
            bubble=waiting / (plan.interleave * plan.micro_batches + waiting),
            notes=list(self.notes()),
        )

    def notes(self) -> Iterator[str]:
        if self.experts:
            yield "experts are taken to be chosen equally often"
        if whole := self.whole():
            yield f"on every rank of tp: {', '.join(f'{path} ({count:,} parameters)' for path, count in whole.items())}"
        ways = {
            "sequence parallel": self.shares.sequence_parallel,
            "biases of heads over tp": self.shares.partition.sliced,
            "context parallel (cp)": self.mesh.cp > 1,
            "pipeline parallel (pp)": self.mesh.pp > 1,
            "experts over the ranks of tp (ep does not divide dp)": self.mesh.dp % self.mesh.ep > 0,
        }
        if any(ways.values()):
            yield f"an estimate alone, not emitted by `--with parallel`: {', '.join(w for w, x in ways.items() if x)}"

    def whole(self) -> dict[str, int]:
        """Return the modules whose matrices every rank of `tp` holds whole, and how many numbers these have."""
        found: dict[str, int] = defaultdict(int)
        for stage in range(self.mesh.pp if self.mesh.tp > 1 else 0):
            for path, weight in self.weights_of(stage).items():
                shape = shape_of(weight.weight)
                placement = self.shares.placement(weight)
                shared = "tp" in placement.axes or (placement.kind == "expert" and self.shares.experts_over_tp)
                if len(shape) > 1 and not shared:
                    module = path.split(".")[:-1]
                    found[starred(".".join(module[:-1] or module))] += math.prod(shape)
        return found

    def of_stage(self, stage: int) -> list[StackChunk]:
        """The pieces of a stage, those that come first first."""
        return self.chunks[stage :: self.mesh.pp]

    def weights_of(self, stage: int) -> dict[str, FlatWeight]:
        """Every weight that a stage reads, by its path."""
        if stage not in self.read:
            nodes = tuple(n for chunk in self.of_stage(stage) for n in chunk.nodes)
            self.read[stage] = weights_read(FlatGraph((), nodes, ()))
        return self.read[stage]

    def tensors(self, weights: Iterable[FlatWeight]) -> Iterator[tuple[Tensor, bool]]:
        """Yield the shards of weights that the first rank holds, and whether they are of experts."""
        for weight in weights:
            if all(d.static for d in weight.weight.shape):
                placement = self.shares.placement(weight)
                shape = placement.shard([int(d) for d in weight.weight.shape], self.mesh.sizes)
                yield Tensor(weight.weight, 1, shape), placement.kind == "expert"

    def replicas(self, expert: bool) -> int:
        """Return how many ranks hold the same shard of a weight, and different gradients of it."""
        return self.shares.expert_replicas if expert else self.mesh.replicas

    def stage(self, stage: int, sent: int) -> Stage:
        plan, mesh = self.plan, self.mesh
        tensors = list(self.tensors(self.weights_of(stage).values()))
        weights = gradients = optimizer = numbers = 0
        kept: list[Tensor] = []
        for expert in (False, True):
            own, copies = [t for t, e in tensors if e == expert], self.replicas(expert)
            numbers += sum(t.numbers for t in own if t.weight.trained)
            if plan.zero == 3:
                own = [fully_sharded(t, copies) if t.weight.trained else t for t in own]
            kept += own
            trained = sum(t.numbers for t in own if t.weight.trained)
            states = sum(
                s.bytes for s in optimizer_states(self.model, own, plan.dtype, plan.optimizer, plan.master_weights)
            )
            weights += trained * BYTES[plan.dtype]
            weights += sum(t.numbers * width(t.weight.dtype, plan.dtype) for t in own if not t.weight.trained)
            gradients += _part(trained * BYTES[plan.gradient_dtype or plan.dtype], copies if plan.zero == 2 else 1)
            optimizer += _part(states, copies if plan.zero in (1, 2) else 1)
        counts = under_way(stage, mesh, plan.interleave, plan.micro_batches)
        pieces = self.of_stage(stage)
        walks = self.walks[stage :: mesh.pp]
        saved = [sum(w.kept.values()) for w in walks]
        activations = sum(n * size for n, size in zip(counts, saved, strict=True))
        gathered = self.gathered(stage)
        inputs = inputs_of(self.graph, self.saving)
        # Of several micro-batches the gradients are there from the first one on.
        fixed = weights + optimizer + inputs + (gradients if plan.micro_batches > 1 else 0)
        step = fixed if plan.micro_batches > 1 else fixed + gradients
        working = step_temporaries(kept, plan.dtype, plan.optimizer, plan.master_weights)
        peaks = [
            (stretch.event, fixed + gathered.during(stretch) + round(activations - size + stretch.most))
            for piece, size in zip(reversed(walks), reversed(saved), strict=True)
            for stretch in self.stretches(piece)
        ]
        peaks += [(peaks[-1][0], step + gathered.at_end), ("optimizer step", step + working)]
        peak_at, total = max(peaks, key=lambda p: p[1])
        return Stage(
            stage=stage,
            layers=sum(len(c.layers) for c in pieces),
            parameters=numbers,
            weights=weights,
            gradients=gradients,
            optimizer=optimizer,
            activations=round(activations),
            working=round(max((sum(a.values()) for w in walks for a in w.again.values()), default=0)),
            gathered=gathered.most,
            objective=round(walks[-1].objective),
            inputs=inputs,
            in_flight=counts[0],
            total=total,
            peak_at=peak_at,
            sent=sent,
        )

    def stretches(self, piece: StepWalk) -> list[Stretch]:
        """What is alive in a micro-batch of a piece: gradients of weights come in the backward of the only one."""
        plan = self.plan
        grain = BYTES[plan.gradient_dtype or plan.dtype] if plan.micro_batches == 1 else 0

        def gradient(weight: FlatWeight) -> float:
            ((tensor, expert),) = self.tensors([weight])
            copies = self.replicas(expert) if plan.zero >= 2 else 1
            apart = plan.zero == 3 and copies > 1 and not layer_of(weight.path)[0]
            return tensor.numbers * (BYTES[plan.dtype] if apart else grain / copies)

        return piece.run(gradient)

    # --- communication ---

    def talk(self, stage: int) -> Iterator[Collective]:
        """What one device of a stage sends in a step, purpose by purpose."""
        found: dict[tuple[Kind, str, str, Phase, int], list[float]] = {}

        def add(kind: Kind, axis: str, purpose: str, phase: Phase, devices: int, payload: float, calls: int) -> None:
            if devices > 1 and payload and calls:
                so_far = found.setdefault((kind, axis, purpose, phase, devices), [0.0, 0.0])
                so_far[0] += calls
                so_far[1] += calls * payload

        nodes = {id(n) for c in self.of_stage(stage) for n in c.nodes}
        for redistribution in self.shares.sharded.redistributions:
            if id(redistribution.node) in nodes:
                for kind, axis, purpose, phase, devices, payload in self.shares.collectives(
                    redistribution, self.plan.dtype, self.elements
                ):
                    add(kind, axis, purpose, phase, devices, payload, self.plan.micro_batches)
        for kind, axis, purpose, phase, devices, payload, calls in (*self.replicate(stage), *self.pass_on(stage)):
            add(kind, axis, purpose, phase, devices, payload, calls)
        for (kind, axis, purpose, phase, devices), (said, whole) in found.items():
            yield Collective(
                collective=kind,
                axis=axis,
                purpose=purpose,
                phase=phase,
                devices=devices,
                calls=int(said),
                payload=round(whole),
                sent=round(whole * sent_share(kind, devices)),
            )

    def replicate(self, stage: int) -> Iterator[tuple[Kind, str, str, Phase, int, float, int]]:
        """Gradients and weights of replicas, as ZeRO cuts them; whole weights within what tensor parallelism cuts; and
        weights that several stages have. Weights in no layer stay gathered from the forward to the backward. How
        weights and gradients are put into buckets is not counted: they are one call."""
        plan, mesh, m = self.plan, self.mesh, self.plan.micro_batches
        grain = BYTES[plan.gradient_dtype or plan.dtype]
        own = self.weights_of(stage)
        for expert in (False, True):
            copies = self.replicas(expert)

            def size(weights: Iterable[FlatWeight], expert: bool = expert, copies: int = copies) -> int:
                """Return how many numbers ranks exchange of these weights, with the padding of uneven shards."""
                trained = [t for t, e in self.tensors(weights) if e == expert and t.weight.trained]
                return sum(fully_sharded(t, copies).numbers * copies if plan.zero == 3 else t.numbers for t in trained)

            numbers, in_layers = size(own.values()), size(w for path, w in own.items() if layer_of(path)[0])
            axis = "edp" if expert else "dp·cp" if mesh.cp > 1 else "dp"
            of = " of experts" if expert else ""
            gradients, weights = float(numbers * grain), float(numbers * BYTES[plan.dtype])
            if plan.zero == 0:
                yield "all-reduce", axis, f"gradients{of}", "step", copies, gradients, 1
                continue
            each = 1 if plan.zero == 1 else m
            yield "reduce-scatter", axis, f"gradients{of}", "step" if each == 1 else "backward", copies, gradients, each
            if plan.zero < 3:
                yield "all-gather", axis, f"weights{of}", "step", copies, weights, 1
            else:
                yield "all-gather", axis, f"weights{of}", "forward", copies, weights, m
                again = float(in_layers * BYTES[plan.dtype])
                yield "all-gather", axis, f"weights{of}", "backward", copies, again, m
        partial = [w for path, w in self.shares.partial().items() if path in own]
        of = "gradients of replicated weights on shards"
        if self.shares.sequence_parallel:
            yield "all-reduce", "tp", of, "step", mesh.tp, sum(t.numbers for t, _ in self.tensors(partial)) * grain, 1
        else:
            for tensor, _ in self.tensors(partial):
                yield "all-reduce", "tp", of, "backward", mesh.tp, tensor.numbers * grain, m
        several: dict[int, int] = defaultdict(int)
        others = [self.weights_of(s).keys() for s in range(mesh.pp) if s != stage] if mesh.pp > 1 else []
        for path, weight in own.items():
            holders = 1 + sum(path in other for other in others)
            if holders > 1 and weight.weight.trained:
                several[holders] += sum(t.numbers for t, _ in self.tensors([weight]))
        for holders, numbers in several.items():
            yield "all-reduce", "pp", "gradients of weights that stages share", "step", holders, numbers * grain, 1

    def pass_on(self, stage: int) -> Iterator[tuple[Kind, str, str, Phase, int, float, int]]:
        """What goes from a stage's pieces to the next ones, and gradients to those before."""
        last = len(self.chunks) - 1
        m, pp = self.plan.micro_batches, self.mesh.pp
        for i in range(stage, len(self.chunks), pp):
            if i < last:
                yield "send", "pp", "activations to the next stage", "forward", pp, self.crossing(i), m
            if i > 0:
                yield "send", "pp", "gradients to the stage before", "backward", pp, self.crossing(i - 1), m

    def crossing(self, boundary: int) -> float:
        """Bytes, of what a device has, of the tensors that pass from a piece of the stack to those after it. What no
        weight has touched each stage makes itself."""
        read = (v for v in self.passed(boundary) if not isinstance(self.makers[v], FlatParam))
        return sum(self.saving.bytes(v) for v in read)

    def passed(self, boundary: int) -> list[Value]:
        """The tensors that pieces after one read of it and of those before; the model's outputs of the last one."""
        if boundary not in self.crossings:
            later = (n for c in self.chunks[boundary + 1 :] for n in c.nodes)
            read = dict.fromkeys(
                v
                for n in later
                for v in n.inputs
                if isinstance(v, Value) and self.shares.depends(v) and self.home.get(v, boundary + 1) <= boundary
            )
            self.crossings[boundary] = [*read] if boundary < len(self.chunks) - 1 else [*self.graph.outputs]
        return self.crossings[boundary]

    # --- memory ---

    def gathered(self, stage: int) -> Gathered:
        """Return what ZeRO 3 puts together on a stage."""
        layers: dict[tuple[str, int], int] = defaultdict(int)
        rest = 0
        for path, weight in self.weights_of(stage).items() if self.plan.zero == 3 else ():
            stack, number, _ = layer_of(path)
            for tensor, expert in self.tensors([weight]):
                if weight.weight.trained and self.replicas(expert) > 1:
                    if stack:
                        layers[stack, number] += tensor.numbers
                    else:
                        rest += tensor.numbers
        dtype = self.plan.dtype
        largest = max(layers.values(), default=0)
        return Gathered(rest, largest, min(2, len(layers)), BYTES[dtype], BYTES[self.plan.gradient_dtype or dtype])


class Gathered(Frozen):
    """The weights that ZeRO 3 has put together, as `fully_shard` of PyTorch does it for each layer and then for the
    model: a layer, while the next one is gathered, and from the beginning to the end what is in no layer, whose
    gradients are reduced last."""

    rest: int
    """Numbers in the weights of no layer."""
    layer: int
    """Numbers in those of the largest layer."""
    layers: int
    """How many of them there are at a time."""
    weight: int
    """Bytes of a number."""
    gradient: int
    """Bytes of a number of the gradients that are reduced, which are a copy."""

    def during(self, stretch: Stretch) -> int:
        """Return the bytes in a stretch, without the gradients of `rest`."""
        if stretch.phase == "objective":
            return self.weight * self.rest
        if not layer_of(stretch.part)[0]:
            return self.weight * (self.rest + self.layer)
        reduced = (self.weight + self.gradient) * self.layer if stretch.phase == "backward" else 0
        return self.weight * (self.rest + self.layers * self.layer) + reduced

    @property
    def at_end(self) -> int:
        """Return the bytes when the gradients of `rest` are reduced, and nothing else is left to do."""
        return (self.weight + self.gradient) * self.rest

    @property
    def most(self) -> int:
        """Return the most that there is at a time, gradients of layers included."""
        layers = self.layers * self.weight + self.weight + self.gradient
        return max(self.weight * self.rest + layers * self.layer, self.at_end)


def sent_share(kind: Kind, devices: int) -> float:
    """What one device sends of a tensor, by the collective (see above)."""
    if kind == "send":
        return 1.0
    return (2 if kind == "all-reduce" else 1) * (devices - 1) / devices


def fully_sharded(tensor: Tensor, ranks: int) -> Tensor:
    """Return the first rank's shard of a weight, along its first axis as `fully_shard` has it."""
    first, *others = tensor.shape
    return replace(tensor, shape=(-(-first // ranks), *others))


def _part(bytes: int, devices: int) -> int:
    return -(-bytes // devices)
