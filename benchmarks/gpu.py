"""Check and measure on a GPU what only a GPU can show, in parts of ten minutes, the most telling first.

    python benchmarks/gpu.py --part 1 --out DIR [--minutes 9.5] [--only CELL …] [--device cpu --tiny]

Its first three minutes compare modules in bfloat16 with float64, whole and step by step, and measure prefill and
generation of a Llama beside transformers, with MFU and the share of the card's bandwidth. Part 1 goes on with float32,
tokens, onnxruntime and training, part 2 with what is compiled and with ONNX, part 3 with models of eight billion
weights, part 4 with float8 and scans, which compile and tune themselves for long; without `--part` all run.

At the start it says which packages are there and which are missing. Without one of the project's own it ends with the
line that installs them; cells that need another are left out. Each cell runs in a process of its own within its time
limit. `DIR/results.json` holds everything: figures, and the card's name, clocks and versions. It is written after
each item of a cell, so that a run that is cut off loses the item under way, and a second call goes on there;
what failed is tried again. `DIR/summary.md` is a table of it. `--tiny` runs every cell with sizes that a CPU computes
in seconds: the figures mean nothing then, the test of this script does.

The exit status is 0 where every cell that could run did and nothing failed, 1 where not, 2 where nothing could begin.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import tomllib
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
Report = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """A function `module:name` of `gpu_cells/` that gives items to measure, and its options."""

    part: int
    seconds: int
    """Its time limit. Those of a part fit ten minutes."""
    work: str
    options: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    """Packages; `a|b` is either of two."""


ONNX = ("onnx", "onnx-ir", "onnxruntime")
VARLEN = ("torch>=2.11",)
CELLS = {
    "parity-bfloat16": Cell(1, 100, "gpu_parity:bfloat16"),
    "speed-1b": Cell(1, 150, "gpu_speed:billion"),
    "parity-float32": Cell(1, 60, "gpu_parity:float32"),
    "tokens": Cell(1, 60, "gpu_parity:tokens"),
    "onnx-decode": Cell(1, 60, "gpu_speed:onnx_decode", needs=ONNX),
    "train-llama-1.3b": Cell(1, 100, "gpu_speed:train_llama"),
    "sharded": Cell(1, 40, "gpu_parity:sharded"),
    "decode-compiled": Cell(2, 150, "gpu_parity:compiled_steps"),
    "parity-compiled": Cell(2, 130, "gpu_parity:float32", {"compiled": True}),
    "onnx": Cell(2, 150, "gpu_parity:onnx", needs=ONNX),
    "parity-varlen": Cell(2, 50, "gpu_parity:varlen", needs=VARLEN),
    "attention-window": Cell(2, 60, "gpu_speed:attention", needs=VARLEN),
    "generate-8b": Cell(3, 160, "gpu_speed:eight"),
    "generate-8b-transformers": Cell(3, 110, "gpu_speed:eight", {"peer": True}, ("transformers",)),
    "train-moe": Cell(3, 100, "gpu_speed:train_experts"),
    "attention-documents": Cell(3, 60, "gpu_speed:attention", {"packed": True}, VARLEN),
    "train-llama-1.3b-float8": Cell(4, 150, "gpu_speed:train_llama", {"float8": True}, ("torch>=2.10",)),
    "scans": Cell(4, 150, "gpu_speed:scans", needs=("mamba-ssm|flash-linear-attention",)),
}
"""In order of worth."""
MINUTES = 9.5
"""For a part."""

# --- what there must be -----------------------------------------------------------------------------------------------

MODULES = {"flash-linear-attention": "fla"}
"""What packages are imported as, where `-` for `_` is not all."""


def own() -> list[str]:
    """The project's own packages, with PyTorch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["torch"]]


def found(package: str) -> str | None:
    """The version of a package that is here, None where it is not."""
    if importlib.util.find_spec(MODULES.get(package, package.replace("-", "_"))) is None:
        return None
    for name in (package, f"{package}-gpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "?"


def numbers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", text)[:2]]


def lacking(requirement: str, device: str) -> str:
    """What keeps a requirement, `a`, `a>=1.0` or `a|b`, from being met; nothing where it is."""
    if "|" in requirement:
        every = [lacking(one, device) for one in requirement.split("|")]
        return " and ".join(every) if all(every) else ""
    name, _, least = requirement.partition(">=")
    here = found(name)
    if here is None:
        return f"{name} is missing"
    if least and numbers(here) < numbers(least):
        return f"{name} {here} is older than {least}"
    if name == "onnxruntime" and device == "cuda":
        runtime = importlib.import_module("onnxruntime")
        if "CUDAExecutionProvider" not in runtime.get_available_providers():
            return f"onnxruntime {here} knows no CUDA: onnxruntime-gpu does"
    return ""


def surveyed(names: list[str], device: str) -> tuple[list[tuple[str, ...]], dict[str, str], list[str]]:
    """Return what those cells need: rows of a package, its version here, what needs it and what is wrong with it; the
    cells that cannot run, with why; and the project's own packages that are missing."""
    users = {requirement: ["the project"] for requirement in own()}
    if "speed-1b" in names:
        users["transformers"] = ["speed-1b"]
    for name in names:
        for need in CELLS[name].needs:
            for one in need.split("|"):
                users.setdefault(one, []).append(name)
    rows = []
    for one, by in sorted(users.items(), key=lambda item: (item[1] != ["the project"], item[0])):
        rows.append((one, found(one.partition(">=")[0]) or "–", ", ".join(by), lacking(one, device)))
    out = {n: "; ".join(filter(None, (lacking(need, device) for need in CELLS[n].needs))) for n in names}
    missing = [requirement for requirement in own() if found(requirement.partition(">=")[0]) is None]
    return rows, {n: why for n, why in out.items() if why}, missing


def ready(names: list[str], device: str, quiet: bool) -> list[str]:
    """Print what is here of what those cells need. Return the cells that can run."""
    rows, left_out, missing = surveyed(names, device)
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    table = ["  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[3]]).rstrip() for row in rows]
    if not quiet:
        print(*table, *(f"{name} is left out: {why}" for name, why in left_out.items()), sep="\n", flush=True)
    if missing:
        print("missing: pip install", *(f"'{requirement}'" for requirement in missing), flush=True)
        return []
    if not quiet and (problem := broken()):
        print(problem, flush=True)
        return []
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            print(f"torch {torch.__version__} finds no CUDA device", flush=True)
            return []
    return [name for name in names if name not in left_out]


def broken() -> str:
    """Import the project's packages and the cells. Return what cannot be imported and why, as where a package lacks one
    that it requires; nothing where all can."""
    for module in [*(requirement.partition(">=")[0] for requirement in own()), "gpu_speed"]:
        try:
            importlib.import_module(module)
        except ImportError as problem:
            return f"{module} cannot be imported: {problem}"
    return ""


def machine(device: str) -> Report:
    """What figures were measured on."""
    import torch

    told: Report = {"python": platform.python_version(), "device": device, "cuda": torch.version.cuda}
    peers = ("transformers", "mamba-ssm", "flash-linear-attention")
    told |= {name: found(name) for name in ("torch", "triton", "onnxruntime", "onnx", *peers)}
    if device == "cuda":
        told["card"] = torch.cuda.get_device_name()
    if device == "cuda" and shutil.which("nvidia-smi"):
        asked = "clocks.sm,clocks.max.sm,clocks.mem,power.limit,driver_version"
        command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        told["clocks"] = dict(zip(asked.split(","), done.stdout.strip().split(", "), strict=False))
    return told


# --- results ----------------------------------------------------------------------------------------------------------


class Bundle:
    """The results of all cells, in one file."""

    def __init__(self, folder: Path, device: str, tiny: bool) -> None:
        self.folder, self.path = folder, folder / "results.json"
        self.setting = {"device": device, "tiny": tiny}
        folder.mkdir(parents=True, exist_ok=True)

    def cells(self) -> dict[str, Report]:
        """The reports so far of this device and these sizes."""
        every = json.loads(self.path.read_text()) if self.path.is_file() else {}
        return {n: r for n, r in every.items() if {k: r.get(k) for k in self.setting} == self.setting}

    def report(self, name: str) -> Report:
        return self.cells().get(name, {"items": {}}) | self.setting

    def save(self, name: str, report: Report) -> None:
        every = self.cells() | {name: report}
        for path, text in ((self.path, json.dumps(every, indent=1)), (self.folder / "summary.md", summary(every))):
            beside = path.with_suffix(".part")
            beside.write_text(text, encoding="utf-8")
            beside.replace(path)

    def done(self, name: str) -> bool:
        return self.report(name).get("status") == "ok"


def summary(cells: Mapping[str, Report]) -> str:
    """A table of all items that have run."""
    rows = ["| cell | item | status | seconds | figures |", "|---|---|---|--:|---|"]
    for name in CELLS:
        if report := cells.get(name):
            if report["status"] != "ok":
                rows.append(f"| {name} | | {report['status']} | | {one_line(report.get('error', ''))} |")
            for item, told in report["items"].items():
                rows.append(f"| {name} | {item} | {told['status']} | {told['seconds']} | {brief(told)} |")
    return "\n".join(rows) + "\n"


def brief(told: Report) -> str:
    """The figures of an item in one line: of distances the largest alone, of long lists how long they are."""
    shown = {k: v for k, v in told.items() if k not in ("status", "seconds", "traceback", "limit")}
    if isinstance(distances := shown.pop("distances", None), dict):
        worst = max(distances, key=lambda name: float("inf") if distances[name] == "not finite" else distances[name])
        shown = {f"worst, {worst}": distances[worst]} | shown
    shown = {
        k: len(v) if isinstance(v, list) and len(v) > 3 else v for k, v in shown.items() if v not in ([], {}, None)
    }
    return one_line(json.dumps(rounded(shown), ensure_ascii=False))


def rounded(x: Any) -> Any:
    """The same with four digits a number."""
    if isinstance(x, dict):
        return {k: rounded(v) for k, v in x.items()}
    if isinstance(x, list):
        return [rounded(v) for v in x]
    return float(f"{x:.4g}") if isinstance(x, float) else x


def one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "/")[:400]


# --- running ----------------------------------------------------------------------------------------------------------


def run_cell(name: str, bundle: Bundle) -> None:
    """Run a cell in this process, and save what comes out after each item. Items that were fine before are kept."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # parity is of the code
    report, cell = bundle.report(name), CELLS[name]
    report |= {"status": "under way", "machine": machine(bundle.setting["device"])}
    report.pop("error", None)
    report["items"] = {n: r for n, r in report["items"].items() if r["status"] == "ok"}
    module, _, function = cell.work.partition(":")
    try:
        setting = importlib.import_module("gpu_setting").Setting(**bundle.setting)
        for item, measure in getattr(importlib.import_module(module), function)(setting, **cell.options):
            if item in report["items"]:
                continue
            start = time.perf_counter()
            try:
                told = measure()
                told = {"status": "failed" if told.get("failed") else "ok", **told}
            except Exception as problem:
                told = {"status": "failed", "error": f"{type(problem).__name__}: {problem}"[:2000]}
                told["traceback"] = traceback.format_exc()[-4000:]
            told["seconds"] = round(time.perf_counter() - start, 1)
            report["items"][item] = told
            bundle.save(name, report)
            print(f"{name}, {item}: {told['status']}, {told['seconds']} s {brief(told)}", flush=True)
        good = all(told["status"] == "ok" for told in report["items"].values())
        report["status"] = "ok" if good and report["items"] else "failed"
    except Exception as problem:
        report |= {"status": "failed", "error": f"{type(problem).__name__}: {problem}"[:2000]}
        report["traceback"] = traceback.format_exc()[-4000:]
    bundle.save(name, report)


def run_apart(name: str, bundle: Bundle, seconds: float) -> None:
    """Run a cell in a process of its own, for so long at most."""
    command = [sys.executable, __file__, "--here", "--out", str(bundle.folder), "--only", name]
    command += ["--device", bundle.setting["device"], *["--tiny"] * bundle.setting["tiny"]]
    bundle.save(name, bundle.report(name) | {"status": "under way"})
    try:
        ended = f"exit status {subprocess.run(command, timeout=seconds, check=False).returncode}"
    except subprocess.TimeoutExpired:
        ended = f"out of time after {seconds:.0f} s"
    report = bundle.report(name)
    if report["status"] == "under way":
        bundle.save(name, report | {"status": "failed", "error": ended})


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", type=int, choices=sorted({cell.part for cell in CELLS.values()}))
    parser.add_argument("--minutes", type=float, help=f"{MINUTES} for a part")
    parser.add_argument("--only", nargs="*", choices=CELLS, metavar="CELL", help=", ".join(CELLS))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true", help="sizes for a dry run")
    parser.add_argument("--here", action="store_true", help="run the cells in this process")
    return parser.parse_args()


def main() -> int:
    start, given = time.monotonic(), parsed()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # For the folder of this script, whose onnx.py is not onnx.
    sys.path[:] = [str(p) for p in (ROOT, ROOT / "tests", HERE / "gpu_cells")] + [
        p for p in sys.path if Path(p or ".").resolve() != HERE
    ]
    names = given.only or [n for n, cell in CELLS.items() if given.part in (None, cell.part)]
    minutes = given.minutes or MINUTES * len({CELLS[n].part for n in names})
    bundle = Bundle(given.out, given.device, given.tiny)
    names = ready(names, given.device, quiet=given.here and len(names) == 1)
    if not names:
        return 2
    for name in names:
        left = start + 60 * minutes - time.monotonic()
        if bundle.done(name) and not given.here:
            continue
        if left < 20:
            print(f"{name}: no time is left", flush=True)
        elif given.here:
            run_cell(name, bundle)
        else:
            run_apart(name, bundle, min(CELLS[name].seconds, left))
        if status := bundle.report(name).get("status"):
            print(f"{name}: {status} {bundle.report(name).get('error', '')}", flush=True)
    return 0 if all(bundle.done(name) for name in names) else 1


if __name__ == "__main__":
    raise SystemExit(main())
