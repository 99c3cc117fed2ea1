"""Mutants of the package, and which of them the tests notice: make mutants.

A mutant is the code with one small change: a comparison turned, a term of a guard left out, a call dropped. A seed
draws lines that some test runs, and a change of each. First those tests are run that are nearest, which run the fewest
files of the package; then, while the mutant lives, all others that run its line, or `--most` of them. Who changes code
or tests maps anew which test runs which line (`--map`), or maps what has come (`--map tests/test_new.py`).

What is judged to be no fault is listed in `equivalent.toml`, with the reason, and is not run again.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
MAP = ROOT / ".mutants" / "lines"
SECONDS = ROOT / ".mutants" / "seconds.xml"
"""How long each test of the map took, as pytest writes it."""
EQUIVALENT = ROOT / "tests" / "equivalent.toml"
LEFT_OUT = ROOT / "tests" / "left_out.toml"
EMITTED = "archdsl/backends/torch/runtime/"
"""Files that are never imported: what they do is seen in emitted files alone."""
NEAR, MANY, OF_ONE, LATE = 80, 300, 4, 600
"""Tests of the first round and of each other, cases that a test has in turn, and the seconds that a round may take:
what does not end is noticed."""
TURNED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}  # fmt: skip
NAMES = {"all": "any", "any": "all", "min": "max", "max": "min"}


class Mutant(NamedTuple):
    """A change of one node: `old` becomes `new` within the function or class `scope`."""

    path: str
    scope: str
    line: int
    old: str
    new: str
    begin: int
    end: int
    """Of the bytes of the file, those that are replaced."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.path, self.scope, self.old, self.new


# --- changes ----------------------------------------------------------------------------------------------------------


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what may stand for a node."""

    match node:
        case ast.Compare(left, ops, others):
            turned = [TURNED[type(op)]() for op in ops]
            yield from (ast.Compare(left, [*ops[:i], turned[i], *ops[i + 1 :]], others) for i in range(len(ops)))
        case ast.BoolOp():
            yield ast.BoolOp(TURNED[type(node.op)](), node.values)
            for i in range(len(node.values)):
                left = node.values[:i] + node.values[i + 1 :]
                yield ast.BoolOp(node.op, left) if len(left) > 1 else left[0]
        case ast.UnaryOp(ast.Not()):
            yield node.operand
        case ast.BinOp(op=ast.BitOr() | ast.BitAnd()):
            yield from (node.left, node.right)
        case ast.BinOp() if type(node.op) in TURNED:
            yield ast.BinOp(node.left, TURNED[type(node.op)](), node.right)
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() as value):
            yield ast.Constant(value + 1)
        case ast.IfExp():
            yield ast.IfExp(node.test, node.orelse, node.body)
        case ast.If() | ast.While():
            yield ast.UnaryOp(ast.Not(), node.test)
        case ast.comprehension(ifs=[test, *_]):
            yield ast.UnaryOp(ast.Not(), test)
        case ast.Call(ast.Name(name)) if name in NAMES:
            yield ast.Call(ast.Name(NAMES[name]), node.args, node.keywords)
        case ast.Tuple(elements) | ast.Set(elements) | ast.List(elements) if len(elements) > 1:
            if all(isinstance(e, ast.Constant) for e in elements):
                yield from (type(node)(elements[:i] + elements[i + 1 :]) for i in range(len(elements)))
        case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Continue():
            yield ast.Pass()


def inside(node: ast.AST, scope: str = "") -> Iterator[tuple[ast.AST, str]]:
    """Yield the nodes below that may be changed, with their scope: no types and aliases of them, no texts, no words of
    errors, and nothing that says what is never otherwise (`assert`, `zip(…, strict=True)`)."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "format_spec"):
            continue
        for child in value if isinstance(value, list) else [value]:
            unseen = ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom
            if not isinstance(child, ast.AST) or isinstance(child, unseen):
                continue
            match child:
                case ast.If(ast.Name("TYPE_CHECKING")) | ast.keyword("strict"):
                    continue
                case ast.Assign(value=ast.BinOp(op=ast.BitOr())) if not scope:
                    continue
            named = isinstance(child, ast.FunctionDef | ast.ClassDef)
            below = f"{scope}.{child.name}".strip(".") if named else scope
            yield child, below
            yield from inside(child, below)


class Change(NamedTuple):
    """What stands at a place, and what may stand there."""

    scope: str
    place: ast.expr | ast.stmt
    new: ast.AST


def by_line(path: Path) -> dict[int, list[Change]]:
    """The changes of a file, by lines."""
    found: dict[int, list[Change]] = {}
    for node, scope in inside(ast.parse(path.read_bytes())):
        place = node.test if isinstance(node, ast.If | ast.While) else node  # of a branch, the condition
        place = place.ifs[0] if isinstance(place, ast.comprehension) and place.ifs else place
        if isinstance(place, ast.expr | ast.stmt):
            found.setdefault(place.lineno, []).extend(Change(scope, place, new) for new in changes(node))
    return {line: those for line, those in found.items() if those}


def mutant(path: Path, change: Change) -> Mutant:
    scope, place, new = change
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    assert place.end_lineno is not None
    assert place.end_col_offset is not None
    begin = starts[place.lineno - 1] + place.col_offset
    end = starts[place.end_lineno - 1] + place.end_col_offset
    text = f"({ast.unparse(new)})" if isinstance(place, ast.expr) else ast.unparse(new)
    return Mutant(str(path.relative_to(ROOT)), scope, place.lineno, ast.unparse(place), text, begin, end)


# --- which test runs which line ---------------------------------------------------------------------------------------


def map_lines(tests: list[str], jobs: int) -> None:
    """Run tests and note which lines each runs; those that are named are added to what is noted."""
    MAP.parent.mkdir(exist_ok=True)
    options = ["--cov=archdsl", "--cov-context=test", "--cov-report="]
    options.append("--cov-append" if tests else f"--junitxml={SECONDS}")
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(jobs), "--dist", "loadfile", *options, *tests]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "COVERAGE_FILE": str(MAP)}, check=False)
    if done.returncode:
        sys.exit("mutants of code that fails its tests say nothing")


def of_test(case: str) -> str:
    """The test that a case is one of."""
    return case.partition("[")[0]


def left_out() -> set[str]:
    """The cases that `make test` leaves to `make every`."""
    found = tomllib.loads(LEFT_OUT.read_text(encoding="utf-8"))
    return {f"{test}[{name}]" if name else test for test, names in found.items() for name in names}


class Lines:
    """Which tests of `make test` run a line, the nearest first."""

    def __init__(self) -> None:
        from coverage.numbits import register_sqlite_functions

        self.base = sqlite3.connect(MAP)
        register_sqlite_functions(self.base)
        self.left_out = left_out()
        self.files = dict(self.base.execute("select context_id, count(*) from line_bits group by context_id"))

    def tests(self, path: str, line: int) -> list[str]:
        found = self.base.execute(
            "select context.id, context from line_bits join context on context.id = context_id"
            " join file on file.id = file_id where path = ? and num_in_numbits(?, numbits)",
            (str(ROOT / path), line),
        )
        near = sorted((self.files[i], *context.rpartition("|")[::2]) for i, context in found if context)
        # What a fixture runs may serve every test of its file.
        shared = (test.partition("::")[0] for _, test, phase in near if phase == "setup")
        return [test for test in dict.fromkeys((*(test for _, test, _ in near), *shared)) if test not in self.left_out]


# --- runs -------------------------------------------------------------------------------------------------------------


def status(folder: Path, tests: list[str], seconds: int) -> int:
    """The status that pytest leaves with for some tests of a copy of the checkout; 1 where it must be stopped."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return 1


def copy(into: Path) -> Path:
    """A copy of what git knows, whose tests have been collected once."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, names.split("\0")):
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, into / name)
    for name in (".venv", ".runtimes"):
        (into / name).symlink_to(ROOT / name)
    if status(into, ["--collect-only", "tests"], LATE):
        sys.exit("the tests cannot be collected")
    return into


def rounds(tests: list[str], most: int | None) -> Iterator[list[str]]:
    """Yield the tests in the order in which they run: the nearest first, and a few cases of each test before its other
    cases; `most` tests at most."""
    turns: Counter[str] = Counter()
    ordered = []
    for test in tests:
        ordered.append((turns[of_test(test)] // OF_ONE, test))
        turns[of_test(test)] += 1
    found = [test for _, test in sorted(ordered, key=lambda pair: pair[0])][:most]
    yield found[:NEAR]
    yield from (found[i : i + MANY] for i in range(NEAR, len(found), MANY))


def survives(mutant: Mutant, folder: Path, tests: list[str], most: int | None) -> bool:
    """Whether every test that runs the line, or the `most` nearest, passes in a copy with the mutant."""
    path = folder / mutant.path
    before = path.read_bytes()
    path.write_bytes(before[: mutant.begin] + mutant.new.encode() + before[mutant.end :])
    try:
        return all(status(folder, some, LATE) == 0 for some in rounds(tests, most))
    finally:
        path.write_bytes(before)


def draw(packages: list[str], count: int, luck: random.Random, lines: Lines) -> tuple[dict[Mutant, list[str]], int]:
    """Draw mutants of lines that some test runs, with these, and how many on the way are judged to be no fault."""
    judged = {(m["path"], m["scope"], m["old"], m["new"]) for m in tomllib.loads(EQUIVALENT.read_text())["mutant"]}
    paths = [p.resolve() for name in packages for p in ([*Path(name).rglob("*.py")] or [Path(name)])]
    found = {path: by_line(path) for path in sorted(paths) if EMITTED not in str(path)}
    places = [(path, line) for path, changed in found.items() for line in changed]
    drawn: dict[Mutant, list[str]] = {}
    known = 0
    for path, line in luck.sample(places, len(places)):
        if len(drawn) == count:
            break
        tests = lines.tests(str(path.relative_to(ROOT)), line)
        made = mutant(path, luck.choice(found[path][line]))
        known += bool(tests) and made.key in judged
        if tests and made.key not in judged:
            drawn[made] = tests
    return drawn, known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="*", default=["archdsl"], help="folders and files to draw from")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--most", type=int, help="tests that a mutant may survive: all that run its line")
    parser.add_argument("--map", nargs="*", metavar="TESTS", help="map which lines tests run: all, or these too")
    options = parser.parse_args()
    if options.map is not None or not MAP.exists():
        map_lines(options.map or [], options.jobs)
    lines = Lines()
    drawn, known = draw(options.packages, options.count, random.Random(options.seed), lines)
    if not drawn:
        return
    survivors = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for i in range(options.jobs):
            copies.put(copy(Path(folder) / str(i)))

        def judge(mutant: Mutant) -> bool:
            where = copies.get()
            try:
                return survives(mutant, where, drawn[mutant], options.most)
            finally:
                copies.put(where)

        for i, (mutant, lives) in enumerate(zip(drawn, pool.map(judge, drawn), strict=True), 1):
            print(f"{i}/{len(drawn)} {'SURVIVED' if lives else 'killed'} {mutant.path}:{mutant.line} {mutant.scope}")
            if lives:
                survivors.append(mutant)
                print(f"    {mutant.old}\n    {mutant.new}", flush=True)
    killed = len(drawn) - len(survivors)
    print(f"{len(drawn)} drawn: {killed} killed, {len(survivors)} survived, {known} more are judged to be no fault")


if __name__ == "__main__":
    main()
