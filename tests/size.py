"""Lines of the repository and of what is emitted, with their budgets: make size."""

from pathlib import Path

import archdsl

ROOT = Path(__file__).resolve().parent.parent
GOLDENS = ROOT / "tests" / "goldens"
EMITTED = {"gpt2": 110, "llama3": 135, "mistral": 150, "mixtral": 175, "deepseek_v3": 300}
SECTIONS = {"generate": 110, "parallel": 75}
"""Lines that `--with` may add to any of them."""
MORE = {"mistral": 25, "deepseek_v3": 45}
"""Further ones for `generate`: the ring of a window, the step of latent attention."""


def lines(files: set[Path]) -> int:
    return sum(len(f.read_text(encoding="utf-8").splitlines()) for f in files)


def emitted(spec: str, *sections: str) -> int:
    return len(archdsl.torch_source(spec, features=sections).splitlines())


def tell(what: str, found: int, budget: int) -> None:
    print(f"{what:32} {found:6,} of {budget:6,}" + (f", {found - budget:,} too many" if found > budget else ""))


def main() -> None:
    goldens = {f for f in GOLDENS.rglob("*") if f.is_file()}
    tell("product", lines(set((ROOT / "archdsl").rglob("*.py"))), 34_000)
    tell("tests", lines(set((ROOT / "tests").rglob("*.py")) - goldens), 16_000)
    tell("goldens", lines(goldens), 9_000)
    for spec, budget in EMITTED.items():
        plain = emitted(spec)
        tell(f"emitted {spec}", plain, budget)
        for section, more in SECTIONS.items():
            own = MORE.get(spec, 0) if section == "generate" else 0
            tell(f"  --with {section} adds", emitted(spec, section) - plain, more + own)


if __name__ == "__main__":
    main()
