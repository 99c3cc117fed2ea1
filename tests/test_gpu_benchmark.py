"""`benchmarks/gpu.py` in a dry run: every cell on the CPU, with sizes that mean nothing."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "gpu.py"
CPU = {"device": "cpu", "tiny": True}


KERNELS = {
    "mamba_ssm/ops/selective_scan_interface.py": """
import torch

def selective_scan_fn(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False):
    # u, delta: (batch, dim, length); A: (dim, state), float32; B, C: (batch, state, length)
    assert A.dtype == torch.float32 and u.dtype == delta.dtype == B.dtype == C.dtype
    h, ys = u.new_zeros(u.shape[0], *A.shape), []
    for t in range(u.shape[2]):
        h = torch.exp(delta[:, :, t, None] * A) * h + (delta * u)[:, :, t, None] * B[:, None, :, t]
        ys.append((h * C[:, None, :, t]).sum(-1))
    return torch.stack(ys, dim=-1)
""",
    "fla/ops/simple_gla/__init__.py": """
import torch

def chunk_simple_gla(q, k, v, g=None, scale=None, initial_state=None, output_final_state=False, cu_seqlens=None):
    # q, k: (batch, length, heads, key); v: (batch, length, heads, value); g: (batch, length, heads)
    batch, time, heads, dim = q.shape
    assert g.shape == (batch, time, heads)
    state, ys = q.new_zeros(batch, heads, dim, v.shape[-1]), []
    for t in range(time):
        state = g[:, t, :, None, None].exp() * state + k[:, t, :, :, None] * v[:, t, :, None, :]
        ys.append((scale * q[:, t, :, :, None] * state).sum(-2))
    return torch.stack(ys, dim=1), None
""",
    **dict.fromkeys(
        ["fla/ops/gated_delta_rule/__init__.py", "fla/ops/kda/__init__.py"],
        """
import torch

def chunk_gated_delta_rule(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, **kwargs):
    # q, k: (batch, length, heads, key); v: (batch, length, heads, value); beta: (batch, length, heads)
    batch, time, heads, dim = q.shape
    g = g[..., None] if g.dim() == 3 else g  # KDA: (batch, length, heads, key)
    assert beta.shape == (batch, time, heads) and g.shape[:3] == (batch, time, heads)
    state, ys = q.new_zeros(batch, heads, dim, v.shape[-1]), []
    for t in range(time):
        state = g[:, t, :, :, None].exp() * state
        u = beta[:, t, :, None] * (v[:, t] - (k[:, t, :, :, None] * state).sum(-2))
        state = state + k[:, t, :, :, None] * u[:, :, None]
        ys.append((scale * q[:, t, :, :, None] * state).sum(-2))
    return torch.stack(ys, dim=1), state

chunk_kda = chunk_gated_delta_rule
""",
    ),
}
"""Packages that need a GPU: their functions by definition, with the signatures of their documentation."""


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, whose cells can be imported."""
    spec = importlib.util.spec_from_file_location("gpu_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_script", made)
    monkeypatch.syspath_prepend(str(SCRIPT.parent / "gpu_cells"))
    spec.loader.exec_module(made)
    return made


def results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return found


def start(out: Path, *more: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--tiny", "--out", str(out), *more]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | env)


@pytest.mark.slow
def test_every_cell_runs(gpu: ModuleType, tmp_path: Path) -> None:
    """And kernels of other packages, where there are any, compute the same."""
    packages, out = tmp_path / "packages", tmp_path / "out"
    for name, text in KERNELS.items():
        (packages / name).parent.mkdir(parents=True)
        (packages / name).write_text(text)
    done = start(out, "--here", PYTHONPATH=os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")]))
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    reports = results(out)
    assert reports.keys() == gpu.CELLS.keys()
    assert {r["status"] for r in reports.values()} == {"ok"}
    items = [(cell, item) for cell, r in reports.items() for item in r["items"]]
    assert all(r["machine"]["torch"] and r["items"] for r in reports.values())
    assert sorted(p.name for p in out.iterdir()) == ["results.json", "summary.md"]
    table = (out / "summary.md").read_text()
    assert "parity-varlen, attention-window" in done.stdout, "what needs which package"
    assert all(f"| {cell} | {item} | ok |" in table and f"{cell}, {item}: ok" in done.stdout for cell, item in items)
    assert all(figures["distance"] < 1e-5 for figures in reports["scans"]["items"].values())
    speed = reports["speed-1b"]["items"]
    assert {name.split(", ")[1] for name in speed} == {"archdsl", "transformers"}
    assert all(figures["tokens_per_second"] > 0 for figures in speed.values())


@pytest.mark.slow
def test_a_second_call_goes_on_and_time_runs_out(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cell that is done is left as it is, and so is each item of one that failed that did not; what was measured
    elsewhere counts for nothing, and without time no cell begins."""
    kept = {"status": "ok", "seconds": 1, "kept": 1.0}
    old = {**CPU, "status": "ok", "items": {"kept": kept}}
    failed = {"status": "failed", "seconds": 1}
    halfway = old | {"status": "failed", "items": {"llama3:llama3_8b": kept, "bloom:bloom_560m": failed}}
    before = {"parity-float32": old, "tokens": halfway, "onnx": old | {"device": "cuda"}}
    (tmp_path / "results.json").write_text(json.dumps(before))
    assert start(tmp_path, "--only", "parity-float32", "tokens").returncode == 0
    found = results(tmp_path)
    assert found.keys() == {"parity-float32", "tokens"}
    assert found["parity-float32"] == old
    assert found["tokens"]["items"]["llama3:llama3_8b"] == kept
    assert found["tokens"]["items"]["bloom:bloom_560m"]["distances"] == {"tokens": 0.0}
    monkeypatch.setattr(sys, "path", [*sys.path])
    asked = ["--device", "cpu", "--tiny", "--only", "train-moe", "--minutes", "0.1", "--out"]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *asked, str(tmp_path)])
    assert gpu.main() == 1
    assert "train-moe: no time is left" in capsys.readouterr().out
    assert "train-moe" not in results(tmp_path)


def test_parts_fit_ten_minutes_the_first_figures_three(gpu: ModuleType) -> None:
    for part in {cell.part for cell in gpu.CELLS.values()}:
        assert sum(cell.seconds for cell in gpu.CELLS.values() if cell.part == part) <= 60 * gpu.MINUTES
    assert [*gpu.CELLS][:2] == ["parity-bfloat16", "speed-1b"]
    assert gpu.CELLS["parity-bfloat16"].seconds <= 120
    assert [cell.part for cell in gpu.CELLS.values()] == sorted(cell.part for cell in gpu.CELLS.values())


def test_each_item_is_written_as_it_ends(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is cut off keeps what it has; a cell that fails between items, or gives none, has failed."""
    bundle = gpu.Bundle(tmp_path, **CPU)

    def late() -> dict[str, Any]:
        assert results(tmp_path)["tokens"] | {"machine": None} == {
            **CPU,
            "machine": None,
            "status": "under way",
            "items": {"first": {"status": "ok", "ms": 1, "seconds": 0.0}},
        }
        return {"failed": ["distance"]}

    def items(setting: Any) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
        yield "first", lambda: {"ms": 1}
        yield "second", late
        raise ValueError("none\nleft")

    monkeypatch.setitem(sys.modules, "fake", SimpleNamespace(items=items))
    monkeypatch.setitem(gpu.CELLS, "tokens", gpu.Cell(1, 5, "fake:items"))
    gpu.run_cell("tokens", bundle)
    report = results(tmp_path)["tokens"]
    assert (report["status"], report["error"]) == ("failed", "ValueError: none\nleft")
    assert {n: r["status"] for n, r in report["items"].items()} == {"first": "ok", "second": "failed"}
    assert "| tokens | | failed | | ValueError: none left |" in (tmp_path / "summary.md").read_text()
    monkeypatch.setitem(sys.modules, "fake", SimpleNamespace(items=lambda setting: iter(())))
    bundle.save("tokens", report | {"items": {}})
    gpu.run_cell("tokens", bundle)
    assert results(tmp_path)["tokens"]["status"] == "failed"

    def killed(command: list[str], timeout: float, check: bool) -> None:
        bundle.save("tokens", report | {"status": "under way", "items": {"first": {"status": "ok", "seconds": 1}}})
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", killed)
    gpu.run_apart("tokens", bundle, 5)
    report = results(tmp_path)["tokens"]
    assert (report["status"], report["error"], [*report["items"]]) == ("failed", "out of time after 5 s", ["first"])
    assert "tokens, first: ok" in capsys.readouterr().out


# --- what there must be -----------------------------------------------------------------------------------------------


def test_what_is_missing_is_said_at_the_start(tmp_path: Path) -> None:
    """Without any package: the script itself needs none."""
    command = [sys.executable, "-I", "-S", str(SCRIPT), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "")
    last = done.stdout.splitlines()[-1]
    assert last.startswith("missing: pip install ")
    assert all(
        f"'{name}>=" in last for name in ("black", "lark", "networkx", "numpy", "pydantic", "safetensors", "torch")
    )
    assert not (tmp_path / "out" / "results.json").exists()


def test_a_package_that_lacks_what_it_requires_is_named(tmp_path: Path) -> None:
    (tmp_path / "lark.py").write_text("import nothing_here\n")
    done = start(tmp_path, "--only", "tokens", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.splitlines()[-1] == "lark cannot be imported: No module named 'nothing_here'"


def test_cells_whose_packages_are_missing_are_left_out(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"torch": "2.10.1", "onnxruntime": "1.30.0", "onnx": "1.23", "onnx-ir": "1.0"}
    monkeypatch.setattr(
        gpu, "found", lambda name: there.get(name, "99.0" if f"{name}>=" in " ".join(gpu.own()) else None)
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace(get_available_providers=lambda: ["CPU"]))
    rows, out, missing = gpu.surveyed([*gpu.CELLS], "cpu")
    assert missing == []
    assert out == {
        "parity-varlen": "torch 2.10.1 is older than 2.11",
        "attention-window": "torch 2.10.1 is older than 2.11",
        "attention-documents": "torch 2.10.1 is older than 2.11",
        "generate-8b-transformers": "transformers is missing",
        "scans": "mamba-ssm is missing and flash-linear-attention is missing",
    }
    assert [row[:2] for row in rows if row[3]] == [
        ("flash-linear-attention", "–"),
        ("mamba-ssm", "–"),
        ("torch>=2.11", "2.10.1"),
        ("transformers", "–"),
    ]
    assert gpu.lacking("onnxruntime", "cuda") == "onnxruntime 1.30.0 knows no CUDA: onnxruntime-gpu does"


# --- what is wrong is found -------------------------------------------------------------------------------------------

CAST = ".to(next(self.parameters()).dtype)"
PLANTED = {
    "nothing": ("bloom:bloom_560m", "", "", []),
    "not a number": ("gpt2:gpt2", "self.norm(x)", "self.norm(x.index_fill(1, torch.arange(3), torch.nan))", ["whole"]),
    "a wrong mask in a step": (
        "llama3:llama3_8b",
        "self.mask = self.keys <= self.positions[:, None, :, None]",
        "pass",
        ["static"],
    ),
    "a bias in float32": (
        "bloom:bloom_560m",
        CAST,
        "",
        ["a mask of"],
    ),
}
"""A model, what is replaced in its file, and what fails."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_fails(name: str, gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parity: Any = importlib.import_module("gpu_parity")
    model, was, becomes, wrong = PLANTED[name]
    right = parity.emit

    def emit(*given: Any) -> str:
        source: str = right(*given)
        whole = len(given) == 1
        assert name == "a bias in float32" or not was or (was in source) or whole
        return source if whole != (name == "not a number") else source.replace(was, becomes)

    monkeypatch.setattr(parity, "emit", emit)
    monkeypatch.setattr(parity, "DRY", [model])
    bundle = gpu.Bundle(tmp_path, **CPU)
    gpu.run_cell("parity-bfloat16", bundle)
    report = results(tmp_path)["parity-bfloat16"]
    assert report["status"] == ("failed" if wrong else "ok")
    failed = report["items"][model]["failed"]
    assert len(failed) >= len(wrong)
    assert all(any(said.startswith(start) for said in failed) for start in wrong)


def test_no_number_may_be_infinite_and_few_positions_differ_only_where_there_are_experts(gpu: ModuleType) -> None:
    import torch
    from zoo import tiny

    setting: Any = importlib.import_module("gpu_setting")
    parity: Any = importlib.import_module("gpu_parity")
    exact = torch.randn(2, 16, 50, generator=torch.Generator().manual_seed(0)).double()
    for bad, whole, nearest in ((torch.nan, torch.inf, torch.inf), (torch.inf, torch.inf, torch.inf), (9.0, 9.0, 0.0)):
        found = exact.clone()
        found[1, :3] = bad
        assert setting.distance(found, exact) == pytest.approx(whole, rel=0.2)
        assert setting.distance(found, exact, 0.8) == nearest
    assert setting.judged({"whole": torch.nan, "steps": torch.inf, "static": 0.1}, 0.2)["failed"] == ["whole", "steps"]
    assert setting.judged({}, 0.2)["failed"] == ["nothing was compared"]
    zeros = torch.zeros_like(exact)
    assert setting.judged({"zeros": setting.distance(zeros, zeros)}, 0.2)["failed"] == ["zeros"]
    experts = {name for name in parity.FAMILIES if parity.has_experts(tiny.graph(name))}
    assert experts == {"deepseek_v2:deepseek_v2_lite", "deepseek_v3:deepseek_v3", "mixtral:mixtral_8x7b"}


# --- clocks -----------------------------------------------------------------------------------------------------------


def test_whoever_generates_is_waited_for_alike_and_warm_up_takes_no_memory(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first quarter and at the end of a run alone; the rate is the median of three runs after the first."""
    setting: Any = importlib.import_module("gpu_setting")
    events, now = "", 0.0

    def note(what: str) -> Callable[..., None]:
        def event(*_: Any) -> None:
            nonlocal events
            events += what

        return event

    def clock() -> float:
        return now

    monkeypatch.setattr(setting.Setting, "sync", note("s"))
    monkeypatch.setattr(setting.Setting, "forget_peak", note("p"))
    monkeypatch.setattr(setting.time, "perf_counter", clock)
    times = iter([100.0, 1.0, 3.0, 2.0])

    def generate(tick: Callable[[], None]) -> None:
        nonlocal now
        each = next(times)
        for _ in range(8):
            now += each
            note(".")()
            tick()

    found = setting.Setting("cpu", False).rate(generate, 8)
    assert events == "..s......s" * 4
    assert found == {"tokens_per_second": 0.5, "runs": pytest.approx([1, 1 / 3, 1 / 2])}
    events = ""
    setting.Setting("cpu", False).milliseconds(note("."), repeats=2, warm=3)
    assert events == "s.s" * 3 + "p" + "s.s" * 2
