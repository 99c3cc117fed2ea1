"""Install the wheel into an empty environment and use it there, as somebody who has no checkout does.

`python tests/wheel.py` installs each extra too and runs what it is for (`make wheel`); the tests install none."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = {
    "": (
        ("check", "gpt2", "hf/llama"),
        ("estimate", "gpt2", "--json"),
        ("compile", "gpt2", "-o", "gpt2.py"),
        ("init", "gpt2", "--set", "layers=1", "-o", "gpt2.safetensors"),
    ),
    "torch": (("run", "gpt2", "--set", "layers=1", "--seq", "8"),),
    "plot": (("sweep", "gpt2", "--set", "layers=1,2", "--plot", "sweep.svg"),),
    "png": (("show", "gpt2", "-o", "gpt2.png"),),
    "onnx-cpu": (("verify", "gpt2", "--set", "layers=1", "--seq", "8"),),
}
"""What is run with each extra; `verify` needs torch, which comes before it."""
ADVICE = {
    ("run", "gpt2"): "pip install torch",
    ("compile", "gpt2", "--to", "onnx", "-o", "x"): "pip install onnx onnx-ir onnxruntime",
    ("sweep", "gpt2", "--set", "layers=1", "--plot", "x.svg"): "pip install matplotlib",
    ("show", "gpt2", "-o", "x.png"): "pip install resvg-py",
    ("import", "x.gguf", "-o", "x.arch"): "pip install gguf",
}
"""What a command says where the packages that it needs are missing."""


def install(wheel: Path, folder: Path, extras: Sequence[str] = ()) -> Path:
    """Make an environment in `folder`, install the wheel with its extras and what they require, and return the
    environment's Python."""
    python = folder / "environment" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        run([sys.executable, "-m", "venv", "--without-pip", folder / "environment"], folder)
    constraints = ["-c", ROOT / "constraints.txt"]
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-compile",
        "--disable-pip-version-check",
        *constraints,
    ]
    run([*pip, f"{wheel}[{','.join(extras)}]" if extras else wheel], folder)
    return python


def run(command: Sequence[str | Path], folder: Path, fails: bool = False) -> str:
    """Run a command in a folder, without the paths of this process; return what it printed."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) is fails, f"{command} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def use(python: Path, folder: Path, extra: str = "") -> None:
    """Run what an extra is for, and without one what each missing package is advised by."""
    for command in COMMANDS[extra]:
        run([python, "-m", "archdsl", *command], folder)
    for command, advice in ADVICE.items() if not extra else ():
        (folder / "x.gguf").write_bytes(b"GGUF")
        assert advice in run([python, "-m", "archdsl", *command], folder, fails=True), command


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT], folder)
        (wheel,) = folder.glob("*.whl")
        for extra in COMMANDS:
            print(f"{wheel.name}[{extra}]" if extra else wheel.name, flush=True)
            use(install(wheel, folder, [extra] if extra else []), folder, extra)


if __name__ == "__main__":
    main()
