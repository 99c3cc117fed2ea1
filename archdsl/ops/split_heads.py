"""`split_heads`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Bin, Num, Shape, binary
from archdsl.ir.graph import OpNode
from archdsl.ir.op import (
    EVERYWHERE,
    Application,
    Example,
    OnnxScope,
    Parts,
    Primitive,
    Reads,
    Regrouping,
    TorchScope,
    Tree,
    same,
)
from archdsl.ir.signature import regrouped_parts


class SplitHeads(Primitive):
    """[batch, time, heads * head_dim] to [batch, heads, time, head_dim]: the last axis is cut into `heads` equal
    parts."""

    passes = 0
    signature = "split_heads(heads: size)(x: [..., time, width]) -> [..., heads, time, head_dim]"
    mixes = False
    examples = (Example("x -> split_heads(4)"), Example("x -> split_heads(2)", "x: [5, 8]"))

    def shapes(self, call: Application) -> Sequence[Shape]:
        heads, width = call.size("heads"), call.axes["width"]
        call.condition("%", width, heads, "the width must be a multiple of heads")
        *rest, time, _ = call.shape(0)
        head_dim = binary("/", width, heads)
        if isinstance(width.expr, Bin) and width.expr.op == "*" and width.expr.left == heads.expr:
            head_dim = Num(head_dim.value, width.expr.right, head_dim.origin)  # `heads * size`
        return ((*rest, heads, time, head_dim),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = node.outputs[0].rank
        return ((*(same(i) for i in range(rank - 3)), same(rank - 2), EVERYWHERE),)

    def regroups(self, node: OpNode) -> Regrouping:
        *rest, heads, time, head_dim = node.outputs[0].shape
        last = len(rest) + 1
        cuts = (*((d,) for d in rest), (time,), (heads, head_dim))
        return Regrouping(cuts, (*(((i, 0),) for i in range(len(rest))), ((last, 0),), ((last - 1, 0),), ((last, 1),)))

    def parts(self, node: OpNode, cut: Sequence[int | None]) -> Parts | None:
        return regrouped_parts(self, node, cut)

    def is_linear_map(self, node: OpNode) -> bool:
        return True

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        *rest, heads, _, head_dim = node.outputs[0].shape
        order = list(range(len(rest) + 3))
        order[-3:-1] = order[-2], order[-3]
        return g.Transpose(g.Reshape(g.arg(0), [0] * (len(rest) + 1) + [heads, head_dim]), perm=order)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        rank = node.outputs[0].rank
        head_dim, axes = node.outputs[0].shape[-1], (rank - 3, rank - 2)
        return e.py("{0}.unflatten(-1, (-1, {head_dim})).transpose({*axes})", head_dim=head_dim, axes=axes)
