"""The sizes of a step in the names of a block: each name that depends on the length of the sequence has one for the new
positions and one for all. Places in front of the sequence that go through the layers are new in the first step: their
number is multiplied by a size that is 1 in it, and 0 in all later ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from archdsl.diagnostics import ArchError
from archdsl.ir.dims import (
    Bin,
    Expr,
    Num,
    Shape,
    Symbol,
    Var,
    add,
    expr_text,
    free_names,
    mul,
    of_atom,
    same_shape,
    sub,
    substitute,
    with_symbol,
)
from archdsl.ir.graph import Input, OpNode, Value
from archdsl.ir.reapplied import results
from archdsl.ir.signature import spread
from archdsl.ir.static import each_number, numbers_of
from archdsl.passes.forms import ALL, FIRST, FIXED, NEW, Form, has, in_front, is_time, refuse


class StepSizes:
    """Sizes of one block, whose names `timed` depend on the length `time`. `symbols` are those that stand for
    it, by their forms: that of FIRST, where places in front of it are new in the first step."""

    def __init__(
        self, time: Symbol, symbols: Mapping[str, Symbol], timed: frozenset[str], local: Mapping[str, Expr]
    ) -> None:
        self.time, self.symbols, self.local = time, symbols, local
        self.own = NEW if symbols[NEW] == time else None
        """The form whose sizes are those of the whole model."""
        computed: set[str] = set()
        for name, expr in local.items():
            if not (timed | computed).isdisjoint(free_names(expr)):
                computed.add(name)
        self.timed = timed | computed

    def has(self, n: Num) -> bool:
        """Whether a number depends on the length of the sequence."""
        return has(n, self.time)

    def num(self, n: Num, form: str) -> Num:
        """A number with the length of the sequence in a form; one that only mentions it (`batch * time / time`) is the
        same in either."""
        if self.own and form in (NEW, FIRST):
            return n
        if form == FIRST:
            return Num(mul(n.value, of_atom(self.symbols[FIRST])), self.at_first(self.expr(n.expr, ALL)), n.origin)
        if not self.names_time(n.expr):
            return n
        front = in_front(n, self.time) if form == NEW and FIRST in self.symbols else 0
        value = with_symbol(n.value, self.time.name, of_atom(self.symbols[form]))
        if front:
            value = add(sub(value, front), mul(front, of_atom(self.symbols[FIRST])))
        return Num(value, self.expr(n.expr, form, is_time(n, self.time) or front > 0), n.origin)

    def expr(self, expr: Expr, form: str, grows: bool = True) -> Expr:
        """An expression with the length in a form: each name that depends on it has one for either. `grows` says that
        it is the number of positions along some axis."""
        if form == self.own:
            return expr
        names = {n: e for n in free_names(expr) if n in self.timed and (e := self.local.get(n)) is not None}
        if names:
            return self.expr(substitute(expr, names), form, grows)
        if form == NEW and FIRST in self.symbols and grows:
            return self.at_new(expr)
        return substitute(expr, {n: Var(self.named(n, form)) for n in free_names(expr) if n in self.timed})

    def named(self, name: str, form: str) -> str:
        """What a name that depends on the length is called in a form."""
        return name if form == self.own else f"{form} {name}"

    def at_new(self, expr: Expr) -> Expr:
        """The number of new positions along an axis: those in front are new in the first step."""
        if not self.names_time(expr):
            return self.at_first(expr)
        if isinstance(expr, Var):
            return Var(f"{NEW} {expr.name}")
        if isinstance(expr, Bin) and expr.op in ("+", "-"):
            return Bin(expr.op, self.at_new(expr.left), self.at_new(expr.right))
        raise refuse(f"the length `{expr_text(expr)}` is no sum, so that no step knows how much of it is new")

    def at_first(self, expr: Expr) -> Expr:
        """A number of places that are new in the first step."""
        return Bin("*", expr, Var(self.symbols[FIRST].name))

    def speaks(self, value: Any) -> bool:
        """Whether a number in a static value depends on the length of the sequence."""
        return any(map(self.has, numbers_of(value)))

    def mentions(self, value: Any) -> bool:
        """Whether a number in a static value is spelled by it."""
        return any(self.names_time(n.expr) for n in numbers_of(value))

    def names_time(self, *exprs: Expr) -> bool:
        """Whether an expression is spelled by the length of the sequence."""
        return any(not self.timed.isdisjoint(free_names(e)) for e in exprs)

    def shape(self, value: Value, form: Form) -> Shape:
        """A shape with the length in the form of each axis."""
        return tuple(self.num(d, f or ALL) for d, f in zip(value.shape, form, strict=True))

    def assigned(self, node: OpNode, inputs: Mapping[int, Form], outputs: Sequence[Form]) -> OpNode | None:
        """The op with each number that is the length of the sequence in the form with which the op makes the outputs;
        its tensors are still those of the whole model. None where no form does, or it may be either."""
        shapes = [v.shape for v in (*node.inputs, *node.outputs) if isinstance(v, Value)]
        if not self.mentions((node.options, node.inputs, node.axes, shapes)):
            return node
        read = tuple(
            replace(v, shape=self.shape(v, inputs.get(i, (FIXED,) * v.rank))) if isinstance(v, Value) else v
            for i, v in enumerate(node.inputs)
        )
        due = [self.shape(v, form) for v, form in zip(node.outputs, outputs, strict=True)]
        moved = self.moved_fronts(node, outputs)
        spelled = numbers_of((node.inputs, node.options))
        choices = [(NEW, ALL) if self.has(n) else (FIXED, FIRST) for n in spelled if self.has(n) or n.value in moved]
        found: dict[tuple[str, ...], OpNode] = {}
        for forms in product(*choices):
            left = iter(forms)

            def number(n: Num, left: Iterator[str] = left) -> Num:
                form = next(left) if self.has(n) or n.value in moved else ALL
                return self.num(n, form) if form else n

            numbers = tuple(number(v) if isinstance(v, Num) else v for v in read)
            options = each_number(node.options, number)
            made = replace(node, inputs=numbers, options=options, axes=self.axes(node, read, options))
            if _gives(made, due):
                own = (n if isinstance(n, Num) else v for n, v in zip(numbers, node.inputs, strict=True))
                lengths = tuple(f for f in forms if f in (NEW, ALL))
                found.setdefault(lengths, replace(made, inputs=tuple(own)))
        return next(iter(found.values())) if len(found) == 1 else None

    def moved_fronts(self, node: OpNode, outputs: Sequence[Form]) -> set[Any]:
        """By how many places the results of an op have more, or fewer, in front of the sequence than its inputs, if
        these are new in the first step alone."""
        if FIRST not in self.symbols or not any(NEW in form for form in outputs):
            return set()
        made, read = (
            {in_front(d, self.time) for v in values for d in v.shape if self.has(d)}
            for values in (node.outputs, [v for v in node.inputs if isinstance(v, Value)])
        )
        return {abs(a - b) for a in made for b in read or {0}} - {0}

    def axes(self, node: OpNode, inputs: Sequence[Input], options: Mapping[str, Any]) -> Mapping[str, Num]:
        """The sizes of the axes that the signature names."""
        params = node.op.header.tensors or ()
        found = dict(node.axes)
        if not params or node.op.elementwise:
            return found
        for i, value in enumerate(inputs):
            if isinstance(value, Value):
                names = spread(params[min(i, len(params) - 1)].type.dims, value.rank)
                found |= {n: d for n, d in zip(names, value.shape, strict=False) if n in found}
        return {n: options[n] if isinstance(options.get(n), Num) else d for n, d in found.items()}


def renumbered(node: OpNode, number: Callable[[Num], Num], tensor: Callable[[Value], Value]) -> OpNode:
    """Return an op of other tensors, each of its numbers made of the old one."""
    return replace(
        node,
        inputs=tuple(tensor(v) if isinstance(v, Value) else each_number(v, number) for v in node.inputs),
        outputs=tuple(map(tensor, node.outputs)),
        options=each_number(node.options, number),
        axes=each_number(node.axes, number),
    )


def _gives(node: OpNode, due: Sequence[Shape]) -> bool:
    """Whether the results of an op have these shapes."""
    try:
        made = results(node)
    except (ArchError, ArithmeticError, AssertionError, LookupError, TypeError, ValueError):
        return False
    return len(made) == len(due) and all(same_shape(v.shape, shape) for v, shape in zip(made, due, strict=True))
