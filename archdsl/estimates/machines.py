"""What a model takes on devices that are named: `archdsl estimate --mesh` and `--accelerator`."""

from __future__ import annotations

from typing import Any

from archdsl.diagnostics import error
from archdsl.estimates import roofline
from archdsl.estimates.advice import Advice, advice
from archdsl.estimates.memory import MemoryReport
from archdsl.estimates.mesh import Mesh
from archdsl.estimates.needs import Need, needs
from archdsl.estimates.roofline import Cluster, Roofline
from archdsl.estimates.sharding import Sharding, Step, StepPlan
from archdsl.ir.graph import Model


class MachinesReport(MemoryReport):
    """What `archdsl estimate` prints where it is asked about a mesh or a device."""

    needs: list[Need]
    """What training, prefill and decoding need of a device's memory."""
    advice: Advice | None = None
    """Where training does not fit in a named device: options with which it does, or needs less."""
    sharding: Sharding
    roofline: Roofline | None = None


def with_machines(
    report: MemoryReport, model: Model, plan: StepPlan, machine: Cluster | None, *, by_mesh: bool, **how: Any
) -> MachinesReport:
    """The report on a model with what it needs and takes on a mesh and, on a machine that is given, its times; at the
    report's sizes. `by_mesh`: a mesh was given, not a number of devices. `how` are the other arguments of
    `roofline.estimate`.

    Raises ArchError as that and `sharding.shard` do."""
    step = Step(model, plan, report.flops.batch, report.flops.seq)
    times = roofline.estimate(model, machine, plan, step=step, **how) if machine is not None else None
    found = needs(step, machine.device.usable if machine is not None else None)
    other = advice(step, machine, by_mesh=by_mesh) if machine is not None else None
    return MachinesReport(**dict(report), needs=found, advice=other, sharding=step.sharding, roofline=times)


def mesh_of(mesh: Mesh | None, devices: int | None) -> Mesh:
    """The mesh that was asked for: so many replicas where only a number of devices is given.

    Raises ArchError E0514 where both are given and differ."""
    if mesh is None:
        return Mesh(dp=devices or 1)
    if devices is not None and devices != mesh.devices:
        raise error(
            "E0514",
            f"a mesh of {mesh} has {mesh.devices:,} devices (dp · cp · tp · pp), and {devices:,} were given",
            help="leave `--devices` out",
        )
    return mesh
