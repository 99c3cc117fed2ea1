"""How many devices a run is spread over, and along which axes.

A mesh has `dp · cp · tp · pp` devices. Each axis cuts something else: data parallelism the batch, context parallelism
the sequence, tensor parallelism matrices and heads, pipeline parallelism the stack of layers. Expert parallelism is no
axis of its own: experts are spread over `ep` of the `dp · cp · tp` devices of a stage, of which there are then
`dp · cp · tp / ep` copies.

Devices are numbered so that neighbours are of one group of tensor parallelism, then of context, data and last of
pipeline parallelism: the groups that talk most stand nearest (Narayanan et al., 2021, section 3.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, PositiveInt

from archdsl.diagnostics import did_you_mean, error

Axis = Literal["dp", "tp", "pp", "cp", "ep"]
AXES: dict[Axis, str] = {
    "dp": "data",
    "tp": "tensor",
    "pp": "pipeline",
    "cp": "context",
    "ep": "expert",
}
LARGEST = 1 << 24
"""Devices along one axis."""


class Mesh(BaseModel):
    """Devices along each axis."""

    model_config = ConfigDict(frozen=True)

    dp: PositiveInt = 1
    tp: PositiveInt = 1
    pp: PositiveInt = 1
    cp: PositiveInt = 1
    ep: PositiveInt = 1

    @property
    def sizes(self) -> dict[str, int]:
        """Devices along each axis, by its name."""
        return {"dp": self.dp, "tp": self.tp, "pp": self.pp, "cp": self.cp, "ep": self.ep}

    @property
    def devices(self) -> int:
        """All of them."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def replicas(self) -> int:
        """How many devices hold the same piece of a weight that is no expert's: what ZeRO cuts."""
        return self.dp * self.cp

    def __str__(self) -> str:
        return ", ".join(f"{axis} = {n:,}" for axis in AXES if (n := getattr(self, axis)) > 1) or "one device"


def parse_mesh(text: str) -> Mesh:
    """A mesh as the command line has it: `dp=8,tp=8,pp=16`.

    Raises ArchError E0514 where that is no mesh."""
    found: dict[str, int] = {}
    help_ = "write it as `dp=8,tp=8,pp=16`; the axes are dp, tp, pp, cp and ep"
    for item in text.split(","):
        name, equals, number = (part.strip() for part in item.partition("="))
        if not equals or not number.isdecimal():
            raise error("E0514", f"`{item.strip()}` is no axis of a mesh", help=help_)
        if name not in AXES:
            near = did_you_mean(name, AXES)
            raise error("E0514", f"a mesh has no axis `{name}`", help=near or help_)
        if name in found:
            raise error("E0514", f"the axis `{name}` is given twice", help=help_)
        if not 1 <= int(number) <= LARGEST:
            raise error("E0514", f"`{name}` is at least 1 and at most {LARGEST:,}, not {number}", help=help_)
        found[name] = int(number)
    mesh = Mesh(**found)
    stage = mesh.dp * mesh.cp * mesh.tp
    if stage % mesh.ep:
        raise error(
            "E0514",
            f"experts are spread over the {stage:,} devices of a stage (dp · cp · tp), and ep = {mesh.ep} does not "
            f"divide them",
            help=f"ep = {nearest_divisors(stage, mesh.ep)}",
        )
    return mesh


def divisors(n: int) -> list[int]:
    """All divisors, the smallest first."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def nearest_divisors(n: int, to: int) -> str:
    """The four divisors of n that are nearest to a number, as a text: `4, 6 or 12`."""
    return one_of(sorted(sorted(divisors(n), key=lambda d: (abs(d - to), d))[:4]))


def one_of(numbers: Sequence[int]) -> str:
    """`4, 6 or 12`."""
    *others, last = map(str, numbers)
    return f"{', '.join(others)} or {last}" if others else last
