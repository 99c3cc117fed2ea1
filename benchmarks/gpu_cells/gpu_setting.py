"""Where cells of `benchmarks/gpu.py` run, and what they share: clocks, distances, models."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import archdsl
from archdsl.estimates.hardware import Device, devices
from archdsl.estimates.roofline import Cluster, Roofline
from archdsl.estimates.roofline import estimate as roofline
from archdsl.estimates.sharding import StepPlan
from archdsl.ir.graph import Model

Figures = dict[str, Any]
Items = Iterator[tuple[str, Callable[[], Figures]]]
"""What a cell consists of: names, and what measures each. Figures with something under `failed` are a failure."""

CARDS = {
    "NVIDIA H200": "h200_sxm",
    "NVIDIA H100 80GB HBM3": "h100_sxm",
    "NVIDIA H100 PCIe": "h100_pcie",
    "NVIDIA B200": "b200_sxm",
    "NVIDIA A100-SXM4-80GB": "a100_sxm_80gb",
    "NVIDIA A100-SXM4-40GB": "a100_sxm_40gb",
    "NVIDIA A100 80GB PCIe": "a100_pcie_80gb",
    "NVIDIA A10": "a10",
    "NVIDIA L4": "l4",
    "NVIDIA L40S": "l40s",
    "NVIDIA GeForce RTX 4090": "rtx_4090",
    "NVIDIA GeForce RTX 3090": "rtx_3090",
    "Tesla V100-SXM2-32GB": "v100_sxm_32gb",
    "Tesla T4": "t4",
    "AMD Instinct MI300X": "mi300x",
}
"""What drivers call the cards whose peaks are known."""
SMALL = {"layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "hidden": 96, "vocab": 128}
"""Sizes of a Llama for a dry run."""


@dataclass(frozen=True)
class Setting:
    """Where cells run, and whether with sizes that only show that they do."""

    device: str
    tiny: bool

    def sync(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def forget_peak(self) -> None:
        """Measure peak memory anew from here on."""
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()

    @property
    def cudnn_first(self) -> bool:
        """Whether torch asks cuDNN first for attention here."""
        return self.device == "cuda" and torch.cuda.get_device_capability() in ((9, 0), (10, 0))

    @property
    def card(self) -> Device | None:
        """What is known of the card; None for one that the table does not have."""
        if self.device != "cuda":
            return None
        return devices().get(CARDS.get(torch.cuda.get_device_name(), ""))

    @property
    def peak(self) -> float:
        """FLOP/s of a card that is known, in bfloat16."""
        assert self.card is not None
        return self.card.peak["bfloat16"]

    def estimate(self, model: Model, batch: int, seq: int, plan: StepPlan) -> Roofline | None:
        """What is estimated of a model on the card; None where nothing is known of it."""
        return None if self.card is None else roofline(model, Cluster(self.card), plan, batch=batch, seq=seq)

    def model(self, name: str, sizes: dict[str, int], small: dict[str, int]) -> Model:
        """A model of the zoo with settings, in a dry run with small ones."""
        return archdsl.load(name, set=small if self.tiny else sizes)

    def milliseconds(self, run: Callable[[], object], repeats: int = 10, warm: int = 3) -> float:
        """The median time of a call, after some that are not measured, nor is their memory."""
        if self.tiny:
            repeats, warm = 2, 1
        times = []
        for i in range(warm + repeats):
            if i == warm:
                self.forget_peak()
            self.sync()
            start = time.perf_counter()
            run()
            self.sync()
            if i >= warm:
                times.append(1e3 * (time.perf_counter() - start))
        return statistics.median(times)

    def rate(self, run: Callable[[Callable[[], None]], object], new: int) -> Figures:
        """Tokens a second behind the first quarter of `new` ones: the median of three runs, after one that is not
        measured. A run calls what it is given after each token; the device is waited for at the quarter and at the end
        alone, whoever generates."""
        rates = []
        for _ in range(2 if self.tiny else 4):
            count, start = 0, 0.0

            def tick() -> None:
                nonlocal count, start
                count += 1
                if count == new // 4:
                    self.sync()
                    start = time.perf_counter()

            run(tick)
            self.sync()
            rates.append((count - new // 4) / (time.perf_counter() - start))
        return {"tokens_per_second": statistics.median(rates[1:]), "runs": rates[1:]}


def moved(inputs: dict[str, Tensor], device: str, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return {n: x.to(device, dtype) if x.is_floating_point() else x.to(device) for n, x in inputs.items()}


def first(outputs: Any) -> Tensor:
    found: Tensor = outputs[0] if isinstance(outputs, tuple) else outputs
    return found.detach().double().cpu()


def distance(found: Tensor, exact: Tensor, share: float = 1.0) -> float:
    """The root mean square of what two tensors [..., numbers] differ by at a position, relative to that of all of
    `exact`: at the position that is farthest off among that share of the nearest. Infinite where any number is not
    finite. Raises ValueError where shapes differ."""
    if found.shape != exact.shape:
        raise ValueError(f"shapes differ: {[*found.shape]} and {[*exact.shape]}")
    if not (found.isfinite().all() and exact.isfinite().all()):
        return math.inf
    apart = (found - exact).square().flatten(0, -2).mean(-1).sqrt().sort().values
    return float(apart[math.ceil(share * len(apart)) - 1] / exact.square().mean().sqrt())


def judged(distances: dict[str, float], limit: float) -> Figures:
    """Distances, and which of them are above a limit or no numbers; without any, that nothing was compared."""
    return {
        "failed": [name for name, d in distances.items() if not d < limit] if distances else ["nothing was compared"],
        "limit": limit,
        "distances": {name: d if math.isfinite(d) else "not finite" for name, d in distances.items()},
    }
