"""A hundred inputs of `broken.py`, and each that was once found to break something."""

from pathlib import Path

import pytest

import archdsl
from fuzz.broken import BUILT, KEPT, Case, Verdict, case, judge, judged_in_child, run, shrunk


def once_slow(number: int, verdict: Verdict) -> bool:
    """Whether an input took too long just that time: beside other tests, a processor does less in a second."""
    return verdict.outcome == "slow" and any(not judged_in_child(case(5, number)).is_finding for _ in range(3))


@pytest.mark.slow
def test_broken_inputs_end_in_findings() -> None:
    """Each in a child with its limits; in all, of many kinds and with many codes."""
    told: list[str] = []
    summary = run(seed=5, count=120, jobs=1, tell=told.append)
    assert {k: v for k, v in summary.findings.items() if not once_slow(*v)} == {}, told
    assert summary.count == 120
    assert summary.outcomes["refused"] > 50
    assert summary.outcomes["fine"] > 2
    assert len(summary.codes) > 10


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(KEPT.glob("*.arch")), ids=lambda p: p.stem)
def test_what_was_found_before(path: Path) -> None:
    data = path.read_bytes()
    try:
        content: str | bytes = data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        content = data
    verdict = judged_in_child(Case("kept", content, costly=True))
    assert not verdict.is_finding, verdict


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(BUILT)))
def test_texts_that_were_built_to_cost_much(number: int) -> None:
    """Up to forty times as long by `tests.fuzz.broken`."""
    import random

    verdict = judged_in_child(Case("built", BUILT[number](random.Random(1), 250), costly=True, depth=1))
    assert not verdict.is_finding, verdict


def test_an_input_is_a_number() -> None:
    assert [case(3, n) for n in range(40)] == [case(3, n) for n in range(40)]
    assert case(3, 1) != case(4, 1)


@pytest.mark.slow
def test_the_judge_sees_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback, a text that takes forever, one that takes all memory, a finding without a place."""
    from archdsl.diagnostics import Diagnostic

    def broken(**given: object) -> tuple[Diagnostic, ...]:
        raise KeyError("x")

    def forever(**given: object) -> tuple[Diagnostic, ...]:
        while True:
            pass

    def greedy(**given: object) -> tuple[Diagnostic, ...]:
        return (Diagnostic("E0101", "x" * 2**31),)

    def nowhere(**given: object) -> tuple[Diagnostic, ...]:
        return (Diagnostic("E0101", "somewhere"),)

    for check, outcome in ((broken, "internal KeyError"), (forever, "slow"), (greedy, "memory"), (nowhere, "no place")):
        monkeypatch.setattr(archdsl.api, "check", check)
        assert judged_in_child(Case("a", "let a = 1")).outcome == outcome
    monkeypatch.undo()
    assert judge(Case("a", "let a = 1\nmodel m(x: [batch, 8]) { return x }\n"), tmp_path) == Verdict("fine")


def test_texts_are_made_smaller() -> None:
    text = "let a = 1\nlet bad = 2 + 3\nlet c = 3\n" * 20
    assert shrunk(text, lambda t: "bad" in t) == "bad"
