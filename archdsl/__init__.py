"""archdsl: a declarative language for sequence-model architectures, and its compiler.

>>> import archdsl
>>> archdsl.estimate("gpt2").params.total
124439808
"""

from archdsl.api import check, estimate, flops, list_zoo, load, memory, to_onnx, to_torch, torch_source
from archdsl.diagnostics import ArchError, Diagnostic
from archdsl.version import __version__

__all__ = [
    "ArchError",
    "Diagnostic",
    "__version__",
    "check",
    "estimate",
    "flops",
    "list_zoo",
    "load",
    "memory",
    "to_onnx",
    "to_torch",
    "torch_source",
]
