"""Tensors in the form that a step needs them in: their new positions, or all of them.

What depends on the tokens is computed at the new positions, and all of them are what was kept.  What is made of
positions alone (masks, positions, rope tables) is written when it is asked for, in each form that is asked for.  Where
rows are padded, such a tensor gets an axis of batch in front: an op that cannot take one more axis is not by row, and
then no op is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir

from archdsl.backends.onnx.positions import PositionsWriter, RowsUnsupportedError
from archdsl.backends.onnx.scope import OnnxNodeScope
from archdsl.backends.onnx.targets import GraphOptions
from archdsl.diagnostics import error
from archdsl.ir.dims import Poly, Shape, symbol, with_symbol
from archdsl.ir.dims import Value as Size
from archdsl.ir.graph import Model, Value
from archdsl.ir.op import At
from archdsl.passes.decode import DecodePlan
from archdsl.passes.flatten import FlatOp, FlatParam
from archdsl.passes.forms import ALL, FIXED, NEW, Form, has


class FormsWriter(PositionsWriter):
    """Gives every node its inputs in the form that the plan says."""

    def __init__(self, model: Model, options: GraphOptions, plan: DecodePlan, by_row: bool) -> None:
        super().__init__(model, options, plan, by_row)
        self.full: dict[Value, ir.Value] = {}
        """All positions of what is cached."""
        self.of_positions: dict[tuple[Value, Form], ir.Value | None] = {}
        """Tensors made of positions, by form."""
        self.plain = False
        """Whether nodes are run on other tensors than those of the step."""
        self.tables: dict[Value, ir.Value] = {}
        """Those for all positions from 0 on, the same for every row."""

    @contextmanager
    def writing(self, form: Form, *, table: bool = False, length: str = FIXED) -> Iterator[None]:
        """Lengths and positions are those of a result of that form; the length of a shape is that of `length`."""
        builder = self.builder
        before = self.form, self.table, builder.in_shapes, builder.in_numbers, builder.path
        self.form, self.table = form, table
        parts = {length} if length else {f for f in form if f}
        everything = symbol(self.all if table or parts == {ALL} else self.new) if not self.last else 1

        def shapes(size: Size) -> Size:
            if len(parts) > 1 and isinstance(size, Poly) and self.plan.time in size.symbols:
                raise error("E0504", f"a shape of {size} is ambiguous in a decode step")
            return with_symbol(size, self.time, everything)

        builder.in_shapes = shapes
        builder.in_numbers = lambda size: with_symbol(size, self.time, symbol(self.all))
        try:
            yield
        finally:
            self.form, self.table, builder.in_shapes, builder.in_numbers, builder.path = before

    def shape(self, shape: Shape) -> ir.Shape | None:
        axes = [i for i, d in enumerate(shape) if has(d, self.plan.time)]
        if not axes:
            return super().shape(shape)
        if self.by_row and self.asked_positions:
            return None  # it may have an axis of batch
        found: list[Any] = list(self.shape_of(shape, "new"))
        if len(axes) > 1 or self.table or set(filter(None, self.form)) == {ALL}:
            found[axes[-1]] = "total_sequence_length"
        return ir.Shape(found)

    def is_by_row(self, flat: FlatOp, i: int) -> bool:
        given = flat.inputs[i]
        if not isinstance(given, Value) or given not in self.plan.positional:
            return False
        x = self.position(given, self.wanted(flat, i))
        return x is not None and x in self.ranks

    def every_position(self, flat: FlatOp, i: int) -> ir.Value | None:
        given = flat.inputs[i]
        known = isinstance(given, Value) and given in self.plan.positional and not self.plain
        return self.as_table(given) if known and isinstance(given, Value) else None

    def wanted(self, flat: FlatOp, i: int) -> Form:
        """The form in which a node needs an input."""
        known = self.plan.needs.get((flat, i))
        if known is not None:
            return known
        reads = flat.node.op.reads_of(flat.node, 0)[i]
        found = []
        for axis, d in enumerate(flat.tensor(i).shape):
            if not has(d, self.plan.time):
                found.append(FIXED)
                continue
            read = reads[axis] if axis < len(reads) else None
            own = read.axes[0][0] if isinstance(read, At) and len(read.axes) == 1 else None
            found.append(self.form[own] if own is not None and own < len(self.form) and self.form[own] else ALL)
        return tuple(found)

    def operand(self, flat: FlatOp, i: int) -> ir.Value:
        given, plan = flat.tensor(i), self.plan
        if self.plain:
            return self.values[given]
        if given in plan.positional:
            if self.table:
                return self.as_table(given)
            x = self.position(given, self.wanted(flat, i))
            assert x is not None
            return self.aligned(flat, x)
        wanted = plan.needs.get((flat, i), ())
        have = plan.forms.get(given, ())
        if ALL in wanted and given in plan.caches and ALL not in have:
            return self.full[given]
        if NEW in wanted and ALL in have and NEW not in have:
            return self.newest_of(self.value(given), have.index(ALL))
        return self.value(given)

    def newest(self, flat: FlatOp, i: int) -> ir.Value:
        given, plan = flat.tensor(i), self.plan
        if self.of_all_queries:
            return self.operand(flat, i)
        if given in plan.positional and not self.table:
            form = tuple(NEW if has(d, plan.time) else FIXED for d in given.shape)
            x = self.position(given, form)
            assert x is not None
            return x
        if given not in plan.forms:
            return self.operand(flat, i)
        if NEW in plan.forms[given]:
            return self.value(given)
        return self.newest_of(self.value(given), plan.forms[given].index(ALL))

    def varies_by_row(self, flat: FlatOp, i: int) -> bool:
        return self.by_row and not self.table and self.is_by_row(flat, i)

    def aligned(self, flat: FlatOp, x: ir.Value) -> ir.Value:
        """A tensor of positions by row, [batch, …], with as many axes as the result of an element-wise op has."""
        rank = self.ranks.get(x)
        op = flat.node.op
        if rank is None or not (op.elementwise or op.family == "attention"):
            return x
        first = flat.outputs[0]
        target = first.rank
        if first in self.plan.positional:
            target = max(target + 1, *(self._rank_of(flat, i) for i in range(len(flat.inputs))))
        add = self.builder.add
        if rank < target:
            y: ir.Value = add("Unsqueeze", [x, list(range(1, target - rank + 1))])
        elif rank == target + 1:
            y = add("Squeeze", [x, [1]])
        elif rank == target:
            return x
        else:
            raise RowsUnsupportedError(op.name)
        self.ranks[y] = target
        return y

    def position(self, value: Value, form: Form) -> ir.Value | None:
        """A tensor made of positions, in a form; None for a mask that needs no tensor."""
        key = (value, form)
        if key not in self.of_positions:
            with self.builder.within(self.builder.main):  # also where a loop's body asks first
                self._position(value, form)
        return self.of_positions[key]

    def _position(self, value: Value, form: Form) -> None:
        maker = self.plan.makers[value]
        if isinstance(maker, FlatOp) and self.is_direct(maker, form):
            with self.writing(form):
                asked, pairs = self.asked_positions, self.asked_pairs
                self.asked_positions, self.asked_pairs = False, 0
                self.builder.path = maker.path or value.name
                moved = any(self.is_by_row(maker, i) for i in range(len(maker.inputs)))
                made = self.results(maker, maker.node.op.onnx(maker.node, OnnxNodeScope(self, maker)))
                moved = self.by_row and (moved or self.asked_positions)
                inner = [r for i in range(len(maker.inputs)) if (r := self._rank_of(maker, i))]
                for output, x in zip(maker.outputs, made, strict=True):
                    self.of_positions[output, form] = x
                    if x is not None and moved:
                        self.ranks[x] = self._made_rank(maker, output, inner)
                self.asked_positions, self.asked_pairs = asked, pairs
            return
        table = self.as_table(value)
        axes = [i for i, f in enumerate(form) if f]
        if not axes or (len(axes) == 1 and form[axes[0]] == ALL and not self.by_row):
            self.of_positions[value, form] = table
        elif len(axes) == 1 and form[axes[0]] == ALL:
            raise RowsUnsupportedError(value.name)  # the keys of a row begin behind its padding
        elif len(axes) == 1 and self.by_row:
            # The rows of the table at the positions of the tokens: [batch, …], wherever the axis of time is.
            axis, add = axes[0], self.builder.add
            x = add("Gather", [table, self.pasts["position_ids"]], {"axis": axis})
            order = [axis, *range(axis), *range(axis + 1, value.rank + 1)]
            x = add("Transpose", [x], {"perm": order}) if axis else x
            self.ranks[x] = value.rank + 1
            self.of_positions[value, form] = x
        elif self.by_row:
            raise RowsUnsupportedError(value.name)
        else:
            for axis in (a for a in axes if form[a] == NEW):
                table = self.newest_of(table, axis)
            self.of_positions[value, form] = table

    def is_direct(self, maker: FlatOp, form: Form) -> bool:
        """Whether an op can be written in that form as it stands: it asks for positions, or has its own place of inputs
        in that form."""
        op = maker.node.op
        # Of all positions those of padding stand nowhere: an op that only moves numbers may have them, no table has.
        if op.elementwise or (op.by_rows and (op.positional or op.moves or ALL not in form)):
            return True
        if op.by_rows and op.table(maker.node) is not None:  # of weights, which have no positions
            return maker.inputs[0] not in self.plan.positional
        return op.positional and not any(v in self.plan.positional for v in maker.inputs if isinstance(v, Value))

    def _rank_of(self, flat: FlatOp, i: int) -> int:
        given = flat.inputs[i]
        if not isinstance(given, Value) or given not in self.plan.positional:
            return 0
        x = self.position(given, self.wanted(flat, i))
        return self.ranks.get(x, 0) if x is not None else 0

    def _made_rank(self, maker: FlatOp, output: Value, inner: Sequence[int]) -> int:
        """How many axes a tensor has that is made of positions by row."""
        if maker.node.op.elementwise and inner:
            return max(output.rank + 1, *inner)
        return self.asked_pairs or output.rank + 1

    def as_table(self, value: Value) -> ir.Value:
        """A tensor made of positions, for all of them from 0 on, the same for every row."""
        if value not in self.plan.positional:
            return self.value(value)
        if value not in self.tables:
            maker = self.plan.makers[value]
            by_row, self.by_row = self.by_row, False
            with self.writing((), table=True):
                self.builder.path = maker.weight.path if isinstance(maker, FlatParam) else maker.path or value.name
                if isinstance(maker, FlatOp):
                    made = self.results(maker, maker.node.op.onnx(maker.node, OnnxNodeScope(self, maker)))
                    self.tables.update((v, x) for v, x in zip(maker.outputs, made, strict=True) if x is not None)
                elif isinstance(maker, FlatParam):
                    self.tables[value] = self.param(maker)
                else:
                    raise error("E0504", "a scan over positions alone has no decode step")
            self.by_row = by_row
        return self.tables[value]
