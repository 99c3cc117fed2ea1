"""`rearrange`"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

from archdsl.diagnostics import did_you_mean
from archdsl.ir.dims import Num, Shape, binary, product, shape_text
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.op import (
    EVERYWHERE,
    Application,
    At,
    Example,
    OnnxScope,
    Primitive,
    Reads,
    Regrouping,
    TorchScope,
    Tree,
)
from archdsl.ir.static import kind_of
from archdsl.ir.wording import called
from archdsl.ops._common import first_input, reshaped

Group = tuple[str, ...]
"""The names that one axis is made of, the last of them running fastest: `(n p)`; none where the axis has size 1."""


class Rearrange(Primitive):
    """Axes cut, moved and merged, as in einops: `rearrange("b (n p) d -> b n (p d)", p: 4)`.

    `(n p)` is an axis of n * p positions, p running fastest; `1` an axis of size 1; `...` axes that stay together.
    Every name stands once on each side. Of the names in one pair of parentheses at most one size may be left out."""

    passes = 0
    signature = "rearrange(pattern: string, sizes: named_sizes)(x: [...]) -> [...]"
    examples = (
        Example('x -> rearrange("b (n p) d -> b n (p d)", p: 3)', "x: [2, 6, 4]"),
        Example('x -> rearrange("b c (h p) (w q) -> b (h w) (p q c)", p: 2, q: 2)', "x: [2, 3, 4, 6]"),
        Example('x -> rearrange("b t (h d) -> b h t d", h: 4)'),
        Example('x -> rearrange("b h t d -> b t (h d)")', "x: [2, 4, 5, 3]"),
        Example('x -> rearrange("b 1 d -> d b 1")', "x: [2, 1, 8]"),
        Example('x -> rearrange("... t d -> ... d t")'),
        Example('x -> rearrange("b n (p d) -> b (n p) d", p: 2)'),
        Example('x -> rearrange("b (n p) d -> b (p n) d", n: 2, p: 3)', "x: [2, 6, 4]"),
        Example('(x -> rearrange("b t d -> b t d")) + 1'),
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
                f'"{pattern}" begins with {stated} axes, but {called(call.tensor(0))} has {rank}: '
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
                    f"`{name}` is missing on the left: `rearrange` makes no new places",
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

    def reads(self, node: OpNode) -> Sequence[Reads]:
        plan = planned(node.options, first_input(node).shape)
        return (tuple(plan.read(group) for group in plan.left),)

    def regroups(self, node: OpNode) -> Regrouping:
        plan = planned(node.options, first_input(node).shape)
        found = {name: (axis, k) for axis, group in enumerate(plan.left) for k, name in enumerate(group)}
        return Regrouping(
            tuple(tuple(plan.sizes[n] for n in group) for group in plan.left),
            tuple(tuple(found[n] for n in group) for group in plan.right),
        )

    def onnx(self, node: OpNode, g: OnnxScope) -> Any:
        x = first_input(node)
        plan = planned(node.options, x.shape)
        before, after = ([n for group in groups for n in group] for groups in (plan.left, plan.right))
        y = g.arg(0)
        if any(len(group) != 1 for group in plan.left):
            y = reshaped(g, y, x.shape, tuple(plan.sizes[n] for n in before))
        if before != after:
            y = g.Transpose(y, perm=[before.index(n) for n in after])
        if any(len(group) != 1 for group in plan.right):
            y = reshaped(g, y, tuple(plan.sizes[n] for n in after), node.outputs[0].shape)
        return y

    def torch(self, node: OpNode, e: TorchScope) -> Tree:
        plan = planned(node.options, first_input(node).shape)
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


@dataclass(frozen=True)
class Plan:
    """Axes before and after as groups of units that stay together, and their sizes."""

    left: list[Group]
    right: list[Group]
    sizes: Mapping[str, Num]
    given: frozenset[str]
    """Units whose size the spec says."""

    def free(self, group: Group) -> str | None:
        """The unit whose size follows from the others."""
        return next((n for n in group if n not in self.given), None)

    def read(self, group: Group) -> At | None:
        """The latest position read along the axis that is made of a group."""
        axes: dict[int, Fraction] = {}
        offset = Fraction(0)
        for i, name in enumerate(group):
            step = product(self.sizes[n] for n in group[i + 1 :]).value
            axis = next(a for a, g in enumerate(self.right) if name in g)
            out = self.right[axis]
            spot = out.index(name)
            size = self.sizes[name].value
            if not isinstance(step, int):
                return EVERYWHERE
            if spot == 0:
                # The slowest unit of its axis: the position divided by the rest.
                inner = product(self.sizes[n] for n in out[1:]).value
                axes[axis] = axes.get(axis, Fraction(0)) + (
                    Fraction(step, inner) if isinstance(inner, int) else Fraction(step)
                )
            elif isinstance(size, int):
                offset += step * (size - 1)
            else:
                return EVERYWHERE
        return At(tuple(axes.items()), offset)


def planned(options: Mapping[str, Any], shape: Shape) -> Plan:
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
    return Plan(
        [tuple(n for n in group if unit[n] == n) for group in left],
        [tuple(n for n in group if unit[n] == n) for group in right],
        merged,
        said,
    )
