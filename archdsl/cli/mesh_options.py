"""Options of `estimate` about many devices and about time, and how they are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from archdsl.cli.options import only_with

if TYPE_CHECKING:
    from archdsl.estimates.machines import MachinesReport
    from archdsl.estimates.memory import MemoryReport
    from archdsl.estimates.roofline import Machine
    from archdsl.estimates.sharding import Plan
    from archdsl.ir.graph import Model

MeshOption = Annotated[
    str | None,
    typer.Option("--mesh", metavar="AXIS=N,…", help="One training step on many devices: dp=8,tp=8,pp=16,cp=1,ep=1."),
]
ZeroOption = Annotated[
    int, typer.Option("--zero", min=0, max=3, help="Replicas share states (1), gradients too (2), weights too (3).")
]
MicroBatchesOption = Annotated[
    int, typer.Option("--micro-batches", min=1, max=1 << 20, help="Parts of a step that follow each other.")
]
InterleaveOption = Annotated[
    int, typer.Option("--interleave", min=1, max=1 << 10, help="Pieces of the stack that each stage has.")
]
SequenceParallelOption = Annotated[
    bool, typer.Option("--sequence-parallel", help="With tp: what matrices do not cut is cut along the sequence.")
]
AttentionOption = Annotated[
    Literal["fused", "eager"],
    typer.Option("--attention", help="With --mesh: scores are never in memory, or kept for the backward."),
]
Float32GradientsOption = Annotated[
    bool, typer.Option("--float32-gradients", help="With --mesh: gradients are summed in float32.")
]
HardwareOption = Annotated[
    str | None,
    typer.Option(
        "--device", metavar="NAME", help="Times at best on that device: see `archdsl hardware`; or a file .json."
    ),
]
DevicesOption = Annotated[
    int | None, typer.Option("--devices", min=1, help="With --device: so many of them, each a replica.")
]
MachineOption = Annotated[
    int, typer.Option("--machine", min=1, help="With --device: so many of them are in one machine.")
]
NetworkOption = Annotated[
    float,
    typer.Option("--network", min=1.0, help="With --device: bytes/s that each sends to other machines (50e9)."),
]
FusedOption = Annotated[
    bool, typer.Option("--fused/--not-fused", help="With --device: element-wise ops that meet are one kernel, or not.")
]
TokensOption = Annotated[
    str | None, typer.Option("--tokens", metavar="N", help="With --device: hours, energy and price of a run over N.")
]
PriceOption = Annotated[
    float | None, typer.Option("--price", min=0.0, help="With --tokens: what a device costs an hour.")
]

OF_MESH = ("zero", "micro_batches", "interleave", "sequence_parallel", "attention", "float32_gradients")
OF_DEVICE = ("devices", "machine", "network", "fused", "tokens", "price")


@dataclass(frozen=True)
class Spread:
    """What was asked about a mesh and a device."""

    plan: Plan
    machine: Machine | None
    fused: bool
    tokens: int | None
    price: float | None

    @property
    def batch(self) -> int:
        """Sequences of a step where nobody says: one for each micro-batch of each replica."""
        return self.plan.mesh.dp * self.plan.micro_batches

    def report(self, report: MemoryReport, model: Model) -> MachinesReport:
        """The report with the answers."""
        from archdsl.estimates.machines import with_machines

        return with_machines(
            report, model, self.plan, self.machine, fused=self.fused, tokens=self.tokens, price=self.price
        )


def asked(context: typer.Context, amount: Callable[[str, str], Decimal]) -> Spread | None:
    """What `estimate` was asked about a mesh and a device; None where it was about neither. `amount` reads a number of
    an option.

    Raises ArchError: E0507 for a device that there is not, E0514 for a mesh that is none."""
    given = context.params
    if given["mesh"] is None and given["device"] is None:
        only_with(context, "--mesh", *OF_MESH)
    if given["device"] is None:
        only_with(context, "--device", *OF_DEVICE)
    if given["tokens"] is None:
        only_with(context, "--tokens", "price")
    if given["mesh"] is None and given["device"] is None:
        return None
    from archdsl.estimates.hardware import device
    from archdsl.estimates.machines import mesh_of
    from archdsl.estimates.mesh import parse_mesh
    from archdsl.estimates.roofline import Machine
    from archdsl.estimates.sharding import Plan

    mesh = parse_mesh(given["mesh"]) if given["mesh"] is not None else None
    plan = Plan(
        mesh=mesh_of(mesh, given["devices"]),
        **{name: given[name] for name in ("zero", "micro_batches", "interleave", "sequence_parallel", "attention")},
        recompute=given["recompute"],
        dtype=given["dtype"] or "float32",
        optimizer=given["optimizer"] or "adamw",
        master_weights=given["master_weights"],
        gradient_dtype="float32" if given["float32_gradients"] else None,
    )
    named = given["device"]
    machine = Machine(device(named), given["machine"], given["network"]) if named is not None else None
    tokens = int(amount(given["tokens"], "--tokens")) if given["tokens"] is not None else None
    return Spread(plan, machine, given["fused"], tokens, given["price"])
