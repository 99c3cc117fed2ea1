"""`rnn`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, TorchScope
from archdsl.ops._recurrent import Layer, demand_act

RNN = '''
class {cls}(nn.Module):
    """One plain recurrent layer: nn.RNN as a function, which torch.compile takes whole."""

    def __init__(self, inputs: int, hidden: int, bias: bool = True) -> None:
        super().__init__()
        self.hidden = hidden
        self.bias = bias
        self.weight_ih_l0 = nn.Parameter(torch.empty(hidden, inputs))
        self.weight_hh_l0 = nn.Parameter(torch.empty(hidden, hidden))
        if bias:
            self.bias_ih_l0 = nn.Parameter(torch.empty(hidden))
            self.bias_hh_l0 = nn.Parameter(torch.empty(hidden))
        for weight in self.parameters():
            nn.init.uniform_(weight, -(hidden**-0.5), hidden**-0.5)

    def forward(self, x: Tensor, start: Tensor | None = None) -> Tensor:
        if start is None:
            start = x.new_zeros(x.size(0), self.hidden)
        weights = list(self.parameters())
        return torch.rnn_{act}(x, start[None], weights, self.bias, 1, 0.0, self.training, False, True)[0]
'''


class Rnn(Layer):
    """A plain recurrence along time (Elman, 1990): `act(x @ weight_ih.T + h @ weight_hh.T + biases)`, step by step.

    It starts from `h`, or zeros; `act` is `tanh` or `relu`. With `reverse` from the last place to the first."""

    signature = (
        "rnn(hidden: size, act: word = tanh, bias: bool = true, reverse: bool = false, init: scheme = none)"
        "(x: [batch, time, inputs], h: [batch, hidden] = none) -> [batch, time, hidden]"
    )
    gates = 1
    order = (0,)
    examples = (
        Example("x -> rnn(6)"),
        Example("rnn(6, act: relu, bias: false)(x, h)", "x: [2, 5, 8], h: [2, 6]"),
        Example("x -> rnn(6, reverse: true)"),
    )

    def check(self, call: Application) -> None:
        super().check(call)
        demand_act(call)

    def attributes(self, node: OpNode) -> dict[str, Any]:
        return {**super().attributes(node), "activations": [node.options["act"].capitalize()]}

    def torch_module(self, node: OpNode, e: TorchScope) -> str:
        act = node.options["act"]
        source = RNN.replace("{cls}", "RNN" if act == "tanh" else "ReluRNN").replace("{act}", act)
        return e.module(self.constructor(node, e, e.helper(source)))
