"""One training step on many devices: what each of them holds, and what they send to each other.

How tensors are cut over `tp` devices follows from the placement of the weights (`archdsl.passes.placement`) and from
what each op says of parts (`Primitive.parts`): behind a weight cut by columns its results are cut, until an op leaves
sums that are still to be added up, which is where devices meet (Shoeybi et al., 2019). With sequence parallelism what
is not cut so is cut along the sequence (Korthikanti et al., 2022). Layers are turns of the model's loops, dealt out to
`pp` stages in equal numbers, one micro-batch forwards and one backwards in turn (1F1B; Narayanan et al., 2021). What
passes from stage to stage is what the graph passes. Replicas hold weights, gradients and states as ZeRO's stages say
(Rajbhandari et al., 2020).

Bytes sent are those of rings: of a tensor of P bytes over n devices, each sends 2 P (n - 1) / n for an all-reduce and
half of that for a reduce-scatter or an all-gather (Patarasuk and Yuan, 2009).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from pydantic import BaseModel

from archdsl.diagnostics import ArchError, error
from archdsl.estimates.activations import Saving
from archdsl.estimates.dtypes import BYTES, Dtype, width
from archdsl.estimates.flops import demand_sizes, sizes_at
from archdsl.estimates.kernels import wanting
from archdsl.estimates.memory import Optimizer, Tensor, optimizer_states
from archdsl.estimates.mesh import Mesh, divisors, nearest_divisors, one_of
from archdsl.ir.dims import Num, Poly, Var
from archdsl.ir.graph import Model, Value
from archdsl.ir.op import Parts
from archdsl.passes.checkpoint import Checkpoint
from archdsl.passes.flatten import (
    FlatGraph,
    FlatNode,
    FlatOp,
    FlatParam,
    FlatScan,
    FlatWeight,
    flatten,
    walk,
    weights_read,
)
from archdsl.passes.placement import Placement, placements

Zero = Literal[0, 1, 2, 3]
Attention = Literal["fused", "eager"]
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
    """Kept for the backward, of all micro-batches that are under way."""
    working: int
    """Activations of the largest layer, where every layer is computed again."""
    gathered: int
    """Of weights that ZeRO 3 has put together, the largest layer's, and the gradients of it."""
    in_flight: int
    """Micro-batches under way in the stage's first layers, at most."""
    total: int
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


@dataclass(frozen=True)
class Plan:
    """How a step is run."""

    mesh: Mesh = field(default_factory=Mesh)
    zero: Zero = 0
    micro_batches: int = 1
    interleave: int = 1
    sequence_parallel: bool = False
    checkpoint: Checkpoint = "none"
    attention: Attention = "fused"
    dtype: Dtype = "float32"
    optimizer: Optimizer = "adamw"
    master_weights: bool = False
    gradient_dtype: Dtype | None = None
    """None: that of the weights."""


# --- how tensors are cut ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Meeting:
    """A tensor about which the devices of a group talk, in one micro-batch."""

    node: FlatNode
    value: Value
    kind: Literal["enter", "leave", "gather", "experts", "keys", "logits"]
    """It enters a region that is cut, its parts leave one as sums, or are put together; rows go to experts; keys or
    values go round; or scores of a loss are added up."""


class Cuts:
    """How every tensor of a graph is cut on a mesh: what `archdsl.estimates.kernels.Cut` asks."""

    def __init__(
        self, model: Model, graph: FlatGraph, mesh: Mesh, *, sequence_parallel: bool = False, training: bool = True
    ) -> None:
        self.mesh, self.sequence_parallel = mesh, sequence_parallel and mesh.tp > 1
        self.places = _placed(model) if mesh.tp > 1 else dict(_experts(graph))
        self.axes: dict[Value, int] = {}
        """Tensors that are cut by tensor parallelism, and along which axis."""
        self.worked: set[int] = set()
        """Ops whose work is cut."""
        self.meetings: list[Meeting] = []
        self.inside: dict[str, FlatWeight] = {}
        """Whole weights of which each device sees a part of the work."""
        self.wrong: dict[tuple[str, int], str] = {}
        """What does not divide: a size and where it was met."""
        self.wants = wanting(graph)
        self.symbols = {s.name for s in model.symbols if s.name != "batch"}
        self.training = training
        self.entered: set[tuple[Value, str]] = set()
        self.along: dict[int, tuple[object, bool]] = {}
        """Shapes with an axis that is cut along the sequence."""
        self.graph(graph)
        for value in graph.outputs:
            if value in self.axes and mesh.tp > 1 and training:
                maker = next(n for n in reversed(graph.nodes) if value in n.outputs)
                self.meetings.append(Meeting(maker, value, "logits"))

    # --- the walk ---

    def graph(self, graph: FlatGraph) -> None:
        for node in graph.nodes:
            if isinstance(node, FlatParam):
                self.parameter(node)
            elif isinstance(node, FlatScan):
                # A recurrence is worked through by every device alike: what is cut is put together before.
                for value in node.inputs:
                    if isinstance(value, Value) and value in self.axes:
                        self.meet(node, value, "gather")
            else:
                self.op(node)

    def parameter(self, node: FlatParam) -> None:
        place = self.places.get(node.weight.path)
        if place is not None and place.axis is not None and place.kind in ("column", "row", "vocab"):
            if self.mesh.tp > 1:
                self.axes[node.output] = place.axis
            self.divides(node.output.shape[place.axis], node.weight.path)

    def op(self, node: FlatOp) -> None:
        if node.blocks:
            self.meet(node, next(v for v in node.inputs if isinstance(v, Value)), "experts")
            self.experts(node)
        for i in node.node.op.keeps(node.node):
            value = node.inputs[i]
            if isinstance(value, Value) and self.mesh.cp > 1:
                self.meet(node, value, "keys")
        if self.mesh.tp == 1:
            return
        cut = [self.axes.get(v) if isinstance(v, Value) else None for v in node.inputs]
        parts = self.parts(node, cut)
        if parts is None:
            for value, axis in zip(node.inputs, cut, strict=True):
                if isinstance(value, Value) and axis is not None:
                    self.meet(node, value, "gather")
            self.inside.update(
                {w.path: w for w in node.weights.values() if self.sequence_parallel and self.is_whole(w)}
            )
            return
        self.worked.add(id(node))
        for size in parts.sizes:
            self.divides(size, node.path)
        if parts.axis is not None or self.sequence_parallel:
            # A bias behind sums is added to all of them, and its gradient is the same on each device.
            self.inside.update({w.path: w for w in node.weights.values() if self.is_whole(w)})
        for value, axis in zip(node.inputs, cut, strict=True):
            if isinstance(value, Value) and axis is None and value.is_float and self.depends(value):
                self.meet(node, value, "enter")
        for value in node.outputs:
            if parts.axis is None:
                self.meet(node, value, "leave")
            else:
                self.axes[value] = parts.axis
                self.divides(value.shape[parts.axis], node.path)

    def parts(self, node: FlatOp, cut: list[int | None]) -> Parts | None:
        if any(axis is not None for axis in cut):
            return node.node.op.parts(node.node, cut)
        kinds = {self.places[w.path].kind for w in node.weights.values() if w.path in self.places}
        return node.node.op.opens(node.node) if kinds & {"column", "vocab"} else None

    def is_whole(self, weight: FlatWeight) -> bool:
        place = self.places.get(weight.path)
        return weight.weight.trained and (place is None or place.kind == "replicated")

    def experts(self, node: FlatOp) -> None:
        assert node.node.copies is not None
        copies = int(node.node.copies)
        if copies % self.mesh.ep:
            self.wrong["ep", copies] = f"{copies:,} experts at `{node.path}`"

    def depends(self, value: Value) -> bool:
        return self.wants.get(value, False)

    def meet(self, node: FlatNode, value: Value, kind: Literal["enter", "leave", "gather", "experts", "keys"]) -> None:
        if kind in ("enter", "gather"):
            # However many ops of a region read it, it is brought in once.
            if (value, kind) in self.entered:
                return
            self.entered.add((value, kind))
        self.meetings.append(Meeting(node, value, kind))

    def divides(self, size: Num, path: str) -> None:
        if size.static and int(size) % self.mesh.tp:
            said = size.expr.name if isinstance(size.expr, Var) else ""
            about = f"{said} = {int(size):,}" if said and not said.startswith("x.") else f"a size of {int(size):,}"
            self.wrong.setdefault(("tp", int(size)), f"{about} at `{path}`" if path else about)

    # --- what a device has of it ---

    def in_sequence(self, value: Value) -> bool:
        key = id(value.shape)
        if key not in self.along:
            sizes = (d.value for d in value.shape if isinstance(d.value, Poly))
            found = any({s.name for s in size.symbols} & self.symbols for size in sizes)
            self.along[key] = value.shape, found
        return self.along[key][1]

    def share(self, value: Value) -> int:
        along = self.in_sequence(value)
        found = self.mesh.cp if along else 1
        if value in self.axes or (self.sequence_parallel and along and self.depends(value)):
            found *= self.mesh.tp
        return found

    def held(self, weight: FlatWeight) -> int:
        place = self.places.get(weight.path)
        if place is None or place.kind == "replicated":
            return 1
        return self.mesh.ep if place.kind == "expert" else self.mesh.tp

    def work(self, node: FlatNode) -> int:
        cut = id(node) in self.worked
        if not cut and self.sequence_parallel:
            cut = any(self.in_sequence(v) and self.depends(v) for v in node.outputs)
        along = any(self.in_sequence(v) for v in (*node.outputs, *(v for v in node.inputs if isinstance(v, Value))))
        return (self.mesh.tp if cut else 1) * (self.mesh.cp if along else 1)

    def rows(self, node: FlatOp) -> int:
        """Each of the devices that have the same tokens sends a part of them to experts."""
        return self.mesh.tp * self.mesh.cp

    @property
    def senders(self) -> int:
        """How many devices send rows to the experts that a device holds."""
        return self.mesh.ep


@lru_cache(maxsize=4)
def _placed(model: Model) -> dict[str, Placement]:
    """The placements, found once for all who only read them."""
    return placements(model)


def _experts(graph: FlatGraph) -> Iterator[tuple[str, Placement]]:
    """Where nothing else is cut: weights of experts, along their leading axis."""
    for node in walk(graph):
        if isinstance(node, FlatOp):
            for inner in node.blocks.values():
                yield from ((path, Placement("expert", 0, node.path)) for path in weights_read(inner))


# --- stages of the pipeline -------------------------------------------------------------------------------------------

LAYER = re.compile(r"(?:[^\W\d]\w*\.)*?[^\W\d]\w*\.\d+(?=\.|$)")
"""The path of a layer: the first step of a path that is numbered."""


@dataclass
class Chunk:
    """A piece of the stack, and what stands before and behind all layers."""

    layers: list[list[FlatNode]] = field(default_factory=list)
    head: list[FlatNode] = field(default_factory=list)
    tail: list[FlatNode] = field(default_factory=list)

    @property
    def nodes(self) -> list[FlatNode]:
        """In the order in which they are computed."""
        return [*self.head, *(n for layer in self.layers for n in layer), *self.tail]


def _path(node: FlatNode) -> str:
    return node.weight.path if isinstance(node, FlatParam) else node.path


def chunks(model: Model, graph: FlatGraph, count: int) -> list[Chunk]:
    """The graph in so many pieces with equal numbers of layers.

    Raises ArchError E0516 where there are no layers, and E0515 where their number does not divide."""
    head: list[FlatNode] = []
    layers: list[list[FlatNode]] = []
    current = ""
    for node in graph.nodes:
        found = LAYER.match(_path(node))
        if found is not None and found[0] != current:
            current = found[0]
            layers.append([])
        (layers[-1] if layers else head).append(node)
    tail: list[FlatNode] = []
    while layers and LAYER.match(_path(layers[-1][-1])) is None:
        tail.insert(0, layers[-1].pop())
    if count > 1 and len(layers) < 2:
        raise error(
            "E0516",
            f"`{model.name}` has no stack of layers that could be dealt out to stages of a pipeline",
            help="layers with weights of their own are turns of a list: `blocks: 12 * layer`; leave `pp` out",
        )
    if len(layers) % count:
        raise error(
            "E0515",
            f"{len(layers):,} layers cannot be dealt out evenly to {count:,} pieces (pp, times those of each stage)",
            help=f"pieces that can be: {nearest_divisors(len(layers), count)}",
        )
    each = len(layers) // count
    found_chunks = [Chunk(layers[i * each : (i + 1) * each]) for i in range(count)]
    found_chunks[0].head, found_chunks[-1].tail = head, tail
    return found_chunks


def under_way(stage: int, mesh: Mesh, interleave: int, micro_batches: int) -> list[int]:
    """Of each of a stage's pieces, how many micro-batches are kept at most when the first backward begins."""
    if interleave == 1:
        return [min(mesh.pp - stage, micro_batches)]
    # In turns of `pp` micro-batches a piece (Narayanan et al., 2021, section 2.2).
    first = min((mesh.pp - stage - 1) * 2 + (interleave - 1) * mesh.pp + 1, micro_batches * interleave)
    found = [0] * interleave
    for i in range(first):
        found[i // mesh.pp % interleave] += 1
    return found


class Talk:
    """What devices say about a tensor in one micro-batch. `elements` tells how many numbers the whole tensor holds."""

    def __init__(self, cuts: Cuts, dtype: Dtype, elements: Callable[[Value], int]) -> None:
        self.cuts, self.dtype, self.elements = cuts, dtype, elements

    def bytes(self, value: Value) -> int:
        """Of the whole tensor."""
        return self.elements(value) * width(value.dtype, self.dtype)

    def meet(self, meeting: Meeting) -> Iterator[tuple[Kind, str, str, Phase, int, float]]:
        """What is said in one micro-batch."""
        mesh, spread = self.cuts.mesh, self.cuts.sequence_parallel
        tp, cp, ep = mesh.tp, mesh.cp, mesh.ep
        value = meeting.value
        along = self.cuts.in_sequence(value)
        payload = self.bytes(value) / (cp if along else 1)
        spread = spread and along
        match meeting.kind:
            case "enter" if spread:
                yield "all-gather", "tp", "into matrices that are cut", "forward", tp, payload
                # Kept in parts, it is put together once more for the gradients of the weights.
                yield "all-gather", "tp", "into matrices that are cut", "backward", tp, payload
                yield "reduce-scatter", "tp", "gradients from there", "backward", tp, payload
            case "enter":
                yield "all-reduce", "tp", "gradients from matrices that are cut", "backward", tp, payload
            case "leave" if spread:
                yield "reduce-scatter", "tp", "sums out of matrices that are cut", "forward", tp, payload
                if self.cuts.depends(value):
                    yield "all-gather", "tp", "gradients into them", "backward", tp, payload
            case "leave":
                yield "all-reduce", "tp", "sums out of matrices that are cut", "forward", tp, payload
            case "gather":
                yield "all-gather", "tp", "tensors that an op needs whole", "forward", tp, payload
                if self.cuts.depends(value):
                    yield "reduce-scatter", "tp", "gradients of those", "backward", tp, payload
            case "logits":
                # Its maximum, the sum of its exponentials and the score of the right word, in float32.
                rows = self.elements(value) / int(value.shape[-1]) / (cp if along else 1)
                yield "all-reduce", "tp", "the loss over a vocabulary that is cut", "forward", tp, 3 * 4 * rows
            case "keys":
                part = self.bytes(value) / (tp if value in self.cuts.axes else 1)
                yield "all-gather", "cp", "keys and values", "forward", cp, part
                yield "all-gather", "cp", "keys and values", "backward", cp, part
                yield "reduce-scatter", "cp", "gradients of keys and values", "backward", cp, part
            case "experts":
                assert isinstance(meeting.node, FlatOp)
                assert meeting.node.node.active is not None
                rows = payload / tp * int(meeting.node.node.active)
                for phase in ("forward", "backward"):
                    yield "all-to-all", "ep", "rows to experts and back", phase, ep, 2 * rows
                    if not spread:
                        yield "all-gather", "tp", "answers of experts to each part of the rows", phase, tp, payload


# --- the estimate -----------------------------------------------------------------------------------------------------


def shard(model: Model, plan: Plan, *, batch: int | None = None, seq: int | None = None) -> Sharding:
    """Estimate one training step on a mesh. `batch` counts the sequences of a step on all devices together (one for
    each micro-batch of each data-parallel device where it is not given); `seq` is 2,048 or the context, if less.

    Raises ArchError E0503 where the model has no sizes at this length, E0515 where something does not divide, and E0516
    where the model cannot be cut in this way."""
    return Step(model, plan, batch, seq).report()


class Step:
    """A training step on a mesh."""

    def __init__(self, model: Model, plan: Plan, batch: int | None, seq: int | None) -> None:
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
        self.graph = flatten(model)
        self.cuts = Cuts(model, self.graph, self.mesh, sequence_parallel=plan.sequence_parallel)
        self.demand()
        self.chunks = chunks(model, self.graph, self.mesh.pp * plan.interleave)
        scores = plan.attention == "eager" and plan.checkpoint == "none"
        self.saving = Saving(self.graph, self.sizes, plan.dtype, wants=self.cuts.wants, cut=self.cuts, scores=scores)
        self.elements, self.makers = self.saving.elements, self.saving.makers
        self.home = {v: i for i, c in enumerate(self.chunks) for n in c.nodes for v in n.outputs}
        """The piece that makes each tensor."""
        self.crossings: dict[int, float] = {}
        self.talks = Talk(self.cuts, plan.dtype, self.elements)
        self.read: dict[int, dict[str, FlatWeight]] = {}

    # --- what is refused ---

    def demand(self) -> None:
        mesh, plan = self.mesh, self.plan
        problems = []
        for (axis, size), about in self.cuts.wrong.items():
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
        along = mesh.cp * (mesh.tp if self.cuts.sequence_parallel else 1)
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
        if mesh.tp > 1 and not self.cuts.worked:
            raise error(
                "E0516",
                f"`{self.model.name}` has no weights that could be sharded over tp = {mesh.tp} devices",
                help="tensor parallelism shards pairs of linear layers with only element-wise ops or heads between",
            )
        experts = any(m.kind == "experts" for m in self.cuts.meetings)
        if mesh.ep > 1 and not experts:
            raise error("E0516", f"`{self.model.name}` has no experts that could be spread", help="leave `ep` out")
        if along > 1:
            self.demand_places()

    def demand_places(self) -> None:
        """Refuse a cut along the sequence where anything but attention mixes places."""
        for node in walk(self.graph):
            if isinstance(node, FlatScan):
                if any(self.cuts.depends(v) for v in node.sequences):
                    raise self.mixes(node.path, "a recurrence")
            elif isinstance(node, FlatOp) and any(self.cuts.depends(v) for v in node.outputs):
                if node.node.op.states(node.node):
                    raise self.mixes(node.path, f"`{node.node.op.name}`")
                self.demand_own_places(node)

    def demand_own_places(self, node: FlatOp) -> None:
        op = node.node.op
        kept = op.keeps(node.node)
        whole = self.mesh.cp == 1 and id(node) in self.cuts.worked
        if whole or op.regroups(node.node) is not None:
            return
        for i, (value, reads) in enumerate(zip(node.inputs, op.reads(node.node), strict=True)):
            if not isinstance(value, Value) or not self.cuts.depends(value) or i in kept:
                continue
            for size, at in zip(value.shape, reads, strict=True):
                along = isinstance(size.value, Poly) and {s.name for s in size.value.symbols} & self.cuts.symbols
                if along and (at is None or at.offset or at.also):
                    raise self.mixes(node.path, f"`{op.name}`")

    def mixes(self, path: str, what: str) -> ArchError:
        option = "cp" if self.mesh.cp > 1 else "`--sequence-parallel`"
        return error(
            "E0516",
            f"{what} at `{path}` reads other positions than its own, so a sequence cannot be sharded there",
            help=f"leave {option} out: positions are only exchanged where attention mixes them",
        )

    # --- sizes ---

    def bytes(self, value: Value) -> int:
        """Of the whole tensor, of one micro-batch."""
        return self.talks.bytes(value)

    # --- the report ---

    def report(self) -> Sharding:
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
        for place in self.cuts.places.values():
            kinds[place.kind] += 1
        plan, waiting = self.plan, self.mesh.pp - 1
        return Sharding(
            mesh=self.mesh,
            devices=self.mesh.devices,
            zero=plan.zero,
            micro_batches=plan.micro_batches,
            interleave=plan.interleave,
            sequence_parallel=plan.sequence_parallel,
            checkpoint=plan.checkpoint,
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
        if any(m.kind == "experts" for m in self.cuts.meetings):
            yield "experts are taken to be chosen equally often"

    def of_stage(self, stage: int) -> list[Chunk]:
        """The pieces of a stage, those that come first first."""
        return self.chunks[stage :: self.mesh.pp]

    def weights_of(self, stage: int) -> dict[str, FlatWeight]:
        """Every weight that a stage reads, by its path."""
        if stage not in self.read:
            nodes = tuple(n for chunk in self.of_stage(stage) for n in chunk.nodes)
            self.read[stage] = weights_read(FlatGraph((), nodes, ()))
        return self.read[stage]

    def tensors(self, weights: Iterable[FlatWeight]) -> Iterator[tuple[Tensor, bool]]:
        """The parts of weights that a device holds, and whether they are of experts. A part is told by how many numbers
        it has, along the axis that is cut."""
        for weight in weights:
            if not all(d.static for d in weight.weight.shape):
                continue
            place = self.cuts.places.get(weight.path)
            shape = [int(d) for d in weight.weight.shape]
            if place is not None and place.axis is not None:
                shape[place.axis] //= self.cuts.held(weight)
            yield Tensor(weight.weight, 1, tuple(shape)), place is not None and place.kind == "expert"

    def stage(self, stage: int, sent: int) -> Stage:
        plan, mesh = self.plan, self.mesh
        tensors = list(self.tensors(self.weights_of(stage).values()))
        weights = gradients = optimizer = numbers = 0
        for expert in (False, True):
            own = [t for t, e in tensors if e == expert]
            trained = sum(t.numbers for t in own if t.weight.trained)
            fixed = sum(t.numbers * width(t.weight.dtype, plan.dtype) for t in own if not t.weight.trained)
            states = optimizer_states(self.model, own, plan.dtype, plan.optimizer, plan.master_weights)
            copies = mesh.expert_replicas if expert else mesh.replicas
            numbers += trained
            weights += _part(trained * BYTES[plan.dtype], copies if plan.zero >= 3 else 1) + fixed
            gradients += _part(trained * BYTES[plan.gradient_dtype or plan.dtype], copies if plan.zero >= 2 else 1)
            optimizer += _part(sum(s.bytes for s in states), copies if plan.zero >= 1 else 1)
        counts = under_way(stage, mesh, plan.interleave, plan.micro_batches)
        pieces = self.of_stage(stage)
        activations = sum(n * self.activations(c) for n, c in zip(counts, pieces, strict=True))
        working = round(max(self.working(c) for c in pieces)) if plan.checkpoint == "full" else 0
        gathered = self.gathered(stage) if plan.zero >= 3 else 0
        return Stage(
            stage=stage,
            layers=sum(len(c.layers) for c in pieces),
            parameters=numbers,
            weights=weights,
            gradients=gradients,
            optimizer=optimizer,
            activations=round(activations),
            working=working,
            gathered=gathered,
            in_flight=counts[0],
            total=weights + gradients + optimizer + round(activations) + working + gathered,
            sent=sent,
        )

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
        for meeting in self.cuts.meetings:
            if id(meeting.node) in nodes:
                for kind, axis, purpose, phase, devices, payload in self.talks.meet(meeting):
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
        weights that several stages have."""
        plan, mesh, m = self.plan, self.mesh, self.plan.micro_batches
        grain = BYTES[plan.gradient_dtype or plan.dtype]
        own = self.weights_of(stage)
        for expert in (False, True):
            numbers = sum(t.numbers for t, e in self.tensors(own.values()) if e == expert and t.weight.trained)
            copies = mesh.expert_replicas if expert else mesh.replicas
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
                yield "all-gather", axis, f"weights{of}", "backward", copies, weights, m
        inside = sum(t.numbers for t, _ in self.tensors(w for p, w in self.cuts.inside.items() if p in own))
        yield "all-reduce", "tp", "gradients of whole weights among cut tensors", "step", mesh.tp, inside * grain, 1
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
        if boundary not in self.crossings:
            later = (n for c in self.chunks[boundary + 1 :] for n in c.nodes)
            passed = dict.fromkeys(
                v
                for n in later
                for v in n.inputs
                if isinstance(v, Value) and self.cuts.depends(v) and self.home.get(v, boundary + 1) <= boundary
            )
            read = (v for v in passed if not isinstance(self.makers[v], FlatParam))
            self.crossings[boundary] = sum(self.saving.bytes(v) for v in read)
        return self.crossings[boundary]

    # --- memory ---

    def activations(self, chunk: Chunk) -> float:
        """Bytes that one micro-batch keeps of a piece for its backward, the scores of a loss among them."""
        found = self.saving.of([*chunk.head, *chunk.tail])
        for layer in chunk.layers:
            found |= self.saving.entering(layer) if self.plan.checkpoint == "full" else self.saving.of(layer)
        if chunk is self.chunks[-1]:
            scores = (v for v in self.graph.outputs if self.cuts.depends(v))
            found |= {("loss", v): BYTES["float32"] * self.elements(v) / self.cuts.share(v) for v in scores}
        return sum(found.values())

    def working(self, chunk: Chunk) -> float:
        """Bytes of the largest layer's activations, computed again."""
        return max((sum(self.saving.of(layer).values()) for layer in chunk.layers), default=0.0)

    def gathered(self, stage: int) -> int:
        """Bytes of the largest layer's weights and their gradients, put together."""
        units: dict[str, int] = defaultdict(int)
        for path, weight in self.weights_of(stage).items():
            found = LAYER.match(path)
            for tensor, expert in self.tensors([weight]):
                copies = self.mesh.expert_replicas if expert else self.mesh.replicas
                if weight.weight.trained and copies > 1:
                    units[found[0] if found is not None else path] += tensor.numbers
        each = BYTES[self.plan.dtype] + BYTES[self.plan.gradient_dtype or self.plan.dtype]
        return max(units.values(), default=0) * each


def sent_share(kind: Kind, devices: int) -> float:
    """What one device sends of a tensor, by the collective (see above)."""
    if kind == "send":
        return 1.0
    return (2 if kind == "all-reduce" else 1) * (devices - 1) / devices


def _part(bytes: int, devices: int) -> int:
    return -(-bytes // devices)
