"""`masked_bias`"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Shape
from archdsl.ir.graph import OpNode
from archdsl.ir.op import Application, OnnxScope, Primitive, TorchScope
from archdsl.ir.signature import broadcast


class MaskedBias(Primitive):
    """A bias of scores with minus infinity where the mask says no."""

    signature = "masked_bias()(bias: [...], mask: [...]) -> [...]"
    elementwise = True

    def shapes(self, call: Application) -> Sequence[Shape]:
        return (broadcast(call, "masked_bias"),)

    def dtypes(self, call: Application) -> Sequence[str]:
        return (call.tensor(0).dtype,)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Where(g.arg(1), g.arg(0), -math.inf)

    def torch(self, node: OpNode, e: TorchScope) -> str:
        return f"{e.at(0)}.masked_fill(~{e.operand(1, 80)}, -torch.inf)"
