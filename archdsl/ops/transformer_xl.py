"""`transformer_xl`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.cost import Cost, contracted
from archdsl.ir.dims import Num, Shape, add, binary, function, num, sub
from archdsl.ir.graph import OpNode, Value, Weight
from archdsl.ir.masks import Mask
from archdsl.ir.op import EVERYWHERE, Application, Example, OnnxScope, Reads, TorchScope, Tree, same
from archdsl.ops._position import Position, arguments
from archdsl.ops.rope_table import frequencies


class TransformerXL(Position):
    """Transformer-XL's relative positions: each score is (q + u) k plus (q + v) r, r a projection of the sinusoid of
    the distance.

    `width` is that of the sinusoid: heads * head_dim unless given.
    """

    signature = (
        "transformer_xl(width: size = none, heads: size = none, head_dim: size = none)"
        "(q: float[..., heads, time, head_dim], keys: [])"
    )
    hints = ("=", "distance")
    examples = (Example("sdpa(q, q, q, position: transformer_xl)", "q: [2, 4, 5, 8]"),)

    def attend(
        self, call: Application, position: Any, q: Value, k: Value, mask: Mask, rotated: bool
    ) -> tuple[Value, Value, Value | None]:
        if q.rank != 4:
            raise call.error(
                "E0302", "transformer_xl takes q: [batch, heads, time, head_dim]", help="use `split_heads(heads)` first"
            )
        given = arguments(position)
        heads, head_dim = q.shape[-3], q.shape[-1]
        options = {
            **given,
            "heads": heads,
            "head_dim": head_dim,
            "width": given.get("width") or binary("*", heads, head_dim),
        }
        width = options["width"]
        waves = "the width must be even: half are sines, half cosines"
        if width.static and not call.holds("==", binary("%", width, num(2)), 0, waves):
            raise call.error(
                "E0204",
                f"transformer_xl has a sine and a cosine for each frequency, and a width of {options['width']} is odd",
                option="position",
                help="make head_dim even, or set `width`",
            )
        own = q if q.dtype == "float" else call.apply("cast", q, dtype="float")
        turned, scores = call.apply_position(position, (own, k.shape[-2]), options, outputs=2)
        turned = turned if q.dtype == "float" else call.apply("cast", turned, dtype=q.dtype)
        if call.options.get("scale") is not None:
            # The scores come scaled by 1 / sqrt(head_dim); all of them are to be scaled alike.
            ratio = binary("*", call.options["scale"], function("sqrt", (head_dim,)))
            scores = call.apply("times", scores, ratio)
        return turned, k, scores

    def shapes(self, call: Application) -> Sequence[Shape]:
        q, keys = call.tensor(0).shape, call.inputs[1]
        assert isinstance(keys, Num)
        return (q, (*q[:-1], keys))

    def dtypes(self, call: Application) -> Sequence[str]:
        return (call.tensor(0).dtype,) * 2

    def weights(self, call: Application) -> Sequence[Weight]:
        heads, head_dim, width = call.size("heads"), call.size("head_dim"), call.size("width")
        return (
            Weight("weight", (binary("*", heads, head_dim), width), "matrix", fan_in=width),
            Weight("u", (heads, head_dim), "bias"),
            Weight("v", (heads, head_dim), "bias"),
        )

    def flops(self, node: OpNode) -> Cost:
        """Every distance from queries - 1 positions ahead to keys - 1 back is projected, and scored by every query."""
        q, keys = node.inputs
        assert isinstance(q, Value)
        assert isinstance(keys, Num)
        distances = sub(add(keys.value, q.shape[-2].value), 1)
        projected = contracted((distances, *node.weights[0].shape), (), ("weight",))
        scores = contracted((*q.shape, distances), (0, "v"), ("weight",))
        return Cost((projected, scores), self.pointwise(node))

    def reads(self, node: OpNode) -> Sequence[Reads]:
        return ((same(0), same(1), same(2), EVERYWHERE), ())

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        q, keys = node.inputs
        assert isinstance(q, Value)
        assert isinstance(keys, Num)
        heads, head_dim, width = (int(node.options[n]) for n in ("heads", "head_dim", "width"))
        x = g.arg(0)
        kind, queries = g.dtype(x), g.size(0, -2)
        query, key = g.pairs(q.shape[-2], keys)
        count = g.Shape(key, start=-1)
        # Distances, the farthest back first, and one that is never read.
        first = g.Squeeze(g.Sub(count, 1), [0])
        ahead = g.Squeeze(count, [0]) if g.by_row else scalar(g, queries)
        place = g.Range(first, g.Sub(g.Neg(ahead), 1), g.constant(-1, "int"))
        waves = g.constant(frequencies(10_000.0, width), "float32")
        angle = g.Mul(g.Unsqueeze(g.cast(place, "float32"), [-1]), waves)
        table = g.cast(g.Concat(g.Sin(angle), g.Cos(angle), axis=-1), kind)
        r = g.linear(table, g.cast(g.weight("weight"), kind))
        r = g.Transpose(g.Reshape(r, [-1, heads, head_dim]), perm=[1, 2, 0])  # [heads, head_dim, distance]
        u, v = (g.Unsqueeze(g.cast(g.weight(name), kind), [1]) for name in ("u", "v"))
        scores = g.MatMul(g.Mul(g.Add(x, v), head_dim**-0.5), r)
        if g.by_row:
            # A column for each pair; that of a key at no place is not looked at.
            column = g.Max(g.Min(g.Add(g.Sub(key, query), first), g.Mul(first, 2)), 0)
            return g.Add(x, u), g.GatherElements(scores, g.Expand(column, [g.Shape(scores, end=3), 1]), axis=-1)
        # Each row begins one position before the one above it; with one position fewer in a row, it stands where it
        # should.
        start = [queries - 1] if isinstance(queries, int) else g.Sub(queries, 1)
        rest = g.Slice(g.Reshape(scores, [0, 0, -1]), start, [-1], [2])
        return g.Add(x, u), g.Slice(g.Reshape(rest, [0, 0, queries, -1]), [0], count, [3])

    def torch_module(self, node: OpNode, e: TorchScope) -> Tree:
        sizes = [node.options[name] for name in ("width", "heads", "head_dim")]
        return e.py("RelativeScores({*sizes})", sizes=sizes)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        q, keys = node.inputs
        assert isinstance(q, Value)
        assert isinstance(keys, Num)
        pairs = e.pairs(q.shape[-2], keys)
        if pairs is not None:
            return e.py("{module}.between({0}, {*pairs})", pairs=pairs)
        return e.py("{module}({0}, {1})")


def scalar(g: OnnxScope, size: Any) -> Any:
    """A size as a scalar."""
    return g.constant(size, "int") if isinstance(size, int) else g.Squeeze(size, [0])
