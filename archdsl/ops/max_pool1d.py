"""`max_pool1d`"""

from __future__ import annotations

from archdsl.ir.op import Example
from archdsl.ops._windows import Pooling


class MaxPool1d(Pooling):
    """The largest of each window of `kernel` positions of time, channels last; `stride` apart, or else side by side."""

    signature = (
        "max_pool1d(kernel: size, stride: size = none, padding: int = 0)(x: float[..., time, channels]) "
        "-> [..., time, channels]"
    )
    spatial = 1
    function = "max"
    examples = (
        Example("x -> max_pool1d(2)", "x: [2, 6, 8]"),
        Example("x -> max_pool1d(3, stride: 2, padding: 1)"),
        Example("x -> max_pool1d(2, stride: 1)", "x: [2, 3, 5, 8]"),
    )
