"""`gru`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, TorchScope
from archdsl.ops._recurrent import Layer

GRU = '''
class GRU(nn.Module):
    """One layer of gated recurrent units: nn.GRU as a function, which torch.compile takes whole."""

    def __init__(self, inputs: int, hidden: int, bias: bool = True) -> None:
        super().__init__()
        self.hidden = hidden
        self.bias = bias
        self.weight_ih_l0 = nn.Parameter(torch.empty(3 * hidden, inputs))
        self.weight_hh_l0 = nn.Parameter(torch.empty(3 * hidden, hidden))
        if bias:
            self.bias_ih_l0 = nn.Parameter(torch.empty(3 * hidden))
            self.bias_hh_l0 = nn.Parameter(torch.empty(3 * hidden))
        for weight in self.parameters():
            nn.init.uniform_(weight, -(hidden**-0.5), hidden**-0.5)

    def forward(self, x: Tensor, start: Tensor | None = None) -> Tensor:
        if start is None:
            start = x.new_zeros(x.size(0), self.hidden)
        weights = list(self.parameters())
        return torch.gru(x, start[None], weights, self.bias, 1, 0.0, self.training, False, True)[0]
'''


class Gru(Layer):
    """Gated recurrent units along time (Cho et al., 2014): the state after every step, from `h` or zeros.

    The last one is `y[:, -1]`. With `reverse` from the last place to the first. Weights are torch's: gates reset,
    update, new; two vectors of bias."""

    signature = (
        "gru(hidden: size, bias: bool = true, reverse: bool = false, init: scheme = none)"
        "(x: [batch, time, inputs], h: [batch, hidden] = none) -> [batch, time, hidden]"
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

    def torch_module(self, node: OpNode, e: TorchScope) -> str:
        return e.module(self.constructor(node, e, e.helper(GRU)))
