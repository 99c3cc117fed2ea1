"""Lines of the repository by folder, and of what is emitted with its budgets: make size. The exit status is 1 where a
file is longer than its budget."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import archdsl

ROOT = Path(__file__).resolve().parent.parent
GOLDENS = ROOT / "tests" / "goldens"
EMITTED = {"gpt2": 121, "llama3": 140, "mistral": 151, "mixtral": 185, "deepseek_v3": 300}
"""The most lines that a plain file may have."""


def lines(files: Iterable[Path]) -> int:
    return sum(len(f.read_text(encoding="utf-8").splitlines()) for f in files)


def by_folder(top: Path) -> dict[str, int]:
    """Lines of Python in each folder right below `top`, what lies in `top` itself first."""
    folders = sorted({f.parent for f in top.glob("*/**/*.py") if GOLDENS not in f.parents})
    found = {f"{top.name}/*.py": lines(top.glob("*.py"))}
    for folder in folders:
        name = "/".join((top.name, folder.relative_to(top).parts[0], ""))
        found[name] = found.get(name, 0) + lines(folder.glob("*.py"))
    return found


def emitted() -> dict[str, int]:
    """Lines of the plain file of each model that has a budget."""
    return {spec: len(archdsl.torch_source(spec).splitlines()) for spec in EMITTED}


def too_many(counts: Mapping[str, int]) -> dict[str, int]:
    """By how many lines each model is above its budget, of those that are."""
    return {spec: over for spec, most in EMITTED.items() if (over := counts[spec] - most) > 0}


def main() -> int:
    for top in (ROOT / "archdsl", ROOT / "tests"):
        folders = by_folder(top)
        print(f"{top.name:32} {sum(folders.values()):7,}")
        for name, count in folders.items():
            print(f"  {name:30} {count:7,}")
    print(f"{'goldens':32} {lines(f for f in GOLDENS.rglob('*') if f.is_file()):7,}")
    counts = emitted()
    over = too_many(counts)
    for spec, count in counts.items():
        said = f", {over[spec]} too many" if spec in over else ""
        print(f"emitted {spec:24} {count:7,} of {EMITTED[spec]:,}{said}")
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main())
