"""Seconds and peak memory of writing ONNX files, each in a fresh process.

A Llama of 0.85 billion parameters, 3.4 GB in float32: drawn; converted from a checkpoint of elsewhere, to float32 and
to bfloat16; of four bits; and the graph alone, beside the checkpoint as it lies. Then the graph alone of Llama 3.1
405B. The goals: 500 MB for what writes weights, 2 s and 300 MB for the last. Needs 10 GB on the disk of temporary
files.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SETTINGS = ("layers=10", "width=2048", "heads=16", "kv_heads=4", "hidden=6400")
LARGE = ["llama3", *(f"--set={s}" for s in SETTINGS)]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="archdsl-") as name:
        folder = Path(name)
        (folder / "far").mkdir()
        far = str(folder / "far/w.safetensors")
        few = ("--quantize", "int4", "--target", "ort-cpu")
        rows = (
            ("drawn", LARGE, ("--seed", "0", "-o", f"{folder}/near/")),
            ("converted to float32", LARGE, ("--weights", far, "-o", f"{folder}/a.onnx")),
            ("converted to bfloat16", LARGE, ("--weights", far, "--dtype", "bfloat16", "-o", f"{folder}/b.onnx")),
            ("int4", LARGE, ("--weights", far, *few, "-o", f"{folder}/c.onnx")),
            ("as onnx_data", LARGE, ("--weights", far, "--store", "onnx_data", "-o", f"{folder}/d.onnx")),
            ("beside the checkpoint", LARGE, ("--weights", far, "-o", f"{folder}/far/m.onnx")),
            ("llama3_405b, graph alone", ["llama3_405b"], ("-o", f"{folder}/e.onnx")),
        )
        for title, spec, options in rows:
            seconds, peak = measured("compile", *spec, "--to", "onnx", *options)
            written = sum(
                f.stat().st_size for f in folder.rglob("*.[os]*") if f.stat().st_mtime > time.time() - seconds
            )
            print(f"{title:26} {seconds:6.1f} s  {peak:6,.0f} MB peak  {written / 1e9:5.2f} GB written", flush=True)
            if title == "drawn":
                os.replace(folder / "near/model.safetensors", far)
            for path in [*folder.glob("*.safetensors"), *folder.glob("*.onnx*")]:
                path.unlink()


def measured(*arguments: str) -> tuple[float, float]:
    """Seconds, and the peak of the memory in MB."""
    start = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-m", "archdsl", *arguments], stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    assert status == 0, (arguments, status)
    scale = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
    return time.perf_counter() - start, usage.ru_maxrss * scale / 1e6


if __name__ == "__main__":
    main()
