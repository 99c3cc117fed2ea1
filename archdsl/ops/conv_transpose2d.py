"""`conv_transpose2d`"""

from __future__ import annotations

from archdsl.ir.op import Example
from archdsl.ops._windows import Transposed


class ConvTranspose2d(Transposed):
    """A transposed convolution over height and width: each position is spread over a window of `kernel`, `stride`
    apart.

    `padding` is `none` ((size - 1) * stride + kernel positions along each axis), `same` (size * stride), `causal` (the
    same, cut at the ends only), or how many positions are cut off on either side."""

    signature = (
        "conv_transpose2d(features: size, kernel: ints, stride: ints = 1, groups: size = 1, padding = none, "
        "bias: bool = true, init: scheme = none)(x: float[batch, channels, height, width]) "
        "-> [batch, features, rows, columns]"
    )
    spatial = 2
    examples = (
        Example("x -> conv_transpose2d(6, kernel: 2, stride: 2)", "x: [2, 3, 4, 3]"),
        Example("x -> conv_transpose2d(6, kernel: 4, stride: 2, padding: 1, bias: false)", "x: [2, 3, 4, 3]"),
        Example(
            "x -> conv_transpose2d(6, kernel: [3, 2], stride: [2, 1], padding: same, groups: 3)", "x: [2, 3, 4, 3]"
        ),
    )
