"""`gru_cell`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, OnnxScope, TorchScope
from archdsl.ops._recurrent import Cell


class GruCell(Cell):
    """One step of gated recurrent units (Cho et al., 2014): the state after `x`, given the one before, `h`.

    Weights are torch's: gates reset, update, new; two vectors of bias."""

    signature = (
        "gru_cell(hidden: size, bias: bool = true, init: scheme = none)(x: [..., inputs], h: [..., hidden]) "
        "-> [..., hidden]"
    )
    gates = 3
    examples = (
        Example("gru_cell(6)(x, h)", "x: [2, 8], h: [2, 6]"),
        Example("gru_cell(6, bias: false)(x, h)", "x: [2, 3, 8], h: [2, 3, 6]"),
    )

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x, h = (
            g.Split(self.gates_of(node, g, kind, i), axis=-1, num_outputs=3, outputs=3)
            for i, kind in enumerate(("ih", "hh"))
        )
        reset, update = (g.Sigmoid(g.Add(a, b)) for a, b in zip(x[:2], h[:2], strict=True))
        new = g.Tanh(g.Add(x[2], g.Mul(reset, h[2])))
        return g.Add(new, g.Mul(update, g.Sub(g.arg(1, g.dtype(new)), new)))

    def torch(self, node: OpNode, e: TorchScope) -> str:
        cell, x, h = self.module(node, e, "nn.GRUCell"), self.rows(node, e, 0), self.rows(node, e, 1)
        return f"{cell}({x}, {h}){self.back(node, e)}"
