"""`batchnorm`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.graph import Init, OpNode, Value, Weight
from archdsl.ir.op import EVERYWHERE, Application, Example, OnnxScope, Primitive, Reads, TorchScope, Tree, same
from archdsl.ops._common import axis_of, first_input, number, place, usual
from archdsl.ops._norms import DEFAULTS, channels_second, demand_norm, scaled, settings


class BatchNorm(Primitive):
    """Batch normalization (Ioffe and Szegedy, 2015): each channel by its mean and variance over all other axes.

    `axis` is the channels'. Training takes the mean and variance of the batch, the later positions of a sequence
    included, and keeps running ones for evaluation."""

    passes = 7
    batch_statistics = True
    signature = (
        "batchnorm(eps: positive = 1e-5, momentum: share = 0.1, axis: int = -1, init: scheme = none)"
        "(x: float[batch, ..., channels]) -> [batch, ..., channels]"
    )
    examples = (
        Example("x -> batchnorm"),
        Example("x -> batchnorm(eps: 1e-3, momentum: 0.01)", "x: [5, 8]"),
        Example("x -> batchnorm(axis: 1)", "x: [2, 3, 4, 5]"),
        Example("x -> batchnorm", "x: [2, 3, 4, 5]"),
    )

    def check(self, call: Application) -> None:
        demand_norm(self, call, "eps", "momentum")
        usual(call, **DEFAULTS)
        rank, axis = len(call.shape(0)), axis_of(self, call)
        if axis not in (1, rank - 1):
            raise call.error(
                "E0303",
                f"the channels are axis 1 or the last one, not axis {axis}",
                option="axis",
                help="move them there: `transpose`",
            )
        if rank > 5:
            raise call.error(
                "E0302",
                f"`batchnorm` takes two to five axes, and there are {rank}",
                input=0,
                help="flatten some: `flatten`",
            )

    def weights(self, call: Application) -> Sequence[Weight]:
        channels = (call.shape(0)[axis_of(self, call)],)
        return (
            Weight("weight", channels, "gain"),
            Weight("bias", channels, "bias"),
            Weight("running_mean", channels, "buffer", Init("zeros"), trained=False),
            Weight("running_var", channels, "buffer", Init("ones"), trained=False),
            Weight("num_batches_tracked", (), "buffer", Init("zeros"), trained=False, dtype="int64"),
        )

    def build(self, call: Application) -> Sequence[Value]:
        """torch's module takes numbers of the type of its running means alone."""
        x = call.tensor(0)
        if x.dtype == "float":
            return call.node()
        (y,) = call.node(inputs=(call.apply("cast", x, dtype="float"),))
        return (call.apply("cast", y, dtype=x.dtype),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        axis = place(node)
        return (tuple(same(i) if i == axis else EVERYWHERE for i in range(first_input(node).rank)),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        after = first_input(node).rank - 1 - place(node)
        mean, variance = g.weight("running_mean"), g.weight("running_var")
        return scaled(g, g.arg(0, "float32"), variance, number(node, "eps"), mean, after)

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        x, axis = first_input(node), place(node)
        return e.py(
            f"nn.BatchNorm{max(x.rank - 2, 1)}d({{channels}}, {{**more}})",
            channels=x.shape[axis],
            more=settings(node, "eps", "momentum"),
        )

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return channels_second(node, e, place(node))
