"""Positions along an axis chosen, moved and filled."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import isinf
from typing import Any, ClassVar

from archdsl.ir.dims import Num, Poly, Shape, binary, free_names, neg, num, shape_text
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import (
    EVERYWHERE,
    Application,
    At,
    Example,
    Lengths,
    OnnxScope,
    Primitive,
    Reads,
    State,
    TorchScope,
    Tree,
    same,
    shown,
)
from archdsl.ir.wording import format_name
from archdsl.ops._common import (
    AxisOp,
    axis_index,
    axis_of,
    demand_at_most,
    demand_like,
    demand_sizes,
    equals,
    from_right,
    later,
    minus,
    number,
    own_but,
    own_positions,
    replaced,
    tensor_inputs,
    usual,
    without_floors,
    written,
)
from archdsl.ops._onnx import END, padded

INDEX = "an index lies within its axis"
LIES = "slices lie within their axis"


class IndexOp(Primitive):
    """`x[:, 0]`, `x[..., -1]`, `x[:, 1:]`, `x[:, :time]`: one position of an axis, which goes, or those of a slice.

    Numbers below 0 count from the end. A slice has to lie within its axis."""

    family = "slice"
    keeps_projection = True
    passes = 0
    moves = True
    symbol = "[]"
    signature = "index(items: list)(x: [...]) -> [...]"
    examples = shown(
        "x[:, 0]",
        "x[..., -1]",
        "x[0, ..., 1:]",
        "x[:, -3:-1] + 1",
        "x[:, :3, 2]",
        "x[1]",
        "(x + 1)[:, 2:4]",
        "x[...]",
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
                f"{count} axes are indexed, but {format_name(call.tensor(0))} has {len(shape)}: {shape_text(shape)}",
                input=0,
            )
        for axis, item in enumerate(spread(items, len(shape))):
            if isinstance(item, Num):
                self.check_position(call, axis, item)
            else:
                self.check_slice(call, axis, item)

    def check_position(self, call: Application, axis: int, n: Num) -> None:
        size = call.shape(0)[axis]
        if n.static and not call.is_whole(n):
            raise call.error("E0204", f"a position is a whole number, and {n} was given")
        if n.static and size.static and not self.within(call, n, size):
            assert isinstance(size.value, int)
            raise call.error(
                "E0303",
                f"there is no position {n}: axis {axis} of {shape_text(call.shape(0))} has {size}",
                input=0,
                help=f"positions are 0 to {size.value - 1}, or -1 (the last) to {-size.value}",
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
                    f"the slice goes to position {n.value}, but axis {axis} of {shape_text(call.shape(0))} has {size}",
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
        shape = call.shape(0)
        items = spread(call.options["items"], len(shape))
        if not all(map(is_whole, items, shape)):
            return call.node()
        for item, size in zip(items, shape, strict=True):
            call.same(ends(item, size)[1], size, LIES)
        return (call.tensor(0),)

    def shapes(self, call: Application) -> Sequence[Shape]:
        result: list[Num] = []
        shape = call.shape(0)
        for size, item in zip(shape, spread(call.options["items"], len(shape)), strict=True):
            if not isinstance(item, Num):
                low, high = ends(item, size)
                result.append(high if equals(low, 0) else minus(high, low))
        return (tuple(result),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        x = node.tensor(0)
        reads: list[At | None] = []
        out = 0
        for size, item in zip(x.shape, spread(node.options["items"], x.rank), strict=True):
            if isinstance(item, Num):
                position = binary("+", size, item) if negative(item) else item
                reads.append(At((), Fraction(position.value)) if isinstance(position.value, int) else EVERYWHERE)
            else:
                low, _ = ends(item, size)
                reads.append(same(out) if equals(low, 0) else later(out, low))
                out += 1
        return (tuple(reads),)

    def certain(self, node: OpNode, k: int, i: int, axis: int, position: int, length: Lengths) -> int | None:
        """Return the position that a slice which begins at a run-time size reads."""
        x = node.tensor(0)
        items = spread(node.options["items"], x.rank)
        if any(isinstance(item, Num) for item in items[: axis + 1]):
            return None
        low, _ = ends(items[axis], x.shape[axis])
        return None if low.static else length(low.value) + position

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x = node.tensor(0)
        positions: list[tuple[int, Num]] = []
        slices: list[tuple[int, Any, Any]] = []
        for axis, item in enumerate(spread(node.options["items"], x.rank)):
            if isinstance(item, Num):
                positions.append((axis - x.rank, item))
            elif item != ("slice", None, None):
                slices.append((axis - x.rank, item[1], item[2]))
        y = g.arg(0)
        together = len(positions) + len(slices) > 1 and all(n.static for _, n in positions)
        if together:
            slices += [(axis, n, int(n) + 1 or None) for axis, n in positions]
        if slices:
            axes, lows, highs = zip(*slices, strict=True)
            y = g.Slice(y, [0 if n is None else n for n in lows], [END if n is None else n for n in highs], axes)
        if together:
            return g.Squeeze(y, [axis for axis, _ in positions]) if positions else y
        for axis, n in positions:
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


def is_whole(item: Any, size: Num) -> bool:
    """Whether a slice is all of its axis, whatever the Config: sizes of that may be equal by chance."""
    if isinstance(item, Num):
        return False
    _, low, high = item
    return low is None and (high is None or (not size.static and high.value == size.value))


def from_start(n: Num, size: Num) -> Num:
    if not negative(n):
        return n
    if isinstance(n.value, int) and not free_names(n.expr):
        return minus(size, num(-n.value))
    return binary("+", size, n)


class Every(Primitive):
    """Every `step`-th position along an axis, the first one included."""

    passes = 0
    moves = True
    signature = "every(step: size, axis: int = 1)(x: [...])"
    examples = shown("x -> every(2)", "x -> every(3, axis: 2)")

    def check(self, call: Application) -> None:
        if not call.size("step").static:
            raise call.error("E0402", "a step is a number that is known before the model runs", option="step")

    def shapes(self, call: Application) -> Sequence[Shape]:
        shape, step, axis = list(call.shape(0)), call.size("step"), axis_of(self, call)
        shape[axis] = binary("//", binary("+", shape[axis], binary("-", step, num(1))), step)
        return (tuple(shape),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank, axis = node.outputs[0].rank, axis_index(node)
        return (tuple(At(((i, Fraction(int(node.options["step"]))),)) if i == axis else same(i) for i in range(rank)),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        axis = axis_index(node) - node.outputs[0].rank
        return g.Slice(g.arg(0), [0], [END], [axis], [number(node, "step")])

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py(f"{{0}}[{':, ' * axis_index(node)}::{{step}}]", step=number(node, "step"))


class Flip(AxisOp):
    """An axis in reverse order."""

    passes = 0
    expression = "{0}.flip({axis})"
    signature = "flip(axis: int = 1)(x: [...]) -> [...]"
    examples = shown("x -> flip", "x -> flip(-1)")

    def certain(self, node: OpNode, k: int, i: int, axis: int, position: int, length: Lengths) -> int | None:
        return length(node.tensor(0).shape[axis].value) - 1 - position if axis == axis_index(node) else None

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Slice(g.arg(0), [-1], [-END], [from_right(node)], [-1])


class Roll(AxisOp):
    """Everything `by` positions later along an axis; what falls off at the end comes in at the start."""

    passes = 0
    expression = "{0}.roll({by}, dims={axis})"
    neutral = ("by", 0)
    signature = "roll(by: int = 1, axis: int = 1)(x: [...]) -> [...]"
    examples = shown("x -> roll", "x -> roll(-2)", "x -> roll(3, axis: -1)")

    def reads(self, node: OpNode) -> Sequence[Reads]:
        axis, by = axis_index(node), number(node, "by")
        forward = isinstance(by.value, int) and by.value <= 0
        return (own_but(node.tensor(0).rank, axis, later(axis, by, -1) if forward else EVERYWHERE),)

    def certain(self, node: OpNode, k: int, i: int, axis: int, position: int, length: Lengths) -> int | None:
        by = number(node, "by")
        if axis != axis_index(node) or not by.static:
            return None
        return (position - int(by)) % length(node.tensor(0).shape[axis].value)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x, by, axis = g.arg(0), number(node, "by"), axis_index(node)
        length = node.tensor(0).shape[axis]
        if by.static and length.static:
            cut: Any = -int(by) % int(length)
        elif by.static and abs(int(by)) == 1:
            cut = -int(by)  # every axis has that many positions
        else:
            cut = g.Mod(g.Neg(g.Unsqueeze(g.number(by), [0])), g.size(0, axis))
        return g.Concat(g.Slice(x, [cut], [END], [axis]), g.Slice(x, [0], [cut], [axis]), axis=axis)


def demand_filling(call: Application, option: str) -> None:
    """What fills new positions, usually 0. Raises E0204 for a fraction among whole numbers."""
    value = call.size(option)
    usual(call, **{option: 0})
    infinite = value.static and isinf(value)
    if not call.tensor(0).is_float and (infinite or not call.is_whole(value)):
        text = f"{format_name(call.tensor(0))} holds whole numbers, which {value} is not"
        raise call.error("E0204", text, option=option)


class Shift(Primitive):
    """`out[t] = x[t - by]` along an axis: everything `by` positions later (below 0: earlier); the rest becomes
    `fill`.

    A step of decoding keeps its last positions, by a rule of its own."""

    passes = 0
    fills = True
    neutral = ("by", 0)
    signature = "shift(by: int = 1, axis: int = 1, fill: filling = 0)(x: [...]) -> [...]"
    examples = shown(
        "x -> shift",
        "x -> shift(2, fill: 0.5)",
        "x -> shift(-1)",
        "x -> shift(1, axis: -1)",
        "ids -> shift(fill: 4)  # ids: int[2, 5]",
    )

    def check(self, call: Application) -> None:
        axis = axis_of(self, call)
        by = call.size("by")
        if not isinstance(by.value, int):
            raise call.error(
                "E0204",
                f"`shift` moves by a number of positions that is known before the model runs, not by {by}",
                option="by",
            )
        demand_filling(call, "fill")
        far = num(abs(call.fixed(by)))
        if call.shape(0)[axis].static:
            demand_at_most(call, far, call.shape(0)[axis], "`shift` goes by no more positions than there are")

    def reads(self, node: OpNode) -> Sequence[Reads]:
        axis = axis_index(node)
        return (own_but(node.tensor(0).rank, axis, later(axis, number(node, "by"), -1)),)

    def absent(self, node: OpNode) -> float | None:
        return float(number(node, "fill"))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        by, axis, fill = int(number(node, "by")), axis_index(node), number(node, "fill")
        if not self._may_be_short(node):
            return padded(g, g.arg(0), by, -by, axis, fill)
        x = padded(g, g.arg(0), max(by, 0), max(-by, 0), axis, fill)
        return g.Slice(x, [max(-by, 0)], [-by if by > 0 else END], [axis])

    def _may_be_short(self, node: OpNode) -> bool:
        """Whether there may be fewer positions than it goes by."""
        return not node.tensor(0).shape[axis_index(node)].static and abs(int(number(node, "by"))) > 1

    def states(self, node: OpNode) -> Sequence[State]:
        """The last positions; before the first one, `fill`."""
        x, axis, by = node.tensor(0), axis_index(node), number(node, "by")
        if int(by) < 0 or axis == 0:
            return ()
        return (State("last", replaced(x.shape, axis, by), x.dtype, axis),)

    def onnx_step(self, node: OpNode, g: OnnxScope, past: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        axis, rank, fill, by = axis_index(node), node.tensor(0).rank, number(node, "fill"), int(number(node, "by"))
        kind = node.tensor(0).dtype
        x, before = (g.cast(v, "int32") if kind == "bool" else v for v in (g.arg(0), past[0]))  # for `Where`
        before = before if equals(fill, 0) else g.Where(g.first, fill, before)  # a runtime feeds zeros at first
        both = g.Concat(before, g.gated(x, fill, rank, axis), axis=axis)
        y, last = g.Slice(both, [0], [-by], [axis]), g.tail(both, by, rank, axis)
        return (g.cast(y, kind), [g.cast(last, kind)]) if kind == "bool" else (y, [last])

    def torch_step(self, node: OpNode, e: TorchScope, past: Sequence[Tree]) -> tuple[Tree, Sequence[Tree]]:
        axis, by = axis_index(node), int(number(node, "by"))
        lead = ":, " * axis
        if by == 1:  # there is one new position at least
            y = e.py(f"torch.cat(({{past}}, {{0}}[{lead}:-1]), dim={{axis}})", past=past[0], axis=axis)
            return y, (e.py(f"{{0}}[{lead}-1:]"),)
        both = e.let("padded", e.py("torch.cat(({past}, {0}), dim={axis})", past=past[0], axis=axis))
        y = e.py(f"{{both}}[{lead}:{{end}}]", both=both, end=-by)
        return y, (e.py(f"{{both}}[{lead}{{start}}:]", both=both, start=-by),)

    def torch_starts(self, node: OpNode, e: TorchScope) -> Sequence[Tree | None]:
        axis, by, fill = axis_index(node), number(node, "by"), number(node, "fill")
        if equals(by, 1):
            like = "torch.zeros_like({x})" if equals(fill, 0) else "torch.full_like({x}, {fill})"
            return (e.py(like, x=e.py(f"{{0}}[{':, ' * axis}:1]"), fill=fill),)
        sizes = replaced(node.tensor(0).shape, axis, by)
        return (None if equals(fill, 0) else e.py("{0}.new_full({sizes}, {fill})", sizes=sizes, fill=fill),)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        by, fill = int(number(node, "by")), number(node, "fill")
        after = node.tensor(0).rank - 1 - axis_index(node)
        more = {} if equals(fill, 0) else {"value": fill}
        if not self._may_be_short(node):
            return e.py("F.pad({0}, {widths}, {**more})", widths=(*(0, 0) * after, by, -by), more=more)
        part = ":, " * axis_index(node) + ("{cut}:" if by < 0 else ":{cut}")
        widths = (*(0, 0) * after, max(by, 0), max(-by, 0))
        return e.py(f"F.pad({{0}}, {{widths}}, {{**more}})[{part}]", widths=widths, more=more, cut=-by)


class Pad(Primitive):
    """`before` and `after` positions more along an axis, filled with `value`: `F.pad` of PyTorch."""

    passes = 0
    fills = True
    signature = "pad(before: int = 0, after: int = 0, axis: int = 1, value: filling = 0)(x: [...]) -> [...]"
    examples = shown(
        "x -> pad(2)",
        "x -> pad(1, 2, axis: -1, value: -0.5)",
        "x -> pad(after: 3)",
        "x -> pad(1, axis: -1, value: -inf) -> softmax",
        "ids -> pad(before: 1, value: 4)  # ids: int[2, 5]",
    )

    def check(self, call: Application) -> None:
        axis_of(self, call)
        for option in ("before", "after"):
            n = call.size(option)
            if n.static and not call.holds(">=", n, 0, "`pad` only adds positions"):
                raise call.error(
                    "E0204",
                    f"`{option}` is {n}: `pad` only adds positions",
                    option=option,
                    help="cut positions off by a slice: `x[:, 1:]`",
                )
        demand_filling(call, "value")

    def build(self, call: Application) -> Sequence[Value]:
        return (
            (call.tensor(0),)
            if call.is_number(call.size("before"), 0) and call.is_number(call.size("after"), 0)
            else call.node()
        )

    def shapes(self, call: Application) -> Sequence[Shape]:
        axis = axis_of(self, call)
        size = binary("+", binary("+", call.shape(0)[axis], call.size("before")), call.size("after"))
        return (replaced(call.shape(0), axis, size),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        axis = axis_index(node)
        return (own_but(node.tensor(0).rank, axis, later(axis, number(node, "before"), -1)),)

    def certain(self, node: OpNode, k: int, i: int, axis: int, position: int, length: Lengths) -> int | None:
        before = number(node, "before")
        return None if axis != axis_index(node) or before.static else position - length(before.value)

    def absent(self, node: OpNode) -> float | None:
        return float(number(node, "value"))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        before, after = (int(n) if n.static else n for n in (number(node, "before"), number(node, "after")))
        return padded(g, g.arg(0), before, after, axis_index(node), number(node, "value"))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        after, value = node.tensor(0).rank - 1 - axis_index(node), number(node, "value")
        widths = (*(0, 0) * after, number(node, "before"), number(node, "after"))
        more = {} if equals(value, 0) else {"value": value}
        return e.py("F.pad({0}, {widths}, {**more})", widths=widths, more=more)


class Gather(Primitive):
    """What stands at the given positions along an axis, `gather(scores, chosen)`; all other axes of the two are
    equal."""

    passes = 0
    chosen = (0,)
    expression = "{0}.gather({axis}, {1})"
    typed = 0
    signature = "gather(axis: int = -1)(x: [...], positions: int[...]) -> [...]"
    examples = shown(
        "gather(x, positions)  # x: [2, 5, 8], positions: int[2, 5, 3]",
        "gather(x, positions, axis: 1)  # x: [2, 5, 8], positions: int[2, 3, 8]",
    )

    def check(self, call: Application) -> None:
        demand_like(self, call, 1, but=axis_of(self, call))

    def shapes(self, call: Application) -> Sequence[Shape]:
        return (call.shape(1),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = node.tensor(0).rank
        return own_but(rank, axis_index(node)), own_positions(rank)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.GatherElements(g.arg(0), g.arg(1, "int"), axis=axis_index(node))


class Lookup(Primitive):
    """`table[ids]`: the row of a table for every whole number; `table[:, ids]`: the column."""

    by_rows = True
    passes = 0
    chosen = (0,)
    typed = 0
    symbol = "[]"
    signature = "lookup(axis: int = 0)(table: [...], ids: int[...]) -> [...]"
    examples = shown(
        "table[ids]  # table: [5, 8], ids: int[2, 3]",
        "table[ids]  # table: [5, 2, 4], ids: int[3]",
        "table[ids]  # table: [5], ids: int[2, 3]",
        "table[:, ids]  # table: [4, 5, 3], ids: int[2, 3]",
    )

    def shapes(self, call: Application) -> Sequence[Shape]:
        table, axis = call.shape(0), axis_of(self, call)
        return ((*table[:axis], *call.shape(1), *table[axis + 1 :]),)

    def table(self, node: OpNode) -> tuple[int, Num]:
        return 1, node.tensor(0).shape[axis_index(node)]

    def reads(self, node: OpNode) -> Sequence[Reads]:
        table, ids = tensor_inputs(node, 0, 1)
        axis = axis_index(node)
        behind = range(axis + ids.rank, table.rank + ids.rank - 1)
        own = (*map(same, range(axis)), EVERYWHERE, *map(same, behind))
        return own, tuple(same(axis + i) for i in range(ids.rank))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        axis, ids, count = axis_index(node), g.arg(1), self.table(node)[1]
        if not g.varies_by_row(1):
            return g.Gather(g.arg(0), ids, axis=axis)
        last = int(count) - 1 if count.static else g.Sub(g.number(count), 1)  # where padding stands there may be no row
        rows = g.Gather(g.arg(0), g.Max(g.Min(ids, last), 0), axis=axis)
        order = [axis, *range(axis), *range(axis + 1, node.outputs[0].rank + 1)]
        return g.Transpose(rows, perm=order) if axis else rows

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py(f"{{0}}[{':, ' * axis_index(node)}{{1}}]")


class OneHot(Primitive):
    """1 at the position of each whole number along a new last axis, 0 elsewhere; of type int, so `cast(float)` it."""

    expression = "F.one_hot({0}, {classes})"
    signature = "one_hot(classes: size)(ids: int[...]) -> int[..., classes]"
    mixes = False
    examples = shown("ids -> one_hot(6)  # ids: int[2, 5]", "x * one_hot(5)(ids)  # x: [2, 3, 5], ids: int[3]")

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.OneHot(g.arg(0), number(node, "classes"), [0, 1], axis=-1)


class Scattering(AxisOp):
    """Values go to given positions along an axis. Its name is that of torch's method."""

    typed = 0
    chosen = (0, 2)
    one_type = ("x", "values")
    reduction: ClassVar[str] = "none"
    """What becomes of values that go to one place."""

    def check(self, call: Application) -> None:
        axis = axis_of(self, call)
        demand_like(self, call, 1, but=axis)
        demand_like(self, call, 2, to=1)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank, axis = node.tensor(0).rank, axis_index(node)
        return own_positions(rank), own_but(rank, axis), own_but(rank, axis)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        own = node.outputs[0].dtype
        if self.reduction != "none":
            # Sums of half precision and of truth values have no kernel.
            own = {"float": "float32", "bfloat16": "float32", "bool": "int"}.get(own, own)
        x, values = g.arg(0, own), g.arg(2, own)
        return g.ScatterElements(x, g.arg(1, "int"), values, axis=from_right(node), reduction=self.reduction)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py(f"{{0}}.{self.name}({{axis}}, {{1}}, {{2}})", axis=written(node))


class Scatter(Scattering):
    """x with the values written at the given positions, which differ, along an axis; the other axes of all are
    equal."""

    passes = 0
    signature = "scatter(axis: int = -1)(x: [...], positions: int[...], values: [...]) -> [...]"
    examples = shown(
        "scatter(x, argsort(y), y)  # x: [2, 8], y: [2, 3]",
        "scatter(x, argsort(y, axis: 1), y, axis: 1)  # x: [2, 5, 8], y: [2, 3, 8]",
    )


class ScatterAdd(Scattering):
    """x with the values added at the given positions along an axis; all three are equal in the other axes."""

    reduction = "add"
    signature = "scatter_add(axis: int = -1)(x: [...], positions: int[...], values: [...]) -> [...]"
    examples = shown(
        "scatter_add(x, positions, values)  # x: [2, 5, 8], positions: int[2, 5, 3], values: [2, 5, 3]",
        "scatter_add(x, positions, values, axis: 1)  # x: [2, 5, 8], positions: int[2, 3, 8], values: [2, 3, 8]",
    )


class Filled(Primitive):
    """A tensor of the model's own type, of the sizes `dims`, that is one number everywhere."""

    typed = "float"
    alike = True
    positional = True
    mixes = False
    passes = 0

    def check(self, call: Application) -> None:
        demand_sizes(self, call, "dims")

    def shapes(self, call: Application) -> Sequence[Shape]:
        return (call.options["dims"],)

    def constants(self, node: OpNode) -> Sequence[tuple[At, float]]:
        return ((At((), Fraction(1)), self.number(node)),)

    def number(self, node: OpNode) -> float:
        """The number that it is filled with."""
        return float(number(node, "value"))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Expand(self.scalar(node, g), node.options["dims"])

    def scalar(self, node: OpNode, g: OnnxScope) -> Any:
        """The number as a tensor."""
        return g.number(number(node, "value"), "float")


class Fill(Filled):
    """A tensor of one number everywhere, of the model's own type: `fill(0.5, batch, 8)`."""

    signature = "fill(value: number, dims: sizes) -> [...]"
    examples = shown("x + fill(0.5, 5, 8)", "concat(fill(-1, 2, 1, 8), x, axis: 1)")

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        holes = {"sizes": node.options["dims"], "value": number(node, "value")}
        made = "torch.full({sizes}, {value}, dtype={dtype}, device={device})"
        return e.py(made, **holes, dtype=e.dtype(), device=e.device())


class ConstantOp(Filled):
    """The same of a number that has a function of torch's, as a row."""

    def __init__(self, name: str, filling: float) -> None:
        self.signature = f"{name}(dims: sizes) -> [...]"
        self.filling = filling
        self.numpy = name
        self.__doc__ = f"A tensor of {name} of the model's own type: `{name}(batch, 8)`."
        texts = f"x + {name}(5, 8)", f"concat({name}(2, 1, 8), x, axis: 1)", f"x + {name}()"
        self.examples = tuple(map(Example, texts))

    def number(self, node: OpNode) -> float:
        return self.filling

    def scalar(self, node: OpNode, g: OnnxScope) -> Any:
        return g.constant(self.filling)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        sizes = node.options["dims"]
        made = f"torch.{self.name}({'{*sizes}' if sizes else '()'}, dtype={{dtype}}, device={{device}})"
        return e.py(made, sizes=sizes, dtype=e.dtype(), device=e.device())


CONSTANTS = ConstantOp("zeros", 0.0), ConstantOp("ones", 1.0)
