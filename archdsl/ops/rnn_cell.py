"""`rnn_cell`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, OnnxScope, TorchScope, Tree
from archdsl.ops._recurrent import Cell, constructed, demand_act


class RnnCell(Cell):
    """One step of a plain recurrence (Elman, 1990): `act(x @ weight_ih.T + h @ weight_hh.T + biases)`.

    `act` is `tanh` or `relu`."""

    signature = (
        "rnn_cell(hidden: size, act: word = tanh, bias: bool = true, init: scheme = none)"
        "(x: float[..., inputs], h: float[..., hidden]) -> [..., hidden]"
    )
    gates = 1
    examples = (
        Example("rnn_cell(6)(x, h)", "x: [2, 8], h: [2, 6]"),
        Example("rnn_cell(6, act: relu, bias: false)(x, h)", "x: [2, 3, 8], h: [2, 3, 6]"),
    )

    def check(self, call: Application) -> None:
        super().check(call)
        demand_act(call)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        y = g.Add(self.gates_of(node, g, "ih", 0), self.gates_of(node, g, "hh", 1))
        return g.Tanh(y) if node.options["act"] == "tanh" else g.Relu(y)

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        more = {} if node.options["act"] == "tanh" else {"nonlinearity": "relu"}
        return constructed(node, e, "nn.RNNCell", **more)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return self.back(node, e, e.py("{module}({*rows})", rows=[self.rows(node, e, i) for i in range(2)]))
