"""`benchmarks/gpu.py` in a dry run: every cell on the CPU, with sizes that mean nothing."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "gpu.py"


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
}
"""Packages that need a GPU: their functions by definition, with the signatures of their documentation."""


@pytest.mark.slow
def test_every_cell_runs(tmp_path: Path) -> None:
    """And kernels of other packages, where there are any, compute the same."""
    packages, out = tmp_path / "packages", tmp_path / "out"
    for name, text in KERNELS.items():
        (packages / name).parent.mkdir(parents=True)
        (packages / name).write_text(text)
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--tiny", "--out", str(out), "--here"]
    env = os.environ | {"PYTHONPATH": str(packages)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    reports = {path.stem: json.loads(path.read_text()) for path in out.glob("*.json")}
    assert {r["status"] for r in reports.values()} == {"ok"}
    assert all(r["machine"]["torch"] and r["figures"] for r in reports.values())
    table = (out / "summary.md").read_text()
    assert all(f"| {name} |" in table for name in reports)
    figures = reports["scans"]["figures"]
    assert figures["mamba-ssm"]["distance"] < 1e-5
    assert figures["fla"]["distance"] < 1e-5


@pytest.mark.slow
def test_a_second_call_goes_on_and_time_runs_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cell that is done is left as it is, one that failed is tried again, and without time none begins."""

    def ended(*more: str) -> int:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--device", "cpu", "--tiny", "--out", str(tmp_path), *more])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        return int(end.value.code or 0)

    old = {"cell": "parity-float32", "status": "ok", "seconds": 1, "figures": {"kept": 1.0}}
    (tmp_path / "parity-float32.json").write_text(json.dumps(old))
    (tmp_path / "prefill-8b.json").write_text(json.dumps(old | {"status": "failed"}))
    assert ended("--only", "parity-float32", "prefill-8b") == 0
    assert json.loads((tmp_path / "parity-float32.json").read_text()) == old
    assert json.loads((tmp_path / "prefill-8b.json").read_text())["figures"]["eager_milliseconds"] > 0
    capsys.readouterr()
    assert ended("--only", "train-moe", "--minutes", "0.1") == 1
    assert "no time is left" in capsys.readouterr().out
    assert not (tmp_path / "train-moe.json").exists()
