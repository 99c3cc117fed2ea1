"""Compare the time of whole commands with that of another revision: `python benchmarks/against.py [REVISION] [TURNS]`.

The revision (HEAD by default) is checked out beside the working tree; both run each command in turns, each in a process
of its own. Prints medians in milliseconds and their ratio, this tree / revision; below 1 is faster.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = {
    "check deepseek_v3": ("check", "deepseek_v3"),
    "check llama3_405b": ("check", "llama3_405b"),
    "estimate llama3_405b": ("estimate", "llama3_405b"),
    "compile gpt2": ("compile", "gpt2", "--to", "torch"),
    "compile llama3_405b": ("compile", "llama3_405b", "--to", "torch"),
    "compile mixtral_8x7b": ("compile", "mixtral_8x7b", "--to", "torch"),
    "compile t5_base": ("compile", "t5_base", "--to", "torch"),
    "compile deepseek_v3": ("compile", "deepseek_v3", "--to", "torch"),
    "emit the zoo": (),
}
ZOO = """
import archdsl
for entry in archdsl.list_zoo():
    if entry.kind == "model":
        archdsl.torch_source(entry.name)
"""


def seconds(tree: Path, command: tuple[str, ...], caches: Path) -> float:
    """Return the processor's seconds that a command takes in a checkout: other work of the machine counts little."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONPYCACHEPREFIX": str(caches / tree.name)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # modules are compiled once, as an installation does
    program = ["-m", "archdsl", *command] if command else ["-c", ZOO]
    before = os.times()
    subprocess.run([sys.executable, *program], cwd=tree, env=environment, check=True, capture_output=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    revision = sys.argv[1] if len(sys.argv) > 1 else "HEAD"
    turns = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "other"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", other, revision], cwd=ROOT, check=True)
        try:
            print(f"{'':24}{revision:>12}{'this tree':>12}{'ratio':>8}")
            for name, command in COMMANDS.items():
                taken: dict[Path, list[float]] = {other: [], ROOT: []}
                for turn in range(turns + 1):
                    for tree, times in taken.items():
                        found = seconds(tree, command, Path(folder))
                        if turn:  # the first fills the caches
                            times.append(1e3 * found)
                before, now = map(statistics.median, taken.values())
                print(f"{name:24}{before:12.0f}{now:12.0f}{now / before:8.2f}", flush=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", other], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
