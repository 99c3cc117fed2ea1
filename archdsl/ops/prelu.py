"""`prelu`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import num
from archdsl.ir.graph import Init, OpNode, Weight
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, TorchScope, Tree
from archdsl.ops._common import CASTS, equals, number, usual
from archdsl.ops._onnx import with_kernel


class PReLU(Primitive):
    """Parametric rectified linear unit (He et al., 2015): x, or `weight * x` below 0; the weight begins as `slope`."""

    signature = "prelu(slope: number = 0.25, init: scheme = none)(x: float[...]) -> [...]"
    mixes = False
    examples = (Example("x -> prelu"), Example("x -> prelu(0.1)"))

    def check(self, call: Application) -> None:
        if not call.size("slope").static:
            raise call.error("E0204", "the first slope must be known before the model runs", option="slope")
        usual(call, slope=0.25)

    def weights(self, call: Application) -> Sequence[Weight]:
        return (Weight("weight", (num(1),), "raw", Init("constant", {"value": call.size("slope")})),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x = with_kernel(g, g.arg(0))
        return g.PRelu(x, g.cast(g.weight("weight"), g.dtype(x)))

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        slope = number(node, "slope")
        return e.py("nn.PReLU({**start})", start={} if equals(slope, 0.25) else {"init": slope})

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        cast = CASTS[node.outputs[0].dtype]
        return e.py(f"F.prelu({{0}}, {{module}}.weight{cast})" if cast else "{module}({0})")

    def torch_grouped_module(self, node: OpNode, e: TorchScope) -> Tree:
        slope, experts = number(node, "slope"), node.weights[0].shape[0]
        start = {} if equals(slope, 0.25) else {"slope": slope}
        return e.py("GroupedPReLU({experts}, {**start})", experts=experts, start=start)

    def torch_grouped(self, node: OpNode, e: TorchScope, ends: Tree) -> Tree:
        return e.py("{module}({0}, {ends})", ends=ends)
