"""Tests of what PyTorch itself does, and so of the version that does it."""

from __future__ import annotations

import pytest
import torch

VERSION = tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2])
MEASURED = (2, 9)
"""Since then RMSNorm has a kernel of its own, `torch.optim` has Muon, and experts have a grouped product."""


def since(major: int, minor: int, why: str) -> pytest.MarkDecorator:
    """Skip a test where PyTorch is older."""
    return pytest.mark.skipif((major, minor) > VERSION, reason=f"PyTorch {major}.{minor}: {why}")


measured = since(*MEASURED, "memory and FLOPs are those of its kernels")
