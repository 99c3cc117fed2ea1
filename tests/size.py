"""Lines of the repository by folder, and of what is emitted with its budgets: make size."""

from collections.abc import Iterable
from pathlib import Path

import archdsl

ROOT = Path(__file__).resolve().parent.parent
GOLDENS = ROOT / "tests" / "goldens"
EMITTED = {"gpt2": 110, "llama3": 140, "mistral": 150, "mixtral": 175, "deepseek_v3": 300}
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


def main() -> None:
    for top in (ROOT / "archdsl", ROOT / "tests"):
        folders = by_folder(top)
        print(f"{top.name:32} {sum(folders.values()):7,}")
        for name, count in folders.items():
            print(f"  {name:30} {count:7,}")
    print(f"{'goldens':32} {lines(f for f in GOLDENS.rglob('*') if f.is_file()):7,}")
    for spec, count in emitted().items():
        over = f", {count - EMITTED[spec]} too many" if count > EMITTED[spec] else ""
        print(f"emitted {spec:24} {count:7,} of {EMITTED[spec]:,}{over}")


if __name__ == "__main__":
    main()
