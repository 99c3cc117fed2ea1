"""`lstm`"""

from __future__ import annotations

from collections.abc import Sequence

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, TorchScope, Tree
from archdsl.ops._recurrent import Layer, constructed


class Lstm(Layer):
    """Long short-term memory along time (Hochreiter and Schmidhuber, 1997): the state after every step.

    It starts from `h` and `c`, or zeros. With `reverse` from the last position to the first. Weights are torch's: gates
    input, forget, cell, output; two vectors of bias."""

    signature = (
        "lstm(hidden: size, bias: bool = true, reverse: bool = false, init: scheme = none)"
        "(x: float[batch, time, inputs], h: float[batch, hidden] = none, c: float[batch, hidden] = none) "
        "-> [batch, time, hidden]"
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

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        return constructed(node, e, "LSTM")

    def torch_step(self, node: OpNode, e: TorchScope, past: Sequence[Tree]) -> tuple[Tree, Sequence[Tree]]:
        step = e.py("lstm_on({module}, {0}, {*past})", past=past)
        y, h, c = e.unpack(("y", *self.carried), step)
        return y, (h, c)
