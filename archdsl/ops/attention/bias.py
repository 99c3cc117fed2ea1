"""What is added to the scores of attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from archdsl.ir.cost import Cost, contracted
from archdsl.ir.dims import Shape, add, binary, function, num, sub
from archdsl.ir.graph import OpNode, Value, Weight
from archdsl.ir.masks import Mask
from archdsl.ir.op import EVERYWHERE, Application, OnnxScope, Primitive, Reads, TorchScope, Tree, same, shown
from archdsl.ops._common import number, number_inputs
from archdsl.ops.position import Position, arguments, frequencies


def slopes(heads: int) -> list[float]:
    """How fast the scores of each head fall: powers of 2 ** (-8 / n) for the largest power of two n in `heads`, then
    every other one of the next finer series (Press et al., 2021, section 3)."""
    power: int = 2 ** math.floor(math.log2(heads))
    found: list[float] = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return found + [2 ** (-8 * (2 * i + 1) / (2 * power)) for i in range(heads - power)]


class Alibi(Position):
    """Attention with linear biases (Press et al., 2021): scores fall with the distance, by a slope 2 ** (-8 i /
    heads) for each head.

    The emitted file has one function for it, whatever the number of heads; its equations would be longer."""

    positional = True
    hoisted = True
    typed = "float32"
    signature = "alibi(heads: size = none)(queries: [], keys: [])"
    examples = shown("sdpa(q, q, q, mask: causal, position: alibi)  # q: [2, 6, 5, 8]")

    def attend(
        self, call: Application, position: Any, q: Value, k: Value, mask: Mask, rotated: bool
    ) -> tuple[Value, Value, Value | None]:
        if q.rank < 4:
            raise call.error(
                "E0302",
                "alibi has a slope for each head, and q has no axis of heads",
                help="use `split_heads(heads)` first",
            )
        return q, k, call.apply("alibi", q.shape[-2], k.shape[-2], called="alibi", heads=q.shape[-3])

    def shapes(self, call: Application) -> Sequence[Shape]:
        queries, keys = number_inputs(call, 0, 1)
        return ((call.size("heads"), queries, keys),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        queries, keys = number_inputs(node, 0, 1)
        query, key = g.pairs(queries, keys)
        distance = g.cast(g.Abs(g.Sub(query, key)), "float32")
        return g.Mul(g.constant([[[-slope]] for slope in slopes(int(node.options["heads"]))], "float32"), distance)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        queries, keys = number_inputs(node, 0, 1)
        heads, pairs = number(node, "heads"), e.pairs(queries, keys)
        if pairs is not None:
            return e.py("alibi_between({heads}, {*pairs})", heads=heads, pairs=pairs)
        return e.py("alibi({heads}, {0}, {1}, {device})", heads=heads, device=e.device())


class TransformerXL(Position):
    """Transformer-XL's relative positions: each score is (q + u) k plus (q + v) r, r a projection of the sinusoid of
    the distance.

    `width` is that of the sinusoid: heads * head_dim unless given. The scores of all distances are shifted row by row,
    which PyTorch and ONNX do by forms of their own.
    """

    signature = (
        "transformer_xl(width: size = none, heads: size = none, head_dim: size = none)"
        "(q: float[..., heads, time, head_dim], keys: [])"
    )
    hints = ("=", "distance")
    examples = shown("sdpa(q, q, q, position: transformer_xl)  # q: [2, 4, 5, 8]")

    def attend(
        self, call: Application, position: Any, q: Value, k: Value, mask: Mask, rotated: bool
    ) -> tuple[Value, Value, Value | None]:
        if q.rank != 4:
            raise call.error(
                "E0302", "transformer_xl takes q: [batch, heads, time, head_dim]", help="use `split_heads(heads)` first"
            )
        given = arguments(position)
        heads, head_dim = q.shape[-3], q.shape[-1]
        width = given.get("width") or binary("*", heads, head_dim)
        options = {**given, "heads": heads, "head_dim": head_dim, "width": width}
        waves = "the width must be even: half are sines, half cosines"
        if width.static and not call.holds("==", binary("%", width, num(2)), 0, waves):
            raise call.error(
                "E0204",
                f"transformer_xl has a sine and a cosine for each frequency, and a width of {width} is odd",
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
        q, (keys,) = call.shape(0), number_inputs(call, 1)
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
        q, keys = node.tensor(0), number_inputs(node, 1)[0]
        distances = sub(add(keys.value, q.shape[-2].value), 1)
        projected = contracted((distances, *node.weights[0].shape), (), ("weight",))
        scores = contracted((*q.shape, distances), (0, "v"), ("weight",))
        return Cost((projected, scores), self.pointwise(node))

    def reads(self, node: OpNode) -> Sequence[Reads]:
        return ((same(0), same(1), same(2), EVERYWHERE), ())

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        q, keys = node.tensor(0), number_inputs(node, 1)[0]
        heads, head_dim, width = (int(node.options[n]) for n in ("heads", "head_dim", "width"))
        x = g.arg(0)
        kind, queries = g.dtype(x), g.size(0, -2)
        query, key = g.pairs(q.shape[-2], keys)
        count = g.Shape(key, start=-1)
        # Distances, the farthest back first, and one that is never read.
        first = g.Squeeze(g.Sub(count, 1), [0])
        ahead = g.Squeeze(count, [0]) if g.by_row else scalar(g, queries)
        position = g.Range(first, g.Sub(g.Neg(ahead), 1), g.constant(-1, "int"))
        waves = g.constant(frequencies(10_000.0, width), "float32")
        angle = g.Mul(g.Unsqueeze(g.cast(position, "float32"), [-1]), waves)
        table = g.cast(g.Concat(g.Sin(angle), g.Cos(angle), axis=-1), kind)
        r = g.linear(table, g.cast(g.weight("weight"), kind))
        r = g.Transpose(g.Reshape(r, [-1, heads, head_dim]), perm=[1, 2, 0])  # [heads, head_dim, distance]
        u, v = (g.Unsqueeze(g.cast(g.weight(name), kind), [1]) for name in ("u", "v"))
        scores = g.MatMul(g.Mul(g.Add(x, v), head_dim**-0.5), r)
        if g.by_row:
            # A column for each pair; that of a key at no position is not looked at.
            column = g.Max(g.Add(g.Min(g.Sub(key, query), first), first), 0)
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
        q, keys = node.tensor(0), number_inputs(node, 1)[0]
        pairs = e.pairs(q.shape[-2], keys)
        if pairs is not None:
            return e.py("{module}.between({0}, {*pairs})", pairs=pairs)
        return e.py("{module}({0}, {1})")


def scalar(g: OnnxScope, size: Any) -> Any:
    """A size as a scalar."""
    return g.constant(size, "int") if isinstance(size, int) else g.Squeeze(size, [0])


class MaskedBias(Primitive):
    """A bias of scores with minus infinity where the mask says no."""

    expression = "torch.where({1}, {0}, -torch.inf)"
    typed = 0
    signature = "masked_bias()(bias: float[...], mask: bool[...]) -> [...]"
    elementwise = True
    hoisted = True
    adds_mask = True
    chosen = (0,)

    def constant(self, node: OpNode, known: Sequence[float | None]) -> float | None:
        bias, mask = known
        return -math.inf if mask == 0 or bias == -math.inf else bias if mask == 1 else None

    def picks(self, node: OpNode, known: Sequence[float | None]) -> int | None:
        return 0 if known[1] == 1 else None

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Where(g.arg(1), g.arg(0), -math.inf)
