"""The packages of others that a part of the compiler needs, and the command that installs them."""

from __future__ import annotations

import platform

PARTS = {
    "torch": ("torch",),
    "onnx": ("onnx", "onnx-ir", "onnxruntime"),
    "gguf": ("gguf",),
    "plot": ("matplotlib",),
    "png": ("resvg-py",),
    "text": ("tokenizers",),
}
"""By extra of `pyproject.toml`. They are advised by their own names: an extra can be installed by name only where
archdsl itself lies on an index, which a checkout or a wheel needs not."""


def install(*parts: str) -> str:
    """Return the pip command that installs what these parts need, on this machine."""
    names = [name for part in parts for name in PARTS[part]]
    if (platform.system(), platform.machine()) == ("Linux", "x86_64"):
        names = ["onnxruntime-gpu" if name == "onnxruntime" else name for name in names]
    return f"pip install {' '.join(names)}"
