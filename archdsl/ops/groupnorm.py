"""`groupnorm`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.graph import OpNode, Weight
from archdsl.ir.op import EVERYWHERE, Application, Example, OnnxScope, Primitive, Reads, TorchScope, Tree, same
from archdsl.ops._common import CASTS, axis_of, first_input, number, place, usual
from archdsl.ops._norms import DEFAULTS, channels_second, demand_norm, per_channel, settings


class GroupNorm(Primitive):
    """Group normalization (Wu and He, 2018): channels in groups, by mean and variance of all but the batch axis.

    `axis` is the channels'. The mean and variance take in the whole of a sequence; for groups within each position
    apart, bring the channels in an axis of groups and use `layernorm`."""

    passes = 7
    signature = (
        "groupnorm(groups: size, eps: positive = 1e-5, axis: int = -1, init: scheme = none)"
        "(x: float[batch, ..., channels]) -> [batch, ..., channels]"
    )
    examples = (
        Example("x -> groupnorm(2)"),
        Example("x -> groupnorm(4, eps: 1e-3)", "x: [5, 8]"),
        Example("x -> groupnorm(3, axis: 1)", "x: [2, 6, 4, 5]"),
    )

    def check(self, call: Application) -> None:
        demand_norm(self, call, "groups", "eps")
        usual(call, eps=DEFAULTS["eps"])
        rank, axis = len(call.shape(0)), axis_of(self, call)
        if axis not in (1, rank - 1):
            raise call.error(
                "E0303",
                f"the channels are axis 1 or the last one, not axis {axis}",
                option="axis",
                help="move them there: `transpose`",
            )
        call.condition(
            "%", call.shape(0)[axis], call.size("groups"), "the groups of `groupnorm` share the channels equally"
        )

    def weights(self, call: Application) -> Sequence[Weight]:
        channels = (call.shape(0)[axis_of(self, call)],)
        return Weight("weight", channels, "gain"), Weight("bias", channels, "bias")

    def reads(self, node: OpNode) -> Sequence[Reads]:
        return ((same(0), *(EVERYWHERE for _ in range(first_input(node).rank - 1))),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        """Each group as a channel of its own, which `InstanceNormalization` takes by its mean and variance."""
        x, rank, axis = g.arg(0, "float32"), first_input(node).rank, place(node)
        groups, last = int(number(node, "groups")), axis == rank - 1 > 1
        gain, bias = (per_channel(g, g.cast(g.weight(n), "float32"), rank - 1 - axis) for n in ("weight", "bias"))
        # [batch, positions, groups, share] to [batch, groups, positions, share]; channels that come second need no
        # moving.
        y = g.Reshape(x, [0, -1, groups, g.size(0, axis) // groups] if last else [0, groups, -1])
        y = g.Transpose(y, perm=[0, 2, 1, 3]) if last else y
        ones, zeros = g.constant([1.0] * groups, "float32"), g.constant([0.0] * groups, "float32")
        y = g.InstanceNormalization(y, ones, zeros, epsilon=float(number(node, "eps")))
        y = g.Transpose(y, perm=[0, 2, 1, 3]) if last else y
        return g.Add(g.Mul(g.Reshape(y, g.Shape(x)), gain), bias)

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        sizes = (number(node, "groups"), first_input(node).shape[place(node)])
        return e.py("nn.GroupNorm({*sizes}, {**more})", sizes=sizes, more=settings(node, "eps"))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        cast = CASTS[node.outputs[0].dtype]
        if not cast:
            return channels_second(node, e, place(node))
        weights = f"{{module}}.weight{cast}, {{module}}.bias{cast}"
        norm = f"F.group_norm({{x}}, {{module}}.num_groups, {weights}, {{module}}.eps)"
        return channels_second(node, e, place(node), norm)
