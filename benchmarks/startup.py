"""How long cold `archdsl check` and `archdsl estimate` take, beside importing what the compiler stands on; and what an
estimate of the largest specs takes with all that it can tell.

    python benchmarks/startup.py [RUNS]

Every run is a fresh process, and its time that of the processor, so that other work of the machine counts little; the
runs are interleaved for the same reason. Modules are compiled once, as an installation does. Prints medians and the
least in milliseconds, the most memory a process had, and the ratios. The goals: a ratio below 2.5; with everything, 1 s
at best and 150 MB for the specs with the most parameters. The exit status is 1 where one is missed. On a mesh and a
device an estimate does about twice the work: shown, without a goal for its time."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile

GOAL, SECONDS, MEGABYTES = 2.5, 1.0, 150
BASE = "import pydantic, networkx, lark, typer, rich"
PLAIN = {
    f"archdsl {verb} {spec}": ["-m", "archdsl", verb, spec]
    for spec in ("deepseek_v3", "llama3_405b")
    for verb in ("check", "estimate")
}
EVERYTHING = (
    "--flops",
    "all",
    "--dtype",
    "bfloat16",
    "--optimizer",
    "adamw",
    "--master-weights",
    "--checkpoint",
    "full",
)
LARGEST = ("llama3_405b", "gpt3_175b", "palm_540b", "deepseek_v3", "switch_xxl", "switch_c", "moe_4096_h")
MESHES = {
    "llama3_405b": "dp=8,tp=8,pp=6",
    "gpt3_175b": "dp=8,pp=8",
    "deepseek_v3": "dp=8,tp=8,ep=8",
    "switch_xxl": "dp=8,tp=8,pp=4",
}
SLOWEST = ("deepnet_1000", "bigbird_large")
"""With the most layers, and with masks that have to be drawn: shown, without a goal."""


def everything(specs: tuple[str, ...]) -> dict[str, list[str]]:
    return {f"archdsl estimate {spec}, everything": ["-m", "archdsl", "estimate", spec, *EVERYTHING] for spec in specs}


FULL = everything(LARGEST)
SPREAD = {
    f"archdsl estimate {spec}, --mesh --accelerator": [
        *("-m", "archdsl", "estimate", spec, *EVERYTHING),
        *("--batch", "64", "--mesh", mesh, "--accelerator", "h100_sxm"),
    ]
    for spec, mesh in MESHES.items()
}
COMMANDS = {
    BASE: ["-c", BASE],
    **PLAIN,
    "archdsl --version": ["-m", "archdsl", "--version"],
    **FULL,
    **SPREAD,
    **everything(SLOWEST),
}


def run(arguments: list[str], compiled: str) -> tuple[float, float]:
    """Milliseconds, and the most megabytes that were in memory. `compiled` is a folder for compiled modules."""
    around = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    around["PYTHONPYCACHEPREFIX"] = compiled
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, env=around)
    _, status, used = os.wait4(process.pid, 0)
    took = 1e3 * (used.ru_utime + used.ru_stime)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)}: exit status {process.returncode}")
    return took, used.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


def main(runs: int) -> int:
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as compiled:
        for arguments in COMMANDS.values():
            run(arguments, compiled)  # once for the disk and the caches
        for _ in range(runs):
            for name, arguments in COMMANDS.items():
                found[name].append(run(arguments, compiled))
    medians = {name: statistics.median(ms for ms, _ in took) for name, took in found.items()}
    print(f"{'':48} {'median':>8} {'least':>8} {'memory':>8}  of imports")
    for name, took in found.items():
        least, most = min(ms for ms, _ in took), max(mb for _, mb in took)
        ratio = medians[name] / medians[BASE]
        print(f"{name:48} {medians[name]:5.0f} ms {least:5.0f} ms {most:5.0f} MB  {ratio:5.2f} x")
    worst = max(medians[name] for name in PLAIN) / medians[BASE]
    slowest = max(min(ms for ms, _ in found[name]) for name in FULL) / 1e3
    largest = max(mb for name in (*FULL, *SPREAD) for _, mb in found[name])
    print(f"worst ratio {worst:.2f}, goal < {GOAL}")
    print(f"everything: {slowest:.2f} s, goal < {SECONDS} s; {largest:.0f} MB, goal < {MEGABYTES} MB")
    return int(worst >= GOAL or slowest >= SECONDS or largest >= MEGABYTES)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 11))
