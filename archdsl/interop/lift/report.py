"""What `archdsl lift` has found and written."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from archdsl.diagnostics import Diagnostic
from archdsl.shown import Shown

TOLERANCE = 1e-5
"""The largest difference of outputs that passes, relative to the largest of the module's own, in float32."""


class LiftCheck(BaseModel):
    """One comparison of the spec with the module."""

    what: Literal["parameters", "outputs", "causality", "decode steps", "checkpoint"]
    configuration: dict[str, int | float]
    """The fields of the module's configuration that were others than its own; empty where it was as it is."""
    passed: bool
    difference: float | None
    """The largest difference between outputs, relative to the largest of the module's; None where it is not finite, or
    nothing was compared."""
    message: str
    """What was compared, or what differs."""


class InitialValue(BaseModel):
    """Weights that the module and the spec initialize otherwise, those of all layers together."""

    weight: str
    """Their name in the spec; `*` stands for the numbers of layers."""
    module: str
    """How the module draws them: a scheme of the language, measured over several seeds."""
    spec: str
    """How the spec draws them."""
    scheme: str | None
    """What `init:` could say, where it is the same in every configuration that was built."""


class LiftReport(BaseModel, Shown):
    """A spec that was made from a module, and how the two compare."""

    model: str
    """The name of the model in the spec."""
    module: str
    """Where the module comes from."""
    text: str
    """The spec."""
    checkpoint: str | None
    """The table of weights, a `.checkpoint` file; None where its names cannot be written in one."""
    files: list[str]
    """What was written: the spec, the table, and the weights in the spec's names."""
    parameters: int
    tensors: int
    """How many tensors of the module they lie in."""
    configurations: list[dict[str, int | float]]
    """The other configurations that the spec was made from and compared in, as the fields that differ."""
    causal: bool
    """Whether it is proved that no output depends on a later position."""
    checks: list[LiftCheck]
    initial_values: list[InitialValue]
    remarks: list[str]
    """What the spec does not say of the module, with the paths of its parts."""

    @property
    def verified(self) -> bool:
        """Whether all that was compared is equal."""
        return all(check.passed for check in self.checks)

    def disagreement(self) -> Diagnostic | None:
        """Return the finding E0548 where anything that was compared differs."""
        wrong = [check for check in self.checks if not check.passed]
        if not wrong:
            return None
        kept = [f"written, and kept: {', '.join(self.files)}"] if self.files else []
        return Diagnostic(
            "E0548",
            f"`{self.model}` is unverified: {wrong[0].message}",
            notes=(*(check.message for check in wrong[1:6]), *kept),
            help="the first line of the spec says so; do not use it as that module",
        )
