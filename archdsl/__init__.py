"""archdsl: a declarative language for sequence-model architectures, and its compiler.

>>> import archdsl
>>> archdsl.estimate("gpt2").params.total
124439808
"""

from archdsl.api import (
    check,
    compare,
    diff,
    draw,
    estimate,
    expand,
    export_checkpoint,
    fit,
    flops,
    format_text,
    generate,
    import_checkpoint,
    import_weights,
    init_weights,
    lift,
    list_zoo,
    load,
    memory,
    scaling,
    show,
    sweep,
    to_huggingface,
    to_onnx,
    to_torch,
    torch_source,
    verify,
)
from archdsl.diagnostics import ArchError, Diagnostic
from archdsl.version import __version__

__all__ = [
    "ArchError",
    "Diagnostic",
    "__version__",
    "check",
    "compare",
    "diff",
    "draw",
    "estimate",
    "expand",
    "export_checkpoint",
    "fit",
    "flops",
    "format_text",
    "generate",
    "import_checkpoint",
    "import_weights",
    "init_weights",
    "lift",
    "list_zoo",
    "load",
    "memory",
    "scaling",
    "show",
    "sweep",
    "to_huggingface",
    "to_onnx",
    "to_torch",
    "torch_source",
    "verify",
]
