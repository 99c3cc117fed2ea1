"""Choose which cases `make test` leaves to `make every`: make sample.

All cases run that take less than `QUICK` seconds, and those of `ALWAYS`. Of the others runs the quickest of each test
and, those that run the most lines a second first, each that runs a line of the package that fewer than `TESTS` other
tests run. Read is the map of `make mutants`, with the seconds of its tests; written is `left_out.toml`. What the map
does not have stays as it is there: to choose anew from all, empty the file before the map is made.
"""

from __future__ import annotations

import heapq
import json
import sqlite3
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterator

from mutants import LEFT_OUT, MAP, SECONDS, left_out, of_test

QUICK, TESTS = 0.2, 2
ALWAYS = ("tests/docs/", "tests/ops/", "tests/test_leaks.py")
"""What says something of files of the repository, as goldens do (`conftest.py`), and where no case repeats what another
judges, though both run the same lines."""

Line = tuple[int, int]


def seconds() -> dict[str, float]:
    """How long each case took."""
    found = ET.parse(SECONDS).iter("testcase")
    return {f"{c.attrib['classname'].replace('.', '/')}.py::{c.attrib['name']}": float(c.attrib["time"]) for c in found}


def lines() -> dict[str, set[Line]]:
    """The lines of the package that each case runs."""
    from coverage.numbits import numbits_to_nums

    base = sqlite3.connect(MAP)
    contexts = dict(base.execute("select id, context from context"))
    found: dict[str, set[Line]] = defaultdict(set)
    for context, file, numbits in base.execute("select context_id, file_id, numbits from line_bits"):
        if case := contexts[context].rpartition("|")[0]:
            found[case].update((file, line) for line in numbits_to_nums(numbits))
    return found


def kept(runs: dict[str, set[Line]], taken: dict[str, float]) -> set[str]:
    """The cases that are run."""
    tests: dict[str, list[str]] = defaultdict(list)
    for case in runs:
        tests[of_test(case)].append(case)
    able: dict[Line, set[str]] = defaultdict(set)  # tests that run it
    for case, those in runs.items():
        for line in those:
            able[line].add(of_test(case))
    run: dict[Line, set[str]] = defaultdict(set)  # of these, those that are kept
    found: set[str] = set()

    def keep(case: str) -> None:
        found.add(case)
        for line in runs[case]:
            run[line].add(of_test(case))

    def gain(case: str) -> float:
        test = of_test(case)
        new = (line for line in runs[case] if test not in run[line] and len(run[line]) < min(TESTS, len(able[line])))
        return sum(1 for _ in new) / taken[case]

    first = (min(cases, key=lambda case: taken.get(case, 0.0)) for cases in tests.values())
    quick = (case for case in runs if taken.get(case, 0.0) < QUICK or case.startswith(ALWAYS))
    for case in (*quick, *first):
        keep(case)
    waiting = [(-gain(case), case) for case in runs if case not in found]
    heapq.heapify(waiting)
    while waiting:
        _, case = heapq.heappop(waiting)
        now = gain(case)
        if waiting and now < -waiting[0][0]:
            heapq.heappush(waiting, (-now, case))
        elif now:
            keep(case)
    return found


def text(cases: set[str]) -> Iterator[str]:
    """The file, a line of cases for each test."""
    tests: dict[str, list[str]] = defaultdict(list)
    for case in sorted(cases):
        test, _, name = case.partition("[")
        tests[test].append(name.removesuffix("]"))
    yield "# By test, the cases that `make test` leaves to `make every`; written by `make sample`.\n\n"
    for test, names in sorted(tests.items()):
        yield f"{json.dumps(test)} = [\n" + "".join(f"  {json.dumps(name)},\n" for name in names) + "]\n"


def main() -> None:
    runs, taken = lines(), seconds()
    those = kept(runs, taken)
    LEFT_OUT.write_text("".join(text((left_out() - runs.keys()) | (runs.keys() - those))), encoding="utf-8")
    total, rest = (sum(taken.get(case, 0.0) for case in cases) for cases in (runs, those))
    print(f"{len(those)} of {len(runs)} cases are run, in {rest:.0f} of {total:.0f} seconds")


if __name__ == "__main__":
    main()
