"""`cast_like`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Shape
from archdsl.ir.graph import OpNode
from archdsl.ir.op import (
    EVERYWHERE,
    Application,
    At,
    Example,
    OnnxScope,
    Parts,
    Primitive,
    Reads,
    TorchScope,
    Tree,
    same,
)


class CastLike(Primitive):
    """x in the type of another tensor."""

    by_rows = True
    passes = 0
    moves = True
    signature = "cast_like()(x: [...], like: [...]) -> [...]"
    mixes = False
    examples = (Example("(x -> cast(float32)) -> cast_like(y)", "x: [2, 5, 8], y: [3]", gradients=False),)

    def shapes(self, call: Application) -> Sequence[Shape]:
        return (call.shape(0),)

    def dtypes(self, call: Application) -> Sequence[str]:
        return (call.tensor(1).dtype,)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        like = node.inputs[1]
        rank = getattr(like, "rank", 0)
        # Only the type of the other tensor is read.
        return (tuple(same(i) for i in range(node.outputs[0].rank)), (At(),) * rank if rank else (EVERYWHERE,) * 0)

    def parts(self, node: OpNode, cut: Sequence[int | None]) -> Parts | None:
        return None if cut[0] is None else Parts(cut[0])

    def differentiates(self, node: OpNode, i: int) -> bool:
        return i == 0

    def leading(self, node: OpNode, i: int) -> int | None:
        return 0 if i == 0 else None

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.arg(0)  # which is brought to the type of the result

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0}.type_as({1})")
