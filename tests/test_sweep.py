"""Sweeps: every point is what `estimate` says of it, and what cannot be is told in words."""

import csv
import io
import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from cli_tools import TINY, run

import archdsl
from archdsl.estimates.flops import estimate
from archdsl.estimates.mesh import parse_mesh
from archdsl.estimates.needs import Workload, memory_need
from archdsl.estimates.sweep import MAX_POINTS, sweep
from archdsl.report import plots

SPEC = TINY.replace("width = 16)", "width = 16, rate = 0.0, deep = false)").replace(
    "  blocks:", "  dropout: rate\n  blocks:"
)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("tiny.arch")
    path.write_text(SPEC)
    return path


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ("512..2048:512", [512, 1024, 1536, 2048]),
        ("512..2047:512", [512, 1024, 1536]),
        ("16..200*2", [16, 32, 64, 128]),
        ("6..8", [6, 7, 8]),
        ("1_024..2_048:1_024", [1024, 2048]),
        ("6,12..14,24", [6, 12, 13, 14, 24]),
        ("8,8,16", [8, 16]),
        ([4, 6], [4, 6]),
        (4, [4]),
    ],
)
def test_values(given: object, values: list[int]) -> None:
    model = "model m(n)(x: [batch, 8]) -> [batch, n] { return x -> linear(n) }"
    report = sweep(text=model, set={"n": given})  # type: ignore[dict-item]
    assert [row.settings["n"] for row in report.rows] == values
    assert [row.parameters for row in report.rows] == [9 * n for n in values]


def test_heads_follow_the_width_as_in_a_fit() -> None:
    """Each point is a model; what is set stays."""
    report = sweep("llama3_8b", set={"width": "1024..4096:1024", "layers": 2}, seq=128)
    assert [row.followed for row in report.rows] == [
        {"heads": 8 * n, "kv_heads": 2 * n, "hidden": 3584 * n} for n in range(1, 5)
    ]
    assert all(row.problem is None for row in report.rows)
    for row in report.rows:
        made = archdsl.estimate("llama3_8b", set={**row.settings, **row.followed})
        assert made.params.total == row.parameters
    kept = sweep("llama3_8b", set={"width": 2048, "heads": 32, "hidden": 1024, "layers": 2}, seq=128)
    assert kept.rows[0].followed == {}  # a group of heads that are set has no size to keep
    assert sweep("llama3_8b", set={"layers": 2}, seq=128).followed == []


def test_values_of_other_kinds(tiny: Path) -> None:
    report = sweep(tiny, set={"rate": "0.0,1e-1", "deep": "true,false"})
    assert [list(row.settings.values()) for row in report.rows] == [
        [0.0, True],
        [0.0, False],
        [0.1, True],
        [0.1, False],
    ]
    assert len({row.parameters for row in report.rows}) == 1


def test_values_that_hold_commas() -> None:
    model = "model m(ns = [1])(x: [batch, 8]) { for n in ns { x = x -> linear(8 * n) -> linear(8) } return x }"
    report = sweep(text=model, set={"ns": "[1, 2],[3]"})
    assert [row.settings["ns"] for row in report.rows] == ["[1, 2]", "[3]"]
    assert [row.parameters for row in report.rows] == [72 + 72 + 144 + 136, 24 * 9 + 25 * 8]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("24..6", "ends before it begins"),
        ("6..24:0", "never ends"),
        ("6..24:-2", "never ends"),
        ("0..24*2", "never ends"),
        ("1..24*1", "never ends"),
        ("1.5..3", "no range of whole numbers"),
        ("1..24:1.5", "no range of whole numbers"),
        ("1..", "no range of whole numbers"),
        (",", "no values"),
        (f"0..{MAX_POINTS}", "more than 100,000 values"),
    ],
)
def test_values_that_say_nothing(tiny: Path, given: str, said: str) -> None:
    with pytest.raises(archdsl.ArchError) as raised:
        sweep(tiny, set={"layers": given})
    (found,) = raised.value.diagnostics
    assert (found.code, said in found.message, bool(found.help)) == ("E0505", True, True)
    assert run("sweep", tiny, "--set", f"layers={given}")[0] == 2


def test_too_many_points(tiny: Path) -> None:
    with pytest.raises(archdsl.ArchError, match="1,000,000 points are too many"):
        sweep(tiny, set={"layers": "1..1000", "width": "1..1000"})


def test_every_row_is_what_estimate_says() -> None:
    report = sweep("llama3_8b", set={"layers": "2,4", "width": "1024..2048*2"}, seq=512)
    assert [list(row.settings.values()) for row in report.rows] == [[2, 1024], [2, 2048], [4, 1024], [4, 2048]]
    for row in report.rows:
        alone = estimate(archdsl.load("llama3_8b", set={**row.settings, **row.followed}), seq=512)
        p = alone.params
        assert (row.parameters, row.non_embedding, row.active, row.ratio) == (
            p.total,
            p.non_embedding,
            p.active,
            p.ratio,
        )
        assert row.forward_per_token == alone.flops.forward / 512
        assert row.training_per_token == alone.flops.training_per_token


def test_an_impossible_point_is_a_row(tiny: Path) -> None:
    report = sweep(tiny, set={"heads": "2..4"})
    good, bad, last = report.rows
    assert good.parameters == last.parameters == archdsl.estimate(tiny).params.total
    assert (bad.parameters, bad.code) == (None, "E0401")
    assert bad.problem is not None
    assert "width = 16 is not a multiple of heads = 3" in bad.problem
    status, out = run("sweep", tiny, "--set", "heads=2..4")
    assert (status, "E0401: `head_dim` of `mha` is width / heads" in out) == (0, True)
    assert run("sweep", tiny, "--set", "heads=3,5")[0] == 1


def test_a_length_that_the_model_refuses_leaves_parameters(tiny: Path) -> None:
    (row,) = sweep(tiny, set={"layers": "1"}, seq=17).rows
    assert (row.forward_per_token, row.code) == (None, "E0503")
    assert row.parameters == archdsl.estimate(tiny, set={"layers": 1}).params.total


@pytest.mark.parametrize("text", [SPEC.replace("mlp(", "mpl("), SPEC + "}", SPEC.replace("layers =", "depth =")])
def test_what_no_setting_cures_is_an_error(text: str) -> None:
    with pytest.raises(archdsl.ArchError):
        sweep(text=text, set={"layers": "1..3"})


def test_csv_and_json_are_exact(tiny: Path) -> None:
    rows = list(
        csv.DictReader(io.StringIO(run("sweep", tiny, "--set", "width=16,1024", "--set", "heads=2,3", "--csv")[1]))
    )
    found = json.loads(run("sweep", tiny, "--set", "width=16,1024", "--set", "heads=2,3", "--json")[1])
    assert found["names"] == ["width", "heads"]
    for text, row in zip(rows, found["rows"], strict=True):
        assert {k: int(text[k]) for k in ("width", "heads")} == row["settings"]
        assert text["parameters"] == ("" if row["parameters"] is None else str(row["parameters"]))
        assert text["problem"] == (row["problem"] or "")


def test_options_that_exclude_each_other(tiny: Path) -> None:
    assert run("sweep", tiny, "--set", "layers=1", "--csv", "--json")[0] == 2
    assert run("sweep", tiny, "--set", "layers=1", "--y", "ratio")[0] == 2
    assert run("sweep", tiny)[0] == 2


def test_settings_may_mend_a_spec_and_hold_commas(tiny: Path) -> None:
    wrong = SPEC.replace("heads = 2", "heads = 3")
    mended = sweep(text=wrong, set={"heads": "2,4"})
    assert [row.parameters for row in mended.rows] == [row.parameters for row in sweep(tiny, set={"heads": "2,4"}).rows]
    found = sweep(tiny, set={"heads": '"2,4",(1 + 1)'})
    assert [row.settings["heads"] for row in found.rows] == ['"2,4"', "(1 + 1)"]
    assert [row.code for row in found.rows] == ["E0203", None]


def test_settings_are_a_mapping() -> None:
    with pytest.raises(archdsl.ArchError, match="E0509"):
        sweep(text=SPEC, set=["width", 8])  # type: ignore[arg-type]


def test_a_spec_that_is_wrong_as_it_stands_has_no_width_that_others_follow(tiny: Path) -> None:
    settings = {"heads": [2], "width": "16,32"}
    mended = sweep(text=SPEC.replace("heads = 2", "heads = 3"), set=settings)
    assert [row.parameters for row in mended.rows] == [row.parameters for row in sweep(tiny, set=settings).rows]
    assert mended.rows[0].parameters is not None


def test_progress_counts_to_the_end(tiny: Path) -> None:
    told: list[tuple[int, int]] = []
    sweep(tiny, set={"layers": "1..4", "heads": "1,2"}, progress=lambda done, total: told.append((done, total)))
    assert told == [(i, 8) for i in range(1, 9)]
    told.clear()
    archdsl.fit(tiny, vary="layers,width", params=1_000_000, progress=lambda done, total: told.append((done, total)))
    total = told[0][1]
    assert told == [(i, total) for i in range(1, total + 1)] * (len(told) // total)  # once for each number of heads
    told.clear()
    archdsl.compare(tiny, tiny, tiny, progress=lambda done, total: told.append((done, total)))
    assert told == [(0, 3), (1, 3), (2, 3)]


# --- plots ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_plots_of_every_kind(tiny: Path) -> None:
    told = ("sweep", tiny, "--set", "heads=1,2,3", "--set", "width=16..64*2", "--plot")
    for kind in plots.FORMATS:
        status, _ = run(*told, f"a{kind}", "--y", "training_per_token")
        assert status == 0
    assert Path("a.png").read_bytes().startswith(b"\x89PNG")
    root = ET.fromstring(Path("a.svg").read_text())
    said = {"".join(t.itertext()) for t in root.iter("{http://www.w3.org/2000/svg}text")}
    # `heads` has several numbers: it is the axis; a line for each width.
    assert {"heads", "width = 16", "width = 32", "width = 64", plots.QUANTITIES["training_per_token"]} <= said
    page = Path("a.html").read_text()
    assert page.count("<tr>") == 10
    assert "is not a multiple of heads" in page
    before = Path("a.svg").read_bytes()
    run(*told, "a.svg", "--y", "training_per_token")
    assert Path("a.svg").read_bytes() == before


def test_sizes_far_apart_are_drawn_at_powers_of_two(tiny: Path) -> None:
    """Other settings name the lines, booleans as a spec has them."""
    run("sweep", tiny, "--set", "width=16..4096*4", "--set", "deep=true,false", "--plot", "a.svg")
    root = ET.fromstring(Path("a.svg").read_text())
    said = {"".join(t.itertext()) for t in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"deep = true", "deep = false", "16", "1,024", "4,096"} <= said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--set", "heads=3,5,1+1", "--plot", "a.svg"), "no point of the sweep with a number for `heads` can be drawn"),
        (("--set", "layers=1,2", "--plot", "a.bmp"), "is not written as `.bmp`"),
        (("--set", "layers=1,2", "--plot", "svg"), "is not written as `svg`"),
        (("--set", "deep=true,false", "--plot", "a.svg"), "no setting of the sweep has several numbers"),
        (("--set", "heads=3,5", "--plot", "a.svg"), "no point of the sweep has parameters"),
    ],
)
def test_what_cannot_be_drawn(tiny: Path, options: tuple[str, ...], said: str) -> None:
    status, out = run("sweep", tiny, *options)
    assert (status, "E0506" in out, said in out) == (2, True, True)
    assert not Path("a.svg").exists()


def test_a_sweep_without_a_model_names_no_loss(tiny: Path) -> None:
    status, out = run("sweep", tiny, "--set", "heads=3,5", "--memory")
    assert (status, "checkpointing: none" in out, "None" in out) == (1, True, False), out


@pytest.mark.parametrize(
    ("options", "how"),
    [
        (("--loss", "eager"), {"loss": "eager"}),
        (("--dtype", "float32"), {"memory": True}),
        (("--decode", "--batch", "3"), {"decode": True, "batch": 3}),
        (("--mesh", "dp=2", "--zero", "3"), {"mesh": "dp=2", "zero": 3, "batch": 2}),
    ],
)
def test_memory_is_what_fit_needs(tiny: Path, options: tuple[str, ...], how: dict[str, Any]) -> None:
    """In all three forms, by each option; none where none is given."""
    told = ("sweep", tiny, "--set", "layers=1,2", "--seq", "8", *options)
    report = archdsl.sweep(tiny, set={"layers": [1, 2]}, seq=8, **how)
    rows = list(csv.DictReader(io.StringIO(run(*told, "--csv")[1])))
    shown = json.loads(run(*told, "--json")[1])
    for layers, row, line, entry in zip((1, 2), report.rows, rows, shown["rows"], strict=True):
        plan = {k: v for k, v in how.items() if k not in ("memory", "mesh")}
        need = memory_need(
            archdsl.load(tiny, set={"layers": layers}), Workload(parse_mesh(how.get("mesh", "dp=1")), seq=8, **plan)
        )
        assert row.memory == int(line["memory"]) == entry["memory"] == need.bytes
    assert report.memory is not None
    assert shown["memory"] == report.memory.model_dump()
    assert report.memory.loss == (None if "decode" in how else how.get("loss", "chunked"))
    assert " KiB" in run(*told)[1] or " MiB" in run(*told)[1]
    plain = archdsl.sweep(tiny, set={"layers": [1]}, seq=8)
    assert plain.memory is plain.rows[0].memory is None


def test_a_point_that_cannot_be_spread_keeps_its_counts(tiny: Path) -> None:
    whole, odd = archdsl.sweep(tiny, set={"layers": "2,3"}, seq=8, mesh="pp=2").rows
    assert (whole.code, odd.code, odd.memory) == (None, "E0515", None)
    assert odd.training_per_token is not None
    for wrong in (("--decode", "--loss", "eager"), ("--weights", "int8"), ("--zero", "1")):
        assert run("sweep", tiny, "--set", "layers=1", *wrong)[0] == 2


def test_plots_need_matplotlib(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "installed", lambda name: None)
    status, out = run("sweep", tiny, "--set", "layers=1,2", "--plot", "a.svg")
    assert (status, "E0502" in out, "pip install matplotlib" in out) == (2, True, True)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run("sweep", tiny, "--set", "layers=1,2")[0] == 0
