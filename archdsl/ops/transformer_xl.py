"""`transformer_xl`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.cost import Cost, contracted
from archdsl.ir.dims import Num, Shape, add, binary, function, sub
from archdsl.ir.graph import OpNode, Value, Weight
from archdsl.ir.masks import Mask
from archdsl.ir.op import EVERYWHERE, Application, Example, OnnxScope, Reads, TorchScope, same
from archdsl.ops._position import Position, arguments
from archdsl.ops.rope_table import frequencies

RELATIVE_SCORES = '''
class RelativeScores(nn.Module):
    """Transformer-XL (Dai et al., 2019, section 3.3): the query plus a content bias, and its scaled scores against
    every distance."""

    def __init__(self, width: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.empty(heads * head_dim, width))
        self.u = nn.Parameter(torch.zeros(heads, head_dim))
        self.v = nn.Parameter(torch.zeros(heads, head_dim))
        nn.init.uniform_(self.weight, -(width**-0.5), width**-0.5)

    def forward(self, q: Tensor, keys: int) -> tuple[Tensor, Tensor]:
        query = torch.arange(keys - q.size(-2), keys, device=q.device)[:, None]
        return self.between(q, query, torch.arange(keys, device=q.device), ahead=q.size(-2) - 1)

    def between(self, q: Tensor, query: Tensor, key: Tensor, ahead: int = 0) -> tuple[Tensor, Tensor]:
        """For queries and keys at these places; of later keys, those up to `ahead` places."""
        farthest = key.size(-1) - 1
        place = torch.arange(farthest, -ahead - 1, -1, device=q.device)[:, None]  # distances, the farthest back first
        angle = place * 10_000 ** -(torch.arange(0, self.width, 2, device=q.device) / self.width)
        table = torch.cat((angle.sin(), angle.cos()), dim=-1).to(q.dtype)
        r = F.linear(table, self.weight).unflatten(-1, self.u.shape)  # [distance, heads, head_dim]
        scores = torch.einsum("bhtd,rhd->bhtr", q + self.v[:, None], r) * q.size(-1) ** -0.5
        column = (farthest - query + key).clamp(max=farthest + ahead)  # of the distance between them
        return q + self.u[:, None], scores.gather(-1, column.expand(*scores.shape[:-1], -1))
'''


class TransformerXL(Position):
    """Transformer-XL's relative positions: each score is (q + u) k plus (q + v) r, r a projection of the sinusoid of
    the distance.

    `width` is that of the sinusoid: heads * head_dim unless given.
    """

    signature = (
        "transformer_xl(width: size = none, heads: size = none, head_dim: size = none)"
        "(q: [..., heads, time, head_dim], keys: [])"
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
        if isinstance(options["width"].value, int) and options["width"].value % 2:
            raise call.error(
                "E0204",
                f"transformer_xl has a sine and a cosine for each frequency, and a width of {options['width']} is odd",
                option="position",
                help="make head_dim even, or set `width`",
            )
        turned, scores = call.apply_position(position, (q, k.shape[-2]), options, outputs=2)
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
        """Every distance from queries - 1 places ahead to keys - 1 back is projected, and scored by every query."""
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
        # Each row begins one place before the one above it; with one place fewer in a row, it stands where it should.
        start = [queries - 1] if isinstance(queries, int) else g.Sub(queries, 1)
        rest = g.Slice(g.Reshape(scores, [0, 0, -1]), start, [-1], [2])
        return g.Add(x, u), g.Slice(g.Reshape(rest, [0, 0, queries, -1]), [0], count, [3])

    def torch(self, node: OpNode, e: TorchScope) -> str:
        q, keys = node.inputs
        assert isinstance(q, Value)
        assert isinstance(keys, Num)
        options = node.options
        cls = e.helper(RELATIVE_SCORES)
        made = e.module(f"{cls}({e.init(options['width'])}, {e.init(options['heads'])}, {e.init(options['head_dim'])})")
        pairs = e.pairs(q.shape[-2], keys)
        if pairs is not None:
            return f"{made}.between({e.arg(0)}, {', '.join(pairs)})"
        return f"{made}({e.arg(0)}, {e.number(keys)})"


def scalar(g: OnnxScope, size: Any) -> Any:
    """A size as a scalar."""
    return g.constant(size, "int") if isinstance(size, int) else g.Squeeze(size, [0])
