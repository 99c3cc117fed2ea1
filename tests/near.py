"""How far one tensor is from another: the judge of all tests that compare results of two programs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

KINDS = {"b": "bool", "i": "whole", "u": "whole", "f": "real"}


def distance(found: Any, wanted: Any, least: float = 0.0) -> float:
    """Return the largest difference of two tensors, relative to the largest finite number wanted, or to `least` where
    that is larger; infinity where a number is NaN, or infinite on one side alone, so that neither `max` nor `<` loses
    it. Fails where shapes differ, or kinds of numbers."""
    a, b = _array(found), _array(wanted)
    assert a.shape == b.shape, f"{a.shape} instead of {b.shape}"
    assert KINDS[a.dtype.kind] == KINDS[b.dtype.kind], f"{a.dtype} instead of {b.dtype}"
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.where(a == b, 0.0, np.abs(a - b))  # infinite alike is equal
    worst = float(apart.max(initial=0.0))
    if not worst < math.inf:
        return math.inf
    scale = max(least, float(np.abs(b[np.isfinite(b)]).max(initial=0.0)))
    return worst / scale if scale else math.inf if worst else 0.0


def _array(x: Any) -> NDArray[Any]:
    if isinstance(x, torch.Tensor):
        x = x.detach()
        x = x.double() if x.is_floating_point() else x
    return np.asarray(x)
