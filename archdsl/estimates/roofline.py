"""How long a model takes on named devices at best, and what that costs: a roofline (Williams et al., 2009).

Every kernel (`estimates.kernels`) takes the longer of two times: that of its FLOPs at the device's dense peak in
the type that it computes in, and that of its bytes at the bandwidth of the device's memory. Kernels follow each other.
Nothing else takes time: no launch, no wave of blocks that is not full, no clock that falls under load. What comes out
is therefore a lower bound, not a forecast.

Devices send while they compute: a step takes the longer of both. A collective over several machines goes over the
network cards of all its devices, one each; what a machine has received its devices pass on among themselves, at the
same time. Of a tensor of P bytes over n devices, k of them in a machine, each card sends P (n - k) / (n k) bytes in an
all-gather and each link within the machine P (k - 1) / k (twice as much in an all-reduce, but where the switch sums).

What a step is expected to take follows from the part of the peak that is given, or that published runs have reached.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Literal, TypeVar

from pydantic import BaseModel

from archdsl.diagnostics import error
from archdsl.estimates.dtypes import Dtype, Low
from archdsl.estimates.flops import Convention
from archdsl.estimates.flops import estimate as count_flops
from archdsl.estimates.hardware import Device, Type
from archdsl.estimates.kernels import Kernel, kernels
from archdsl.estimates.mesh import Mesh
from archdsl.estimates.needs import Inference, Prefill, Serving
from archdsl.estimates.sharding import Compute, Kind, Shares, Step, StepPlan
from archdsl.frozen import Frozen
from archdsl.ir.cost import elements, whole_at
from archdsl.ir.graph import Model, Value
from archdsl.ir.paths import layers_of, starred
from archdsl.passes.flat_step import FlatStep
from archdsl.passes.flatten import FlatGraph, FlatNode

SAYS = "roofline: a lower bound of every time, and so of every cost"
MACHINE = 8
"""Devices of one machine, where nobody says."""
PUBLISHED_MFU = (0.6423, 0.2634)
"""The most and the least of the peak that the runs of `benchmarks/training_runs.json` have reached."""
PUBLISHED = "published runs of 125M to 70B parameters on 8 to 512 A100s and H100s (FSDP, bfloat16)"

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
    """In traffic between devices beyond the time of what they compute."""
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
    layers: list[int] = []
    """Those that the first `*` of `path` stands for."""
    op: str
    uses: int
    forward: float
    """Seconds, of one micro-batch of training."""
    backward: float
    decode: float
    bound: Bound
    """Of the forward."""


class Expected(BaseModel):
    """What a training step is expected to take, the fastest first; never less than the bound."""

    says: str
    """Where the part of the peak is from."""
    convention: Convention
    """How the model's FLOPs are counted."""
    mfu: tuple[float, float]
    """The most and the least of it."""
    seconds: tuple[float, float]
    tokens_per_second: tuple[float, float]
    """Of all devices together."""


class RunCost(BaseModel):
    """What a training run takes."""

    seconds: float
    device_hours: float
    energy_kwh: float | None
    """Of the devices alone, all at their thermal design power; None where that is not known."""
    price: float | None
    """By the price of a device-hour."""


class Budget(RunCost):
    """A training run over so many tokens: the lower bound of what it takes, and what is expected."""

    tokens: int
    price_per_hour: float | None
    """What a device costs an hour, in any currency."""
    expected: tuple[RunCost, RunCost]
    """The least and the most."""


class Links(BaseModel):
    """Bytes/s that one device sends."""

    machine: int
    """Devices of one machine."""
    within: float | None
    between: float | None


class Roofline(BaseModel):
    """Times of a model on devices, each a lower bound."""

    says: str
    accelerator: str
    devices: int
    mesh: Mesh
    links: Links
    dtype: Dtype
    weights: Low | None
    """The type of matrices in inference, where it is another."""
    cache: Low | None
    """The same of KV caches."""
    compute: Compute | None
    """What products with weights are computed in, where it is another type."""
    fused: bool
    batch: int
    seq: int
    peak: float
    """FLOP/s of one device in `compute`, or `dtype`."""
    bandwidth: float
    ridge: float
    """FLOPs a byte."""
    training: TrainingTimes
    prefill: PassTimes
    """The forward over whole sequences, logits of the last position alone: the time to the first token."""
    decode: PassTimes | None
    """One more token for each sequence where `seq` positions are there; None where the model cannot be taken step by
    step."""
    no_decode: str | None
    fits: bool
    """Whether what training needs of memory is in a device."""
    usable: int
    """Bytes of a device's memory that a model can use: without bits that correct errors, and what the runtime needs."""
    by_op: list[OpTime]
    expected: Expected
    budget: Budget | None
    notes: list[str]


class Cluster(Frozen):
    """Devices, and how they are linked."""

    device: Device
    node: int = MACHINE
    network: float | None = None
    """Bytes/s that a device sends to other machines; None: what its file says."""

    @property
    def between(self) -> float | None:
        """Bytes/s that a device sends to other machines, None where that is not known."""
        known = self.device.network
        return self.network or (known.bandwidth if known is not None else None)

    def demand_links(self, devices: int) -> None:
        """Raise ArchError E0517 where so many devices are not linked, as far as the device's file says."""
        if devices > 1 and self.device.interconnect is None and self.node > 1:
            raise error(
                "E0517",
                f"the file of {self.device.name} names no link to other devices",
                help="give it an `interconnect`, or say `--machine 1 --network 25e9` if each is a machine of its own",
            )
        if devices > self.node and self.between is None:
            raise error(
                "E0517",
                f"the file of {self.device.name} names no network, and {devices:,} devices are in machines "
                f"of {self.node:,}",
                help=f"`--network 25e9` bytes/s a device (200 Gbit/s), or `--machine {devices}`",
            )


# --- the estimate -----------------------------------------------------------------------------------------------------


def estimate(
    model: Model,
    machine: Cluster,
    plan: StepPlan,
    *,
    batch: int | None = None,
    seq: int | None = None,
    fused: bool = True,
    mfu: float | None = None,
    tokens: int | None = None,
    price: float | None = None,
    step: Step | None = None,
) -> Roofline:
    """The times of a model. `batch` counts the sequences of a training step, and those that are generated at once, on
    all devices together; `mfu` is the part of the peak that training is expected to reach, attention counted whole;
    `tokens` asks what a training run over so many takes, and `price` is that of a device's hour.

    Raises ArchError E0503, E0515 and E0516 as `sharding.shard` does, and E0517 where the device does not compute in the
    plan's type, or has no link to another."""
    return _Roofline(model, machine, plan, batch, seq, fused, step).report(mfu, tokens, price)


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
        step: Step | None,
    ) -> None:
        self.model, self.machine, self.device, self.plan, self.fused = model, machine, machine.device, plan, fused
        self.mesh = plan.mesh
        own = self.device.peak.get(plan.compute or plan.dtype)
        if own is None:
            raise error(
                "E0517",
                f"{self.device.name} has no peak in {plan.compute or plan.dtype}",
                help=f"`--dtype {best_dtype(self.device)}`; its file says {', '.join(self.device.peak)}",
            )
        self.peak = own
        machine.demand_links(self.mesh.devices)
        self.step = step or Step(model, plan, batch, seq)
        self.sharding = self.step.sharding
        self.served = Inference(self.step)
        self.sizes = self.step.sizes
        self.notes: dict[str, None] = {}
        self.counted = count_flops(model, batch=self.step.batch, seq=self.step.seq).flops

    # --- one kernel, one message ---

    def time(self, kernel: Kernel, flops: float, moved: float) -> float:
        return max(flops / self.rate(kernel), moved / self.device.bandwidth)

    def rate(self, kernel: Kernel) -> float:
        """FLOP/s in a kernel's type; in one that the device's file leaves out, the lowest that it has."""
        if self.plan.compute is not None and not kernel.core:
            return self.peak
        found = peak_of(self.device, kernel.dtype, self.plan.dtype)
        if found is None:
            self.notes[f"the device's file has no peak in {kernel.dtype}: its lowest is taken"] = None
            return min(self.device.peak.values())
        return found

    def bound(self, kernel: Kernel) -> Bound:
        slower = kernel.flops / self.rate(kernel) > kernel.bytes / self.device.bandwidth
        return "compute" if slower else "memory"

    def near(self, axis: str) -> int:
        """The devices of a group along an axis of the mesh that are in one machine."""
        mesh, node = self.mesh, self.machine.node
        own = 1 if self.step.shares.experts_over_tp else mesh.tp
        inner = {"tp": 1, "cp": mesh.tp, "dp": mesh.tp * mesh.cp, "dp·cp": mesh.tp, "ep": own, "edp": own * mesh.ep}
        return -(-node // inner[axis]) if axis in inner else node if mesh.devices <= node else 1

    def sending(self, sent: Iterable[tuple[Kind, str, int, float]]) -> float:
        """Seconds of collectives, each with its axis, its devices and the bytes of the tensor: the longer time of those
        of the links within a machine, and of the network."""
        inside = between = 0.0
        link = self.device.interconnect
        for kind, axis, devices, payload in sent:
            near = min(self.near(axis), devices)
            if kind == "send":
                # Each rank of tensor parallelism sends its part of what all of them have.
                part = payload / (1 if self.step.shares.sequence_parallel else self.mesh.tp)
                inside, between = (inside + part, between) if near > 1 else (inside, between + part)
                continue
            near_part, far_part = (near - 1) / near, (devices - near) / devices
            if kind == "all-to-all":
                inside, between = inside + payload * (near - 1) / devices, between + payload * far_part
                continue
            both = 2 if kind == "all-reduce" else 1
            inside += payload * near_part * (1 if link is not None and link.sums else both)
            between += payload * far_part / near * both
        network = self.machine.between
        return max(
            inside / (link.bandwidth / 2) if link is not None else 0.0,
            between / network if network is not None else 0.0,
        )

    # --- training ---

    def training(self) -> tuple[TrainingTimes, list[Kernel]]:
        plan, mesh, step = self.plan, self.mesh, self.step
        found = kernels(step.graph, self.sizes, plan.dtype, fused=self.fused, cut=step.shares, scores=step.stored)
        positions: dict[int, tuple[int, bool]] = {}
        """Of a node, by its number: its stage, and whether the backward computes it again."""
        numbers: dict[FlatNode, int] = {n: i for i, n in enumerate(step.graph.nodes)}
        for i, chunk in enumerate(step.chunks):
            positions.update({numbers[n]: (i % mesh.pp, bool(step.again(n))) for n in chunk.nodes})
        head = {numbers[n] for n in step.loss.nodes}
        m = plan.micro_batches
        best: TrainingTimes | None = None
        stages = []
        for stage in range(mesh.pp):
            own = [k for k in found if positions[k.node][0] == stage]
            forward = self.passed((k, k.flops, k.bytes) for k in own)
            backward = self.passed((k, k.backward_flops, k.backward_bytes) for k in own)
            redone = (k for k in own if k.node in head or self.is_again(k, positions[k.node][1]))
            again = self.passed((k, k.flops, k.bytes) for k in redone)
            stages.append((forward, backward, again))
        each = [sum(t.seconds for t in parts) for parts in stages]
        for stage, (forward, backward, again) in enumerate(stages):
            optimizer = self.optimizer(stage)
            bubble = (sum(each) - each[stage]) / plan.interleave
            computing = m * each[stage] + bubble + optimizer
            links = self.sending((c.collective, c.axis, c.devices, c.payload) for c in step.talk(stage))
            times = TrainingTimes(
                seconds=max(computing, links),
                compute_bound=m * (forward.compute_bound + backward.compute_bound + again.compute_bound),
                memory_bound=m * (forward.memory_bound + backward.memory_bound + again.memory_bound) + optimizer,
                links=max(0.0, links - computing),
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
        """Whether the backward computes a kernel again: of a layer all, or what are no products with weights."""
        return in_layer and (self.plan.checkpoint == "full" or kernel.core or not kernel.flops)

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
            seconds = self.time(kernel, work, traffic)
            if work / self.rate(kernel) > traffic / self.device.bandwidth:
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
        step, inference = self.step, self.served
        rows, sizes = inference.rows, inference.sizes
        if rows * self.mesh.replicas != step.batch:
            self.notes[f"inference: a batch of {step.batch:,} does not fill {self.mesh.replicas:,} replicas"] = None
        counted = self.counted
        prefill, found = self.forward(inference.graph, inference.prefill, sizes, None)
        if self.mesh.devices > 1:
            alone = Prefill(self.model, inference.graph, Mesh(), self.plan, step.seq)
            found = kernels(
                inference.graph, sizes, self.plan.dtype, fused=self.fused, cut=alone, scores=inference.stored
            )
        prefill = self.told(prefill, sum(k.flops for k in found) * step.batch / rows, self.tokens(step.batch))
        decoding = inference.decoding
        if decoding is None:
            return prefill, None, counted.no_decode_step, []
        shares = Serving(self.model, decoding.step, inference.mesh, self.plan, decoding)
        decode, found = self.forward(decoding.step, shares, sizes, decoding)
        return prefill, self.told(decode, counted.decode_step or 0, step.batch), None, found

    def forward(
        self, graph: FlatGraph, shares: Shares, sizes: dict[str, int], step: FlatStep | None
    ) -> tuple[PassTimes, list[Kernel]]:
        stored = self.served.stored if step is None else None
        found = kernels(graph, sizes, self.plan.dtype, fused=self.fused, step=step, cut=shares, scores=stored)
        own = sizes if step is None else step.of.sizes(sizes)
        times = self.passed((k, k.flops, k.bytes) for k in found)

        def numbers(value: Value) -> int:
            last = isinstance(shares, Prefill) and value in shares.last
            return whole_at(elements(value.shape), own) // (self.step.seq if last else 1)

        sent = [
            (kind, axis, devices, payload)
            for r in shares.sharded.redistributions
            for kind, axis, _, phase, devices, payload in shares.collectives(r, self.plan.dtype, numbers)
            if phase == "forward" and devices > 1
        ]
        links = self.sending((*sent, *self.stages(sizes, step is not None)))
        seconds = {"seconds": max(times.seconds, links), "links": max(0.0, links - times.seconds)}
        return times.model_copy(update=seconds), found

    def stages(self, sizes: dict[str, int], decode: bool) -> Iterator[tuple[Kind, str, int, float]]:
        """The tensors that go from stage to stage."""
        step = self.step
        scale = sizes.get("batch", 1) / step.sizes.get("batch", 1) / (step.seq if decode else 1)
        scale *= self.mesh.cp
        for i in range(len(step.chunks) - 1):
            yield "send", "pp", self.mesh.pp, step.crossing(i) * scale

    # --- the report ---

    def report(self, mfu: float | None, tokens: int | None, price: float | None) -> Roofline:
        device, plan = self.device, self.plan
        training, forward = self.training()
        if not training.seconds:
            said = f"a step of `{self.model.name}` computes nothing that takes time"
            raise error("E0503", said, help="leave the accelerator out")
        expected = self.expected(training, mfu)
        prefill, decode, reason, steps = self.inference()
        if plan.interleave > 1:
            self.notes["inference: stages are passed one after the other, whatever is interleaved"] = None
        self.notes |= dict.fromkeys(self.stored_scores())
        within = device.interconnect
        return Roofline(
            says=SAYS,
            accelerator=device.name,
            devices=self.mesh.devices,
            mesh=self.mesh,
            links=Links(
                machine=self.machine.node,
                within=within.bandwidth / 2 if within is not None else None,
                between=self.machine.between,
            ),
            dtype=plan.dtype,
            weights=plan.weights,
            cache=plan.cache,
            compute=plan.compute,
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
            fits=self.sharding.memory.total <= device.usable,
            usable=device.usable,
            by_op=list(self.by_op(forward, steps)),
            expected=expected,
            budget=self.budget(training, expected, tokens, price),
            notes=list(self.notes),
        )

    def stored_scores(self) -> Iterator[str]:
        """Yield a note for each reason why scores are stored, with the attentions and the GiB of a layer."""
        why, bytes_of = self.step.stored.paths, self.step.saving.stored
        for reason in dict.fromkeys(why.values()):
            paths = [path for path, other in why.items() if other == reason]
            most = f"{max(bytes_of.get(path, 0.0) for path in paths) / (1 << 30):,.2f} GiB a layer"
            where = ", ".join(dict.fromkeys(map(starred, paths)))
            yield f"{where}: no fused kernel of PyTorch takes it ({reason}): its scores are stored, {most}"

    def by_op(self, forward: list[Kernel], steps: list[Kernel]) -> Iterator[OpTime]:
        """The slowest first."""
        rows: dict[tuple[str, str], OpTime] = {}
        bounds: dict[tuple[str, str], float] = {}
        paths: dict[tuple[str, str], set[str]] = defaultdict(set)
        for decode, found in ((False, forward), (True, steps)):
            for kernel in found:
                key = starred(kernel.path), kernel.op
                paths[key].add(kernel.path)
                row = rows.get(key)
                if row is None:
                    row = rows[key] = OpTime(
                        path=key[0], op=key[1], uses=0, forward=0, backward=0, decode=0, bound="memory"
                    )
                once = self.time(kernel, kernel.flops, kernel.bytes)
                if decode:
                    row.decode += once
                    continue
                back = self.time(kernel, kernel.backward_flops, kernel.backward_bytes)
                bounds[key] = bounds.get(key, 0.0) + (once if self.bound(kernel) == "compute" else -once)
                row.uses += 1
                row.forward += once
                row.backward += back
                row.bound = "compute" if bounds[key] > 0 else "memory"
        for key, row in rows.items():
            row.layers = layers_of(paths[key])
        return iter(sorted(rows.values(), key=lambda r: -(r.forward + r.backward)))

    def expected(self, training: TrainingTimes, mfu: float | None) -> Expected:
        """What a step takes at a part of the peak, or at those that published runs have reached."""
        reached = (mfu, mfu) if mfu is not None else PUBLISHED_MFU
        flops = self.counted.conventions["dense"].training
        peak = self.peak * self.mesh.devices
        fastest, slowest = (max(training.seconds, flops / (peak * part)) for part in reached)
        tokens = self.tokens(self.step.batch)
        return Expected(
            says="as given" if mfu is not None else PUBLISHED,
            convention="dense",
            mfu=(flops / (peak * fastest), flops / (peak * slowest)),
            seconds=(fastest, slowest),
            tokens_per_second=(tokens / fastest, tokens / slowest),
        )

    def budget(
        self, training: TrainingTimes, expected: Expected, tokens: int | None, price: float | None
    ) -> Budget | None:
        if tokens is None:
            return None
        watts = self.device.tdp_watts

        def cost(per_second: float) -> RunCost:
            seconds = tokens / per_second
            hours = seconds * self.mesh.devices / 3600
            return RunCost(
                seconds=seconds,
                device_hours=hours,
                energy_kwh=hours * watts / 1000 if watts is not None else None,
                price=hours * price if price is not None else None,
            )

        least, most = expected.tokens_per_second
        bound = dict(cost(training.tokens_per_second))
        return Budget(**bound, tokens=tokens, price_per_hour=price, expected=(cost(least), cost(most)))


def best_dtype(device: Device) -> Dtype:
    """Return the type that models are trained in on a device."""
    types: tuple[Dtype, ...] = ("bfloat16", "float16", "float32")
    return next((t for t in types if t in device.peak), "float32")
