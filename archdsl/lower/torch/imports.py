"""The imports of an emitted file: what its text mentions."""

from __future__ import annotations

import re

STANDARD = {
    "collections.abc": ("Callable", "Iterable", "Iterator", "Sequence"),
    "contextlib": ("contextmanager", "nullcontext"),
    "dataclasses": ("dataclass", "replace"),
    "functools": ("cache", "lru_cache", "partial"),
    "typing": ("Any", "NamedTuple"),
}
TORCH = {
    "torch": ("Tensor", "nn"),
    "torch.distributed.device_mesh": ("DeviceMesh",),
    "torch.distributed.fsdp": ("fully_shard", "register_fsdp_forward_method"),
    "torch.distributed.pipelining": ("PipelineStage", "Schedule1F1B"),
    "torch.distributed.tensor": ("DTensor", "Placement", "Replicate", "Shard", "distribute_tensor"),
    "torch.distributed.tensor.parallel": (
        "ColwiseParallel",
        "PrepareModuleInput",
        "PrepareModuleOutput",
        "RowwiseParallel",
        "parallelize_module",
    ),
    "torch.nn.attention.flex_attention": ("BlockMask", "create_block_mask", "create_mask", "flex_attention"),
    "torch.utils.checkpoint": ("checkpoint", "create_selective_checkpoint_contexts"),
}
MODULES = ("math", "re")


def imports(body: str) -> list[str]:
    """Lines of imports for all that a text mentions: the standard library, an empty line, torch."""
    standard = [f"import {m}" for m in MODULES if re.search(rf"(?<![\w.]){m}\.\w", body)]
    torch = ["import torch"] if re.search(r"(?<![\w.])torch\.", body) else []
    if re.search(r"(?<![\w.])dist\.", body):
        torch.append("import torch.distributed as dist")
    if re.search(r"\bF\.", body):
        torch.append("import torch.nn.functional as F")
    return [*standard, *_from(STANDARD, body), "", *torch, *_from(TORCH, body)]


def _from(known: dict[str, tuple[str, ...]], body: str) -> list[str]:
    found = {
        m: [n for n in names if re.search(rf"(?<![\w.]){n}\b(?=[\[(\n.|,)]| \|)", body)] for m, names in known.items()
    }
    return [f"from {module} import {', '.join(names)}" for module, names in found.items() if names]
