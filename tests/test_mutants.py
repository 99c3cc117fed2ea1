"""What says of tests whether they are run, and whether they would notice."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import mutants
import pytest
import sample

TESTS = Path(__file__).parent


def test_the_sample_leaves_out_what_others_run() -> None:
    """Of slow cases are kept the quickest of each test, and those that run what fewer than two other tests run; a test
    of one case is always kept."""
    runs = {
        "tests/a.py::quick[0]": {(0, 1)},
        "tests/a.py::quick[1]": {(0, 1)},
        "tests/a.py::slow[0]": {(0, 1), (0, 2)},
        "tests/a.py::slow[1]": {(0, 1), (0, 2), (0, 3)},
        "tests/a.py::slow[2]": {(0, 1), (0, 2), (0, 3)},
        "tests/b.py::other": {(0, 1), (0, 2)},
        "tests/b.py::long": {(0, 1), (0, 3)},
        "tests/b.py::longer": {(0, 1), (0, 2)},
        "tests/docs/test_it.py::slow": {(0, 1)},
    }
    taken = dict(zip(runs, (0.1, 0.1, 1, 1, 2, 1, 10, 10, 9), strict=True))
    kept = sample.kept(runs, taken)
    assert runs.keys() - kept == {"tests/a.py::slow[2]"}


def test_what_the_sample_writes_is_what_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = {"tests/a.py::one", "tests/a.py::two[x-1]", "tests/a.py::two[a \\ b [c]]", 'tests/b.py::three["]'}
    monkeypatch.setattr(mutants, "LEFT_OUT", tmp_path / "left_out.toml")
    mutants.LEFT_OUT.write_text("".join(sample.text(cases)))
    assert mutants.left_out() == cases


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        ("a < b <= c", ["a <= b <= c", "a < b < c"]),
        ("a is None and b in c", ["a is None or b in c", "b in c", "a is None", "a is not None", "b not in c"]),
        ("not a", ["a"]),
        ("x = a + b // 2", ["a - b // 2", "b * 2", "3"]),
        ("x = True", ["False"]),
        ("x = a if b else c", ["c if b else a"]),
        ("if a: b = c", ["not a"]),
        ("x = [a for a in b if a]", ["not a"]),
        ("x = any(a)", ["all(a)"]),
        ("x = 'b', 'c'", ["('c',)", "('b',)"]),
        ("f(a)", ["pass"]),
        ("x += a", ["pass"]),
        ("x: int | None = a", []),
        ("f(a, strict=True)", ["pass"]),
        ("raise Error(f'{a + 1}' + 2)", []),
        ("x = f'{a + 1}'", []),
    ],
)
def test_what_is_changed(code: str, changed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change stands where the other stood, and what is around it stays."""
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    path = tmp_path / "code.py"
    path.write_text(f"é = 1 if a else b\ndef f():\n    {code}  # é\n", encoding="utf-8")
    source = path.read_bytes()
    made = [mutants.mutant(path, change) for change in mutants.by_line(path).get(3, [])]
    assert sorted(m.new for m in made) == sorted(n if n == "pass" else f"({n})" for n in changed)
    for m in made:
        after = source[: m.begin] + m.new.encode() + source[m.end :]
        assert ast.dump(ast.parse(after)) != ast.dump(ast.parse(source))
        assert after.decode().replace(m.new, source[m.begin : m.end].decode()) == source.decode()
        assert (m.scope, m.line) == ("f", 3)


def test_aliases_of_types_stay(tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_text("Both = A | B\n")
    assert not mutants.by_line(path)


def test_what_is_judged_still_stands() -> None:
    """A judgement of code that is no more, or reads otherwise, goes."""
    for judged in tomllib.loads(mutants.EQUIVALENT.read_text(encoding="utf-8"))["mutant"]:
        path = mutants.ROOT / judged["path"]
        found = (mutants.mutant(path, c) for those in mutants.by_line(path).values() for c in those)
        key = tuple(judged[name] for name in ("path", "scope", "old", "new"))
        assert any(m.key == key for m in found), judged
        assert judged["reason"]


def test_a_few_cases_of_each_test_are_run_first() -> None:
    tests = [*(f"a.py::one[{i}]" for i in range(500)), "b.py::two"]
    found = [*mutants.rounds(tests, 400)]
    assert found[0][:5] == [*tests[:4], "b.py::two"]
    assert [len(some) for some in found] == [80, 300, 20]
    assert sorted(test for some in mutants.rounds(tests, None) for test in some) == sorted(tests)
