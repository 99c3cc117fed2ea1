"""The sizes of a step in the names of a block: each name that depends on the length of the sequence has one for the new
positions and one for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from archdsl.diagnostics import ArchError
from archdsl.ir.dims import Expr, Num, Shape, Symbol, Var, free_names, of_atom, same_shape, substitute, with_symbol
from archdsl.ir.graph import Input, OpNode, Value
from archdsl.ir.reapplied import results
from archdsl.ir.signature import spread
from archdsl.ir.static import each_number, numbers_of
from archdsl.passes.forms import ALL, FIXED, NEW, Form, has


class StepSizes:
    """Sizes of one block, whose names `timed` depend on the length `time`. `symbols` are the two that stand for it."""

    def __init__(
        self, time: Symbol, symbols: Mapping[str, Symbol], timed: frozenset[str], local: Mapping[str, Expr]
    ) -> None:
        self.time, self.symbols, self.local = time, symbols, local
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
        if not self.names_time(n.expr):
            return n
        return Num(with_symbol(n.value, self.time.name, of_atom(self.symbols[form])), self.expr(n.expr, form), n.origin)

    def expr(self, expr: Expr, form: str) -> Expr:
        """An expression with the length in a form: each name that depends on it has one for either."""
        names = {n: e for n in free_names(expr) if n in self.timed and (e := self.local.get(n)) is not None}
        if names:
            return self.expr(substitute(expr, names), form)
        return substitute(expr, {n: Var(f"{form} {n}") for n in free_names(expr) if n in self.timed})

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
        lengths = [n for n in numbers_of((node.inputs, node.options)) if self.has(n)]
        found: list[OpNode] = []
        for forms in product((NEW, ALL), repeat=len(lengths)):
            left = iter(forms)

            def number(n: Num, left: Iterator[str] = left) -> Num:
                return self.num(n, next(left) if self.has(n) else ALL)

            numbers = tuple(number(v) if isinstance(v, Num) else v for v in read)
            options = each_number(node.options, number)
            made = replace(node, inputs=numbers, options=options, axes=self.axes(node, read, options))
            if _gives(made, due):
                own = (n if isinstance(n, Num) else v for n, v in zip(numbers, node.inputs, strict=True))
                found.append(replace(made, inputs=tuple(own)))
        return found[0] if len(found) == 1 else None

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
