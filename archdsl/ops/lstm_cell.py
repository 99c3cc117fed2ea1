"""`lstm_cell`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Shape
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, OnnxScope, TorchScope, Tree
from archdsl.ops._common import first_input
from archdsl.ops._recurrent import Cell, constructed


class LstmCell(Cell):
    """One step of long short-term memory (Hochreiter and Schmidhuber, 1997): state and cell after `x`: two results.

    `h` and `c` are those before. Weights are torch's: gates input, forget, cell, output; two vectors of bias."""

    signature = (
        "lstm_cell(hidden: size, bias: bool = true, init: scheme = none)"
        "(x: float[..., inputs], h: float[..., hidden], c: float[..., hidden]) "
        "-> (state: [..., hidden], cell: [..., hidden])"
    )
    gates = 4
    examples = (
        Example("h, c", "x: [2, 8], h: [2, 6], c: [2, 6]", statements="h, c = lstm_cell(6)(x, h, c)"),
        Example(
            "y", "x: [2, 3, 8], h: [2, 3, 6], c: [2, 3, 6]", statements="y, c = lstm_cell(6, bias: false)(x, h, c)"
        ),
    )

    def shapes(self, call: Application) -> Sequence[Shape]:
        return self.state_shape(call), self.state_shape(call)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        gates = g.Add(self.gates_of(node, g, "ih", 0), self.gates_of(node, g, "hh", 1))
        come, stay, new, out = g.Split(gates, axis=-1, num_outputs=4, outputs=4)
        kept = g.Mul(g.Sigmoid(stay), g.arg(2, g.dtype(gates)))
        cell = g.Add(kept, g.Mul(g.Sigmoid(come), g.Tanh(new)))
        return g.Mul(g.Sigmoid(out), g.Tanh(cell)), cell

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        return constructed(node, e, "nn.LSTMCell")

    def torch(self, node: OpNode, e: TorchScope) -> Tree | Sequence[Tree]:
        x, *states = (self.rows(node, e, i) for i in range(3))
        after = e.py("{module}({x}, {states})", x=x, states=states)
        if first_input(node).rank == 2:
            return after
        h, c = e.unpack(("h", "c"), after)
        return [self.back(node, e, state) for state in (h, c)]
