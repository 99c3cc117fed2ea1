"""`x[…]`"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from archdsl.ir.dims import Num, Poly, Shape, binary, free_names, neg, num, shape_text
from archdsl.ir.graph import OpNode
from archdsl.ir.op import EVERYWHERE, Application, At, Example, OnnxScope, Primitive, Reads, TorchScope, Tree, same
from archdsl.ir.wording import called
from archdsl.ops._common import demand_at_most, equals, first_input, later, minus, without_floors
from archdsl.ops._onnx import END

INDEX = "an index lies within its axis"
LIES = "slices lie within their axis"


class Index(Primitive):
    """`x[:, 0]`, `x[..., -1]`, `x[:, 1:]`, `x[:, :time]`: one position of an axis, which goes, or those of a slice.

    Numbers below 0 count from the end. A slice has to lie within its axis."""

    passes = 0
    moves = True
    signature = "index(items: list)(x: [...]) -> [...]"
    examples = (
        Example("x[:, 0]"),
        Example("x[..., -1]"),
        Example("x[0, ..., 1:]"),
        Example("x[:, -3:-1] + 1"),
        Example("x[:, :3, 2]"),
        Example("x[1]"),
        Example("(x + 1)[:, 2:4]"),
        Example("x[...]"),
    )

    def check(self, call: Application) -> None:
        shape, items = call.shape(0), call.options["items"]
        if not isinstance(items, tuple):
            raise call.error("E0204", "an index is written in brackets", option="items", help="`x[:, 0]`, `x[..., 1:]`")
        if sum(map(is_rest, items)) > 1:
            raise call.error("E0204", "`...` stands for all axes that are not named, so it can be written once")
        count = sum(not is_rest(i) for i in items)
        if count > len(shape):
            raise call.error(
                "E0302",
                f"{count} axes are indexed, but {called(call.tensor(0))} has {len(shape)}: {shape_text(shape)}",
                input=0,
            )
        for axis, item in enumerate(spread(items, len(shape))):
            if isinstance(item, Num):
                self.check_place(call, axis, item)
            else:
                self.check_slice(call, axis, item)

    def check_place(self, call: Application, axis: int, n: Num) -> None:
        size = call.shape(0)[axis]
        if n.static and not call.is_whole(n):
            raise call.error("E0204", f"a place is a whole number, and {n} was given")
        if n.static and size.static and not self.within(call, n, size):
            assert isinstance(size.value, int)
            raise call.error(
                "E0303",
                f"there is no place {n}: axis {axis} of {shape_text(call.shape(0))} has {size}",
                input=0,
                help=f"places are 0 to {size.value - 1}, or -1 (the last) to {-size.value}",
            )

    def within(self, call: Application, n: Num, size: Num) -> bool:
        """Whether there is a position of that number, from the start or, below 0, from the end."""
        if call.holds(">=", n, 0):
            return call.holds("<", n, size, INDEX)
        return call.holds("<=", binary("-", num(0), n), size, INDEX)

    def check_slice(self, call: Application, axis: int, item: tuple[Any, ...]) -> None:
        size = call.shape(0)[axis]
        for n in item[1:]:
            if n is not None and n.static and not call.is_whole(n):
                raise call.error("E0204", f"a slice begins and ends at whole numbers, and {n} was given")
            if n is not None and n.static:
                call.holds(">=", n, 0)
        low, high = ends(item, size)
        call.is_number(low, 0)
        for n in (low, high):
            if n.static and size.static and not (call.holds(">=", n, 0, LIES) and call.holds("<=", n, size, LIES)):
                raise call.error(
                    "E0303",
                    f"the slice goes to place {n.value}, but axis {axis} of {shape_text(call.shape(0))} has {size}",
                    input=0,
                    help="slices have to lie within their axis",
                )
        if low.static and high.static and not call.holds("<", low, high, "a slice begins before it ends"):
            raise call.error("E0303", f"the slice from {low} up to {high} holds nothing", input=0)
        if high is not size:
            demand_at_most(call, high, size, "a slice ends within its axis")
        demand_at_most(call, low, high, "a slice begins before it ends")
        start = item[1]
        if start is not None and negative(start):
            back = minus(size, low)
            demand_at_most(call, back, size, "a slice begins within its axis")

    def build(self, call: Application) -> Sequence[Any]:
        whole = all(
            not isinstance(i, Num) and i == ("slice", None, None)
            for i in spread(call.options["items"], len(call.shape(0)))
        )
        return (call.tensor(0),) if whole else call.node()

    def shapes(self, call: Application) -> Sequence[Shape]:
        result: list[Num] = []
        shape = call.shape(0)
        for size, item in zip(shape, spread(call.options["items"], len(shape)), strict=True):
            if not isinstance(item, Num):
                low, high = ends(item, size)
                result.append(high if equals(low, 0) else minus(high, low))
        return (tuple(result),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        x = first_input(node)
        reads: list[At | None] = []
        out = 0
        for size, item in zip(x.shape, spread(node.options["items"], x.rank), strict=True):
            if isinstance(item, Num):
                place = binary("+", size, item) if negative(item) else item
                reads.append(At((), Fraction(place.value)) if isinstance(place.value, int) else EVERYWHERE)
            else:
                low, _ = ends(item, size)
                reads.append(same(out) if equals(low, 0) else later(out, low))
                out += 1
        return (tuple(reads),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x = first_input(node)
        places: list[tuple[int, Num]] = []
        slices: list[tuple[int, Any, Any]] = []
        for axis, item in enumerate(spread(node.options["items"], x.rank)):
            if isinstance(item, Num):
                places.append((axis - x.rank, item))
            elif item != ("slice", None, None):
                slices.append((axis - x.rank, item[1], item[2]))
        y = g.arg(0)
        together = len(places) + len(slices) > 1 and all(n.static for _, n in places)
        if together:
            slices += [(axis, n, int(n) + 1 or None) for axis, n in places]
        if slices:
            axes, lows, highs = zip(*slices, strict=True)
            y = g.Slice(y, [0 if n is None else n for n in lows], [END if n is None else n for n in highs], axes)
        if together:
            return g.Squeeze(y, [axis for axis, _ in places]) if places else y
        for axis, n in places:
            y = g.Gather(y, g.number(n), axis=axis)
        return y

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        items, numbers = [], dict[str, Num]()
        for i, item in enumerate(node.options["items"]):
            if is_rest(item):
                items.append("...")
                continue
            given = {f"n{i}_{k}": n for k, n in enumerate((item,) if isinstance(item, Num) else item[1:])}
            items.append(":".join("" if n is None else f"{{{name}}}" for name, n in given.items()))
            numbers |= given
        return e.py(f"{{0}}[{', '.join(items)}]", **numbers)


def is_rest(item: Any) -> bool:
    return item is ... or item == "..."


def spread(items: Sequence[Any], rank: int) -> list[Any]:
    """An item for each axis: a number, or ("slice", low, high)."""
    whole = ("slice", None, None)
    missing = rank - sum(not is_rest(i) for i in items)
    spot = next((i for i, item in enumerate(items) if is_rest(item)), len(items))
    return [*items[:spot], *[whole] * missing, *items[spot + 1 :]]


def negative(n: Num) -> bool:
    """Whether a position counts from the end: -1, `-time`, `-time // 2`."""
    least = without_floors(neg(n.value))
    return all(c > 0 for _, c in least.terms) if isinstance(least, Poly) else least > 0


def ends(item: tuple[Any, ...], size: Num) -> tuple[Num, Num]:
    """Where a slice begins and ends, counted from the start."""
    _, low, high = item
    low = num(0) if low is None else from_start(low, size)
    return low, size if high is None else from_start(high, size)


def from_start(n: Num, size: Num) -> Num:
    if not negative(n):
        return n
    if isinstance(n.value, int) and not free_names(n.expr):
        return minus(size, num(-n.value))
    return binary("+", size, n)
