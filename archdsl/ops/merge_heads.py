"""`merge_heads`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Shape, binary
from archdsl.ir.graph import OpNode
from archdsl.ir.op import (
    EVERYWHERE,
    Application,
    Example,
    OnnxScope,
    Primitive,
    Reads,
    Regrouping,
    TorchScope,
    Tree,
    same,
)
from archdsl.ops._common import first_input, own_places


class MergeHeads(Primitive):
    """[batch, heads, time, head_dim] to [batch, time, heads * head_dim]: the heads side by side in the last axis."""

    passes = 0
    signature = "merge_heads()(x: [..., heads, time, head_dim]) -> [..., time, width]"
    mixes = False
    examples = (Example("x -> merge_heads", "x: [2, 4, 5, 3]"), Example("x -> merge_heads", "x: [4, 5, 3]"))

    def shapes(self, call: Application) -> Sequence[Shape]:
        *rest, heads, time, head_dim = call.shape(0)
        return ((*rest, time, binary("*", heads, head_dim)),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = first_input(node).rank
        return ((*own_places(rank - 3), EVERYWHERE, same(rank - 3), EVERYWHERE),)

    def regroups(self, node: OpNode) -> Regrouping:
        x = first_input(node)
        rest = x.rank - 3
        axes = (*(((i, 0),) for i in range(rest)), ((rest + 1, 0),), ((rest, 0), (rest + 2, 0)))
        return Regrouping(tuple((d,) for d in x.shape), axes)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        rank = first_input(node).rank
        order = list(range(rank))
        order[-3:-1] = order[-2], order[-3]
        return g.Reshape(g.Transpose(g.arg(0), perm=order), [0] * (rank - 2) + [node.outputs[0].shape[-1]])

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        if first_input(node).rank == 4:
            return e.py("{0}.transpose(1, 2).flatten(2)")
        return e.py("{0}.transpose(-3, -2).flatten(-2)")
