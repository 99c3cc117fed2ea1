"""Accelerators: what they compute, hold and move at best, one file each; a file of one's own has the same form.

Peaks are those of dense matrices as the vendor gives them, with sums in float32 where there is a choice: figures "with
sparsity" are twice as much, and no run reaches either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt, ValidationError

from archdsl.diagnostics import did_you_mean, error
from archdsl.files import MAX_CONFIG, read_bytes

Type = Literal["float64", "float32", "tfloat32", "bfloat16", "float16", "float8", "float4", "int8"]


class Interconnect(BaseModel):
    """The fastest way to other devices of the same machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    bandwidth: PositiveFloat
    """Bytes/s, both directions together."""
    sums: bool = False
    """Whether the switch sums what devices send, so that an all-reduce takes each device's tensor once (NVLS)."""


class Network(BaseModel):
    """The way to devices of other machines, of the machine that the vendor or a cloud builds of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    bandwidth: PositiveFloat
    """Bytes/s that one device sends."""
    source: str = Field(min_length=1)


class Device(BaseModel):
    """One accelerator."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    vendor: str
    year: int | None = None
    """When it came out."""
    memory_gib: PositiveFloat
    """What vendors call GB, 2^30 bytes."""
    visible_gib: PositiveFloat | None = None
    """Memory that the driver reports (`nvidia-smi`), in GiB; None: all of it, less the bits of ECC."""
    reserve_gib: NonNegativeFloat = 1.0
    """Memory that a runtime keeps for itself, in GiB: its context, buffers of collectives, fragments."""
    ecc_in_memory: bool = False
    """Whether a sixteenth of the memory holds the bits that correct errors, as GDDR6 has it."""
    bandwidth: PositiveFloat
    """Of that memory, bytes/s."""
    peak: dict[Type, PositiveFloat] = Field(min_length=1)
    """FLOP/s of dense products of matrices, by the type of their elements; of int8, operations/s."""
    interconnect: Interconnect | None = None
    network: Network | None = None
    compute_capability: str | None = Field(default=None, pattern=r"^\d{1,2}\.\d$")
    """Of CUDA, by which PyTorch chooses its kernels: 9.0; None where it is no device of CUDA, or nothing is known."""
    tdp_watts: PositiveInt | None = None
    source: str = Field(min_length=1)
    """Where the figures are from."""

    @property
    def usable(self) -> int:
        """Bytes that a model can use."""
        visible = self.visible_gib or self.memory_gib * (15 / 16 if self.ecc_in_memory else 1)
        return max(0, int((visible - self.reserve_gib) * (1 << 30)))

    @property
    def capability(self) -> tuple[int, int] | None:
        """The compute capability as numbers."""
        if self.compute_capability is None:
            return None
        major, minor = self.compute_capability.split(".")
        return int(major), int(minor)

    def ridge(self, dtype: Type) -> float | None:
        """FLOPs a byte from which on work is bound by arithmetic and not by memory (Williams et al., 2009); None for a
        type that the device does not compute in."""
        peak = self.peak.get(dtype)
        return peak / self.bandwidth if peak is not None else None


class HardwareReport(BaseModel):
    """What `archdsl hardware` prints: devices by the name of their file."""

    devices: dict[str, Device]


@cache
def devices() -> Mapping[str, Device]:
    """Every device that ships with the compiler, by name: `h100_sxm`."""
    found = (p for p in files("archdsl.estimates.hardware").iterdir() if p.name.endswith(".json"))
    read = {p.name.removesuffix(".json"): Device.model_validate_json(p.read_text(encoding="utf-8")) for p in found}
    return dict(sorted(read.items(), key=lambda item: (item[1].vendor != "NVIDIA", item[1].year or 0, item[0])))


def device(name: str | Path) -> Device:
    """A device that ships with the compiler, or of a file `….json`. `H200` is `h200_sxm`, the only one of that name.

    Raises ArchError E0507 where none or several are called so, or the file cannot be read or lacks something."""
    if isinstance(name, str) and not name.endswith(".json"):
        known = devices()
        plain = re.sub(r"[\s-]", "_", name.lower())
        found = [n for n in known if n == plain] or [n for n in known if n.startswith(f"{plain}_")]
        if len(found) == 1:
            return known[found[0]]
        if found:
            raise error("E0507", f"there are several devices `{name}`", help=f"choose one: {', '.join(found)}")
        help_ = did_you_mean(name, known) or f"there are {', '.join(known)}; a device of your own is a file `….json`"
        raise error("E0507", f"there is no device `{name}`", help=help_)
    try:
        return Device.model_validate_json(read_bytes(name, MAX_CONFIG))
    except OSError as problem:
        raise error("E0507", f"`{name}` cannot be read: {problem.strerror or problem}") from None
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        said = f"`{name}` is not the file of a device: {f'`{where}`: ' if where else ''}{first['msg']}"
        raise error("E0507", said, help="`archdsl hardware h100_sxm --json` shows one") from None


def chosen(names: Iterable[str]) -> HardwareReport:
    """Devices by their names or files, in that order; all that ship with the compiler where none is named."""
    return HardwareReport(
        devices={Path(n).stem if n.endswith(".json") else n: device(n) for n in names} or dict(devices())
    )
