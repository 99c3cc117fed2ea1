"""Published training runs beside what is predicted of them: `training_runs.json` has 105 of MPT models of 125M to 70B
parameters, on 8 to 512 A100s and H100s, with FSDP.

    python benchmarks/training_runs.py

Of each run the measured seconds of a step are compared with the roofline, a lower bound: `measured / predicted` is
never less than 1. Every run was in its device's memory, and so `fits` is asked, too.
"""

# ruff: noqa: E402

import sys
from pathlib import Path

# Else `import onnx` would find the script of that name here.
sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != Path(__file__).resolve().parent]

import json
from collections.abc import Iterator
from functools import lru_cache
from statistics import median
from typing import Any

import archdsl
from archdsl.estimates.hardware import device
from archdsl.estimates.mesh import Mesh
from archdsl.estimates.roofline import Cluster, Roofline, estimate
from archdsl.estimates.sharding import StepPlan
from archdsl.ir.graph import Model

FILE = Path(__file__).with_suffix(".json")
DEVICES = {
    "a100_40gb": Cluster(device("a100_sxm_40gb")),
    "a100_80gb": Cluster(device("a100_sxm_80gb")),
    "h100_80gb": Cluster(device("h100_sxm")),
}
ZERO: dict[str, Any] = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2}


def runs() -> Iterator[dict[str, Any]]:
    """Yield the rows of the file, each with the sizes of its model."""
    published = json.loads(FILE.read_text(encoding="utf-8"))
    for row in published["rows"]:
        run = dict(zip(published["columns"], row, strict=True))
        yield {**run, "sizes": published["models"][run["model"]]}


@lru_cache(maxsize=2)
def model(seq: int, **sizes: int) -> Model:
    """Return GPT-2 in other sizes, which MPT is."""
    return archdsl.load("gpt2", set={"vocab": 50_368, "context": seq, **sizes})


def predicted(run: dict[str, Any]) -> Roofline:
    """Return the times of a run."""
    plan = StepPlan(
        Mesh(dp=run["devices"]),
        zero=ZERO[run["sharding"]],
        micro_batches=run["grad_accum"],
        checkpoint="full" if run["checkpointing"] else "none",
        loss="fused",
        dtype="bfloat16",
        master_weights=True,
    )
    machine = DEVICES[run["device"]]
    return estimate(model(run["seq"], **run["sizes"]), machine, plan, batch=run["global_batch"], seq=run["seq"])


def main() -> None:
    found = [(run, predicted(run)) for run in runs()]
    for run, times in sorted(found, key=lambda pair: pair[0]["step_seconds"] / pair[1].training.seconds):
        about = f"{run['model']:>5} {run['seq']:>6} × {run['micro_batch']:<3} {run['devices']:>4} {run['device']}"
        seconds = times.training.seconds
        print(f"{about}  {run['step_seconds']:9.3f} s / {seconds:9.3f} s = {run['step_seconds'] / seconds:.3f}")
    ratios = [run["step_seconds"] / times.training.seconds for run, times in found]
    reached = sorted(run["mfu"] for run, _ in found)
    print(f"{len(ratios)} runs: measured / predicted at least {min(ratios):.3f}, median {median(ratios):.3f}")
    print(f"fits: {sum(times.fits for _, times in found)}; MFU from {reached[0]} to {reached[-1]} %")


if __name__ == "__main__":
    main()
