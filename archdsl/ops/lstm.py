"""`lstm`"""

from __future__ import annotations

from collections.abc import Sequence

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, TorchScope
from archdsl.ops._recurrent import Layer

LSTM = '''
class LSTM(nn.Module):
    """One layer of long short-term memory: nn.LSTM as a function, which torch.compile takes whole."""

    def __init__(self, inputs: int, hidden: int, bias: bool = True) -> None:
        super().__init__()
        self.hidden = hidden
        self.bias = bias
        self.weight_ih_l0 = nn.Parameter(torch.empty(4 * hidden, inputs))
        self.weight_hh_l0 = nn.Parameter(torch.empty(4 * hidden, hidden))
        if bias:
            self.bias_ih_l0 = nn.Parameter(torch.empty(4 * hidden))
            self.bias_hh_l0 = nn.Parameter(torch.empty(4 * hidden))
        for weight in self.parameters():
            nn.init.uniform_(weight, -(hidden**-0.5), hidden**-0.5)

    def forward(self, x: Tensor, h: Tensor | None = None, c: Tensor | None = None) -> Tensor:
        zeros = x.new_zeros(x.size(0), self.hidden)
        start = [(zeros if s is None else s)[None] for s in (h, c)]
        weights = list(self.parameters())
        return torch.lstm(x, start, weights, self.bias, 1, 0.0, self.training, False, True)[0]
'''


LSTM_ON = '''
def lstm_on(layer: LSTM, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """An LSTM that goes on from (h, c): its states after every step, and both states after the last."""
    weights = list(layer.parameters())
    y, h, c = torch.lstm(x, [h[None], c[None]], weights, layer.bias, 1, 0.0, layer.training, False, True)
    return y, h[0], c[0]
'''


class Lstm(Layer):
    """Long short-term memory along time (Hochreiter and Schmidhuber, 1997): the state after every step.

    It starts from `h` and `c`, or zeros. With `reverse` from the last place to the first. Weights are torch's: gates
    input, forget, cell, output; two vectors of bias."""

    signature = (
        "lstm(hidden: size, bias: bool = true, reverse: bool = false, init: scheme = none)"
        "(x: [batch, time, inputs], h: [batch, hidden] = none, c: [batch, hidden] = none) -> [batch, time, hidden]"
    )
    gates = 4
    carried = ("h", "c")
    order = (0, 3, 1, 2)
    examples = (
        Example("x -> lstm(6)"),
        Example("lstm(6, bias: false)(x, h, c)", "x: [2, 5, 8], h: [2, 6], c: [2, 6]"),
        Example("x -> lstm(6, reverse: true)"),
    )

    def check(self, call: Application) -> None:
        super().check(call)
        if (call.inputs[1] is None) != (call.inputs[2] is None):
            raise call.error(
                "E0204",
                "`lstm` starts from both `h` and `c`, or from neither",
                help="give `zeros(batch, hidden)` for the other one",
            )

    def torch_module(self, node: OpNode, e: TorchScope) -> str:
        return e.module(self.constructor(node, e, e.helper(LSTM)))

    def torch_step(self, node: OpNode, e: TorchScope, past: Sequence[str]) -> tuple[str, Sequence[str]]:
        module = self.torch_module(node, e)
        y, h, c = e.unpacked(("y", *past), f"{e.helper(LSTM_ON)}({module}, {e.arg(0)}, {', '.join(past)})")
        return y, (h, c)
