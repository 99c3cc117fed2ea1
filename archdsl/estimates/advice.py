"""What would make a training step fit in a device: options are tried on the step itself, none is known to help.

Model, sequence length and precision stay as they are. What costs little time is tried first, activation checkpointing
last; of what is found, each option is given back that is not needed. Where all of that is too little, more replicas
share the model's states: of the same batch if they divide it, else of a sequence for each.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from math import gcd, inf
from typing import Any

from pydantic import BaseModel

from archdsl.diagnostics import ArchError
from archdsl.estimates.mesh import divisors
from archdsl.estimates.needs import training
from archdsl.estimates.roofline import Cluster
from archdsl.estimates.sharding import Step, StepPlan

MORE = tuple(1 << power for power in range(1, 11))
"""So many times the devices are tried."""


class Advice(BaseModel):
    """Options with which a training step needs less memory, of the same model, sequence length and precision."""

    options: list[str]
    """`--checkpoint`, `full`, …: instead of the values that they were given."""
    bytes: int
    """What the fullest device needs with them."""
    fits: bool


def advice(step: Step, machine: Cluster, *, by_mesh: bool) -> Advice | None:
    """Return the options that make a step fit which does not, or with which it needs least; None where none helps.

    `by_mesh` says whether devices are counted by `--mesh`, or by `--devices`."""
    search = _Search(step, machine.device.usable)
    if search.fits(search.best):
        return None
    search.narrow()
    if not search.fits(search.best):
        search.widen(machine)
    search.give_back()
    if search.best == search.own:
        return None
    return Advice(
        options=[*search.options(by_mesh)], bytes=round(search.need(search.best)), fits=search.fits(search.best)
    )


class _Search:
    """Plans of a step, and what each needs."""

    def __init__(self, step: Step, usable: int) -> None:
        self.step, self.usable = step, usable
        self.own = self.best = (step.plan, step.batch)
        self.needs: dict[tuple[str, int], float] = {self.key(self.own): training(step).bytes}

    def key(self, run: tuple[StepPlan, int]) -> tuple[str, int]:
        return repr(replace(run[0], device=None)), run[1]

    def need(self, run: tuple[StepPlan, int]) -> float:
        """Return the bytes that a plan needs with a batch; infinity where the model, or the mesh, refuses it."""
        key = self.key(run)
        if key not in self.needs:
            plan, batch = run
            try:
                self.needs[key] = training(Step(self.step.model, plan, batch, self.step.seq)).bytes
            except ArchError:
                self.needs[key] = inf
        return self.needs[key]

    def fits(self, run: tuple[StepPlan, int]) -> bool:
        return self.need(run) <= self.usable

    def changed(self, **fields: Any) -> tuple[StepPlan, int]:
        """Return the best run with other fields of its plan."""
        plan, batch = self.best
        return replace(plan, **fields), batch

    def choices(self) -> Iterator[tuple[str, list[Any]]]:
        """Yield fields of a plan, those that cost the least time first, with their values from its own one on."""
        plan, rows = self.own[0], self.step.batch // self.step.mesh.dp
        ladders: tuple[tuple[str, list[Any]], ...] = (
            ("loss", ["eager", "chunked"]),
            ("attention", ["eager", "fused"]),
            ("sequence_parallel", [False, True]),
            ("zero", [0, 1, 2, 3]),
            ("micro_batches", divisors(rows)),
            ("checkpoint_every", [plan.checkpoint_every, 1]),
            ("checkpoint", ["none", "selective", "full"]),
        )
        for name, values in ladders:
            own = getattr(plan, name)
            if own in values and own != values[-1]:
                yield name, values[values.index(own) :]

    def narrow(self) -> None:
        """Take the strongest value of each choice that helps, until the step fits."""
        for name, values in self.choices():
            tried = self.changed(**{name: values[-1]})
            if self.need(tried) < self.need(self.best):
                self.best = tried
            if self.fits(self.best):
                return

    def widen(self, machine: Cluster) -> None:
        """Take the fewest replicas that hold enough of the model's states, if any number does."""

        def more(times: int) -> tuple[StepPlan, int]:
            plan, batch = self.best
            mesh = plan.mesh.model_copy(update={"dp": plan.mesh.dp * times})
            try:
                machine.demand_links(mesh.devices)
            except ArchError:
                return self.best
            rows, rest = divmod(batch, mesh.dp)
            plan = replace(plan, mesh=mesh, zero=3, micro_batches=1 if rest else gcd(plan.micro_batches, rows))
            return plan, mesh.dp if rest else batch

        at = bisect_left(MORE, True, key=lambda times: self.fits(more(times)))
        if at < len(MORE):
            self.best = more(MORE[at])

    def give_back(self) -> None:
        """Leave each choice as it was, or take a weaker value of it, where the step still fits, or needs no more."""
        most = max(self.usable, self.need(self.best))
        for name, values in reversed([*self.choices()]):
            if getattr(self.best[0], name) != values[0]:
                weaker = (self.changed(**{name: value}) for value in values)
                self.best = next(run for run in weaker if self.need(run) <= most)

    def options(self, by_mesh: bool) -> Iterator[str]:
        """Yield the arguments that make the best run of the step's own one."""
        (plan, batch), (own, rows) = self.best, self.own
        if plan.mesh != own.mesh:
            sizes = (f"{axis}={n}" for axis, n in plan.mesh.sizes.items() if n > 1)
            yield from ("--mesh", ",".join(sizes)) if by_mesh else ("--devices", str(plan.mesh.devices))
        if batch != rows:
            yield from ("--batch", str(batch))
        for name in (
            "zero",
            "sequence_parallel",
            "micro_batches",
            "checkpoint",
            "checkpoint_every",
            "attention",
            "loss",
        ):
            value = getattr(plan, name)
            if value != getattr(own, name):
                yield f"--{name.replace('_', '-')}"
                yield from () if value is True else (str(value),)
