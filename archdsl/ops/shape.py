"""Axes cut, merged, moved and put together."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any

from archdsl.diagnostics import did_you_mean
from archdsl.frozen import Frozen
from archdsl.ir.dims import Bin, Num, Shape, binary, num, product, shape_text
from archdsl.ir.dims import Value as DimValue
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import (
    EVERYWHERE,
    Application,
    At,
    Example,
    Lengths,
    OnnxScope,
    Parts,
    Primitive,
    Reads,
    Regrouping,
    TorchScope,
    Tree,
    same,
    shown,
)
from archdsl.ir.signature import promoted, regrouped_parts
from archdsl.ir.static import kind_of
from archdsl.ir.wording import format_name
from archdsl.ops._common import (
    axes_of,
    axis_index,
    axis_of,
    demand_like,
    demand_sizes,
    from_right,
    later,
    number,
    own_but,
    own_positions,
    replaced,
    reshaped,
    tensor_inputs,
    written,
)
from archdsl.syntax.limits import MAX_LIST


class Moving(Primitive):
    """An op that only gives numbers other axes, or other positions among them."""

    passes = 0
    keeps_branch = True
    keeps_projection = True


class Transpose(Moving):
    """Two axes, swapped."""

    moves = True
    signature = "transpose(a: int, b: int)(x: [...]) -> [...]"
    moves_axes = True
    examples = shown("x -> transpose(1, 2)", "x -> transpose(0, -1)", "(x -> transpose(2, -1)) * 2")

    def build(self, call: Application) -> Sequence[Value]:
        return (call.tensor(0),) if axis_of(self, call, "a") == axis_of(self, call, "b") else call.node()

    def shapes(self, call: Application) -> Sequence[Shape]:
        order = swapped(axis_of(self, call, "a"), axis_of(self, call, "b"), len(call.shape(0)))
        return (tuple(call.shape(0)[i] for i in order),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        return (tuple(same(i) for i in swapped(axis_index(node, "a"), axis_index(node, "b"), node.tensor(0).rank)),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Transpose(g.arg(0), perm=swapped(axis_index(node, "a"), axis_index(node, "b"), node.tensor(0).rank))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0}.transpose({a}, {b})", a=written(node, "a"), b=written(node, "b"))


def swapped(a: int, b: int, rank: int) -> list[int]:
    """All axes in order, but for two."""
    return [b if i == a else a if i == b else i for i in range(rank)]


class Permute(Moving):
    """The axes in another order, each named once: the result of `permute(0, 2, 1)` has the input's axis 2 as axis 1."""

    moves = True
    signature = "permute(axes: sizes)(x: [...]) -> [...]"
    moves_axes = True
    examples = shown("x -> permute(2, 0, 1)", "x -> permute(0, -1, 1)", "x -> permute(0, 1, 2)")

    def check(self, call: Application) -> None:
        found = axes_of(self, call, "axes")
        if len(found) != len(call.shape(0)):
            raise call.error(
                "E0302",
                f"`permute` names every axis once, but it names {len(found)} of the {len(call.shape(0))} axes "
                f"of {shape_text(call.shape(0))}",
                option="axes",
                input=0,
                help="`transpose(a, b)` swaps two axes and needs no others",
            )

    def build(self, call: Application) -> Sequence[Value]:
        found = axes_of(self, call, "axes")
        return (call.tensor(0),) if found == tuple(range(len(found))) else call.node()

    def shapes(self, call: Application) -> Sequence[Shape]:
        return (tuple(call.shape(0)[i] for i in axes_of(self, call, "axes")),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = node.tensor(0).rank
        order = [int(n) % rank for n in node.options["axes"]]
        return (tuple(same(order.index(i)) for i in range(rank)),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        rank = node.tensor(0).rank
        return g.Transpose(g.arg(0), perm=[int(n) % rank for n in node.options["axes"]])

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0}.permute({*axes})", axes=[int(n) for n in node.options["axes"]])


def demand_one(call: Application, axis: int, what: str, help: str) -> None:
    """Refuse an axis of another size than 1. Raises E0301."""
    if not call.is_number(call.shape(0)[axis], 1):
        raise call.error(
            "E0301",
            f"{what} an axis of size 1, but axis {call.size('axis')} of {shape_text(call.shape(0))} "
            f"is {call.shape(0)[axis]}",
            option="axis",
            input=0,
            help=help,
        )


class Squeeze(Moving):
    """An axis of size 1 is left out."""

    by_rows = True
    moves = True
    expression = "{0}.squeeze({axis})"
    signature = "squeeze(axis: int)(x: [...]) -> [...]"
    examples = shown("x -> squeeze(1)  # x: [2, 1, 8]", "x -> squeeze(-1)  # x: [2, 5, 1]")

    def check(self, call: Application) -> None:
        demand_one(call, axis_of(self, call), "`squeeze` leaves out", "to take one place of the axis write `x[:, 0]`")

    def shapes(self, call: Application) -> Sequence[Shape]:
        axis = axis_of(self, call)
        return ((*call.shape(0)[:axis], *call.shape(0)[axis + 1 :]),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        axis = axis_index(node)
        return (tuple(At() if i == axis else same(i - (i > axis)) for i in range(node.tensor(0).rank)),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Squeeze(g.arg(0), [from_right(node)])


class Unsqueeze(Moving):
    """A new axis of size 1, which is `axis` of the result."""

    by_rows = True
    moves = True
    expression = "{0}.unsqueeze({axis})"
    signature = "unsqueeze(axis: int)(x: [...]) -> [...]"
    examples = shown("x -> unsqueeze(1)", "x -> unsqueeze(-1)", "x -> unsqueeze(0)  # x: [5]")

    def shapes(self, call: Application) -> Sequence[Shape]:
        shape = call.shape(0)
        axis = axis_of(self, call, rank=len(shape) + 1)
        return ((*shape[:axis], num(1), *shape[axis:]),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = node.tensor(0).rank
        axis = axis_index(node, rank=rank + 1)
        return (tuple(same(i + (i >= axis)) for i in range(rank)),)

    def is_projection(self, node: OpNode) -> bool:
        return axis_index(node, rank=node.outputs[0].rank) < node.outputs[0].rank - 1

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Unsqueeze(g.arg(0), [from_right(node, rank=node.outputs[0].rank)])


class Expand(Moving):
    """An axis of size 1 read as one of `size`: the same at every position, without a copy."""

    moves = True
    positional = True
    neutral = ("size", 1)
    signature = "expand(axis: int, size: size)(x: [...]) -> [...]"
    examples = shown("x -> expand(1, 4)  # x: [2, 1, 5, 8]", "x -> unsqueeze(-1) -> expand(-1, 3)")

    def check(self, call: Application) -> None:
        demand_one(
            call,
            axis_of(self, call),
            "`expand` needs",
            "`repeat` and `tile` repeat axes of any size; `unsqueeze(axis)` makes a new one of size 1",
        )

    def shapes(self, call: Application) -> Sequence[Shape]:
        return (replaced(call.shape(0), axis_of(self, call), call.size("size")),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        return (own_but(node.tensor(0).rank, axis_index(node), At()),)

    def is_projection(self, node: OpNode) -> bool:
        return axis_index(node) < node.tensor(0).rank - 2

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Expand(g.arg(0), [number(node, "size"), *[1] * (-from_right(node) - 1)])

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        sizes: list[Any] = [-1] * node.tensor(0).rank
        sizes[axis_index(node)] = number(node, "size")
        return e.py("{0}.expand({*sizes})", sizes=sizes)


class Repeating(Primitive):
    """An axis of `times` as many positions."""

    passes = 0
    neutral = ("times", 1)

    def check(self, call: Application) -> None:
        axis_of(self, call)

    def shapes(self, call: Application) -> Sequence[Shape]:
        axis = axis_of(self, call)
        return (replaced(call.shape(0), axis, binary("*", call.shape(0)[axis], call.size("times"))),)


class Repeat(Repeating):
    """Every position along an axis `times` times, one after the other: a b becomes a a b b."""

    keeps_projection = True
    expression = "{0}.repeat_interleave({times}, dim={axis})"
    signature = "repeat(times: size, axis: int = 1)(x: [...]) -> [...]"
    examples = shown("x -> repeat(3)", "x -> repeat(2, axis: -1)")

    def reads(self, node: OpNode) -> Sequence[Reads]:
        axis, times = axis_index(node), number(node, "times")
        scale = Fraction(1, times.value) if isinstance(times.value, int) else Fraction(1)
        return (own_but(node.tensor(0).rank, axis, At(((axis, scale),))),)

    def parts(self, node: OpNode, cut: Sequence[int | None]) -> Parts | None:
        return None if cut[0] is None else Parts(cut[0])

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x, axis, times = node.tensor(0), axis_index(node), number(node, "times")
        y = g.Expand(g.Unsqueeze(g.arg(0), [axis + 1]), [times, *[1] * (x.rank - axis - 1)])
        return reshaped(g, y, (*x.shape[: axis + 1], times, *x.shape[axis + 1 :]), node.outputs[0].shape)


class Tile(Repeating):
    """An axis `times` times in a row: a b becomes a b a b."""

    signature = "tile(times: size, axis: int = 1)(x: [...]) -> [...]"
    examples = shown("x -> tile(3)", "x -> tile(2, axis: -1)")

    def reads(self, node: OpNode) -> Sequence[Reads]:
        # Position t reads t modulo the size, which is never later.
        return (own_positions(node.tensor(0).rank),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        counts: list[Any] = [1] * node.tensor(0).rank
        counts[axis_index(node)] = number(node, "times")
        return g.Tile(g.arg(0), counts)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        counts: list[Num | int] = [1] * node.tensor(0).rank
        counts[axis_index(node)] = number(node, "times")
        return e.py("{0}.repeat({*counts})", counts=counts)


class Regrouped(Moving, ABC):
    """An op that only cuts, moves and merges axes: what it reads and its ONNX follow from how it regroups them."""

    @abstractmethod
    def regroups(self, node: OpNode) -> Regrouping: ...

    def reads(self, node: OpNode) -> Sequence[Reads]:
        how = self.regroups(node)
        return (tuple(latest(how, axis) for axis in range(len(how.cuts))),)

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        how, y, shape = self.regroups(node), g.arg(0), node.tensor(0).shape
        units = [(axis, k) for axis, cut in enumerate(how.cuts) for k in range(len(cut))]
        moved = [unit for group in how.axes for unit in group]
        if any(len(cut) != 1 for cut in how.cuts):
            y = reshaped(g, y, shape, tuple(how.cuts[axis][k] for axis, k in units))
        if units != moved:
            y = g.Transpose(y, perm=[units.index(unit) for unit in moved])
        if any(len(group) != 1 for group in how.axes):
            y = reshaped(g, y, tuple(how.cuts[axis][k] for axis, k in moved), node.outputs[0].shape)
        return y


def latest(how: Regrouping, axis: int) -> At | None:
    """The latest position that is read along an axis of the input."""
    axes: dict[int, Fraction] = {}
    offset = Fraction(0)
    cuts = how.cuts[axis]
    for k, size in enumerate(cuts):
        step = product(cuts[k + 1 :]).value
        out, group = next((i, group) for i, group in enumerate(how.axes) if (axis, k) in group)
        if not isinstance(step, int):
            return EVERYWHERE
        if group[0] == (axis, k):
            # The slowest unit of its axis: the position divided by the rest.
            inner = product(how.cuts[i][j] for i, j in group[1:]).value
            part = Fraction(step, inner) if isinstance(inner, int) else Fraction(step)
            axes[out] = axes.get(out, Fraction(0)) + part
        elif isinstance(size.value, int):
            offset += step * (size.value - 1)
        else:
            return EVERYWHERE
    return At(tuple(axes.items()), offset)


class Flatten(Regrouped):
    """The axes from `first` to `last` become one: of [a, b, c, d], `flatten(2)` makes [a, b, c * d]."""

    signature = "flatten(first: int = 1, last: int = -1)(x: [...]) -> [...]"
    examples = shown(
        "x -> flatten(2)  # x: [2, 3, 4, 5]",
        "x -> flatten  # x: [2, 3, 4]",
        "x -> flatten(0, 1)",
        "x -> flatten(-3, -2)  # x: [2, 3, 4, 5]",
    )

    def check(self, call: Application) -> None:
        first, last = axis_of(self, call, "first"), axis_of(self, call, "last")
        if first > last:
            raise call.error(
                "E0204",
                f"`flatten` goes from axis {first} to axis {last}, which comes before it: {shape_text(call.shape(0))}",
                option="first",
                input=0,
            )

    def build(self, call: Application) -> Sequence[Value]:
        return (call.tensor(0),) if axis_of(self, call, "first") == axis_of(self, call, "last") else call.node()

    def shapes(self, call: Application) -> Sequence[Shape]:
        shape = call.shape(0)
        first, last = axis_of(self, call, "first"), axis_of(self, call, "last")
        return ((*shape[:first], product(shape[first : last + 1]), *shape[last + 1 :]),)

    def regroups(self, node: OpNode) -> Regrouping:
        x = node.tensor(0)
        first, last = axis_index(node, "first"), axis_index(node, "last")
        axes = [*range(first), tuple(range(first, last + 1)), *range(last + 1, x.rank)]
        return Regrouping(
            tuple((d,) for d in x.shape),
            tuple(tuple((i, 0) for i in (a if isinstance(a, tuple) else (a,))) for a in axes),
        )

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        axes = (written(node, "first"), written(node, "last"))
        return e.py("{0}.flatten({*axes})", axes=axes[:1] if axes[1] == -1 else axes)


class Unflatten(Regrouped):
    """An axis cut into several whose sizes multiply to it, the last of them running fastest: `unflatten(-1, 4, 16)`."""

    signature = "unflatten(axis: int, sizes: sizes)(x: [...]) -> [...]"
    examples = shown("x -> unflatten(-1, 4, 2)", "x -> unflatten(1, 2, 3)  # x: [2, 6, 4]")

    def check(self, call: Application) -> None:
        size = call.shape(0)[axis_of(self, call)]
        sizes = demand_sizes(self, call, "sizes")
        if len(sizes) < 2:
            raise call.error(
                "E0204",
                "`unflatten` cuts an axis into at least two",
                option="sizes",
                help=f"give sizes whose product is {size}",
            )
        total = product(sizes)
        if total.static and size.static and total.value != size.value:
            raise call.error(
                "E0301",
                f"the sizes do not make the axis: {' * '.join(map(str, sizes))} = {total}, but the axis is {size}",
                option="sizes",
                input=0,
            )
        call.condition("==", total, size, "the sizes of `unflatten` multiply to the axis")

    def shapes(self, call: Application) -> Sequence[Shape]:
        axis, shape = axis_of(self, call), call.shape(0)
        return ((*shape[:axis], *call.options["sizes"], *shape[axis + 1 :]),)

    def regroups(self, node: OpNode) -> Regrouping:
        x, axis, sizes = node.tensor(0), axis_index(node), node.options["sizes"]
        cuts = tuple(tuple(sizes) if i == axis else (d,) for i, d in enumerate(x.shape))
        return Regrouping(cuts, tuple(((i, k),) for i, cut in enumerate(cuts) for k in range(len(cut))))

    def parts(self, node: OpNode, cut: Sequence[int | None]) -> Parts | None:
        return regrouped_parts(self, node, cut, node.options["sizes"][:1] if cut[0] == axis_index(node) else ())

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0}.unflatten({axis}, {sizes})", axis=written(node), sizes=node.options["sizes"])


class SplitHeads(Regrouped):
    """[batch, time, heads * head_dim] to [batch, heads, time, head_dim]: the last axis is cut into `heads` equal
    parts."""

    signature = "split_heads(heads: size)(x: [..., time, width]) -> [..., heads, time, head_dim]"
    mixes = False
    examples = shown("x -> split_heads(4)", "x -> split_heads(2)  # x: [5, 8]")

    def shapes(self, call: Application) -> Sequence[Shape]:
        heads, width = call.size("heads"), call.axes["width"]
        call.condition("%", width, heads, "the width must be a multiple of heads")
        *rest, time, _ = call.shape(0)
        head_dim = binary("/", width, heads)
        if isinstance(width.expr, Bin) and width.expr.op == "*" and width.expr.left == heads.expr:
            head_dim = Num(head_dim.value, width.expr.right, head_dim.origin)  # `heads * size`
        return ((*rest, heads, time, head_dim),)

    def regroups(self, node: OpNode) -> Regrouping:
        *rest, heads, time, head_dim = node.outputs[0].shape
        last = len(rest) + 1
        cuts = (*((d,) for d in rest), (time,), (heads, head_dim))
        return Regrouping(cuts, (*(((i, 0),) for i in range(len(rest))), ((last, 0),), ((last - 1, 0),), ((last, 1),)))

    def parts(self, node: OpNode, cut: Sequence[int | None]) -> Parts | None:
        return regrouped_parts(self, node, cut)

    def is_projection(self, node: OpNode) -> bool:
        return True

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        rank = node.outputs[0].rank
        head_dim, axes = node.outputs[0].shape[-1], (rank - 3, rank - 2)
        return e.py("{0}.unflatten(-1, (-1, {head_dim})).transpose({*axes})", head_dim=head_dim, axes=axes)


class MergeHeads(Regrouped):
    """[batch, heads, time, head_dim] to [batch, time, heads * head_dim]: the heads side by side in the last axis."""

    signature = "merge_heads()(x: [..., heads, time, head_dim]) -> [..., time, width]"
    mixes = False
    examples = shown("x -> merge_heads  # x: [2, 4, 5, 3]", "x -> merge_heads  # x: [4, 5, 3]")

    def shapes(self, call: Application) -> Sequence[Shape]:
        *rest, heads, time, head_dim = call.shape(0)
        return ((*rest, time, binary("*", heads, head_dim)),)

    def regroups(self, node: OpNode) -> Regrouping:
        x = node.tensor(0)
        rest = x.rank - 3
        axes = (*(((i, 0),) for i in range(rest)), ((rest + 1, 0),), ((rest, 0), (rest + 2, 0)))
        return Regrouping(tuple((d,) for d in x.shape), axes)

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        if node.tensor(0).rank == 4:
            return e.py("{0}.transpose(1, 2).flatten(2)")
        return e.py("{0}.transpose(-3, -2).flatten(-2)")


Group = tuple[str, ...]
"""The names that one axis is made of, the last of them running fastest: `(n p)`; none where the axis has size 1."""


class Rearrange(Regrouped):
    """Axes cut, moved and merged, as in einops: `rearrange("b (n p) d -> b n (p d)", p: 4)`.

    `(n p)` is an axis of n * p positions, p running fastest; `1` an axis of size 1; `...` axes that stay together.
    Every name stands once on each side. Of the names in one pair of parentheses at most one size may be left out."""

    signature = "rearrange(pattern: string, sizes: named_sizes)(x: [...]) -> [...]"
    examples = shown(
        'x -> rearrange("b (n p) d -> b n (p d)", p: 3)  # x: [2, 6, 4]',
        'x -> rearrange("b c (h p) (w q) -> b (h w) (p q c)", p: 2, q: 2)  # x: [2, 3, 4, 6]',
        'x -> rearrange("b t (h d) -> b h t d", h: 4)',
        'x -> rearrange("b h t d -> b t (h d)")  # x: [2, 4, 5, 3]',
        'x -> rearrange("b 1 d -> d b 1")  # x: [2, 1, 8]',
        'x -> rearrange("... t d -> ... d t")',
        'x -> rearrange("b n (p d) -> b (n p) d", p: 2)',
        'x -> rearrange("b (n p) d -> b (p n) d", n: 2, p: 3)  # x: [2, 6, 4]',
        '(x -> rearrange("b t d -> b t d")) + 1',
    )

    def check(self, call: Application) -> None:
        pattern, sizes = call.options["pattern"], named(call.options)
        sides = [side(text) for text in pattern.split("->")]
        if len(sides) != 2 or None in sides:
            raise call.error(
                "E0204",
                f'"{pattern}" cannot be read: it is axes, `->`, axes, each a name, `1`, `...` or names in parentheses',
                option="pattern",
                help='for example "b (n p) d -> b n (p d)"',
            )
        left, right = (s for s in sides if s is not None)
        self.check_names(call, left, right)
        rank = len(call.shape(0))
        stated = sum(g != ("...",) for g in left)
        if rank < stated or (rank > stated and ("...",) not in left):
            raise call.error(
                "E0302",
                f'"{pattern}" begins with {stated} axes, but {format_name(call.tensor(0))} has {rank}: '
                f"{shape_text(call.shape(0))}",
                input=0,
            )
        for group, size in zip(spread(left, rank), call.shape(0), strict=True):
            self.check_size(call, group, size, sizes)

    def check_names(self, call: Application, left: Sequence[Group], right: Sequence[Group]) -> None:
        before, after = ([n for group in groups for n in group] for groups in (left, right))
        for names, where in ((before, "left"), (after, "right")):
            for name in names:
                if names.count(name) > 1:
                    raise call.error("E0204", f"`{name}` stands twice on the {where}", option="pattern")
        for name in before:
            if name not in after:
                raise call.error(
                    "E0204",
                    f"`{name}` is missing on the right: `rearrange` keeps every number",
                    option="pattern",
                    help="`sum`, `mean` and `max` reduce an axis",
                )
        for name in after:
            if name not in before:
                raise call.error(
                    "E0204",
                    f"`{name}` is missing on the left: `rearrange` makes no new positions",
                    option="pattern",
                    help=did_you_mean(name, before) or "`expand`, `repeat` and `tile` repeat an axis",
                )
        for name, size in named(call.options).items():
            if not isinstance(size, Num):
                raise call.error(
                    "E0203", f"`{name}` is the size of an axis, and {kind_of(size)} was given", option=name
                )
            if size.static and not (call.is_whole(size) and call.holds(">=", size, 1)):
                raise call.error(
                    "E0204",
                    f"`{name}` is the size of an axis, a whole number of at least 1, and {size} was given",
                    option=name,
                )
            if name not in before:
                raise call.error(
                    "E0201",
                    f"`{name}` is no axis of the pattern",
                    option=name,
                    help=did_you_mean(name, before),
                )

    def check_size(self, call: Application, group: Group, size: Num, sizes: Mapping[str, Num]) -> None:
        free = [n for n in group if n not in sizes]
        if len(free) > 1 and len(group) > 1:
            raise call.error(
                "E0204",
                f"the sizes of {' and '.join(f'`{n}`' for n in free)} cannot be found: only their product is known",
                option="pattern",
                help=f"give all but one: `{free[-1]}: …`",
            )
        known = product(sizes[n] for n in group if n in sizes)
        shown = f"({' '.join(group)})" if len(group) > 1 else f"`{group[0]}`" if group else "`1`"
        if free:
            call.condition("%", size, known, f"the axis {shown} of `rearrange` is cut into equal parts")
        elif known.static and size.static and known.value != size.value:
            raise call.error(
                "E0301",
                f"{shown} has the size {known} here, but the axis is {size}: {shape_text(call.shape(0))}",
                input=0,
            )
        else:
            call.condition("==", known, size, f"the axis {shown} of `rearrange` has the sizes given")

    def build(self, call: Application) -> Sequence[Value]:
        plan = planned(call.options, call.shape(0))
        return (call.tensor(0),) if plan.left == plan.right else call.node()

    def shapes(self, call: Application) -> Sequence[Shape]:
        plan = planned(call.options, call.shape(0))
        return (tuple(product(plan.sizes[n] for n in group) for group in plan.right),)

    def regroups(self, node: OpNode) -> Regrouping:
        plan = planned(node.options, node.tensor(0).shape)
        found = {name: (axis, k) for axis, group in enumerate(plan.left) for k, name in enumerate(group)}
        return Regrouping(
            tuple(tuple(plan.sizes[n] for n in group) for group in plan.left),
            tuple(tuple(found[n] for n in group) for group in plan.right),
        )

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        plan = planned(node.options, node.tensor(0).shape)
        y = e.input(0)
        for axis in reversed(range(len(plan.left))):
            group = plan.left[axis]
            if not group:
                y = e.py("{y}.squeeze({axis})", y=y, axis=axis)
            elif len(group) > 1:
                free = plan.free(group)
                sizes = [-1 if n == free else plan.sizes[n] for n in group]
                y = e.py("{y}.unflatten({axis}, {sizes})", y=y, axis=axis, sizes=sizes)
        before, after = ([n for group in groups for n in group] for groups in (plan.left, plan.right))
        order = [before.index(n) for n in after]
        moved = [i for i, n in enumerate(order) if i != n]
        if len(moved) == 2:
            y = e.py("{y}.transpose({*moved})", y=y, moved=moved)
        elif moved:
            y = e.py("{y}.permute({*order})", y=y, order=order)
        for axis in reversed(range(len(plan.right))):
            group = plan.right[axis]
            start = sum(len(g) for g in plan.right[:axis])
            if not group:
                y = e.py("{y}.unsqueeze({start})", y=y, start=start)
            elif len(group) > 1:
                end = () if axis == len(plan.right) - 1 else (start + len(group) - 1,)
                y = e.py("{y}.flatten({start}, {*end})", y=y, start=start, end=end)
        return y


def side(text: str) -> list[Group] | None:
    """One side of a pattern, an axis each; None where it cannot be read."""
    groups: list[Group] = []
    for token in re.findall(r"\([^()]*\)|[A-Za-z_]\w*|\.\.\.|1\b|\S", text, re.ASCII):
        if len(token) > 1 and token[0] == "(":
            names = token[1:-1].split()
            if not all(n == "1" or (n.isidentifier() and n.isascii()) for n in names):
                return None
            groups.append(tuple(n for n in names if n != "1"))
        elif token == "1":
            groups.append(())
        elif token == "..." or token.isidentifier():
            groups.append((token,))
        else:
            return None
    return groups


def named(options: Mapping[str, Any]) -> Mapping[str, Num]:
    sizes: Mapping[str, Num] = options["sizes"] or {}
    return sizes


def spread(groups: Sequence[Group], rank: int) -> list[Group]:
    """`...` as axes with names of their own."""
    count = rank - len(groups) + 1
    return [g for group in groups for g in ([(f"...{i}",) for i in range(count)] if group == ("...",) else [group])]


class RearrangePlan(Frozen):
    """Axes before and after as groups of units that stay together, and their sizes."""

    left: list[Group]
    right: list[Group]
    sizes: Mapping[str, Num]
    given: frozenset[str]
    """Units whose size the spec says."""

    def free(self, group: Group) -> str | None:
        """The unit whose size follows from the others."""
        return next((n for n in group if n not in self.given), None)


def planned(options: Mapping[str, Any], shape: Shape) -> RearrangePlan:
    """The plan of a pattern that was checked."""
    before, after = ([*(side(text) or ())] for text in options["pattern"].split("->"))
    left = spread(before, len(shape))
    right = spread(after, len(shape) - len(before) + len(after))
    given = named(options)
    sizes: dict[str, Num] = {}
    for group, size in zip(left, shape, strict=True):
        known = product(given[n] for n in group if n in given)
        for name in group:
            sizes[name] = size if len(group) == 1 else given[name] if name in given else binary("/", size, known)
    # Neighbours on both sides are one unit: they need not be cut.
    follows = {(a, b) for group in right for a, b in pairwise(group)}
    unit: dict[str, str] = {}
    for group in left:
        for a, b in zip((None, *group), group, strict=False):
            unit[b] = unit[a] if a is not None and (a, b) in follows else b
    members: dict[str, list[str]] = {}
    for name, head in unit.items():
        members.setdefault(head, []).append(name)
    merged = {head: product(sizes[n] for n in names) for head, names in members.items()}
    said = frozenset(head for head, names in members.items() if all(n in given for n in names))
    return RearrangePlan(
        [tuple(n for n in group if unit[n] == n) for group in left],
        [tuple(n for n in group if unit[n] == n) for group in right],
        merged,
        said,
    )


class Concat(Primitive):
    """Tensors one after the other along an axis; all other axes are equal."""

    keeps_projection = True
    joins = True
    passes = 0
    expression = "torch.cat(({*inputs},), dim={axis})"
    signature = "concat(axis: int = -1)(x: [...]) -> [...]"
    variadic = True
    examples = shown(
        "concat(x, y)  # x: [2, 5, 8], y: [2, 5, 3]",
        "concat(x, y, x, axis: 1)  # x: [2, 5, 8], y: [2, 3, 8]",
        "concat(x, axis: 1)",
        "concat(ids, ids)  # ids: int[2, 5]",
    )

    def check(self, call: Application) -> None:
        axis = axis_of(self, call)
        for i in range(1, len(call.inputs)):
            demand_like(self, call, i, but=axis)

    def build(self, call: Application) -> Sequence[Value]:
        return (call.tensor(0),) if len(call.inputs) == 1 else call.node()

    def shapes(self, call: Application) -> Sequence[Shape]:
        axis = axis_of(self, call)
        size = call.shape(0)[axis]
        for i in range(1, len(call.inputs)):
            size = binary("+", size, call.shape(i)[axis])
        return (replaced(call.shape(0), axis, size),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank, axis = node.tensor(0).rank, axis_index(node)
        reads: list[Reads] = []
        before = num(0)
        for value in tensor_inputs(node, *range(len(node.inputs))):
            alone = value.shape[axis].value == 1
            reads.append(own_but(rank, axis, At() if alone else later(axis, before, -1)))
            before = binary("+", before, value.shape[axis])
        return reads

    def certain(self, node: OpNode, k: int, i: int, axis: int, position: int, length: Lengths) -> int | None:
        if axis != axis_index(node):
            return None
        return position - sum(length(v.shape[axis].value) for v in tensor_inputs(node, *range(i)))

    def taken_from(self, node: OpNode, index: Sequence[int | None], length: Lengths) -> int | None:
        axis = axis_index(node)
        position = index[axis - node.outputs[0].rank]
        if position is None:
            return None
        ends = accumulate(length(v.shape[axis].value) for v in tensor_inputs(node, *range(len(node.inputs))))
        return next((i for i, end in enumerate(ends) if position < end), None)

    def parts(self, node: OpNode, cut: Sequence[int | None]) -> Parts | None:
        """Of tensors that are whole each device takes its own part of the axis."""
        axes = {axis for axis in cut if axis is not None}
        if len(axes) != 1 or axis_index(node) in axes:
            return None
        (axis,) = axes
        return Parts(axis, own={i: axis for i, found in enumerate(cut) if found is None})

    def is_projection(self, node: OpNode) -> bool:
        return axis_index(node, rank=node.outputs[0].rank) == node.outputs[0].rank - 1

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        return g.Concat(*g.args(), axis=from_right(node))


class Stack(Primitive):
    """Tensors of one shape side by side along a new axis."""

    passes = 0
    expression = "torch.stack(({*inputs},), dim={axis})"
    signature = "stack(axis: int = 1)(x: [...]) -> [...]"
    variadic = True
    examples = shown("stack(x, y)  # x: [2, 5, 8], y: [2, 5, 8]", "stack(x, y, x, axis: -1)  # x: [2, 5], y: [2, 5]")

    def check(self, call: Application) -> None:
        axis_of(self, call, rank=len(call.shape(0)) + 1)
        for i in range(1, len(call.inputs)):
            demand_like(self, call, i)

    def shapes(self, call: Application) -> Sequence[Shape]:
        shape = call.shape(0)
        axis = axis_of(self, call, rank=len(shape) + 1)
        return ((*shape[:axis], num(len(call.inputs)), *shape[axis:]),)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        rank = node.tensor(0).rank
        axis = axis_index(node, rank=rank + 1)
        return (tuple(same(i + (i >= axis)) for i in range(rank)),) * len(node.inputs)

    def taken_from(self, node: OpNode, index: Sequence[int | None], length: Callable[[DimValue], int]) -> int | None:
        rank = node.outputs[0].rank
        return index[axis_index(node, rank=rank) - rank]

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        rank = node.outputs[0].rank
        axis = from_right(node, rank=rank)
        return g.Concat(*(g.Unsqueeze(x, [axis]) for x in g.args()), axis=axis)


class Cutting(Primitive, ABC):
    """An axis cut into parts, a result each."""

    passes = 0
    moves = True
    keeps_projection = True

    @abstractmethod
    def before(self, node: OpNode, result: int) -> Num:
        """How many positions are before those of a result."""

    def reads(self, node: OpNode) -> Sequence[Reads]:
        """One bound for all results: that of the last, which reads the latest positions."""
        return self.reads_of(node, len(node.outputs) - 1)

    def reads_of(self, node: OpNode, result: int) -> Sequence[Reads]:
        axis = axis_index(node)
        return (own_but(node.tensor(0).rank, axis, later(axis, self.before(node, result))),)

    def certain(self, node: OpNode, k: int, i: int, axis: int, position: int, length: Lengths) -> int | None:
        """Return the position that a part behind others of run-time sizes is cut from."""
        before = self.before(node, k)
        return None if axis != axis_index(node) or before.static else length(before.value) + position


class Split(Cutting):
    """An axis cut into parts of the given sizes, which add up to it: as many results as sizes."""

    signature = "split(sizes: sizes, axis: int = -1)(x: [...]) -> [...]"
    examples = (
        Example("b, a", statements="a, b = x -> split(3, 5)"),
        Example("a, b, c", statements="a, b, c = x -> split(1, 2, 2, axis: 1)"),
        Example("x -> split(8)"),
    )

    def check(self, call: Application) -> None:
        size = call.shape(0)[axis_of(self, call)]
        sizes = demand_sizes(self, call, "sizes", least=0)
        if not sizes:
            raise call.error(
                "E0204",
                "`split` needs the sizes of the parts",
                help=f"they add up to {size}; `chunk(parts)` cuts into equal parts",
            )
        total = added(sizes)
        if total.static and size.static and total.value != size.value:
            shown = " + ".join(str(n) for n in sizes) + ("" if len(sizes) == 1 else f" = {total}")
            raise call.error(
                "E0301",
                f"the parts do not add up to the axis: {shown}, but the axis is {size}",
                option="sizes",
                input=0,
                help="`chunk(parts)` cuts an axis into equal parts",
            )
        call.condition("==", total, size, "the parts of `split` add up to the axis")

    def build(self, call: Application) -> Sequence[Value]:
        return (call.tensor(0),) if len(call.options["sizes"]) == 1 else call.node()

    def shapes(self, call: Application) -> Sequence[Shape]:
        axis = axis_of(self, call)
        return [replaced(call.shape(0), axis, n) for n in call.options["sizes"]]

    def dtypes(self, call: Application) -> Sequence[str]:
        return (promoted(call.inputs),) * len(call.options["sizes"])

    def before(self, node: OpNode, result: int) -> Num:
        return added(node.options["sizes"][:result])

    def parts(self, node: OpNode, cut: Sequence[int | None]) -> Parts | None:
        return None if cut[0] is None or cut[0] == axis_index(node) else Parts(cut[0])

    def is_projection(self, node: OpNode) -> bool:
        return axis_index(node) == node.tensor(0).rank - 1

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        sizes = node.options["sizes"]
        return g.Split(g.arg(0), sizes, axis=from_right(node), outputs=len(sizes))

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        return e.py("{0}.split({sizes}, dim={axis})", sizes=node.options["sizes"], axis=written(node))


def added(sizes: Sequence[Num]) -> Num:
    """Their sum."""
    total = num(0)
    for n in sizes:
        total = binary("+", total, n)
    return total


class Chunk(Cutting):
    """An axis cut into equal parts: as many results as parts."""

    expression = "{0}.chunk({parts}, dim={axis})"
    neutral = ("parts", 1)
    signature = "chunk(parts: size, axis: int = -1)(x: [...]) -> [...]"
    examples = (
        Example("b, a", statements="a, b = x -> chunk(2)"),
        Example("a, b, c", "x: [2, 6, 4]", statements="a, b, c = x -> chunk(3, axis: 1)"),
    )

    def check(self, call: Application) -> None:
        size, parts = call.shape(0)[axis_of(self, call)], call.size("parts")
        if not isinstance(parts.value, int) or parts.value > MAX_LIST:
            raise call.error(
                "E0204",
                f"`chunk` makes a known number of parts, at most {MAX_LIST}, but `parts` is {parts}",
                option="parts",
            )
        call.fixed(parts)
        call.condition("%", size, parts, "`chunk` cuts into equal parts")

    def shapes(self, call: Application) -> Sequence[Shape]:
        axis, parts = axis_of(self, call), call.size("parts")
        return (replaced(call.shape(0), axis, binary("/", call.shape(0)[axis], parts)),) * int(parts)

    def dtypes(self, call: Application) -> Sequence[str]:
        return (promoted(call.inputs),) * int(call.size("parts"))

    def before(self, node: OpNode, result: int) -> Num:
        axis = axis_index(node)
        if result == len(node.outputs) - 1:
            return binary("-", node.tensor(0).shape[axis], node.outputs[0].shape[axis])
        return binary("*", node.outputs[0].shape[axis], num(result))

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        count = len(node.outputs)
        return g.Split(g.arg(0), axis=from_right(node), num_outputs=count, outputs=count)
