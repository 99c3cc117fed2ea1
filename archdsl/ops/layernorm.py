"""`layernorm`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.graph import OpNode, Weight
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, Reads, TorchScope, Tree
from archdsl.ops._common import CASTS, first_input, number, own_but
from archdsl.ops._norms import demand_norm


class LayerNorm(Primitive):
    """Layer normalization of the last axis (Ba et al., 2016): `(x - mean) / sqrt(variance + eps) * weight + bias`.

    It is computed in float32."""

    by_rows = True
    shares_weights = True
    passes = 7
    statistics = 2
    signature = (
        "layernorm(eps: positive = 1e-5, weight: bool = true, bias: bool = true, init: scheme = none)"
        "(x: float[..., width]) -> [..., width]"
    )
    mixes = False
    examples = (
        Example("x -> layernorm"),
        Example("x -> layernorm(eps: 1e-12, bias: false)"),
        Example("x -> layernorm(weight: false, bias: false)"),
    )

    def check(self, call: Application) -> None:
        demand_norm(self, call, "eps")
        if call.options["bias"] and not call.options["weight"]:
            raise call.error(
                "E0204",
                "a layernorm without `weight` has no `bias` either",
                option="weight",
                help="write `bias: false` too",
            )

    def weights(self, call: Application) -> Sequence[Weight]:
        width = call.axes["width"]
        found = []
        if call.options["weight"]:
            found.append(Weight("weight", (width,), "gain"))
        if call.options["bias"]:
            found.append(Weight("bias", (width,), "bias"))
        return found

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = first_input(node).rank
        return (own_but(rank, rank - 1),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        width, x = first_input(node).shape[-1], g.arg(0)
        kind = g.dtype(x)
        gain = g.cast(g.weight("weight"), kind) if node.options["weight"] else g.Expand(g.constant(1.0, kind), [width])
        bias = g.cast(g.weight("bias"), g.dtype(x)) if node.options["bias"] else None
        return g.LayerNormalization(x, gain, bias, axis=-1, epsilon=float(number(node, "eps")))

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        width, eps = first_input(node).shape[-1], number(node, "eps")
        bias = {} if node.options["bias"] else {"bias": False}
        return e.py("nn.LayerNorm({width}, eps={eps}, {**bias})", width=width, eps=eps, bias=bias)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        if cast := node.options["weight"] and CASTS[node.outputs[0].dtype]:
            shift = e.py(f"{{module}}.bias{cast}") if node.options["bias"] else None
            weights = f"{{module}}.weight{cast}, {{shift}}"
            return e.py(f"F.layer_norm({{0}}, {{module}}.normalized_shape, {weights}, {{module}}.eps)", shift=shift)
        if node.options["weight"]:
            return e.py("{module}({0})")
        width, eps = first_input(node).shape[-1], number(node, "eps")
        return e.py("F.layer_norm({0}, ({width},), eps={eps})", width=width, eps=eps)

    def torch_grouped_module(self, node: OpNode, e: TorchScope) -> Tree:
        cls = "GroupedLayerNorm" if node.options["bias"] else "GroupedLayerNormWithoutBias"
        return e.py(f"{cls}({{*sizes}}, eps={{eps}})", sizes=node.weights[0].shape, eps=number(node, "eps"))

    def torch_grouped(self, node: OpNode, e: TorchScope, ends: Tree) -> Tree | None:
        return e.py("{module}({0}, {ends})", ends=ends) if node.weights else None
