"""Options of `estimate` about a mesh of devices and about time, and how they are read."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from archdsl.cli.options import MESH, TIME, complete_accelerator, only_with
from archdsl.ranges import bounds

MeshOption = Annotated[
    str | None,
    MESH("--mesh", metavar="AXIS=N,…", help="A training step on a mesh of devices: dp=8,tp=8,pp=16,cp=1,ep=1."),
]
ZeroOption = Annotated[
    int, MESH("--zero", **bounds("zero"), help="ZeRO: shard optimizer state (1), gradients too (2), weights too (3).")
]
MicroBatchesOption = Annotated[int, MESH("--micro-batches", **bounds("micro_batches"), help="Micro-batches of a step.")]
InterleaveOption = Annotated[
    int, MESH("--interleave", **bounds("interleave"), help="Interleaved pipeline: model chunks per stage.")
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
        **bounds("checkpoint_every"),
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
    int | None, TIME("--devices", **bounds("devices"), help="How many of them, data parallel unless --mesh says.")
]
MachineOption = Annotated[int, TIME("--machine", **bounds("machine"), help="Devices per machine.")]
NetworkOption = Annotated[
    float | None,
    TIME(
        "--network",
        **bounds("network"),
        help="Bytes/s that each device sends to other machines (else: as the accelerator's file).",
    ),
]
FusedOption = Annotated[bool, TIME("--fused/--not-fused", help="Fuse neighbouring element-wise ops.")]
MfuOption = Annotated[
    float | None,
    TIME(
        "--mfu",
        **bounds("mfu"),
        help="Expect training to reach that part of the peak: 0.4 (else: what published runs reached).",
    ),
]
TokensOption = Annotated[str | None, TIME("--tokens", metavar="N", help="Hours, energy and price of training on N.")]
PriceOption = Annotated[float | None, TIME("--price", **bounds("price"), help="With --tokens: price of a device-hour.")]


def demand_together(context: typer.Context) -> None:
    """Refuse options of a mesh or an accelerator that were given without one."""
    from archdsl.api import OF_ACCELERATOR, OF_MESH

    given = context.params
    if given["mesh"] is None and given["accelerator"] is None:
        only_with(context, "--mesh", *OF_MESH)
    if given["checkpoint"] == "none":
        only_with(context, "--checkpoint", "checkpoint_every")
    if given["accelerator"] is None:
        only_with(context, "--accelerator", *OF_ACCELERATOR)
    if given["tokens"] is None:
        only_with(context, "--tokens", "price")


def layers(text: str | None) -> tuple[int, ...]:
    """Return the numbers of layers of `7,8,8,7`."""
    numbers = [part.strip() for part in text.split(",")] if text is not None else []
    if not all(n.isdecimal() and 0 < int(n) < 1 << 20 for n in numbers):
        raise typer.BadParameter(f"write it as 7,8,8,7, not {text!r}", param_hint="'--stages'")
    return tuple(map(int, numbers))
