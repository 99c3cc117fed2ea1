"""`logsumexp`"""

from __future__ import annotations

from typing import Any

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, OnnxScope
from archdsl.ops._common import Reduction


class LogSumExp(Reduction):
    """`log(sum(exp(x)))` along one or several axes, without overflow; `keep` leaves them, of size 1."""

    signature = "logsumexp(axis: ints = -1, keep: bool = false)(x: float[...]) -> [...]"
    method = "logsumexp"
    examples = (
        Example("x -> logsumexp"),
        Example("x -> logsumexp(1)"),
        Example("x -> logsumexp(axis: [1, -1], keep: true)"),
        Example("x -> logsumexp(0, keep: true)"),
    )

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        """Written out: the kernel of `ReduceLogSumExp` on CUDA gives NaN where all is minus infinity."""
        x, axes, keep = g.arg(0, "float32"), self.axes_from_right(node), bool(node.options["keep"])
        top = g.ReduceMax(x, axes, keepdims=1)
        top = g.Where(g.IsInf(top), 0.0, top)
        total = g.Log(g.ReduceSum(g.Exp(g.Sub(x, top)), axes, keepdims=int(keep)))
        return g.Add(total, top if keep else g.Squeeze(top, axes))
