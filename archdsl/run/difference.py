"""How far tensors are from those that they should equal: the one judge of `verify`, `import --check` and `lift`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

KINDS = {"b": "booleans", "i": "whole numbers", "u": "whole numbers", "f": "real numbers"}


class IncomparableError(ValueError):
    """Tensors of other shapes or types, or nothing in them that could differ."""


class Difference(BaseModel):
    """How far an output of onnxruntime is from PyTorch's."""

    dtype: str
    shape: list[int]
    absolute: float
    """The largest difference."""
    relative: float
    """The same, divided by the largest number of PyTorch's output; of whole numbers, the share that differs."""
    largest: float
    """The largest number of PyTorch's output, by magnitude. Where it is 0, zeros were compared, or nothing."""
    nan: int = 0
    """How many numbers are NaN on both sides: these are not compared."""

    def within(self, tolerance: float) -> bool:
        """Return whether numbers other than zero were compared, none of them NaN, and none differs by more."""
        return self.relative <= tolerance and not self.nan and self.largest > 0


def difference(found: NDArray[Any], expected: NDArray[Any], dtype: str = "float32") -> Difference:
    """Return the largest difference of two tensors. Where both are infinite alike they are equal, and where both are
    NaN is counted; where only one of them is, it is infinitely far off. Raises IncomparableError where one has another
    shape, or numbers of another kind."""
    if found.shape != expected.shape:
        raise IncomparableError(f"shapes differ: {found.shape} and {expected.shape}")
    kinds = [KINDS.get(x.dtype.kind, str(x.dtype)) for x in (found, expected)]
    if kinds[0] != kinds[1]:
        raise IncomparableError(f"types differ: {kinds[0]} and {kinds[1]}")
    whole = expected.dtype.kind in "iub"
    a, b = (x.astype(np.float64) for x in (found, expected))
    nan = np.isnan(a) & np.isnan(b)
    same = (found == expected) | nan
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf, posinf=np.inf))
    absolute = float(apart.max(initial=0.0))
    largest = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
    if whole:
        relative = float(1 - same.mean()) if same.size else 0.0
    else:
        relative = absolute / largest if largest else absolute
    return Difference(
        dtype=str(expected.dtype) if whole else dtype,
        shape=list(expected.shape),
        absolute=absolute,
        relative=relative,
        largest=largest,
        nan=int(nan.sum()),
    )


def farthest(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest of the relative differences of tensors from those that they should equal; infinity where a
    number is NaN on either side. Raises IncomparableError where a tensor has another shape or type, where there is one
    more on one side, and where all that is expected is zeros, or nothing: wrong tensors could be equal to that."""
    if len(found) != len(expected):
        raise IncomparableError(f"there are {len(found)} tensors instead of {len(expected)}")
    every = [difference(_array(a), _array(b)) for a, b in zip(found, expected, strict=True)]
    worst = max((math.inf if d.nan else d.relative for d in every), default=0.0)
    if worst < math.inf and not any(d.largest for d in every):
        raise IncomparableError("all numbers are zero: nothing is compared")
    return worst


def _array(tensor: Tensor) -> NDArray[Any]:
    found: NDArray[Any] = (tensor.detach().double() if tensor.is_floating_point() else tensor).cpu().numpy()
    return found
