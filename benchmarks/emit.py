"""What emitting PyTorch costs for 126 layers and for 12: each distinct block is written once, so it should be the same.

Both models are loaded once; then each is emitted many times, in turns. Prints medians in milliseconds and their ratio;
the goal is within 20 % of 1.
"""

import statistics
import sys
import time

import archdsl
from archdsl.backends.torch import emit

RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 31
LAYERS = (12, 126)
SPECS = ("llama3_405b", "gpt2")


def main() -> None:
    for spec in SPECS:
        models = {n: archdsl.load(spec, set={"layers": n}) for n in LAYERS}
        found: dict[int, list[float]] = {n: [] for n in LAYERS}
        for run in range(RUNS + 1):
            for n, model in models.items():
                start = time.perf_counter()
                emit(model)
                if run:  # the first fills the caches
                    found[n].append(1e3 * (time.perf_counter() - start))
        few, many = (statistics.median(found[n]) for n in LAYERS)
        print(f"{spec:12} {LAYERS[0]} layers {few:6.2f} ms  {LAYERS[1]} layers {many:6.2f} ms  ratio {many / few:.2f}")
    print("goal: ratios from 0.80 to 1.20")


if __name__ == "__main__":
    main()
