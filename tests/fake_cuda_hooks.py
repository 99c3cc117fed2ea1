"""Loads a CUDA that does nothing, with which a torch built for CPUs runs autograd over fake CUDA tensors.

Import it before torch, which keeps the hooks that it finds at first."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".cpp")
TORCH = (2, 13)
"""The version whose interfaces the library has, and whose kernels are counted."""


def torch_folder() -> Path:
    """The folder of the installed torch, which is not imported."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def missing() -> str:
    """Return why the library cannot be built here; empty where it can."""
    if sys.platform != "linux":
        return "the library is built on Linux alone"
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    if tuple(int(n) for n in version("torch").split(".")[:2]) < TORCH:
        return "torch is older than {}.{}".format(*TORCH)
    if [*(torch_folder() / "lib").glob("libtorch_cuda*")]:
        return "this torch is built for CUDA, and has hooks of its own"
    return "" if shutil.which("c++") else "there is no C++ compiler"


def built() -> Path:
    """Build the library, unless it lies in the user's cache, and return where it lies."""
    torch = torch_folder()
    key = hashlib.sha256(SOURCE.read_bytes() + (torch / "version.py").read_bytes() + bytes(torch)).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "archdsl-tests"
    library = folder / f"fake_cuda_{key}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        include = [f"-I{torch / 'include'}", f"-I{torch / 'include/torch/csrc/api/include'}"]
        linked = [f"-L{torch / 'lib'}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{torch / 'lib'}"]
        with tempfile.TemporaryDirectory(dir=folder) as place:  # another process may build it, too
            new = Path(place) / library.name
            options = ["-shared", "-fPIC", "-std=c++20", *include]
            subprocess.run(["c++", *options, str(SOURCE), *linked, "-o", str(new)], check=True)
            new.replace(library)
    return library


def load() -> None:
    """Load torch's libraries and then this one, before torch is imported."""
    assert "torch" not in sys.modules
    for name in ("libtorch_global_deps.so", "libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(torch_folder() / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(built()), mode=ctypes.RTLD_GLOBAL)
