"""How long cold `archdsl check` and `archdsl estimate` take, beside importing what the compiler stands on.

Every run is a fresh process; the runs are interleaved, so that a busy machine slows all of them alike. Prints medians
in milliseconds and the ratios; the goal is below 2.5.
"""

import statistics
import subprocess
import sys
import time

RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 11
GOAL = 2.5
BASE = "import pydantic, networkx, lark, typer, rich"
COMMANDS = {
    BASE: ["-c", BASE],
    **{
        f"archdsl {verb} {spec}": ["-m", "archdsl", verb, spec]
        for spec in ("deepseek_v3", "llama3_405b")
        for verb in ("check", "estimate")
    },
    "archdsl --version": ["-m", "archdsl", "--version"],
}


def milliseconds(arguments: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return 1e3 * (time.perf_counter() - start)


def main() -> None:
    for arguments in COMMANDS.values():
        milliseconds(arguments)  # once for the disk and the caches
    found: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(RUNS):
        for name, arguments in COMMANDS.items():
            found[name].append(milliseconds(arguments))
    medians = {name: statistics.median(times) for name, times in found.items()}
    for name, median in medians.items():
        print(f"{name:48} {median:7.0f} ms  {median / medians[BASE]:5.2f} x")
    worst = max(median for name, median in medians.items() if name != BASE) / medians[BASE]
    print(f"worst ratio {worst:.2f}, goal < {GOAL}")


if __name__ == "__main__":
    main()
