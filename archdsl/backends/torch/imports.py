"""The imports of an emitted file: what its expressions, annotations and helpers name."""

from __future__ import annotations

from collections.abc import Mapping, Set

STANDARD = {
    "collections.abc": ("Callable", "Iterable", "Iterator", "Sequence"),
    "contextlib": ("contextmanager", "nullcontext"),
    "dataclasses": ("dataclass", "replace"),
    "functools": ("cache", "lru_cache", "partial"),
    "typing": ("Any", "NamedTuple"),
}
TORCH = {
    "torch": ("Tensor", "nn"),
    "torch.distributed._functional_collectives": ("all_to_all_single_autograd",),
    "torch.distributed.device_mesh": ("DeviceMesh",),
    "torch.distributed.fsdp": ("fully_shard", "register_fsdp_forward_method"),
    "torch.distributed.tensor": ("DTensor", "Partial", "Replicate", "Shard", "distribute_tensor"),
    "torch.distributed.tensor.parallel": (
        "ColwiseParallel",
        "PrepareModuleOutput",
        "RowwiseParallel",
        "SequenceParallel",
        "parallelize_module",
    ),
    "torch.nn.attention.flex_attention": ("BlockMask", "flex_attention"),
    "torch.nn.attention.varlen": ("varlen_attn",),
    "torch.utils.checkpoint": ("checkpoint", "create_selective_checkpoint_contexts"),
}
MODULES = ("math",)

IMPORTED = {
    *MODULES,
    "torch",
    "dist",
    "F",
    *(name for names in (*STANDARD.values(), *TORCH.values()) for name in names),
}
"""Every global name that an import can give."""


def imports(names: Set[str], further: Mapping[str, tuple[str, ...]] | None = None) -> list[str]:
    """Lines of imports for all of some names: the standard library, an empty line, torch, and `further` modules."""
    standard = [f"import {m}" for m in MODULES if m in names]
    torch = ["import torch"] if "torch" in names else []
    if "dist" in names:
        torch.append("import torch.distributed as dist")
    if "F" in names:
        torch.append("import torch.nn.functional as F")
    return [*standard, *_from(STANDARD, names), "", *torch, *_from(TORCH, names), *_from(further or {}, names)]


def _from(known: Mapping[str, tuple[str, ...]], names: Set[str]) -> list[str]:
    found = {module: [n for n in given if n in names] for module, given in known.items()}
    return [f"from {module} import {', '.join(given)}" for module, given in found.items() if given]
