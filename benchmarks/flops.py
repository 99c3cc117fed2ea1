"""FLOPs of every model of the zoo at its full size, from the IR and as torch counts them on the meta device.

    python benchmarks/flops.py [NAME …]

For each model: forward, forward and backward in training, the difference to `torch.utils.flop_counter.FlopCounterMode`
under the convention `dense`, and the seconds that both take. The exit status is 1 where anything
differs, is 0 on both sides, or where nothing was compared."""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from flops_tools import counted, predicted, sizes_of  # noqa: E402

import archdsl  # noqa: E402

LENGTHS = {"reformer": 4096}
"""Where a model refuses the 64 places that others get."""


def main(names: list[str]) -> int:
    wrong = compared = 0
    print(f"{'model':34} {'forward':>20} {'training':>20} {'differ':>8} {'IR, s':>7} {'torch, s':>9}")
    for entry in archdsl.list_zoo():
        stem = entry.file.removesuffix(".arch")
        if names and not {entry.name, stem} & set(names):
            continue
        model = archdsl.load(ROOT / "specs" / entry.file, model=entry.name)
        sizes = sizes_of(model, time=LENGTHS.get(stem, 64))
        start = perf_counter()
        ours = predicted(model, sizes)
        middle = perf_counter()
        theirs = counted(model, sizes)
        differ = sum(abs(a - b) for a, b in zip(ours, theirs, strict=True))
        compared += 1
        wrong += differ != 0 or not ours[0]
        seconds = f"{middle - start:7.2f} {perf_counter() - middle:9.1f}"
        print(f"{entry.name:34} {ours[0]:20,} {ours[1]:20,} {differ:8,} {seconds}", flush=True)
    if not compared:
        print(f"no model of the zoo is called {' or '.join(names)}", file=sys.stderr)
    return int(wrong > 0 or not compared)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
