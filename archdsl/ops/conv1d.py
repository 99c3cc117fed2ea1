"""`conv1d`"""

from __future__ import annotations

from archdsl.ir.op import Example
from archdsl.ops._windows import Convolution


class Conv1d(Convolution):
    """A convolution along time, channels last: weighted sums of `kernel` positions, `dilation` apart, each `stride`.

    `padding` is `same` (position t of stride 1 reads around t; ceil(time / stride) positions), `causal` (zeros only
    before the first position, so that nothing later is read), `none`, or a number of zeros on either side."""

    signature = (
        "conv1d(features: size, kernel: size, stride: size = 1, dilation: size = 1, groups: size = 1, "
        "padding: word = same, bias: bool = true, init: scheme = none)(x: float[..., time, channels]) "
        "-> [..., time, features]"
    )
    spatial = 1
    examples = (
        Example("x -> conv1d(6, kernel: 3)"),
        Example("x -> conv1d(8, kernel: 4, groups: 8, padding: causal, bias: false)"),
        Example("x -> conv1d(6, kernel: 3, stride: 2)", "x: [2, 9, 8]"),
        Example("x -> conv1d(6, kernel: 4, stride: 2)", "x: [2, 8, 4]"),
        Example("x -> conv1d(6, kernel: 2, dilation: 2, padding: causal)", "x: [2, 3, 5, 8]"),
        Example("x -> conv1d(6, kernel: 3, stride: 2, padding: none)", "x: [9, 8]"),
        Example("x -> conv1d(6, kernel: 3, padding: 2)"),
    )
