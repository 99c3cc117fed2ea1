"""What checkpointing keeps of a layer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import create_selective_checkpoint_contexts


def products() -> tuple[Any, Any]:
    """Save the results of products with weights; everything else is recomputed."""
    names = ("mm", "addmm", "_grouped_mm", "convolution")
    kept = [getattr(torch.ops.aten, name).default for name in names if hasattr(torch.ops.aten, name)]
    return create_selective_checkpoint_contexts(kept)


@contextmanager
def unchanged(layer: nn.Module, again: Any) -> Iterator[None]:
    """Leave running statistics as they are while a layer is recomputed."""
    buffers = [(buffer, buffer.clone()) for buffer in layer.buffers()]
    try:
        with again:
            yield
    finally:
        for buffer, before in buffers:
            buffer.copy_(before)
