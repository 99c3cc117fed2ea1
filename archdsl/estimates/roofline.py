"""How long a model takes on named devices at best, and what that costs: a roofline (Williams et al., 2009).

Every kernel (`estimates.kernels`) takes the longer of two times: that of its FLOPs at the device's dense peak in
the type that it computes in, and that of its bytes at the bandwidth of the device's memory. Kernels follow each other.
Nothing else takes time: no launch, no wave of blocks that is not full, no clock that falls under load. What comes out
is therefore a lower bound, not a forecast.

Of what devices send each other, the traffic of replicas (gradients, and weights under ZeRO) is hidden behind
computation as far as there is some; all other traffic is waited for. Links are those within a machine, or the network
where a group of devices is wider than a machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

from pydantic import BaseModel

from archdsl.diagnostics import error
from archdsl.estimates.dtypes import Dtype
from archdsl.estimates.flops import estimate as count_flops
from archdsl.estimates.hardware import Device, Type
from archdsl.estimates.kernels import Kernel, kernels
from archdsl.estimates.mesh import Mesh
from archdsl.estimates.sharding import Collective, Sharding, Shares, Step, StepPlan, sent_share
from archdsl.ir.cost import elements, whole_at
from archdsl.ir.dims import with_symbol
from archdsl.ir.graph import Model, Value
from archdsl.ir.paths import starred
from archdsl.passes.decode import NEW, planned
from archdsl.passes.flatten import FlatGraph, FlatNode, flatten

SAYS = "roofline: a lower bound of every time, and so of every cost"
MACHINE = 8
"""Devices of one machine, where nobody says."""
NETWORK = 50e9
"""Bytes/s that a device sends to another machine, where nobody says: 400 Gbit/s."""
GIB = 1 << 30

T = TypeVar("T", bound="PassTimes")
Bound = Literal["compute", "memory"]

# --- the report -------------------------------------------------------------------------------------------------------


class PassTimes(BaseModel):
    """One pass. FLOPs and bytes are of the busiest device; seconds are its own."""

    seconds: float
    compute_bound: float
    """Of these, in kernels that the peak bounds."""
    memory_bound: float
    """In kernels that the bandwidth bounds."""
    links: float
    """In traffic between devices that nothing hides."""
    flops: float
    bytes: float
    tokens_per_second: float
    """Of all devices together."""
    utilization: float
    """The model's own FLOPs by those that the devices could do in these seconds (MFU)."""


class TrainingTimes(PassTimes):
    """One step of training."""

    optimizer: float
    """Seconds in which the optimizer reads and writes weights, gradients and states."""
    bubble: float
    """Seconds in which a device waits for the pipeline to fill and to empty."""
    again: float
    """Seconds in which activations are computed again."""


class OpTime(BaseModel):
    """All uses of one primitive at one place of the model on one device, and what bounds most of their time; `*` in the
    path stands for every index."""

    path: str
    op: str
    uses: int
    forward: float
    """Seconds, of one micro-batch of training."""
    backward: float
    decode: float
    bound: Bound
    """Of the forward."""


class Budget(BaseModel):
    """A training run over so many tokens."""

    tokens: int
    seconds: float
    device_hours: float
    energy_kwh: float | None
    """Of the devices alone, all at their thermal design power; None where that is not known."""
    price: float | None
    """By `price_per_hour`."""
    price_per_hour: float | None
    """What a device costs an hour, in any currency."""


class Links(BaseModel):
    """Bytes/s that one device sends."""

    machine: int
    """Devices of one machine."""
    within: float | None
    between: float


class Roofline(BaseModel):
    """Times of a model on devices, each a lower bound."""

    says: str
    accelerator: str
    devices: int
    mesh: Mesh
    links: Links
    dtype: Dtype
    fused: bool
    batch: int
    seq: int
    peak: float
    """FLOP/s of one device in `dtype`."""
    bandwidth: float
    ridge: float
    """FLOPs a byte."""
    training: TrainingTimes
    prefill: PassTimes
    """The forward over whole sequences: the time to the first token."""
    decode: PassTimes | None
    """One more token for each sequence where `seq` positions are there; None where the model cannot be taken step by
    step."""
    no_decode: str | None
    fits: bool
    """Whether what training keeps in memory fits into a device."""
    by_op: list[OpTime]
    budget: Budget | None
    notes: list[str]


@dataclass(frozen=True)
class Cluster:
    """Devices, and how they are linked."""

    device: Device
    node: int = MACHINE
    network: float = NETWORK


# --- the estimate -----------------------------------------------------------------------------------------------------


def estimate(
    model: Model,
    machine: Cluster,
    plan: StepPlan,
    *,
    batch: int | None = None,
    seq: int | None = None,
    fused: bool = True,
    tokens: int | None = None,
    price: float | None = None,
    sharding: Sharding | None = None,
) -> Roofline:
    """The times of a model. `batch` counts the sequences of a training step, and those that are generated at once, on
    all devices together; `tokens` asks what a training run over so many takes, and `price` is that of a device's hour.

    Raises ArchError E0503, E0515 and E0516 as `sharding.shard` does, and E0517 where the device does not compute in the
    plan's type, or has no link to another."""
    return _Roofline(model, machine, plan, batch, seq, fused, sharding).report(tokens, price)


def peak_of(device: Device, dtype: str, own: Dtype) -> float | None:
    """FLOP/s in a type of the IR, `float` being the model's own."""
    names: dict[str, Type] = {"float32": "float32", "bfloat16": "bfloat16", "float16": "float16", "float64": "float64"}
    kind = names.get(own if dtype == "float" else dtype)
    return device.peak.get(kind) if kind is not None else None


class _Roofline:
    def __init__(
        self,
        model: Model,
        machine: Cluster,
        plan: StepPlan,
        batch: int | None,
        seq: int | None,
        fused: bool,
        sharding: Sharding | None,
    ) -> None:
        self.model, self.machine, self.device, self.plan, self.fused = model, machine, machine.device, plan, fused
        self.mesh = plan.mesh
        own = peak_of(self.device, "float", plan.dtype)
        if own is None:
            raise error(
                "E0517",
                f"{self.device.name} has no peak in {plan.dtype}",
                help=f"`--dtype {_usable(self.device)}`; its file says {', '.join(self.device.peak)}",
            )
        self.peak = own
        if self.mesh.devices > 1 and self.device.interconnect is None and machine.node > 1:
            raise error(
                "E0517",
                f"the file of {self.device.name} says of no link to other devices",
                help="give it an `interconnect`, or say `--machine 1` where each device is a machine of its own",
            )
        self.step = Step(model, plan, batch, seq)
        self.sharding = sharding or self.step.report()
        self.sizes = self.step.sizes
        self.notes: dict[str, None] = {}
        self.counted = count_flops(model, batch=self.step.batch, seq=self.step.seq).flops

    # --- one kernel, one message ---

    def time(self, flops: float, moved: float, dtype: str) -> float:
        return max(flops / self.rate(dtype), moved / self.device.bandwidth)

    def rate(self, dtype: str) -> float:
        """FLOP/s in a type; in one that the device's file leaves out, the peak of the widest that it has."""
        found = peak_of(self.device, dtype, self.plan.dtype)
        if found is None:
            self.notes[f"the device's file has no peak in {dtype}: its lowest is taken"] = None
            return min(self.device.peak.values())
        return found

    def bound(self, kernel: Kernel) -> Bound:
        slower = kernel.flops / self.rate(kernel.dtype) > kernel.bytes / self.device.bandwidth
        return "compute" if slower else "memory"

    def link(self, axis: str) -> float:
        """Bytes/s that a device sends along an axis of the mesh, by how far its groups reach."""
        mesh = self.mesh
        own = 1 if self.step.shares.experts_over_tp else mesh.tp
        inner = {"tp": 1, "cp": mesh.tp, "dp": mesh.tp * mesh.cp, "dp·cp": mesh.tp, "ep": own, "edp": own * mesh.ep}
        width = {
            "tp": mesh.tp,
            "cp": mesh.cp,
            "dp": mesh.dp,
            "dp·cp": mesh.dp * mesh.cp,
            "ep": mesh.ep,
            "edp": self.step.shares.expert_replicas,
        }
        reach = inner[axis] * width[axis] if axis in inner else mesh.devices
        within = self.device.interconnect
        return within.bandwidth / 2 if within is not None and reach <= self.machine.node else self.machine.network

    def sending(self, collectives: Iterable[Collective]) -> float:
        return sum(c.sent / self.link(c.axis) for c in collectives)

    # --- training ---

    def training(self) -> tuple[TrainingTimes, list[Kernel]]:
        plan, mesh, step = self.plan, self.mesh, self.step
        found = kernels(step.graph, self.sizes, plan.dtype, fused=self.fused, cut=step.shares)
        positions: dict[int, tuple[int, bool]] = {}
        numbers: dict[FlatNode, int] = {n: i for i, n in enumerate(step.graph.nodes)}
        for i, chunk in enumerate(step.chunks):
            inside = {n for layer in chunk.layers for n in layer}
            positions.update({numbers[n]: (i % mesh.pp, n in inside) for n in chunk.nodes})
        m = plan.micro_batches
        best: TrainingTimes | None = None
        for stage in range(mesh.pp):
            own = [k for k in found if positions[k.node][0] == stage]
            forward = self.passed((k, k.flops, k.bytes) for k in own)
            backward = self.passed((k, k.backward_flops, k.backward_bytes) for k in own)
            again = self.passed((k, k.flops, k.bytes) for k in own if self.is_again(k, positions[k.node][1]))
            talk = list(step.talk(stage))
            replicas = [c for c in talk if c.axis in ("dp", "dp·cp", "edp")]
            waited = self.sending(c for c in talk if c not in replicas and c.phase != "step")
            once = self.sending(c for c in talk if c not in replicas and c.phase == "step")
            each = forward.seconds + backward.seconds + again.seconds + waited / m
            hidden = (each - waited / m) * (1 if plan.zero < 2 else m)
            exposed = max(0.0, self.sending(replicas) - hidden)
            optimizer = self.optimizer(stage)
            bubble = (mesh.pp - 1) * each / plan.interleave
            seconds = m * each + bubble + once + exposed + optimizer
            times = TrainingTimes(
                seconds=seconds,
                compute_bound=m * (forward.compute_bound + backward.compute_bound + again.compute_bound),
                memory_bound=m * (forward.memory_bound + backward.memory_bound + again.memory_bound) + optimizer,
                links=waited + once + exposed,
                flops=m * (forward.flops + backward.flops + again.flops),
                bytes=m * (forward.bytes + backward.bytes + again.bytes),
                tokens_per_second=0,
                utilization=0,
                optimizer=optimizer,
                bubble=bubble,
                again=m * again.seconds,
            )
            if best is None or times.seconds > best.seconds:
                best = times
        assert best is not None
        return self.told(best, self.counted.training, self.tokens(step.batch)), found

    def is_again(self, kernel: Kernel, in_layer: bool) -> bool:
        """Whether the backward computes a kernel again."""
        plan = self.plan
        if plan.checkpoint == "full":
            return in_layer
        return plan.checkpoint == "selective" and plan.attention == "eager" and kernel.core

    def optimizer(self, stage: int) -> float:
        """Weights and states are read and written, gradients read."""
        held = self.sharding.stages[stage]
        copies = self.mesh.replicas if self.plan.zero in (1, 2) else 1
        weights = held.weights / copies
        gradients = held.gradients / (copies if self.plan.zero == 1 else 1)
        return (2 * (weights + held.optimizer) + gradients) / self.device.bandwidth

    def passed(self, parts: Iterable[tuple[Kernel, float, float]]) -> PassTimes:
        """Kernels one after the other."""
        compute = memory = flops = moved = 0.0
        for kernel, work, traffic in parts:
            seconds = self.time(work, traffic, kernel.dtype)
            if work / self.rate(kernel.dtype) > traffic / self.device.bandwidth:
                compute += seconds
            else:
                memory += seconds
            flops += work
            moved += traffic
        return PassTimes(
            seconds=compute + memory,
            compute_bound=compute,
            memory_bound=memory,
            links=0,
            flops=flops,
            bytes=moved,
            tokens_per_second=0,
            utilization=0,
        )

    def told(self, times: T, flops: float, tokens: int) -> T:
        could = times.seconds * self.peak * self.mesh.devices
        return times.model_copy(
            update={
                "tokens_per_second": tokens / times.seconds if times.seconds else 0.0,
                "utilization": flops / could if could else 0.0,
            }
        )

    def tokens(self, batch: int) -> int:
        along = len(self.sizes) > 1 or "batch" not in self.sizes
        return batch * (self.step.seq if along else 1)

    # --- inference ---

    def inference(self) -> tuple[PassTimes, PassTimes | None, str | None, list[Kernel]]:
        """The forward over whole sequences, and a step of decoding. Of a mesh, tensor and expert parallelism share the
        work of each sequence, stages follow each other, and the rest are replicas, each with its part of the batch."""
        step = self.step
        rows = -(-step.batch // self.mesh.replicas)
        if rows * self.mesh.replicas != step.batch:
            self.notes[f"inference: {step.batch:,} sequences do not fill {self.mesh.replicas:,} replicas"] = None
        mesh = self.mesh.model_copy(update={"cp": 1})
        sizes = {**self.sizes, **({"batch": rows} if "batch" in self.sizes else {})}
        counted = self.counted
        flat = flatten(self.model)
        prefill = self.forward(flat, mesh, sizes, None)[0]
        prefill = self.told(prefill, counted.prefill, self.tokens(step.batch))
        if counted.decode_step is None:
            return prefill, None, counted.no_decode_step, []
        decode, found = self.forward(planned(self.model).step, mesh, sizes, True)
        return prefill, self.told(decode, counted.decode_step, step.batch), None, found

    def forward(
        self, graph: FlatGraph, mesh: Mesh, sizes: dict[str, int], decode: bool | None
    ) -> tuple[PassTimes, list[Kernel]]:
        plan = planned(self.model) if decode else None
        shares = Shares(self.model, graph, mesh)
        found = kernels(graph, sizes, self.plan.dtype, fused=self.fused, plan=plan, cut=shares)
        times = self.passed((k, k.flops, k.bytes) for k in found)

        def numbers(value: Value) -> int:
            form = plan.forms.get(value, ()) if plan is not None else ()
            if plan is not None and NEW in form:
                shape = [
                    with_symbol(d.value, plan.time.name, 1) if f == NEW else d.value
                    for d, f in zip(value.shape, form, strict=True)
                ]
                count = 1
                for size in shape:
                    count *= whole_at(size, sizes)
                return count
            return whole_at(elements(value.shape), sizes)

        waited = 0.0
        for redistribution in shares.sharded.redistributions:
            for kind, axis, _, phase, devices, payload in shares.collectives(redistribution, self.plan.dtype, numbers):
                if phase == "forward" and devices > 1:
                    waited += payload * sent_share(kind, devices) / self.link(axis)
        waited += self.stages(mesh, sizes, decode is True)
        links = {"seconds": times.seconds + waited, "links": waited}
        return times.model_copy(update=links), found

    def stages(self, mesh: Mesh, sizes: dict[str, int], decode: bool) -> float:
        """Seconds in which tensors go from stage to stage."""
        if mesh.pp == 1:
            return 0.0
        step = self.step
        scale = sizes.get("batch", 1) / step.sizes.get("batch", 1) / (step.seq if decode else 1)
        scale *= mesh.tp if step.shares.sequence_parallel else 1
        passed = sum(step.crossing(i) * self.mesh.cp for i in range(len(step.chunks) - 1))
        return passed * scale / self.link("pp")

    # --- the report ---

    def report(self, tokens: int | None, price: float | None) -> Roofline:
        device, plan = self.device, self.plan
        training, forward = self.training()
        prefill, decode, reason, steps = self.inference()
        fits = self.sharding.memory.total <= device.memory_gib * GIB
        if not fits:
            need = self.sharding.memory.total / GIB
            self.notes[f"training needs {need:,.1f} GiB a device, which has {device.memory_gib:g}"] = None
        if plan.interleave > 1:
            self.notes["inference: stages are passed one after the other, whatever is interleaved"] = None
        within = device.interconnect
        return Roofline(
            says=SAYS,
            accelerator=device.name,
            devices=self.mesh.devices,
            mesh=self.mesh,
            links=Links(
                machine=self.machine.node,
                within=within.bandwidth / 2 if within is not None else None,
                between=self.machine.network,
            ),
            dtype=plan.dtype,
            fused=self.fused,
            batch=self.step.batch,
            seq=self.step.seq,
            peak=self.peak,
            bandwidth=device.bandwidth,
            ridge=self.peak / device.bandwidth,
            training=training,
            prefill=prefill,
            decode=decode,
            no_decode=reason,
            fits=fits,
            by_op=list(self.by_op(forward, steps)),
            budget=self.budget(training, tokens, price),
            notes=list(self.notes),
        )

    def by_op(self, forward: list[Kernel], steps: list[Kernel]) -> Iterator[OpTime]:
        """The slowest first."""
        rows: dict[tuple[str, str], OpTime] = {}
        bounds: dict[tuple[str, str], float] = {}
        for decode, found in ((False, forward), (True, steps)):
            for kernel in found:
                key = starred(kernel.path), kernel.op
                row = rows.get(key)
                if row is None:
                    row = rows[key] = OpTime(
                        path=key[0], op=key[1], uses=0, forward=0, backward=0, decode=0, bound="memory"
                    )
                once = self.time(kernel.flops, kernel.bytes, kernel.dtype)
                if decode:
                    row.decode += once
                    continue
                back = self.time(kernel.backward_flops, kernel.backward_bytes, kernel.dtype)
                bounds[key] = bounds.get(key, 0.0) + (once if self.bound(kernel) == "compute" else -once)
                row.uses += 1
                row.forward += once
                row.backward += back
                row.bound = "compute" if bounds[key] > 0 else "memory"
        return iter(sorted(rows.values(), key=lambda r: -(r.forward + r.backward)))

    def budget(self, training: TrainingTimes, tokens: int | None, price: float | None) -> Budget | None:
        if tokens is None:
            return None
        seconds = tokens / training.tokens_per_second
        hours = seconds * self.mesh.devices / 3600
        watts = self.device.tdp_watts
        return Budget(
            tokens=tokens,
            seconds=seconds,
            device_hours=hours,
            energy_kwh=hours * watts / 1000 if watts is not None else None,
            price=hours * price if price is not None else None,
            price_per_hour=price,
        )


def _usable(device: Device) -> str:
    return next((t for t in ("bfloat16", "float16", "float32") if t in device.peak), "float32")
