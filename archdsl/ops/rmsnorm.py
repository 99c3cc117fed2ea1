"""`rmsnorm`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.graph import Init, OpNode, Weight
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, Reads, TorchScope, Tree
from archdsl.ops._common import first_input, number, own_but
from archdsl.ops._norms import demand_norm


class RMSNorm(Primitive):
    """RMS normalization of the last axis (Zhang and Sennrich, 2019): `x / sqrt(mean(x * x) + eps) * weight`.

    It is computed in float32. With `offset` the gain is `1 + weight`, and the weight starts at 0 (Gemma)."""

    by_rows = True
    shares_weights = True
    passes = 4
    statistics = 1
    signature = (
        "rmsnorm(eps: positive = 1e-6, weight: bool = true, offset: bool = false, init: scheme = none)"
        "(x: float[..., width]) -> [..., width]"
    )
    mixes = False
    examples = (
        Example("x -> rmsnorm"),
        Example("x -> rmsnorm(eps: 1e-5, offset: true)"),
        Example("x -> rmsnorm(weight: false)", "x: [2, 3, 5, 8]"),
    )

    def check(self, call: Application) -> None:
        demand_norm(self, call, "eps")
        if call.options["offset"] and not call.options["weight"]:
            raise call.error(
                "E0204",
                "`offset` is about the weight, and there is none",
                option="offset",
                help="leave `weight: false` out",
            )

    def weights(self, call: Application) -> Sequence[Weight]:
        init = Init("zeros" if call.options["offset"] else "default")
        return (Weight("weight", (call.axes["width"],), "gain", init),) if call.options["weight"] else ()

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = first_input(node).rank
        return (own_but(rank, rank - 1),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        width, x = first_input(node).shape[-1], g.arg(0)
        kind = g.dtype(x)
        gain = g.cast(g.weight("weight"), kind) if node.options["weight"] else g.Expand(g.constant(1.0, kind), [width])
        if node.options["offset"]:
            gain = g.Add(gain, 1)
        return g.RMSNormalization(x, gain, axis=-1, epsilon=float(number(node, "eps")))

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        cls = "OffsetRMSNorm" if node.options["offset"] else "nn.RMSNorm"
        return e.py(f"{cls}({{width}}, eps={{eps}})", width=first_input(node).shape[-1], eps=number(node, "eps"))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        if node.options["weight"]:
            return e.py("{module}({0})")
        return e.py(
            "F.rms_norm({0}, ({width},), eps={eps})", width=first_input(node).shape[-1], eps=number(node, "eps")
        )

    def torch_grouped_module(self, node: OpNode, e: TorchScope) -> Tree:
        cls = "GroupedOffsetRMSNorm" if node.options["offset"] else "GroupedRMSNorm"
        return e.py(f"{cls}({{*sizes}}, eps={{eps}})", sizes=node.weights[0].shape, eps=number(node, "eps"))

    def torch_grouped(self, node: OpNode, e: TorchScope, ends: Tree) -> Tree | None:
        return e.py("{module}({0}, {ends})", ends=ends) if node.weights else None
