"""What tables say: numbers as people write them, and remarks where there is something to remark."""

import re
from pathlib import Path
from typing import Any

import pytest
from cli_tools import TINY, Run
from hypothesis import example, given
from hypothesis import strategies as st

import archdsl
from archdsl.interop.convert import ImportReport
from archdsl.interop.lift.report import LiftReport
from archdsl.report import plots, tables
from archdsl.report.tables import plain_text
from archdsl.run.generate import GenerateReport
from archdsl.run.smoke import RunReport, Untouched
from archdsl.run.verify import VerifyReport

UNITS = {
    **{f"{p}iB": 2.0 ** (10 * i) for i, p in enumerate("KMGTP", 1)},
    **{f"{p}FLOP": 1e3**i for i, p in enumerate(("", "k", *"MGTPE"))},
    **{p: 1e3**i for i, p in enumerate(("", *"KMBTQ"))},
    "s": 1,
    "ms": 1e-3,
    "µs": 1e-6,
    "ns": 1e-9,
    "seconds": 1,
    "minutes": 60,
    "hours": 3600,
    "days": 86400,
}


def read(text: str) -> float:
    number, unit = text.split(" ")
    assert re.fullmatch(r"(1\d{3}|\d{1,3}(,\d{3})*)(\.\d+)?(e-\d+)?", number), text
    return float(number.replace(",", "")) * UNITS[unit]


@given(st.floats(1e-9, 1e12), st.integers(0, 10**25))
def test_a_number_is_written_with_its_unit_and_no_exponent(seconds: float, whole: int) -> None:
    assert read(tables._seconds(seconds)) == pytest.approx(seconds, rel=0.005)
    assert read(tables._long(seconds)) == pytest.approx(seconds, rel=0.005)
    assert read(re.sub(" B$", " ", tables._binary(whole))) == pytest.approx(whole, rel=0.0005)
    assert read(tables._short(whole)) == pytest.approx(whole, rel=0.005)
    budget = re.fullmatch(r"([\d.,]+)(.?)", tables._budget(whole))
    assert budget is not None
    assert read(f"{budget[1]} {budget[2]}") == pytest.approx(whole, rel=0.005)
    for units, base in (("KMBTQ", 1000), ("KMGTP", 1024)):
        number, _, unit = plots._rounded(whole, units, base).partition(" ")
        assert read(f"{number} {unit}") == pytest.approx(whole, rel=0.005)


@given(st.integers(1, 1 << 45), st.lists(st.integers(-(1 << 24), 1 << 24), min_size=1, max_size=2))
@example(84_449_694_457, [1])
@example(84_449_694_457, [0, 100_000])
def test_bytes_read_as_fitting_where_they_do(usable: int, more: list[int]) -> None:
    sizes = [max(1, usable + n) for n in more]
    room, *shown = (float(text.replace(",", "")) for text in tables._gib_beside(usable, *sizes))
    assert [n <= room for n in shown] == [n <= usable for n in sizes]
    for size, text in zip([usable, *sizes], tables._gib_beside(usable, *sizes), strict=True):
        assert float(text.replace(",", "")) == pytest.approx(size / 2**30, rel=0.005)


MANY = """
model many(experts = 4) (x: [batch, time, 8]) -> [batch, time, 8] {
  return x -> moe(experts: experts, top_k: 2, expert: mlp(hidden: 32))
}
"""
ASSUMED = """
model m(tokens: token[batch, time]) -> [batch, time, 9] {
  x = tokens -> embedding(9, 8)
  y = x -> flip(1) -> flip(1)
  assume causal(y)
  return y -> lm(9)
}
"""
FIT = "fit tiny.arch --vary layers,width --params 100k --multiple width"
CALLS = {
    "estimate bert_base --seq 8 --flops exact": "no decode step: `bert_base` cannot be decoded step by step",
    "scaling --params 10": r" 10 +8.72 ",
    "scaling --params 8B --tokens 15T": r" 8B +15T +1,880 ",
    f"{FIT}=64": r"width / layers +32.0 +the spec's: 8.0; nothing from 4.0 to 16.0 fits",
    f"{FIT}=8 --aspect 8": r"width / layers +8.0 +the spec's: 8.0; from 8.0 to 8.0 is allowed",
    f"{FIT}=8 --aspect 4..5": r"width / layers +[45]\.\d +the spec's: 8.0; from 4.0 to 5.0 is allowed",
    "show assumed.arch": r"assumed to be causal, not proved: y \(assumed.arch:5\)",
    "estimate bloom_176b --accelerator h100_sxm": r"needs [\d,]+ GiB on one GPU and does not fit in 78.65: [^;]+\n",
    "estimate tiny.arch --accelerator h100_sxm --tokens 1": "at least .* ns, [1-9].*e-.* device-hours",
}


@pytest.mark.parametrize("command", CALLS)
def test_what_a_command_remarks(command: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny.arch").write_text(TINY)
    (tmp_path / "assumed.arch").write_text(ASSUMED)
    monkeypatch.chdir(tmp_path)
    done = run(*command.split())
    assert (done.status, done.err) == (0, "")
    assert re.search(CALLS[command], done.out), done.out


def test_fit_tells_active_parameters_where_not_all_are() -> None:
    report = archdsl.fit(text=MANY, vary="experts", params=10_000, multiple={"experts": 1})
    counts = archdsl.estimate(text=MANY, set=report.varied).params
    assert counts.active < counts.total <= 10_000
    assert re.search(f"active per token +{counts.active:,}\n", plain_text(*tables.fit_view(report)))


# --- of runs: reports as they come from them --------------------------------------------------------------------------

LIFTED: dict[str, Any] = {"checks": [], "initial_values": [], "remarks": ["its [hook] is not run"], "module": "a.py:N"}
REPORTS: dict[str, tuple[Any, Any, dict[str, Any], list[str]]] = {
    "texts": (tables.generate_view, GenerateReport, {"texts": ["[a]", "b"], "tokens": [[1], [2]]}, ["1  [a]", "2  b"]),
    "tokens": (tables.generate_view, GenerateReport, {"texts": None, "tokens": [[1, 2], [3]]}, ["1  1 2", "2  3"]),
    "ties": (
        tables.verify_view,
        VerifyReport,
        {"ties": ["topk in a", "argmax"]},
        ["equal values in `topk in a`, `argmax`: compared with that of the lower index, where PyTorch may take"],
    ),
    "steps of PyTorch": (
        tables.verify_view,
        VerifyReport,
        {"no_decode": None, "no_torch_decode": "it is [odd]"},
        ["not decoded by PyTorch: it is [odd]"],
    ),
    "the same reason": (
        tables.verify_view,
        VerifyReport,
        {"no_decode": "it is odd", "no_torch_decode": "it is odd"},
        ["not decoded: it is odd"],
    ),
    "lift": (tables.lift_view, LiftReport, LIFTED, ["note  its [hook] is not run"]),
    "import": (tables.import_view, ImportReport, {"lift": LiftReport.model_construct(**LIFTED)}, ["note  its [hook]"]),
    "gradients": (
        tables.run_view,
        RunReport,
        {"untouched": [Untouched(path=f"w{i}", layers=[], block="b", source="s:1") for i in range(11)]},
        ["none for  w0 in b (s:1)", "and of 3 more; --json names all"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REPORTS)
def test_what_a_report_remarks(case: str) -> None:
    view, kind, fields, lines = REPORTS[case]
    kinds = {"str": "x", "int": 0, "float": 0.0, "bool": True, "list": [], "dict": {}}
    for name, field in kind.model_fields.items():
        fields = {name: kinds.get(re.split(r"\W", str(field.annotation).removeprefix("<class '"))[0]), **fields}
    text = plain_text(*view(kind.model_construct(**fields)))
    for line in lines:
        assert line in text
    assert "reason" not in case or text.count(lines[0][-6:]) == 1
