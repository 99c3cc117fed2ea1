"""Options of `estimate` about a mesh of devices and about time, and how they are read."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from archdsl.cli.options import MESH, TIME, complete_accelerator, only_with
from archdsl.frozen import Frozen

if TYPE_CHECKING:
    from archdsl.estimates.machines import MachinesReport
    from archdsl.estimates.memory import MemoryReport
    from archdsl.estimates.roofline import Cluster
    from archdsl.estimates.sharding import StepPlan
    from archdsl.ir.graph import Model

MeshOption = Annotated[
    str | None,
    MESH("--mesh", metavar="AXIS=N,…", help="A training step on a mesh of devices: dp=8,tp=8,pp=16,cp=1,ep=1."),
]
ZeroOption = Annotated[
    int, MESH("--zero", min=0, max=3, help="ZeRO: shard optimizer state (1), gradients too (2), weights too (3).")
]
MicroBatchesOption = Annotated[int, MESH("--micro-batches", min=1, max=1 << 20, help="Micro-batches of a step.")]
InterleaveOption = Annotated[
    int, MESH("--interleave", min=1, max=1 << 10, help="Interleaved pipeline: model chunks per stage.")
]
StagesOption = Annotated[
    str | None,
    MESH(
        "--stages",
        metavar="N,N,…",
        help="With pp: layers of each chunk (equal numbers, or one fewer beside the embedding and the head).",
    ),
]
CheckpointEveryOption = Annotated[
    int,
    MESH(
        "--checkpoint-every",
        min=1,
        max=1 << 20,
        help="With --checkpoint: of so many layers only the first is checkpointed.",
    ),
]
SequenceParallelOption = Annotated[
    bool, MESH("--sequence-parallel", help="With tp: shard along the sequence what tensor parallelism does not shard.")
]
AttentionOption = Annotated[
    Literal["fused", "eager"], MESH("--attention", help="Attention scores: never in memory (fused), or saved (eager).")
]
Float32GradientsOption = Annotated[bool, MESH("--float32-gradients", help="Accumulate gradients in float32.")]
LOW = Literal["float8", "int8", "int4"]
WeightsOption = Annotated[LOW | None, TIME("--weights", help="Inference with matrices of that type.")]
CacheOption = Annotated[LOW | None, TIME("--kv-cache", help="Inference with a KV cache of that type.")]
ComputeOption = Annotated[
    Literal["float8", "float4", "int8"] | None,
    TIME("--compute", help="With --accelerator: the type of products with weights."),
]
AcceleratorOption = Annotated[
    str | None,
    TIME(
        "--accelerator",
        metavar="NAME",
        help="Roofline times on that accelerator: see `archdsl hardware`; or a file .json.",
        autocompletion=complete_accelerator,
    ),
]
DevicesOption = Annotated[
    int | None, TIME("--devices", min=1, max=1 << 30, help="How many of them, data parallel unless --mesh says.")
]
MachineOption = Annotated[int, TIME("--machine", min=1, max=1 << 30, help="Devices per machine.")]
NetworkOption = Annotated[
    float | None,
    TIME(
        "--network", min=1.0, help="Bytes/s that each device sends to other machines (else: as the accelerator's file)."
    ),
]
FusedOption = Annotated[bool, TIME("--fused/--not-fused", help="Fuse neighbouring element-wise ops.")]
MfuOption = Annotated[
    float | None,
    TIME(
        "--mfu",
        min=1e-3,
        max=1.0,
        help="Expect training to reach that part of the peak: 0.4 (else: what published runs reached).",
    ),
]
TokensOption = Annotated[str | None, TIME("--tokens", metavar="N", help="Hours, energy and price of training on N.")]
PriceOption = Annotated[float | None, TIME("--price", min=0.0, help="With --tokens: price of a device-hour.")]

OF_MESH = (
    "zero",
    "micro_batches",
    "interleave",
    "stages",
    "checkpoint_every",
    "sequence_parallel",
    "attention",
    "float32_gradients",
    "weights",
    "kv_cache",
)
OF_ACCELERATOR = ("compute", "devices", "machine", "network", "fused", "mfu", "tokens", "price")


class Spread(Frozen):
    """What was asked about a mesh and an accelerator."""

    plan: StepPlan
    machine: Cluster | None
    how: dict[str, Any]
    """Of times: `fused`, `mfu`, `tokens`, `price`."""

    @property
    def batch(self) -> int:
        """Sequences of a step where nobody says: one for each micro-batch of each replica."""
        return self.plan.mesh.dp * self.plan.micro_batches

    @property
    def peak(self) -> float | None:
        """FLOP/s of all devices together, in the type of products."""
        plan = self.plan
        found = self.machine.device.peak.get(plan.compute or plan.dtype) if self.machine is not None else None
        return found * plan.mesh.devices if found is not None else None

    def report(self, report: MemoryReport, model: Model) -> MachinesReport:
        """The report with the answers."""
        from archdsl.estimates.machines import with_machines

        return with_machines(report, model, self.plan, self.machine, **self.how)


def _layers(text: str | None) -> tuple[int, ...]:
    """The numbers of layers of `7,8,8,7`."""
    numbers = [part.strip() for part in text.split(",")] if text is not None else []
    if not all(n.isdecimal() and 0 < int(n) < 1 << 20 for n in numbers):
        raise typer.BadParameter(f"write it as 7,8,8,7, not {text!r}", param_hint="'--stages'")
    return tuple(map(int, numbers))


def asked(context: typer.Context, amount: Callable[[str, str], Decimal]) -> Spread | None:
    """What `estimate` was asked about a mesh and an accelerator; None where it was about neither. `amount` reads a
    number of an option.

    Raises ArchError: E0507 for an accelerator that there is not, E0514 for a mesh that is none."""
    given = context.params
    if given["mesh"] is None and given["accelerator"] is None:
        only_with(context, "--mesh", *OF_MESH)
    if given["accelerator"] is None:
        only_with(context, "--accelerator", *OF_ACCELERATOR)
    if given["tokens"] is None:
        only_with(context, "--tokens", "price")
    if given["checkpoint"] == "none":
        only_with(context, "--checkpoint", "checkpoint_every")
    if given["mesh"] is None and given["accelerator"] is None:
        return None
    from archdsl.estimates.hardware import device
    from archdsl.estimates.machines import mesh_of
    from archdsl.estimates.mesh import parse_mesh
    from archdsl.estimates.roofline import Cluster, best_dtype
    from archdsl.estimates.sharding import StepPlan

    named = given["accelerator"]
    machine = Cluster(device(named), given["machine"], given["network"]) if named is not None else None
    mesh = parse_mesh(given["mesh"]) if given["mesh"] is not None else None
    plan = StepPlan(
        mesh=mesh_of(mesh, given["devices"]),
        **{name: given[name] for name in ("zero", "micro_batches", "interleave", "sequence_parallel", "attention")},
        checkpoint=given["checkpoint"],
        checkpoint_every=given["checkpoint_every"],
        loss=given["loss"],
        stages=_layers(given["stages"]),
        dtype=given["dtype"] or (best_dtype(machine.device) if machine is not None else "float32"),
        weights=given["weights"],
        cache=given["kv_cache"],
        compute=given["compute"],
        optimizer=given["optimizer"] or "adamw",
        master_weights=given["master_weights"],
        gradient_dtype="float32" if given["float32_gradients"] else None,
    )
    tokens = int(amount(given["tokens"], "--tokens")) if given["tokens"] is not None else None
    return Spread(plan, machine, {**{name: given[name] for name in ("fused", "mfu", "price")}, "tokens": tokens})
