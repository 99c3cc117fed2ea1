"""`avg_pool1d`"""

from __future__ import annotations

from archdsl.ir.op import Example
from archdsl.ops._windows import Pooling


class AvgPool1d(Pooling):
    """The mean of each window of `kernel` positions of time, channels last; `stride` apart, or else side by side.

    Zeros that `padding` puts on either side count like others."""

    signature = (
        "avg_pool1d(kernel: size, stride: size = none, padding: int = 0)(x: float[..., time, channels]) "
        "-> [..., time, channels]"
    )
    spatial = 1
    function = "avg"
    examples = (
        Example("x -> avg_pool1d(2)", "x: [2, 6, 8]"),
        Example("x -> avg_pool1d(3, stride: 2, padding: 1)"),
        Example("x -> avg_pool1d(2, stride: 1)", "x: [2, 3, 5, 8]"),
    )
