"""`var`"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from archdsl.ir.graph import OpNode
from archdsl.ir.op import Example, OnnxScope
from archdsl.ops._common import Reduction


class Var(Reduction):
    """The variance along one or several axes (divided by n, as norms do); `keep` leaves them, of size 1."""

    signature = "var(axis: ints = -1, keep: bool = false)(x: float[...]) -> [...]"
    method = "var"
    extra: ClassVar[Mapping[str, Any]] = {"correction": 0}
    examples = (
        Example("x -> var"),
        Example("x -> var(1)"),
        Example("x -> var(axis: [1, -1], keep: true)"),
        Example("x -> var(0, keep: true)"),
    )

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x, axes = g.arg(0, "float32"), self.axes_from_right(node)
        apart = g.Sub(x, g.ReduceMean(x, axes, keepdims=1))
        return g.ReduceMean(g.Mul(apart, apart), axes, keepdims=int(node.options["keep"]))
