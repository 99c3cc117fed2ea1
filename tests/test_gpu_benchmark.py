"""`benchmarks/gpu.py` in a dry run: every cell on the CPU, with sizes that mean nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "gpu.py"


def ran(out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--tiny", "--out", str(out), *more]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_every_cell_runs(tmp_path: Path) -> None:
    done = ran(tmp_path, "--here")
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    reports = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert len(reports) >= 17
    assert {r["status"] for r in reports.values()} == {"ok"}
    assert all(r["machine"]["torch"] and r["figures"] for r in reports.values())
    table = (tmp_path / "summary.md").read_text()
    assert all(f"| {name} |" in table for name in reports)


@pytest.mark.slow
def test_a_second_call_goes_on_and_time_runs_out(tmp_path: Path) -> None:
    """A cell that is done is left as it is, one that failed is tried again, and without time none begins."""
    old = {"cell": "parity-float32", "status": "ok", "seconds": 1, "figures": {"kept": 1.0}}
    (tmp_path / "parity-float32.json").write_text(json.dumps(old))
    (tmp_path / "prefill-8b.json").write_text(json.dumps(old | {"status": "failed"}))
    assert ran(tmp_path, "--only", "parity-float32", "prefill-8b").returncode == 0
    assert json.loads((tmp_path / "parity-float32.json").read_text()) == old
    assert json.loads((tmp_path / "prefill-8b.json").read_text())["figures"]["milliseconds"] > 0
    done = ran(tmp_path, "--only", "train-moe", "--minutes", "0.1")
    assert (done.returncode, "no time is left" in done.stdout) == (1, True)
    assert not (tmp_path / "train-moe.json").exists()
