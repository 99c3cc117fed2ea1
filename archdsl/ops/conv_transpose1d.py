"""`conv_transpose1d`"""

from __future__ import annotations

from archdsl.ir.op import Example
from archdsl.ops._windows import Transposed


class ConvTranspose1d(Transposed):
    """A transposed convolution along time, channels last: each position is spread over `kernel`, the next `stride`
    later.

    `padding` is `same` and `causal` (time * stride positions; `causal` cuts at the end only), `none` ((time - 1) *
    stride + kernel positions), or how many of those are cut off on either side."""

    signature = (
        "conv_transpose1d(features: size, kernel: size, stride: size = 1, groups: size = 1, padding: word = same, "
        "bias: bool = true, init: scheme = none)(x: float[..., time, channels]) -> [..., time, features]"
    )
    spatial = 1
    examples = (
        Example("x -> conv_transpose1d(6, kernel: 4, stride: 2)"),
        Example("x -> conv_transpose1d(6, kernel: 3, stride: 2, bias: false)"),
        Example("x -> conv_transpose1d(6, kernel: 4)"),
        Example("x -> conv_transpose1d(6, kernel: 2, stride: 3, groups: 2)"),
        Example("x -> conv_transpose1d(6, kernel: 4, stride: 2, padding: causal)"),
        Example("x -> conv_transpose1d(6, kernel: 3, stride: 2, padding: none)", "x: [2, 3, 5, 8]"),
        Example("x -> conv_transpose1d(6, kernel: 4, stride: 2, padding: 1)", "x: [5, 8]"),
    )
