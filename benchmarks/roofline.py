"""The roofline beside the clock: predicted and measured times of a GPT-2 and a Llama in three sizes each, on this CPU
in float32.

    python benchmarks/roofline.py [--repeats N] [--json FILE]

First the CPU is measured as a device: the best product of two square matrices gives its peak, the best of copying and
of multiplying a matrix with a vector the bandwidth of its memory. Then, for each model: whole sequences forwards, a
step of training with AdamW, and one more token behind a prompt, by the emitted file. Times are those of one thread on
its processor, the best of several, so that other work of the machine counts as little as can be. Predictions are those
of `archdsl estimate --accelerator`, op by op as PyTorch runs them, and with element-wise ops fused. A prediction is a
lower bound: `measured / predicted` says how far the machine stays behind it, and less than 1 that caches held what was
taken to come from memory.
"""

# ruff: noqa: E402

import sys
from pathlib import Path

# Else `import onnx` would find the script of that name here.
sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != Path(__file__).resolve().parent]

import argparse
import json
import platform
from collections.abc import Callable, Iterator
from time import thread_time
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import archdsl
from archdsl.api import torch_source
from archdsl.estimates.hardware import Device
from archdsl.estimates.roofline import Cluster, estimate
from archdsl.estimates.sharding import StepPlan
from archdsl.run.load import load_source

ROOT = Path(__file__).resolve().parent.parent
LLAMA = str(ROOT / "examples" / "tiny_llama.arch")
MODELS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("GPT-2, 4 × 256", "gpt2", {"layers": 4, "width": 256, "heads": 4, "vocab": 8192}),
    ("GPT-2, 6 × 512", "gpt2", {"layers": 6, "width": 512, "heads": 8, "vocab": 16_384}),
    ("GPT-2, 12 × 768", "gpt2", {}),
    ("Llama, 4 × 256", LLAMA, {"layers": 4, "width": 256, "heads": 4, "hidden": 704, "vocab": 8192, "context": 1024}),
    ("Llama, 6 × 512", LLAMA, {"layers": 6, "width": 512, "heads": 8, "hidden": 1408, "vocab": 16_384,
                               "context": 1024}),
    ("Llama, 12 × 768", LLAMA, {"layers": 12, "width": 768, "heads": 12, "kv_heads": 4, "hidden": 2048,
                                "vocab": 32_000, "context": 1024}),
)  # fmt: skip
BATCH, TIME = 1, 512


def best(work: Callable[[], object], repeats: int) -> float:
    """The fewest seconds of several runs, after one that warms up."""
    work()
    found = []
    for _ in range(repeats):
        start = thread_time()
        work()
        found.append(thread_time() - start)
    return min(found)


def measured_device(repeats: int) -> Device:
    """This machine's CPU, as far as the threads in use reach."""
    peak = bandwidth = 0.0
    for n in (512, 1024, 2048):
        a, b, c = (torch.rand(n, n) for _ in range(3))
        peak = max(peak, 2 * n**3 / best(lambda a=a, b=b, c=c: torch.mm(a, b, out=c), repeats))  # type: ignore[misc]
    x, y = torch.rand(1 << 26), torch.rand(1 << 26)
    bandwidth = max(bandwidth, 2 * x.nbytes / best(lambda: y.copy_(x), repeats))
    matrix, vector = x.view(1 << 13, 1 << 13), torch.rand(1 << 13)
    bandwidth = max(bandwidth, x.nbytes / best(lambda: matrix @ vector, repeats))
    return Device(
        name=f"{platform.machine()}, one thread",
        vendor="measured",
        memory_gib=16,
        bandwidth=bandwidth,
        peak={"float32": peak},
        source="measured by benchmarks/roofline.py",
    )


def times(spec: str, settings: dict[str, Any], repeats: int) -> Iterator[tuple[str, float]]:
    """Seconds of a forward, of a step of training, and of one more token."""
    cls = load_source(torch_source(spec, set=settings, features=("generate",)))
    model = cls()
    vocab = model.config.vocab
    tokens = torch.randint(vocab, (BATCH, TIME))
    model.eval()
    with torch.inference_mode():
        yield "whole sequences", best(lambda: model(tokens), repeats)
        yield "one more token", decoding(model, tokens, repeats)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    yield "training step", best(step, repeats)


def decoding(model: Any, tokens: Tensor, repeats: int) -> float:
    """Seconds of the step at the last place of the prompt's length: the best of the last few."""
    cache = sys.modules[type(model).__module__].Cache(TIME)
    model(tokens[:, : TIME - 1 - 4 * repeats], cache=cache)
    found = []
    for i in range(TIME - 1 - 4 * repeats, TIME):
        start = thread_time()
        model(tokens[:, i : i + 1], cache=cache)
        found.append(thread_time() - start)
    return min(found[repeats:])


def rows(device: Device, repeats: int) -> Iterator[dict[str, Any]]:
    for name, spec, settings in MODELS:
        model = archdsl.load(spec, set=settings)
        plain, fused = (
            estimate(model, Cluster(device), StepPlan(loss="eager"), batch=BATCH, seq=TIME, fused=fused)
            for fused in (False, True)
        )
        for what, seconds in times(spec, settings, repeats):
            field = {"whole sequences": "prefill", "one more token": "decode", "training step": "training"}[what]
            predicted, at_best = getattr(plain, field).seconds, getattr(fused, field).seconds
            yield {"model": name, "what": what, "measured": seconds, "predicted": predicted, "fused": at_best}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = measured_device(given.repeats)
    said = f"{device.peak['float32'] / 1e9:,.0f} GFLOP/s, {device.bandwidth / 1e9:,.1f} GB/s"
    console = Console()
    console.print(f"{device.name}: {said}, ridge {device.ridge('float32'):.0f}")
    table = Table(box=None, header_style="dim")
    for column in ("model", "", "measured, ms", "predicted", "measured / predicted", "fused"):
        table.add_column(column, justify="left" if column in ("model", "") else "right")
    found = []
    for row in rows(device, given.repeats):
        found.append(row)
        print(f"{row['model']}: {row['what']}", file=sys.stderr, flush=True)
        ms = [f"{1e3 * row[k]:,.2f}" for k in ("measured", "predicted", "fused")]
        table.add_row(row["model"], row["what"], ms[0], ms[1], f"{row['measured'] / row['predicted']:.2f}", ms[2])
    console.print(table)
    if given.json is not None:
        given.json.write_text(json.dumps({"device": device.model_dump(), "rows": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
