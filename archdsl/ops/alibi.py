"""`alibi`"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Num, Shape
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.masks import Mask
from archdsl.ir.op import Application, Example, OnnxScope, TorchScope, Tree
from archdsl.ops._common import number
from archdsl.ops._position import Position


def slopes(heads: int) -> list[float]:
    """How fast the scores of each head fall: powers of 2 ** (-8 / n) for the largest power of two n in `heads`, then
    every other one of the next finer series (Press et al., 2021, section 3)."""
    power: int = 2 ** math.floor(math.log2(heads))
    found: list[float] = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return found + [2 ** (-8 * (2 * i + 1) / (2 * power)) for i in range(heads - power)]


class Alibi(Position):
    """Attention with linear biases (Press et al., 2021): scores fall with the distance, by a slope 2 ** (-8 i /
    heads) for each head."""

    placed = True
    signature = "alibi(heads: size = none)(queries: [], keys: [])"
    examples = (Example("sdpa(q, q, q, mask: causal, position: alibi)", "q: [2, 6, 5, 8]"),)

    def attend(
        self, call: Application, position: Any, q: Value, k: Value, mask: Mask, rotated: bool
    ) -> tuple[Value, Value, Value | None]:
        if q.rank < 4:
            raise call.error(
                "E0302",
                "alibi has a slope for each head, and q has no axis of heads",
                help="use `split_heads(heads)` first",
            )
        return q, k, call.once("alibi", "alibi", [q.shape[-2], k.shape[-2]], heads=q.shape[-3])

    def shapes(self, call: Application) -> Sequence[Shape]:
        queries, keys = call.inputs
        assert isinstance(queries, Num)
        assert isinstance(keys, Num)
        return ((call.size("heads"), queries, keys),)

    def dtypes(self, call: Application) -> Sequence[str]:
        return ("float32",)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        queries, keys = node.inputs
        assert isinstance(queries, Num)
        assert isinstance(keys, Num)
        query, key = g.pairs(queries, keys)
        distance = g.cast(g.Abs(g.Sub(query, key)), "float32")
        return g.Mul(g.constant([[[-slope]] for slope in slopes(int(node.options["heads"]))], "float32"), distance)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        queries, keys = node.inputs
        assert isinstance(queries, Num)
        assert isinstance(keys, Num)
        heads, pairs = number(node, "heads"), e.pairs(queries, keys)
        if pairs is not None:
            return e.py("alibi_between({heads}, {*pairs})", heads=heads, pairs=pairs)
        return e.py("alibi({heads}, {0}, {1}, {device})", heads=heads, device=e.device())
