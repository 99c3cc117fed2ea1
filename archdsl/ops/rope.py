"""`rope`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import binary
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.masks import Mask
from archdsl.ir.op import EVERYWHERE, Application, Example, Reads, TorchScope, same
from archdsl.ir.site import whole_size
from archdsl.ops._position import Position

ROTATE = '''
def rotate(x: Tensor, rope: Tensor) -> Tensor:
    """Turn the channel pairs (i, i + dims / 2) by an angle that grows with the position."""
    cos, sin = rope
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).type_as(x)
'''

ROTATE_PAIRS = '''
def rotate_pairs(x: Tensor, rope: Tensor) -> Tensor:
    """Turn the channel pairs (2i, 2i + 1) by an angle that grows with the position."""
    cos, sin = rope
    a, b = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2).type_as(x)
'''

ROTATE_PART = '''
def rotate_part(x: Tensor, rope: Tensor) -> Tensor:
    """Turn the first channels of each head, in pairs (i, i + dims / 2), by an angle that grows with the position;
    leave the rest."""
    cos, sin = rope
    a, b, rest = x.split((cos.size(-1), cos.size(-1), x.size(-1) - 2 * cos.size(-1)), dim=-1)
    a, b = a.float(), b.float()
    return torch.cat(((a * cos - b * sin).type_as(x), (b * cos + a * sin).type_as(x), rest), dim=-1)
'''

ROTATE_PART_PAIRS = '''
def rotate_part_pairs(x: Tensor, rope: Tensor) -> Tensor:
    """Turn the first channels of each head, in pairs (2i, 2i + 1), by an angle that grows with the position; leave
    the rest."""
    cos, sin = rope
    turned, rest = x.split((2 * cos.size(-1), x.size(-1) - 2 * cos.size(-1)), dim=-1)
    a, b = turned[..., 0::2].float(), turned[..., 1::2].float()
    turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    return torch.cat((turned.type_as(x), rest), dim=-1)
'''


class Rope(Position):
    """Rotary position embedding (Su et al., 2021): turns pairs of channels by angles that grow with the place along
    the last axis but one.

    `dims` (or `fraction` of the head) channels are turned, all by default; pairs are (i, i + dims / 2), or (2i, 2i +
    1) if `interleaved`.
    `scaling` is linear(factor), ntk(factor), yarn(factor, original, …), llama3(factor, low, high, original) or
    longrope(short, long, original). The last turns a sequence that outgrows `original` by other angles from its first
    place on, so keys that were kept from before no longer fit: such a text is begun anew, with all of it as the prompt.
    """

    signature = (
        "rope(theta: number = 10_000, dims: size = none, fraction: number = none, interleaved: bool = false, "
        "scaling: scaling = none)"
        "(x: [..., time, width]) -> [..., time, width]"
    )
    examples = (
        Example("x -> rope", "x: [2, 4, 5, 8]"),
        Example("x -> rope(theta: 500, interleaved: true)", "x: [2, 4, 5, 8]"),
        Example("x -> rope(dims: 4)", "x: [2, 4, 5, 8]"),
        Example("x -> rope(fraction: 0.5, interleaved: true, scaling: linear(factor: 2))", "x: [2, 5, 8]"),
        Example("x -> rope(scaling: yarn(factor: 4, original: 8))", "x: [2, 4, 5, 8]"),
        Example("x -> rope(scaling: llama3(factor: 8, original: 16))", "x: [2, 4, 5, 8]"),
        Example("x -> rope(scaling: ntk(factor: 2))", "x: [2, 4, 5, 8]"),
        Example(
            "x -> rope(scaling: longrope(short: [1, 1, 1.5, 2], long: [1, 2, 3, 4], original: 3))", "x: [2, 4, 5, 8]"
        ),
    )

    def build(self, call: Application) -> Sequence[Value]:
        return (turn(call, call.tensor(0), call.options),)

    def attend(
        self, call: Application, position: Any, q: Value, k: Value, mask: Mask, rotated: bool
    ) -> tuple[Value, Value, Value | None]:
        if rotated:
            return q, k, None
        options = {"theta": None, **_given(position)}
        return turn(call, q, options), turn(call, k, options), None

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = node.outputs[0].rank
        return ((*(same(i) for i in range(rank - 1)), EVERYWHERE),)

    def torch(self, node: OpNode, e: TorchScope) -> str:
        raise TypeError("rope is always turned into `turn` nodes")


def _given(position: Any) -> dict[str, Any]:
    from archdsl.ops._position import arguments

    return arguments(position)


def turn(call: Application, x: Value, options: Any) -> Value:
    """x with its channels turned, by a table that the model makes once for every length, theta and scaling."""
    from archdsl.ir.dims import num

    theta = options.get("theta") or num(10_000)
    head = x.shape[-1]
    dims = options.get("dims")
    if dims is None and options.get("fraction") is not None:
        dims = whole_size(binary("*", head, options["fraction"]), "size", "the turned part of a head", call.span)
    dims = head if dims is None else dims
    if isinstance(dims.value, int) and isinstance(head.value, int) and dims.value > head.value:
        raise call.error("E0204", f"rope turns {dims} channels, and a head has {head}", option="position")
    if isinstance(dims.value, int) and dims.value % 2:
        raise call.error(
            "E0204",
            f"rope turns pairs of channels, and {dims} is odd",
            option="position",
            help="make head_dim even, or set `dims`",
        )
    scaling = options.get("scaling")
    if getattr(scaling, "name", "") == "ntk" and dims.value == 2:
        raise call.error(
            "E0204",
            "`ntk` stretches all pairs of channels but the first, and rope turns one pair",
            option="position",
            help="turn at least 4 channels, or use `linear(factor)`",
        )
    table = call.once(
        "rope_table",
        "rope",
        [x.shape[-2]],
        theta=theta,
        dims=dims,
        **({"scaling": scaling} if scaling is not None else {}),
    )
    return call.apply("turn", x, table, interleaved=bool(options.get("interleaved")))
