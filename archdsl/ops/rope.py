"""`rope`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archdsl.ir.dims import binary, num
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.masks import Mask
from archdsl.ir.op import EVERYWHERE, Application, Example, Reads, TorchScope, Tree, same
from archdsl.ir.ranges import whole_size
from archdsl.ops._position import Position


class Rope(Position):
    """Rotary position embedding (Su et al., 2021): turns pairs of channels by angles that grow with the position along
    the last axis but one.

    `dims` (or `fraction` of the head) channels are turned, all by default; pairs are (i, i + dims / 2), or (2i, 2i +
    1) if `interleaved`.
    `scaling` is linear(factor), ntk(factor), yarn(factor, original, …), llama3(factor, low, high, original) or
    longrope(short, long, original). The last turns a sequence that outgrows `original` by other angles from its first
    position on, so keys that were kept from before no longer fit: such a text is begun anew, with all of it as the
    prompt."""

    signature = (
        "rope(theta: positive = 10_000, dims: size = none, fraction: share = none, interleaved: bool = false, "
        "scaling: scaling = none)"
        "(x: float[..., time, width]) -> [..., time, width]"
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

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        raise TypeError("rope is always turned into `turn` nodes")


def _given(position: Any) -> dict[str, Any]:
    from archdsl.ops._position import arguments

    return arguments(position)


def turn(call: Application, x: Value, options: Any) -> Value:
    """x with its channels turned, by a table that the model makes once for every length, theta and scaling."""
    theta = options.get("theta") or num(10_000)
    head = x.shape[-1]
    dims = options.get("dims")
    if dims is None and options.get("fraction") is not None:
        dims = whole_size(binary("*", head, options["fraction"]), "size", "the turned part of a head", call.span)
        if dims.static:
            call.is_whole(dims)
            call.holds(">=", dims, 1)
    dims = head if dims is None else dims
    if dims.static and head.static and not call.holds("<=", dims, head, "rope turns no more channels than a head has"):
        raise call.error("E0204", f"rope turns {dims} channels, and a head has {head}", option="position")
    if dims.static and not call.holds("==", binary("%", dims, num(2)), 0, "rope needs an even number of channels"):
        raise call.error(
            "E0204",
            f"rope needs an even number of channels, and {dims} is odd",
            option="position",
            help="make head_dim even, or set `dims`",
        )
    call.same(dims, head, "rope is written for all channels of a head: compile again with --set")
    scaling = options.get("scaling")
    if getattr(scaling, "name", "") == "ntk" and dims.static and not call.holds("!=", dims, 2):
        raise call.error(
            "E0204",
            "`ntk` stretches all pairs of channels but the first, and rope turns one pair",
            option="position",
            help="turn at least 4 channels, or use `linear(factor)`",
        )
    if getattr(scaling, "name", "") == "yarn" and theta.static and float(theta) <= 1:
        raise call.error(
            "E0204", f"`yarn` needs waves that grow longer: `theta` above 1, not {theta}", option="position"
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
