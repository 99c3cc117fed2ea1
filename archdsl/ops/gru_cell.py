"""`gru_cell`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, OnnxScope, TorchScope, Tree
from archdsl.ops._recurrent import Cell, constructed


class GruCell(Cell):
    """One step of gated recurrent units (Cho et al., 2014): the state after `x`, given the one before, `h`.

    Weights are torch's: gates reset, update, new; two vectors of bias."""

    signature = (
        "gru_cell(hidden: size, bias: bool = true, init: scheme = none)(x: float[..., inputs], h: float[..., hidden]) "
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

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        return constructed(node, e, "nn.GRUCell")

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return self.back(node, e, e.py("{module}({*rows})", rows=[self.rows(node, e, i) for i in range(2)]))
