"""What several primitives share: types of tensors, axes given by number, and which positions are read."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from archdsl.ir.dims import (
    Num,
    Opaque,
    Poly,
    Shape,
    Symbol,
    add,
    at_least_zero,
    binary,
    div,
    is_size_like,
    mul,
    shape_text,
    shortest,
    sub,
)
from archdsl.ir.dims import Value as DimValue
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import EVERYWHERE, Application, At, OnnxScope, Parts, Primitive, Reads, same
from archdsl.ir.static import format_value, kind_of
from archdsl.ir.wording import format_name

# --- types ----------------------------------------------------------------------------------------------------------


def is_whole(n: Num) -> bool:
    """Whether Python, too, takes the number for an integer."""
    return is_size_like(n.value) if isinstance(n.value, Poly) else isinstance(n.value, int)


def equals(n: Num, value: float) -> bool:
    """Whether a number is that one, whatever its spelling."""
    return n.static and float(n) == value


CASTS = {"float": "", "float32": ".float()", "bfloat16": ".bfloat16()"}
"""What brings a weight, which is of the model's own type, to that of a result."""


# --- axes -----------------------------------------------------------------------------------------------------------


def axis_of(op: Primitive, call: Application, option: str = "axis", rank: int | None = None) -> int:
    """An axis given by number, counted from 0. Raises E0303 where there is no such axis."""
    return checked_axis(op, call, call.size(option), option, rank)


def checked_axis(op: Primitive, call: Application, n: Any, option: str, rank: int | None = None) -> int:
    if not isinstance(n, Num) or not isinstance(n.value, int):
        raise call.error(
            "E0204",
            f"an axis is a whole number that is known before the model runs, but `{option}` is {format_value(n)}",
            option=option,
        )
    count = len(call.shape(0)) if rank is None else rank
    if not -count <= n.value < count:
        made = f"the result of `{op.name}`" if rank is not None else format_name(call.tensor(0))
        shown = "" if rank is not None else f": {shape_text(call.shape(0))}"
        allowed = f"`{option}` is from {-count} to {count - 1}; " if count else ""
        raise call.error(
            "E0303",
            f"there is no axis {n.value}: {made} has {count} ax{'is' if count == 1 else 'es'}{shown}",
            option=option,
            input=None if rank is not None else 0,
            help=f"{allowed}-1 is the last axis",
        )
    return call.fixed(n) % count


def demand_sizes(op: Primitive, call: Application, option: str, least: int = 1) -> tuple[Num, ...]:
    """Several sizes. Raises E0203 for what is no number and E0204 for one that is no size."""
    found: tuple[Any, ...] = call.options[option]
    for n in found:
        if not isinstance(n, Num):
            raise call.error(
                "E0203", f"`{op.name}` takes whole numbers as `{option}`, and {kind_of(n)} was given", option=option
            )
        if n.static and not (call.is_whole(n) and call.holds(">=", n, least)):
            raise call.error(
                "E0204",
                f"`{op.name}` takes whole numbers of at least {least} as `{option}`, and {n} was given",
                option=option,
            )
    return found


def number(node: OpNode, option: str) -> Num:
    """An option that is a number."""
    value = node.options[option]
    assert isinstance(value, Num), (node.op.name, option)
    return value


def tensor_inputs(use: OpNode | Application, *which: int) -> tuple[Value, ...]:
    """Return inputs by their number, tensors."""
    found = [use.inputs[i] for i in which]
    assert all(isinstance(v, Value) for v in found), use
    return tuple(v for v in found if isinstance(v, Value))


def number_inputs(use: OpNode | Application, *which: int) -> tuple[Num, ...]:
    """Return inputs by their number, numbers."""
    found = [use.inputs[i] for i in which]
    assert all(isinstance(n, Num) for n in found), use
    return tuple(n for n in found if isinstance(n, Num))


def axis_index(node: OpNode, option: str = "axis", rank: int | None = None) -> int:
    """The axis of a node whose options were checked, counted from 0."""
    return int(number(node, option)) % (node.tensor(0).rank if rank is None else rank)


def from_right(node: OpNode, rank: int | None = None) -> int:
    """The option `axis` of a node counted from the right, as the language writes it: -1 is the last."""
    return axis_index(node, rank=rank) - (node.tensor(0).rank if rank is None else rank)


def written(node: OpNode, option: str = "axis") -> int:
    """The axis as the spec has it: -1 stays -1."""
    return int(number(node, option))


def axes_of(op: Primitive, call: Application, option: str = "axis") -> tuple[int, ...]:
    """Several axes given by number, counted from 0. Raises E0303, and E0204 where one is given twice."""
    found = tuple(checked_axis(op, call, n, option) for n in call.options[option])
    if not found:
        raise call.error("E0204", f"`{op.name}` needs at least one axis", option=option)
    if len(set(found)) < len(found):
        raise call.error("E0204", f"`{op.name}` was given one axis twice: {', '.join(map(str, found))}", option=option)
    return found


def replaced(shape: Shape, axis: int, size: Num) -> Shape:
    """The shape with another size in one position."""
    return (*shape[:axis], size, *shape[axis + 1 :])


def minus(a: Num, b: Num) -> Num:
    """`a - b`, spelled as short as it goes: `time + 4 - 4` is `time`."""
    difference = binary("-", a, b)
    return Num(difference.value, shortest(difference.expr, {}), difference.origin)


# --- conditions -----------------------------------------------------------------------------------------------------


def surely_at_most(a: Num, b: Num) -> bool:
    """Whether `a <= b` whatever the run-time sizes are, each of them at least 1."""
    difference = without_floors(sub(b.value, a.value))
    if not isinstance(difference, Poly):
        return difference >= 0
    least = Fraction(0)
    for monomial, coefficient in difference.terms:
        if monomial and (coefficient < 0 or not all(at_least_zero(atom) for atom, _ in monomial)):
            return False
        if all(isinstance(atom, Symbol) and power > 0 for atom, power in monomial):
            least += coefficient
    return least >= 0


def without_floors(value: DimValue) -> DimValue:
    """A lower bound of the value: `floor(a / n)` is at most `a / n` where it is subtracted."""
    if not isinstance(value, Poly):
        return value
    bound: DimValue = value
    for monomial, coefficient in value.terms:
        if coefficient < 0 and len(monomial) == 1 and monomial[0][1] == 1:
            atom = monomial[0][0]
            if (
                isinstance(atom, Opaque)
                and atom.function == "floor"
                and isinstance(atom.args[1], int)
                and atom.args[1] > 0
            ):
                above = sub(div(atom.args[0], atom.args[1]), Poly((((monomial), Fraction(1)),)))
                bound = add(bound, mul(coefficient, above))
    return bound


def demand_at_most(call: Application, a: Num, b: Num, message: str) -> None:
    """The condition `a <= b`, unless it holds whatever the run-time sizes are."""
    if (a.static and b.static) or not surely_at_most(a, b):
        call.condition("<=", a, b, message)
    elif not call.same(a, b, message):  # where they are, other numbers of the Config may make `a` larger
        call.keeps(a, "<=", b, message)


# --- which positions are read -----------------------------------------------------------------------------------------


def own_positions(rank: int) -> tuple[At | None, ...]:
    """Every axis at the position of the same axis of the output."""
    return tuple(same(i) for i in range(rank))


def own_but(rank: int, axis: int, read: At | None = EVERYWHERE) -> tuple[At | None, ...]:
    """The same, but for one axis."""
    return tuple(read if i == axis else same(i) for i in range(rank))


def later(axis: int, offset: Num, sign: int = 1) -> At | None:
    """`offset` positions after (sign -1: before) that of the output; one that is not known is taken for the worst."""
    if isinstance(offset.value, int):
        return same(axis, sign * offset.value)
    return same(axis) if sign < 0 else EVERYWHERE


# --- ONNX -----------------------------------------------------------------------------------------------------------


def reshaped(g: OnnxScope, x: Any, before: Shape, after: Shape) -> Any:
    """x of shape `before` as one of shape `after`. Of the sizes that only the running model knows those that stay in
    their position are copied, and one follows from all the others."""
    items: list[Any] = []
    for axis, size in enumerate(after):
        if size.static:
            items.append(int(size))
        elif axis < len(before) and size.value == before[axis].value:
            items.append(0)
        else:
            items.append(size if -1 in items else -1)
    return g.Reshape(x, items)


# --- families -------------------------------------------------------------------------------------------------------


class AxisOp(Primitive):
    """An operation along one axis that keeps the shape and reads that axis whole."""

    def check(self, call: Application) -> None:
        axis_of(self, call)

    def reads(self, node: OpNode) -> Sequence[Reads]:
        return (own_but(node.tensor(0).rank, axis_index(node)),)

    def parts(self, node: OpNode, cut: Sequence[int | None]) -> Parts | None:
        return None if len(cut) > 1 or cut[0] is None or cut[0] == axis_index(node) else Parts(cut[0])


# --- shapes that must fit -------------------------------------------------------------------------------------------


def demand_like(op: Primitive, call: Application, i: int, *, to: int = 0, but: int | None = None) -> None:
    """Input i has the axes of another, but for one axis. Raises E0302 and E0301."""
    first, other = call.shape(to), call.shape(i)
    if len(first) != len(other):
        raise call.error(
            "E0302",
            f"`{op.name}` needs tensors of as many axes, but they are {shape_text(first)} and {shape_text(other)}",
            input=i,
            help="`unsqueeze(axis)` adds an axis of size 1",
        )
    for axis, (x, y) in enumerate(zip(first, other, strict=True)):
        if axis != but and not call.same(x, y):
            raise call.error(
                "E0301",
                f"`{op.name}` needs equal axes{'' if but is None else f' but for axis {but}'}, "
                f"but axis {axis} is {x} and {y}: {shape_text(first)} and {shape_text(other)}",
                input=i,
            )


def usual(call: Application, **options: float) -> None:
    """Record options that are what torch takes where nothing is said: the emitted text leaves them out."""
    for option, value in options.items():
        call.is_number(call.size(option), value)
