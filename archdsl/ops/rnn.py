"""`rnn`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, TorchScope, Tree
from archdsl.ops._recurrent import Layer, constructed, demand_act


class Rnn(Layer):
    """A plain recurrence along time (Elman, 1990): `act(x @ weight_ih.T + h @ weight_hh.T + biases)`, step by step.

    It starts from `h`, or zeros; `act` is `tanh` or `relu`. With `reverse` from the last position to the first."""

    signature = (
        "rnn(hidden: size, act: word = tanh, bias: bool = true, reverse: bool = false, init: scheme = none)"
        "(x: float[batch, time, inputs], h: float[batch, hidden] = none) -> [batch, time, hidden]"
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

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        return constructed(node, e, "RNN" if node.options["act"] == "tanh" else "ReluRNN")
