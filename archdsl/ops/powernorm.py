"""`powernorm`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.graph import Init, OpNode, Weight
from archdsl.ir.op import EVERYWHERE, Application, Example, OnnxScope, Primitive, Reads, TorchScope, Tree, same
from archdsl.ops._common import first_input, number, usual
from archdsl.ops._norms import DEFAULTS, demand_norm, scaled, settings


class PowerNorm(Primitive):
    """Power normalization (Shen et al., 2020, PN-V): each channel by its root mean square over all other axes.

    The channels are the last axis. Training takes the mean square of the batch, the later positions of a sequence
    included, and keeps a running one for evaluation."""

    passes = 4
    batch_statistics = True
    signature = (
        "powernorm(eps: positive = 1e-5, momentum: share = 0.1, init: scheme = none)(x: float[batch, ..., channels]) "
        "-> [batch, ..., channels]"
    )
    examples = (Example("x -> powernorm"), Example("x -> powernorm(eps: 1e-3, momentum: 0.2)", "x: [5, 8]"))

    def check(self, call: Application) -> None:
        demand_norm(self, call, "eps", "momentum")
        usual(call, **DEFAULTS)

    def weights(self, call: Application) -> Sequence[Weight]:
        channels = (call.axes["channels"],)
        return (
            Weight("weight", channels, "gain"),
            Weight("bias", channels, "bias"),
            Weight("running_square", channels, "buffer", Init("ones"), trained=False),
        )

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = first_input(node).rank
        return ((*(EVERYWHERE for _ in range(rank - 1)), same(rank - 1)),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return scaled(g, g.arg(0, "float32"), g.weight("running_square"), number(node, "eps"))

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        width, more = first_input(node).shape[-1], settings(node, "eps", "momentum")
        return e.py("PowerNorm({width}, {**more})", width=width, more=more)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{module}({0})")
