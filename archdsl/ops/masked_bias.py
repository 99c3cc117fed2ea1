"""`masked_bias`"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Shape
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import Application, OnnxScope, Primitive, TorchScope, Tree
from archdsl.ir.signature import broadcast


class MaskedBias(Primitive):
    """A bias of scores with minus infinity where the mask says no."""

    signature = "masked_bias()(bias: float[...], mask: bool[...]) -> [...]"
    elementwise = True
    chosen = (0,)

    def check(self, call: Application) -> None:
        if not isinstance(call.inputs[0], Value):
            raise call.error("E0203", "the bias of `masked_bias` is a tensor, and a number was given")

    def shapes(self, call: Application) -> Sequence[Shape]:
        return (broadcast(call, "masked_bias"),)

    def dtypes(self, call: Application) -> Sequence[str]:
        return (call.tensor(0).dtype,)

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        bias, mask = known
        return -math.inf if mask == 0 or bias == -math.inf else bias if mask == 1 else None

    def picks(self, node: OpNode, known: Sequence[float | None]) -> int | None:
        return 0 if known[1] == 1 else None

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Where(g.arg(1), g.arg(0), -math.inf)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0}.masked_fill(~{1}, -torch.inf)")
