"""`keep_groups`"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import binary, num
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, Reads, TorchScope, Tree
from archdsl.ops._common import first_input, number, own_but, reshaped


class KeepGroups(Primitive):
    """Only the experts of the `top` best of equal `groups` keep their scores, the others get -inf (DeepSeek).

    A group is as good as its best two experts together (`score: top2`, DeepSeek-V3) or as its best one (`max`,
    DeepSeek-V2)."""

    signature = (
        "keep_groups(groups: size, top: size, score: word = top2)(scores: float[..., experts]) -> [..., experts]"
    )
    mixes = False
    examples = (
        Example("x -> keep_groups(4, 2)"),
        Example("x -> keep_groups(4, 1, score: max)"),
        Example("x -> keep_groups(2, 2)", "x: [3, 8]"),
    )

    def check(self, call: Application) -> None:
        experts, groups, top, score = call.axes["experts"], call.size("groups"), call.size("top"), call.options["score"]
        if score not in ("top2", "max"):
            raise call.error("E0204", f"a group is scored by its `top2` or its `max`, not by `{score}`", option="score")
        call.condition("%", experts, groups, "experts must be a multiple of groups")
        call.condition("<=", top, groups, "the number of groups kept must be at most the number of groups")
        if score == "top2":
            call.condition(
                "<=",
                num(2),
                binary("//", experts, groups),
                "`top2` needs two experts in every group; `score: max` needs one",
            )

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = first_input(node).rank
        return (own_but(rank, rank - 1),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x, top = first_input(node), number(node, "top")
        groups, each = number(node, "groups"), binary("/", x.shape[-1], number(node, "groups"))
        scores = reshaped(g, g.arg(0), x.shape, (*x.shape[:-1], groups, each))
        if node.options["score"] == "top2":
            quality = g.ReduceSum(g.TopK(scores, [2], axis=-1, outputs=2)[0], [-1], keepdims=0)
        else:
            quality = g.ReduceMax(scores, [-1], keepdims=0)
        _, best = g.TopK(quality, [top], axis=-1, outputs=2)
        kept = g.cast(
            g.ReduceSum(g.OneHot(best, groups, g.constant([0.0, 1.0], "float32"), axis=-1), [-2], keepdims=0), "bool"
        )
        scores = g.Where(g.Unsqueeze(kept, [-1]), scores, -math.inf)
        return reshaped(g, scores, (*x.shape[:-1], groups, each), x.shape)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        function = "keep_groups" if node.options["score"] == "top2" else "keep_groups_by_max"
        return e.py(f"{function}({{0}}, {{groups}}, {{top}})", groups=number(node, "groups"), top=number(node, "top"))
