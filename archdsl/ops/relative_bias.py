"""`relative_bias`"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import Num, Shape, binary, num
from archdsl.ir.graph import OpNode, Value, Weight
from archdsl.ir.masks import Mask, ahead
from archdsl.ir.op import Application, Example, OnnxScope, TorchScope, Tree
from archdsl.ir.static import Instance, numbers_of
from archdsl.ops._position import Position, arguments

FAR = "the last of all distances is larger than those that have a bucket each"


class RelativeBias(Position):
    """T5's relative position bias: a learned bias for each head and bucket of distances, `buckets` of them, the last
    from `max_distance` on.

    `bidirectional` tells keys before and after a query apart; unless said, it is so where the mask lets later keys be
    seen.
    """

    placed = True
    passes = 0
    signature = (
        "relative_bias(buckets: size = 32, max_distance: size = 128, bidirectional: bool = none, heads: size = none)"
        "(queries: [], keys: [])"
    )
    examples = (
        Example("sdpa(q, q, q, position: relative_bias(buckets: 8, max_distance: 4))", "q: [2, 4, 5, 8]"),
        Example("sdpa(q, q, q, mask: causal, position: relative_bias)", "q: [2, 4, 5, 8]"),
    )

    def attend(
        self, call: Application, position: Any, q: Value, k: Value, mask: Mask, rotated: bool
    ) -> tuple[Value, Value, Value | None]:
        if q.rank < 4:
            raise call.error(
                "E0302",
                "a relative bias is one for each head, and q has no axis of heads",
                help="use `split_heads(heads)` first",
            )
        given = arguments(position)
        both_ways = given.get("bidirectional")
        both_ways = looks_ahead(call, mask) if both_ways is None else both_ways
        self.demand_far(call, given, both_ways)
        options = {**given, "bidirectional": both_ways, "heads": given.get("heads") or q.shape[-3]}
        inputs = (q.shape[-2], k.shape[-2])
        if isinstance(position, Instance):
            return q, k, call.once("relative_bias", "bias", inputs, instance=position, **options)
        return q, k, call.apply_position(position, inputs, options)

    def demand_far(self, call: Application, given: dict[str, Any], both_ways: Any) -> None:
        """The first half of the buckets are one distance each, the others share the rest up to `max_distance`."""
        buckets, most = given.get("buckets", num(32)), given.get("max_distance", num(128))
        if buckets.static and most.static:
            half = 4 if both_ways else 2
            near = int(buckets) // half
            enough = call.holds(">=", buckets, half, "half of the buckets of one side hold one distance each")
            if not (enough and call.holds("<", binary("//", buckets, num(half)), most, FAR)):
                raise call.error(
                    "E0204",
                    f"{buckets} buckets hold the first {near} distances one by one, and {most} is the last of all",
                    option="position",
                    help=f"make `max_distance` larger, or `buckets` fewer (at least {4 if both_ways else 2} of them)",
                )

    def shapes(self, call: Application) -> Sequence[Shape]:
        queries, keys = call.inputs
        assert isinstance(queries, Num)
        assert isinstance(keys, Num)
        return ((call.size("heads"), queries, keys),)

    def dtypes(self, call: Application) -> Sequence[str]:
        return ("float",)

    def weights(self, call: Application) -> Sequence[Weight]:
        return (Weight("weight", (call.size("buckets"), call.size("heads")), "embedding"),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        queries, keys = node.inputs
        assert isinstance(queries, Num)
        assert isinstance(keys, Num)
        query, key = g.pairs(queries, keys)
        distance = g.Sub(query, key)
        buckets, most = int(node.weights[0].shape[0]), int(node.options["max_distance"])
        bucket = None
        if node.options["bidirectional"]:
            buckets //= 2
            bucket = g.Mul(g.cast(g.Less(distance, 0), "int"), buckets)
            distance = g.Abs(distance)
        else:
            distance = g.Max(distance, 0)
        near = buckets // 2
        ratio = g.Log(g.Div(g.cast(g.Max(distance, 1), "float32"), float(near)))
        far = g.Mul(g.Div(ratio, math.log(most / near)), float(buckets - near))
        far = g.Min(g.Add(g.cast(far, "int"), near), buckets - 1)
        found = g.Where(g.Less(distance, near), distance, far)
        if bucket is not None:
            found = g.Add(bucket, found)
        if not g.by_row:
            return g.Transpose(g.Gather(g.weight("weight"), found, axis=0), perm=[2, 0, 1])
        bias = g.Gather(g.weight("weight"), g.Squeeze(found, [1]), axis=0)  # [batch, query, key, heads]
        return g.Transpose(bias, perm=[0, 3, 1, 2])

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        more = {} if node.options["bidirectional"] else {"bidirectional": False}
        sizes = (*node.weights[0].shape, node.options["max_distance"])  # buckets, heads, distance
        return e.py("RelativeBias({*sizes}, {**more})", sizes=sizes, more=more)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        queries, keys = node.inputs
        assert isinstance(queries, Num)
        assert isinstance(keys, Num)
        pairs = e.pairs(queries, keys, 0)
        if pairs is not None:
            return e.py("{module}.between({*pairs})", pairs=pairs)
        return e.py("{module}({0}, {1})")


def looks_ahead(call: Application, mask: Mask) -> bool:
    """Whether a mask shows later keys."""
    if not any(part.rule == "causal" for part in (mask, *(mask.parts if mask.rule == "&" else ()))):
        for n in numbers_of(mask):
            call.fixed(n)  # windows of one place, prefixes of one
    return ahead(mask) != 0
