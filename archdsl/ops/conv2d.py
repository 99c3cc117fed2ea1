"""`conv2d`"""

from __future__ import annotations

from archdsl.ir.op import Example
from archdsl.ops._windows import Convolution


class Conv2d(Convolution):
    """A convolution over height and width; its sizes are one number, or a list of one for each of these two axes.

    `padding` is `none`, `same`, `causal` (zeros only before the first position of each axis), or the number of zeros on
    either side."""

    signature = (
        "conv2d(features: size, kernel: ints, stride: ints = 1, dilation: ints = 1, groups: size = 1, "
        "padding = none, bias: bool = true, init: scheme = none)(x: float[batch, channels, height, width]) "
        "-> [batch, features, rows, columns]"
    )
    spatial = 2
    examples = (
        Example("x -> conv2d(6, kernel: 2, stride: 2)", "x: [2, 3, 8, 6]"),
        Example("x -> conv2d(6, kernel: 3, stride: 2, padding: 1, bias: false)", "x: [2, 3, 7, 8]"),
        Example("x -> conv2d(4, kernel: [3, 1], padding: [1, 0], groups: 2)", "x: [2, 2, 5, 4]"),
        Example("x -> conv2d(4, kernel: [2, 3], padding: same, dilation: [2, 1])", "x: [2, 2, 5, 4]"),
        Example("x -> conv2d(4, kernel: [3, 2], stride: [1, 2], padding: same)", "x: [2, 2, 5, 4]"),
    )
