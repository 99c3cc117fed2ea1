"""`prelu`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import num
from archdsl.ir.graph import Init, OpNode, Weight
from archdsl.ir.op import Application, Example, OnnxScope, Primitive, TorchScope
from archdsl.ops._common import demand_floats, equals, number
from archdsl.ops._onnx import with_kernel

GROUPED_PRELU = '''
class GroupedPReLU(nn.Module):
    """One slope an expert. The rows of x are sorted by expert."""

    def __init__(self, experts: int, slope: float = 0.25) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((experts, 1), slope))

    def forward(self, x: Tensor, groups: Groups) -> Tensor:
        return torch.where(x > 0, x, self.weight[groups.expert] * x)
'''


class PReLU(Primitive):
    """Parametric rectified linear unit (He et al., 2015): x, or `weight * x` below 0; the weight begins as `slope`."""

    signature = "prelu(slope: number = 0.25, init: scheme = none)(x: [...]) -> [...]"
    mixes = False
    examples = (Example("x -> prelu"), Example("x -> prelu(0.1)"))

    def check(self, call: Application) -> None:
        demand_floats(self, call)
        if not call.size("slope").static:
            raise call.error("E0204", "the first slope must be known before the model runs", option="slope")

    def weights(self, call: Application) -> Sequence[Weight]:
        return (Weight("weight", (num(1),), "raw", Init("constant", {"value": call.size("slope")})),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x = with_kernel(g, g.arg(0))
        return g.PRelu(x, g.cast(g.weight("weight"), g.dtype(x)))

    def torch(self, node: OpNode, e: TorchScope) -> str:
        slope = number(node, "slope")
        start = "" if equals(slope, 0.25) else f"init={e.init(slope)}"
        return f"{e.module(f'nn.PReLU({start})')}({e.arg(0)})"

    def torch_grouped(self, node: OpNode, e: TorchScope, groups: str) -> str:
        slope = number(node, "slope")
        start = "" if equals(slope, 0.25) else f", slope={e.init(slope)}"
        made = f"{e.helper(GROUPED_PRELU)}({e.init(node.weights[0].shape[0])}{start})"
        return f"{e.module(made)}({e.arg(0)}, {groups})"
