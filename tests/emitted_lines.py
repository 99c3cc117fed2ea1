"""What `--with generate` adds to the emitted file of each spec: make emitted. Prints a table, or JSON with --json; the
exit status is 1 where it adds more than `MOST`, or where another model than those named here has a method `step` or is
written out layer by layer."""

from __future__ import annotations

import ast
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import median_high

import archdsl
from archdsl.backends.torch import Extras, emit
from archdsl.diagnostics import ArchError
from archdsl.ir.graph import Model

SPECS = Path(__file__).resolve().parent.parent / "specs"
DECODER, SEQ2SEQ = "decoder", "encoder-decoder"
MOST = {DECODER: (54, 110, 201), SEQ2SEQ: (117, 130, 164)}
"""The lines that may be added: the least, the median and the most of all models of a kind."""
UNROLLED: frozenset[str] = frozenset()
"""Models that lose a loop over layers."""


@dataclass(frozen=True)
class Row:
    """The lines of one spec's plain file and of that with `generate`, or the code of the error where it has none."""

    spec: str
    kind: str
    plain: int
    generate: int = 0
    steps: tuple[str, ...] = ()
    """Classes that have `step` beside `forward`."""
    unrolled: tuple[str, ...] = ()
    """Classes whose loops are written out, in part at least, or that are gone."""
    refused: str = ""

    @property
    def added(self) -> int:
        return self.generate - self.plain

    def shown(self) -> str:
        if self.refused:
            return f"{self.spec:34} {self.plain:5}   {self.refused}"
        notes = [f"step: {', '.join(self.steps)}"] * bool(self.steps)
        notes += [f"written out: {', '.join(self.unrolled)}"] * bool(self.unrolled)
        return f"{self.spec:34} {self.plain:5} {self.generate:8} {self.added:+6}   {'; '.join(notes)}".rstrip()


def files() -> list[Path]:
    """The specs of the zoo, then those of Hugging Face's families."""
    return [*sorted(SPECS.glob("*.arch")), *sorted(SPECS.glob("hf/*.arch"))]


@cache
def row(path: Path) -> Row:
    """Emit the first model of a spec with and without `generate`."""
    model = archdsl.load(path)
    plain = emit(model)
    name, kind, lines = path.relative_to(SPECS).with_suffix("").as_posix(), _kind(model), len(plain.splitlines())
    try:
        made = emit(model, Extras(frozenset(["generate"])))
    except ArchError as problem:
        return Row(name, kind, lines, refused=problem.diagnostics[0].code)
    return Row(name, kind, lines, len(made.splitlines()), tuple(steps(made)), tuple(unrolled(plain, made)))


def _kind(model: Model) -> str:
    return DECODER if len(model.block.graph.inputs) == 1 else SEQ2SEQ


def _methods(source: str) -> dict[str, dict[str, ast.FunctionDef]]:
    """The methods of each class."""
    classes = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    return {c.name: {m.name: m for m in c.body if isinstance(m, ast.FunctionDef)} for c in classes}


def steps(source: str) -> Iterator[str]:
    """The classes that have a method `step` beside `forward`."""
    return (name for name, methods in _methods(source).items() if {"step", "forward"} <= methods.keys())


def unrolled(plain: str, made: str) -> Iterator[str]:
    """The classes of which fewer loops, or more calls of layers by their numbers, stand in `forward` and `step` of the
    second file than in `forward` of the first."""
    before, after = _methods(plain), _methods(made)
    for name, methods in before.items():
        if "forward" in methods:
            known = after.get(name, {})
            found = [_loops(known[m]) for m in ("forward", "step") if m in known]
            own = _loops(methods["forward"])
            looped, numbered = (sum(n[i] for n in found) for i in range(2))
            if looped < own[0] or numbered > own[1]:
                yield name


def _loops(method: ast.FunctionDef) -> tuple[int, int]:
    """How many loops a method has, and how many calls such as `self.blocks[3](x)`."""
    every = [*ast.walk(method)]
    calls = (n.func for n in every if isinstance(n, ast.Call))
    return sum(isinstance(n, ast.For) for n in every), sum(isinstance(f, ast.Subscript) for f in calls)


def figures(rows: Iterable[Row]) -> dict[str, tuple[int, int, int]]:
    """The least, the median and the most lines that are added, by the kind of model."""
    added: dict[str, list[int]] = {}
    for r in rows:
        if not r.refused:
            added.setdefault(r.kind, []).append(r.added)
    return {kind: (min(ns), median_high(ns), max(ns)) for kind, ns in added.items()}


def faults(rows: Sequence[Row]) -> list[str]:
    """What is worse than it was: of some specs each one by itself, of all of them the median and the least too."""
    found = []
    for r in rows:
        if not r.refused and r.added > MOST[r.kind][2]:
            found.append(f"{r.spec}: {r.added} lines more, at most {MOST[r.kind][2]} may be")
        if r.steps:
            found.append(f"{r.spec}: `step` beside `forward` in {', '.join(r.steps)}")
        if r.unrolled and r.spec not in UNROLLED:
            found.append(f"{r.spec}: the layers of {', '.join(r.unrolled)} are written out")
    if len(rows) == len(files()):
        for kind, numbers in figures(rows).items():
            for word, n, most in zip(("least", "median"), numbers[:2], MOST[kind][:2], strict=True):
                if n > most:
                    found.append(f"{kind}s: {n} lines more as the {word}, at most {most} may be")
    return found


def main(arguments: Sequence[str] = ()) -> int:
    rows = [row(path) for path in files()]
    wrong = faults(rows)
    if "--json" in arguments:
        print(json.dumps({"rows": [asdict(r) for r in rows], "figures": figures(rows), "faults": wrong}, indent=1))
        return int(bool(wrong))
    print(f"{'spec':34} plain generate  added")
    for kind in MOST:
        for r in sorted((r for r in rows if r.kind == kind and not r.refused), key=lambda r: r.added):
            print(r.shown())
    print()
    for kind, numbers in figures(rows).items():
        own = Counter(r.kind for r in rows if not r.refused)
        shown = " / ".join(f"{n} of {most}" for n, most in zip(numbers, MOST[kind], strict=True))
        print(f"{own[kind]:4} {kind}s: {shown} lines more (least / median / most)")
    refused = Counter(r.refused for r in rows if r.refused)
    print(*(f"{n:4} refused with {code}" for code, n in refused.items()), sep="\n")
    print(*(f"too much: {text}" for text in wrong), sep="\n", end="\n" * bool(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
