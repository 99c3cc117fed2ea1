"""`avg_pool2d`"""

from __future__ import annotations

from archdsl.ir.op import Example
from archdsl.ops._windows import Pooling


class AvgPool2d(Pooling):
    """The mean of each window over height and width; windows are `stride` apart, or else side by side.

    Zeros that `padding` puts on either side count like others."""

    signature = (
        "avg_pool2d(kernel: ints, stride: ints = none, padding: ints = 0)(x: float[batch, channels, height, width]) "
        "-> [batch, channels, rows, columns]"
    )
    spatial = 2
    function = "avg"
    examples = (
        Example("x -> avg_pool2d(2)", "x: [2, 3, 6, 4]"),
        Example("x -> avg_pool2d([3, 2], stride: [2, 1], padding: [1, 0])", "x: [2, 3, 6, 4]"),
        Example("x -> avg_pool2d(3, stride: 2, padding: 1)", "x: [2, 3, 6, 5]"),
    )
