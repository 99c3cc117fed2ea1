"""Where onnxruntime's own CUDA provider puts the nodes of a graph, on a machine without a GPU.

    LD_LIBRARY_PATH=FOLDER python tests/stub_cuda.py GRAPH …

`built` makes libraries in whose presence the provider loads (`stub_cuda.c`).  A session is made and never run: kernels
are looked up, nodes placed and copies added as on a GPU.  What its log says of each graph is one line of JSON.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state

SOURCE = Path(__file__).with_suffix(".c")
PROVIDER = Path(onnxruntime_pybind11_state.__file__).with_name("libonnxruntime_providers_cuda.so")
TOOLS = ("gcc", "nm", "readelf")


@dataclass
class Placed:
    """What a session says of a graph."""

    cuda: int = 0
    """How many nodes CUDA has, those that copy included; others do arithmetic with shapes, which onnxruntime leaves on
    the CPU on purpose."""
    missing: list[str] = field(default_factory=list)
    """Nodes for which CUDA has no kernel."""
    copies: list[str] = field(default_factory=list)
    """Tensors that are copied between the two."""
    error: str = ""


def why_not() -> str:
    """Return what a machine lacks to build the libraries, or nothing."""
    if not PROVIDER.is_file():
        return "this onnxruntime has no CUDA provider"
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"{', '.join(lacking)} is not here" if lacking else ""


def built(folder: Path) -> None:
    """Write a library for each of CUDA's that the provider wants, with all symbols that it looks for."""
    of_file = {"capture_output": True, "text": True, "check": True}
    needed = subprocess.run(["readelf", "-d", PROVIDER], **of_file).stdout  # type: ignore[call-overload]
    libraries = re.findall(r"\[(libcu\w+\.so\.\d+)\]", needed)
    listed = subprocess.run(["nm", "-D", "--undefined-only", PROVIDER], **of_file).stdout  # type: ignore[call-overload]
    symbols: defaultdict[str, set[str]] = defaultdict(set)
    for line in listed.splitlines():
        name, _, library = line.split()[-1].partition("@")
        symbols[library or "libcuda.so.1" * bool(re.match("cu[A-Z]", name))].add(name)
    text = SOURCE.read_text()
    defined = {*re.findall(r"^(?!static)\w[\w *]*?(\w+)\(", text, re.M)}
    for library in libraries:
        source, versions = folder / f"{library}.c", folder / f"{library}.map"
        source.write_text(text + "".join(f"int {n}() {{ return 0; }}\n" for n in sorted(symbols[library] - defined)))
        versions.write_text(f"{library} {{ global: *; }};\n")
        flags = ["-w", "-shared", "-fPIC", f"-Wl,-soname,{library}", f"-Wl,--version-script={versions}"]
        subprocess.run(["gcc", *flags, str(source), "-o", str(folder / library)], check=True)


def placed(path: str) -> Placed:
    """Make a session of a graph, and read its log."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.log_verbosity_level, options.intra_op_num_threads = 0, 1, 1
    found = Placed()
    with tempfile.TemporaryFile("w+b") as file:
        before = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            onnxruntime.InferenceSession(path, options, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
        except Exception as problem:
            found.error = str(problem)
        finally:
            os.dup2(before, 2)
            os.close(before)
        file.seek(0)
        log = re.sub(r"\x1b\[[0-9;]*m", "", file.read().decode(errors="replace"))
    found.missing = sorted({*re.findall(r"CUDA kernel not found in registries for Op type: (\S+)", log)})
    found.copies = [" ".join(c) for c in re.findall(r"Add Memcpy(\w+)Host (?:after|before) (\S+) for", log)]
    if whole := re.search(r"All nodes placed on \[CUDAExecutionProvider\]. Number of nodes: (\d+)", log):
        found.cuda = int(whole[1])
    on_cuda = False
    for line in log.splitlines():
        if place := re.search(r"Node\(s\) placed on \[(\w+)\]", line):
            on_cuda = place[1] == "CUDAExecutionProvider"
        found.cuda += on_cuda and re.search(r"VerifyEachNodeIsAssignedToAnEp\]\s+\S+ \(", line) is not None
    return found


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print(json.dumps(asdict(placed(path))), flush=True)
