"""`gru`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope, Tree
from archdsl.ops._recurrent import Layer, constructed


class Gru(Layer):
    """Gated recurrent units along time (Cho et al., 2014): the state after every step, from `h` or zeros.

    The last one is `y[:, -1]`. With `reverse` from the last position to the first. Weights are torch's: gates reset,
    update, new; two vectors of bias."""

    signature = (
        "gru(hidden: size, bias: bool = true, reverse: bool = false, init: scheme = none)"
        "(x: float[batch, time, inputs], h: float[batch, hidden] = none) -> [batch, time, hidden]"
    )
    gates = 3
    order = (1, 0, 2)
    examples = (
        Example("x -> gru(6)"),
        Example("gru(6, bias: false)(x, h)", "x: [2, 5, 8], h: [2, 6]"),
        Example("x -> gru(6, reverse: true)"),
    )

    def attributes(self, node: OpNode) -> dict[str, Any]:
        return {**super().attributes(node), "linear_before_reset": 1}

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        return constructed(node, e, "GRU")
