"""`linear`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.cost import Cost, contracted
from archdsl.ir.graph import OpNode, Weight
from archdsl.ir.op import Application, Example, OnnxScope, Parts, Primitive, TorchScope, Tree
from archdsl.ops._common import first_input


class Linear(Primitive):
    """An affine map of the last axis: `x @ weight.T + bias`."""

    by_rows = True
    signature = (
        "linear(features: size, bias: bool = true, init: scheme = none)(x: float[..., inputs]) -> [..., features]"
    )
    mixes = False
    examples = (
        Example("x -> linear(5)"),
        Example("x -> linear(5, bias: false)"),
        Example("x -> linear(5)", "x: [3, 8]"),
    )

    def dtypes(self, call: Application) -> Sequence[str]:
        return (call.tensor(0).dtype,)

    def weights(self, call: Application) -> Sequence[Weight]:
        inputs, features = call.axes["inputs"], call.size("features")
        found = [Weight("weight", (features, inputs), "matrix", fan_in=inputs, fan_out=features)]
        if call.options["bias"]:
            found.append(Weight("bias", (features,), "bias", fan_in=inputs, fan_out=features))
        return found

    def flops(self, node: OpNode) -> Cost:
        x, y = first_input(node), node.outputs[0]
        found = contracted((*x.shape, y.shape[-1]), (0,), ("weight",))
        return Cost((found,), self.pointwise(node) if node.options["bias"] else ())

    def parts(self, node: OpNode, cut: Sequence[int | None]) -> Parts | None:
        """Rows of the map (Shoeybi et al., 2019, section 3) where the axis that it sums over is cut."""
        axis = cut[0]
        if axis is None or node.outputs[0].dtype != "float":
            return None
        return Parts(None, {"weight": 1}) if axis == first_input(node).rank - 1 else Parts(axis)

    def opens(self, node: OpNode) -> Parts | None:
        """Columns of the map: each device computes some of the features."""
        features = node.weights[0].shape[0]
        if node.outputs[0].dtype != "float" or features.value == 1:
            return None
        return Parts(node.outputs[0].rank - 1, {w.name: 0 for w in node.weights}, sizes=(features,))

    def is_linear_map(self, node: OpNode) -> bool:
        return not node.options["bias"]

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        own = node.outputs[0].dtype
        bias = g.cast(g.weight("bias"), own) if node.options["bias"] else None
        return g.linear(g.arg(0, own), g.cast(g.weight("weight"), own), bias)

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        features, inputs = node.weights[0].shape
        bias = {} if node.options["bias"] else {"bias": False}
        return e.py("nn.Linear({inputs}, {features}, {**bias})", inputs=inputs, features=features, bias=bias)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        own = node.outputs[0].dtype
        if own == "float":
            return e.py("{module}({0})")
        # In float32 (or bfloat16), whatever the type of the model.
        cast = {"float32": "float", "bfloat16": "bfloat16"}[own]
        weights = [e.py(f"{{module}}.{w.name}.{cast}()") for w in node.weights]
        return e.py(f"{e.linear}({{0}}, {{*weights}})", weights=weights)

    def torch_grouped_module(self, node: OpNode, e: TorchScope) -> Tree:
        copies, features, inputs = node.weights[0].shape
        layer = "GroupedAffine" if node.options["bias"] else "GroupedLinear"
        return e.py(f"{layer}({{*sizes}})", sizes=(copies, inputs, features))

    def torch_grouped(self, node: OpNode, e: TorchScope, ends: Tree) -> Tree:
        return e.py("{module}({0}, {ends})", ends=ends)
