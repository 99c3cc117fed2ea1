"""A step of decoding as an ONNX graph, by the plan of `archdsl.analyses.decode`.

Inputs are those that existing runtimes feed: `input_ids` [batch, new], `attention_mask` [batch, all] (1 where a token
is real), `position_ids` [batch, new], and for every cache `past_key_values.{layer}.{role}`, which comes back, longer,
as `present.{layer}.{role}`. Rows may be padded on either side: places are counted by row, over the real tokens, and a
padding key stands at a place that no query has reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir

from archdsl.analyses.decode import ALL, FIXED, NEW, Cache, Carry, Form, Plan, has, is_time, plan
from archdsl.diagnostics import error
from archdsl.ir.dims import Num, Poly, Shape, symbol, with_symbol
from archdsl.ir.dims import Value as Size
from archdsl.ir.flat import FlatNode, FlatOp, FlatParam, FlatScan
from archdsl.ir.graph import Model, Value
from archdsl.ir.op import At
from archdsl.lower.onnx.scope import NodeScope, scan
from archdsl.lower.onnx.targets import TARGETS, Target
from archdsl.lower.onnx.write import Writer, Written, symbol_name

NOWHERE = 2**30
"""The place of a padding key: later than that of any query."""


def write_steps(model: Model, *, dtype: str = "float32", target: str = "portable") -> dict[str, Written]:
    """The graphs that generate: `model`, a step; and, where a model has other inputs than the sequence, `encoder`, which
    is run once before.

    Raises ArchError E0504 where the model cannot be taken step by step."""
    steps = plan(model)
    try:
        found = {"model": StepWriter(model, dtype, TARGETS[target], steps, by_row=True).whole()}
    except RowsUnsupportedError:
        found = {"model": StepWriter(model, dtype, TARGETS[target], steps, by_row=False).whole()}
    if steps.before.outputs:
        found["encoder"] = EncoderWriter(model, dtype, TARGETS[target], steps).whole()
    return found


class EncoderWriter(Writer):
    """Writes what is computed before the first step."""

    def __init__(self, model: Model, dtype: str, target: Target, steps: Plan) -> None:
        super().__init__(model, dtype, target)
        self.plan = steps

    def whole(self) -> Written:
        builder, before = self.builder, self.plan.before
        names = {v: n for n, v in self.model.inputs}
        inputs = [self.input(names[v], v) for v in before.inputs]
        self.graph(before)
        builder.path = ""
        outputs = []
        for value in before.outputs:
            x = builder.add("Identity", [self.value(value)])
            x.name = builder.unique(handed_name(self.plan, value))
            x.shape = self.shape(value.shape)
            outputs.append(x)
        return self.finish(inputs, outputs)


class RowsUnsupportedError(Exception):
    """An op cannot take places that differ by row."""


class StepWriter(Writer):
    """Writes the graph of a step."""

    def __init__(self, model: Model, dtype: str, target: Target, plan: Plan, by_row: bool) -> None:
        super().__init__(model, dtype, target)
        self.plan = plan
        self.by_row = by_row
        self.in_steps = True
        self.time = plan.time.name
        self.new, self.all = f"{self.time} (new)", f"{self.time} (all)"
        self.full: dict[Value, ir.Value] = {}
        """All places of what is cached."""
        self.ranks: dict[ir.Value, int] = {}
        """Of tensors that are made of places by row: the number of axes, that of batch in front included."""
        self.made: dict[tuple[Value, Form], ir.Value | None] = {}
        self.tables: dict[Value, ir.Value] = {}
        self.form: Form = ()
        """Of the result that is being written."""
        self.table = False
        """Whether a table for all places, the same for every row, is being written."""
        self.asked_places = False
        self.inputs: list[ir.Value] = []
        self.presents: list[tuple[str, ir.Value]] = []
        self.pasts: dict[str, ir.Value] = {}
        self.constants_by_name: dict[str, ir.Value] = {}
        self.appending: set[FlatNode] = set()
        """Nodes whose operators append to their caches themselves: then each row of new places is turned, so that its
        real tokens come first."""

    # --- the graph ---

    def whole(self) -> Written:
        plan, builder = self.plan, self.builder
        names = {v: n for n, v in self.model.inputs}
        crossing = set(plan.before.outputs)
        self.appending = self.find_appending()
        ids = next((v for v in plan.step.inputs if v.dtype == "token" and v not in crossing), None)
        for value in plan.step.inputs:
            if value in crossing:
                self.inputs.append(self.handed(value))
            elif value.dtype != "padding":
                self.inputs.append(self.sequence("input_ids" if value is ids else names[value], value))
        self.add_places()
        if self.appending and self.by_row:
            self.turn_rows()
        for entry in plan.entries():
            for name, shape, dtype in entries(entry):
                self.add_past(name, shape, dtype)
        self.set_lengths()
        for value in plan.step.inputs:
            if value.dtype == "padding" and value not in crossing:
                self.values[value] = builder.cast(self.mask(), "bool")
            elif value in plan.caches:
                self.keep(value)
        for node in plan.step.nodes:
            self.node(node)
        (output,) = plan.step.outputs
        builder.path = ""
        x = self.value(output)
        if self.appending and self.by_row:
            turn = self.turned(-1)
            x = builder.add("GatherND", [x, builder.add("Unsqueeze", [turn, [-1]])], {"batch_dims": 1})
        x = builder.add("Identity", [x])
        name = next(n for n, _ in self.model.outputs)
        x.name = builder.unique(name or "logits")
        x.shape = self.shape_of(output.shape, "new")
        outputs = [x]
        found = dict(self.presents)
        for name in (n for e in plan.entries() for n, _, _ in entries(e)):
            value = found[name]
            y = builder.add("Identity", [value])
            y.name = builder.unique(f"present.{name}")
            y.shape = value.shape
            outputs.append(y)
        return self.finish(self.inputs, outputs)

    def sequence(self, name: str, value: Value) -> ir.Value:
        """An input of the model, of which a step takes the new places."""
        builder = self.builder
        x = ir.Value(
            name=builder.unique(name),
            type=ir.TensorType(builder.type_of(value.dtype)),
            shape=self.shape_of(value.shape, "new"),
        )
        self.values[value] = x
        for axis, d in enumerate(value.shape):
            if is_time(d, self.plan.time):
                self.symbol(self.new, x, axis)
        self.note_sizes(x, value.shape)
        return x

    def handed(self, value: Value) -> ir.Value:
        """What was computed before the first step."""
        x = self.input(handed_name(self.plan, value), value)
        return x

    def symbol(self, name: str, x: ir.Value, axis: int) -> None:
        builder = self.builder
        if name not in builder.main.symbols:
            with builder.before_all():
                builder.main.symbols[name] = builder.add("Shape", [x], {"start": axis, "end": axis + 1})

    def note_sizes(self, x: ir.Value, shape: Shape) -> None:
        for axis, d in enumerate(shape):
            name = symbol_name(d.value)
            if name and name != self.time:
                self.symbol(name, x, axis)

    def shape_of(self, shape: Shape, places: str) -> ir.Shape:
        names = {self.time: {"new": "sequence_length", "all": "total_sequence_length", "past": "past_sequence_length"}}
        found: list[int | str] = []
        for d in shape:
            name = symbol_name(d.value)
            if d.static:
                found.append(int(d))
            elif name == self.time:
                found.append(names[name][places])
            else:
                found.append("batch_size" if name == "batch" else str(d.value))
        return ir.Shape(found)

    # --- places ---

    def add_places(self) -> None:
        """The inputs that say which tokens are real and where they stand."""
        if not self.by_row:
            return
        for name, length in (("attention_mask", "total_sequence_length"), ("position_ids", "sequence_length")):
            x = ir.Value(
                name=self.builder.unique(name),
                type=ir.TensorType(ir.DataType.INT64),
                shape=ir.Shape(["batch_size", length]),
            )
            self.inputs.append(x)
            self.pasts[name] = x
            if name == "attention_mask":
                self.symbol(self.all, x, 1)

    def set_lengths(self) -> None:
        """How many places there are in all: as many as the attention mask has, or a cache and the new ones."""
        builder = self.builder
        if self.all in builder.main.symbols:
            return
        caches = [e for e in self.plan.entries() if isinstance(e, Cache)]
        if caches:
            past = self.pasts[f"{caches[0].layer}.{caches[0].role}"]
            with builder.before_all():
                before = builder.add("Shape", [past], {"start": caches[0].axis, "end": caches[0].axis + 1})
        else:
            before = ir.Value(
                name=builder.unique("past_length"), type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([1])
            )
            self.inputs.append(before)
        with builder.before_all():
            builder.main.symbols[self.all] = builder.add("Add", [before, builder.main.symbols[self.new]])

    def mask(self) -> ir.Value:
        """Which places are real: [batch, all]."""
        if "attention_mask" in self.pasts:
            return self.pasts["attention_mask"]
        builder = self.builder
        batch, length = builder.main.symbols["batch"], builder.main.symbols[self.all]
        found: ir.Value = builder.add("Expand", [builder.constant(1, "int"), [batch, length]])
        return found

    def once(self, name: str, make: Callable[[], ir.Value]) -> ir.Value:
        """Something computed once, before all nodes."""
        if name not in self.constants_by_name:
            with self.builder.before_all():
                self.builder.path = "places"
                self.constants_by_name[name] = make()
        return self.constants_by_name[name]

    def key_places(self) -> ir.Value:
        """The place of every key, by row [batch, all]; that of padding is NOWHERE."""
        add = self.builder.add

        def make() -> ir.Value:
            real = self.pasts["attention_mask"]
            place = add("Sub", [add("CumSum", [real, 1]), 1])
            found: ir.Value = add("Where", [self.builder.cast(real, "bool"), place, NOWHERE])
            return found

        return self.once("keys", make)

    def valid(self) -> ir.Value | None:
        if not self.by_row:
            return None

        def make() -> ir.Value:
            add, builder = self.builder.add, self.builder
            start = add("Neg", [builder.main.symbols[self.new]])
            newest = add("Slice", [self.pasts["attention_mask"], start, [2**62], [1]])
            return builder.cast(newest, "bool")

        return self.once("valid", make)

    def counted(self, new: bool) -> ir.Value:
        """0, 1, … of all places, or of the new ones."""
        add, builder = self.builder.add, self.builder

        def make() -> ir.Value:
            end = builder.scalar(_poly(self.all))
            first = builder.constant(0, "int")
            if new:
                first = add("Sub", [end, builder.scalar(_poly(self.new))])
            found: ir.Value = add("Range", [first, end, builder.constant(1, "int")])
            return found

        return self.once("new" if new else "all", make)

    def places(self, length: Num) -> ir.Value:
        if not has(length, self.plan.time):
            return super().places(length)
        if not is_time(length, self.plan.time):
            raise error("E0504", f"places up to {length} have no meaning in a step of decoding")
        if self.table:
            return self.counted(new=False)
        self.asked_places = True
        new = NEW in self.form
        if self.by_row:
            found = self.pasts["position_ids"] if new else self.key_places()
            self.ranks[found] = 2
            return found
        return self.counted(new)

    def pairs(self, queries: Num, keys: Num) -> tuple[ir.Value, ir.Value]:
        time, add = self.plan.time, self.builder.add
        if not has(queries, time) and not has(keys, time):
            return super().pairs(queries, keys)
        if self.table:
            place = self.counted(new=False)
            return add("Unsqueeze", [place, [-1]]), add("Unsqueeze", [place, [0]])
        if not (is_time(queries, time) or queries.value == 1) or not is_time(keys, time):
            raise error("E0504", f"pairs of {queries} queries and {keys} keys have no meaning in a step of decoding")
        self.asked_places = True
        if self.by_row:
            key = self.once("key pairs", lambda: add("Unsqueeze", [self.key_places(), [1, 2]]))
            query = self.once("query pairs", lambda: add("Unsqueeze", [self.pasts["position_ids"], [1, 3]]))
            self.ranks[key] = self.ranks[query] = 4
            return query, key
        return (
            self.once("query pairs", lambda: add("Unsqueeze", [self.counted(new=True), [-1]])),
            self.once("key pairs", lambda: add("Unsqueeze", [self.counted(new=False), [0]])),
        )

    # --- what is kept ---

    def add_past(self, name: str, shape: Shape, dtype: str) -> None:
        builder = self.builder
        x = ir.Value(
            name=builder.unique(f"past_key_values.{name}"),
            type=ir.TensorType(builder.type_of(dtype)),
            shape=self.shape_of(shape, "past"),
        )
        self.inputs.append(x)
        self.pasts[name] = x

    def keep(self, value: Value) -> None:
        """Put the new places of a tensor behind those of before."""
        cache = self.plan.caches[value]
        name = f"{cache.layer}.{cache.role}"
        builder, path = self.builder, self.builder.path
        builder.path = f"{path}/cache" if path else "cache"
        found = builder.add("Concat", [self.pasts[name], self.value(value)], {"axis": cache.axis})
        found.shape = self.shape_of(value.shape, "all")
        builder.path = path
        self.full[value] = found
        self.presents.append((name, found))

    # --- operators that keep their own caches ---

    def find_appending(self) -> set[FlatNode]:
        """All attention, if all of it can append to its caches itself and nothing else looks at places of keys."""
        plan = self.plan
        found: set[FlatNode] = set()
        users: dict[Value, int] = {}
        for node in plan.step.nodes:
            for i, v in enumerate(node.inputs):
                if isinstance(v, Value) and v in plan.caches and ALL in plan.needs.get((node, i), ()):
                    users[v] = users.get(v, 0) + 1
        fine = bool(plan.caches) and not plan.carries and not plan.latents
        self.appending = set(plan.step.nodes)
        for node in plan.step.nodes:
            if not isinstance(node, FlatOp):
                continue
            kept = [v for i, v in enumerate(node.inputs) if ALL in plan.needs.get((node, i), ())]
            if not kept:
                continue
            itself = node.node.op.caches_itself(node.node, NodeScope(self, node))
            once = all(users.get(v, 0) == 1 for v in kept if isinstance(v, Value) and v not in plan.placed)
            fine = fine and itself and once
            found.add(node)
        flat = all(v.rank == 2 for v in plan.step.inputs if any(has(d, plan.time) for d in v.shape))
        return found if fine and flat else set()

    def kept_by_op(self, value: Value) -> bool:
        return any(value in node.inputs for node in self.appending)

    def appends(self, flat: FlatOp) -> bool:
        return flat in self.appending

    def new_places(self, flat: FlatOp, i: int) -> ir.Value:
        given = flat.inputs[i]
        assert isinstance(given, Value)
        return self.value(given)

    def past(self, flat: FlatOp, i: int) -> ir.Value | None:
        given = flat.inputs[i]
        assert isinstance(given, Value)
        cache = self.plan.caches[given]
        return self.pasts[f"{cache.layer}.{cache.role}"]

    def keep_as(self, flat: FlatOp, i: int, x: ir.Value) -> None:
        given = flat.inputs[i]
        assert isinstance(given, Value)
        cache = self.plan.caches[given]
        x.shape = self.shape_of(given.shape, "all")
        self.presents.append((f"{cache.layer}.{cache.role}", x))

    def filled(self, flat: FlatOp) -> tuple[ir.Value, ir.Value]:
        builder, add = self.builder, self.builder.add

        def counts() -> ir.Value:
            if self.by_row:
                real = add("ReduceSum", [self.pasts["attention_mask"], [1]], {"keepdims": 0})
                return builder.cast(add("Sub", [real, 1]), "int32")
            last = add("Sub", [builder.main.symbols[self.all], 1])
            return builder.cast(add("Expand", [last, [builder.main.symbols["batch"]]]), "int32")

        total = self.once("total", lambda: builder.cast(builder.scalar(_poly(self.all)), "int32"))
        return self.once("real keys", counts), total

    def turned(self, sign: int) -> ir.Value:
        """Where each new place of a row comes from when its padding in front goes behind (sign -1: and back): [batch,
        new]."""
        builder, add = self.builder, self.builder.add

        def make() -> ir.Value:
            valid = self.valid()
            assert valid is not None
            first = add("ArgMax", [builder.cast(valid, "int")], {"axis": 1, "keepdims": 1})
            length = builder.scalar(_poly(self.new))
            place = add("Range", [builder.constant(0, "int"), length, builder.constant(1, "int")])
            found: ir.Value = add("Mod", [add("Add" if sign > 0 else "Sub", [place, first]), length])
            return found

        return self.once("turn" if sign > 0 else "turn back", make)

    def turn_rows(self) -> None:
        """Real tokens first: what comes in is turned."""
        add = self.builder.add
        for value in self.plan.step.inputs:
            if value in self.values and any(is_time(d, self.plan.time) for d in value.shape):
                x = self.values[value]
                self.values[value] = self.once(
                    f"turned {x.name}", lambda x=x: add("GatherElements", [x, self.turned(1)], {"axis": 1})
                )
        places = self.pasts["position_ids"]
        self.pasts["position_ids"] = self.once(
            "turned places", lambda: add("GatherElements", [places, self.turned(1)], {"axis": 1})
        )

    # --- nodes ---

    def node(self, node: FlatNode) -> None:
        plan = self.plan
        if any(v in plan.placed for v in node.outputs):
            return  # written when it is asked for, in the form that is asked for
        super().node(node)
        for value in node.outputs:
            if value in plan.caches and not self.kept_by_op(value):
                self.keep(value)

    def op(self, flat: FlatOp) -> None:
        plan = self.plan
        first = flat.outputs[0]
        form = plan.forms.get(first, ())
        with self.writing(form):
            if flat in plan.carries:
                self.carry(flat, plan.carries[flat])
            elif flat in plan.latents:
                self.absorbed(flat)
            else:
                self.ready(flat, first.rank)
                super().op(flat)

    @contextmanager
    def writing(self, form: Form, *, table: bool = False) -> Iterator[None]:
        """Lengths and places are those of a result of that form."""
        builder = self.builder
        before = self.form, self.table, builder.in_shapes, builder.in_numbers, builder.path
        self.form, self.table = form, table
        parts = {f for f in form if f}
        everything = self.all if table or parts == {ALL} else self.new

        def shapes(size: Size) -> Size:
            if len(parts) > 1 and not table and isinstance(size, Poly) and self.plan.time in size.symbols:
                raise error("E0504", f"a shape of {size} is ambiguous in a step of decoding")
            return with_symbol(size, self.time, symbol(everything))

        builder.in_shapes = shapes
        builder.in_numbers = lambda size: with_symbol(size, self.time, symbol(self.all))
        try:
            yield
        finally:
            self.form, self.table, builder.in_shapes, builder.in_numbers, builder.path = before

    def shape(self, shape: Shape) -> ir.Shape:
        if not any(has(d, self.plan.time) for d in shape) or (self.by_row and self.asked_places):
            return super().shape(shape) if not any(has(d, self.plan.time) for d in shape) else None  # type: ignore[return-value]
        axes = [i for i, d in enumerate(shape) if has(d, self.plan.time)]
        found = list(self.shape_of(shape, "new"))
        if len(axes) > 1 or self.table or set(filter(None, self.form)) == {ALL}:
            found[axes[-1]] = "total_sequence_length"
        return ir.Shape(found)

    def ready(self, flat: FlatOp, rank: int) -> None:
        """See to it that inputs made of places by row fit the others."""
        op = flat.node.op
        if any(self.is_by_row(flat, i) for i in range(len(flat.inputs))) and not (op.elementwise or op.by_rows):
            raise RowsUnsupportedError(op.name)

    def is_by_row(self, flat: FlatOp, i: int) -> bool:
        given = flat.inputs[i]
        if not isinstance(given, Value) or given not in self.plan.placed:
            return False
        x = self.place(given, self.wanted(flat, i))
        return x is not None and x in self.ranks

    def wanted(self, flat: FlatOp, i: int) -> Form:
        """The form in which a node needs an input."""
        known = self.plan.needs.get((flat, i))
        if known is not None:
            return known
        given = flat.inputs[i]
        assert isinstance(given, Value)
        reads = flat.node.op.reads_of(flat.node, 0)[i]
        found = []
        for axis, d in enumerate(given.shape):
            if not has(d, self.plan.time):
                found.append(FIXED)
                continue
            read = reads[axis] if axis < len(reads) else None
            own = read.axes[0][0] if isinstance(read, At) and len(read.axes) == 1 else None
            found.append(self.form[own] if own is not None and own < len(self.form) and self.form[own] else ALL)
        return tuple(found)

    def operand(self, flat: FlatOp, i: int) -> ir.Value:
        given, plan = flat.inputs[i], self.plan
        assert isinstance(given, Value)
        if given in plan.placed:
            if self.table:
                return self.as_table(given)
            x = self.place(given, self.wanted(flat, i))
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
        given, plan = flat.inputs[i], self.plan
        assert isinstance(given, Value)
        if given in plan.placed or given not in plan.forms:
            return self.operand(flat, i)
        if NEW in plan.forms[given]:
            return self.value(given)
        return self.newest_of(self.value(given), plan.forms[given].index(ALL))

    def newest_of(self, x: ir.Value, axis: int) -> ir.Value:
        add, builder = self.builder.add, self.builder
        start = add("Neg", [builder.main.symbols[self.new]])
        found: ir.Value = add("Slice", [x, start, [2**62], [axis]])
        return found

    def aligned(self, flat: FlatOp, x: ir.Value) -> ir.Value:
        """A tensor of places by row, [batch, …], with as many axes as the result of an element-wise op has."""
        rank = self.ranks.get(x)
        op = flat.node.op
        if rank is None or not (op.elementwise or op.absorbs):
            return x
        first = flat.outputs[0]
        target = first.rank
        if first in self.plan.placed:
            given = [self.place(v, self.wanted(flat, i)) for i, v in enumerate(flat.inputs) if self._placed(v)]
            target = max(self.ranks.get(g, 0) for g in given if g is not None)
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

    def _placed(self, value: Any) -> bool:
        return isinstance(value, Value) and value in self.plan.placed

    # --- tensors made of places ---

    def place(self, value: Value, form: Form) -> ir.Value | None:
        """A tensor made of places, in a form; None for a mask that needs no tensor."""
        key = (value, form)
        if key not in self.made:
            with self.builder.within(self.builder.main):  # also where a loop's body asks first
                self._place(value, form)
        return self.made[key]

    def _place(self, value: Value, form: Form) -> None:
        maker = self.plan.makers[value]
        direct = isinstance(maker, FlatOp) and (
            maker.node.op.placed or maker.node.op.elementwise or (maker.node.op.by_rows and ALL not in form)
        )
        if direct:
            assert isinstance(maker, FlatOp)
            with self.writing(form):
                asked, self.asked_places = self.asked_places, False
                self.builder.path = maker.path
                moved = any(self.is_by_row(maker, i) for i in range(len(maker.inputs)))
                made = self.results(maker, maker.node.op.onnx(maker.node, NodeScope(self, maker)))
                moved = self.by_row and (moved or self.asked_places)
                inner = [r for i in range(len(maker.inputs)) if (r := self._rank_of(maker, i))]
                for output, x in zip(maker.outputs, made, strict=True):
                    self.made[output, form if output is value else form] = x
                    if x is not None and moved:
                        self.ranks[x] = self._made_rank(maker, output, inner)
                self.asked_places = asked
            return
        table = self.as_table(value)
        axes = [i for i, f in enumerate(form) if f]
        if not axes or (len(axes) == 1 and form[axes[0]] == ALL):
            self.made[value, form] = table
        elif len(axes) == 1 and self.by_row:
            # The rows of the table at the places of the tokens: [batch, …], wherever the axis of time is.
            axis, add = axes[0], self.builder.add
            x = add("Gather", [table, self.pasts["position_ids"]], {"axis": axis})
            order = [axis, *range(axis), *range(axis + 1, value.rank + 1)]
            x = add("Transpose", [x], {"perm": order}) if axis else x
            self.ranks[x] = value.rank + 1
            self.made[value, form] = x
        elif self.by_row:
            raise RowsUnsupportedError(value.name)
        else:
            self.made[value, form] = self.newest_of(table, axes[0])

    def _rank_of(self, flat: FlatOp, i: int) -> int:
        given = flat.inputs[i]
        if not isinstance(given, Value) or given not in self.plan.placed:
            return 0
        x = self.place(given, self.wanted(flat, i))
        return self.ranks.get(x, 0) if x is not None else 0

    def _made_rank(self, maker: FlatOp, output: Value, inner: Sequence[int]) -> int:
        """How many axes a tensor has that is made of places by row."""
        if maker.node.op.elementwise and inner:
            return max(inner)
        if maker.node.op.is_mask(maker.node.options) or maker.node.op.name == "mask":
            return 4
        return output.rank + 1

    def as_table(self, value: Value) -> ir.Value:
        """A tensor made of places, for all of them from 0 on, the same for every row."""
        if value not in self.plan.placed:
            return self.value(value)
        if value not in self.tables:
            maker = self.plan.makers[value]
            form = tuple(ALL if has(d, self.plan.time) else FIXED for d in value.shape)
            by_row, self.by_row = self.by_row, False
            with self.writing(form, table=True):
                self.builder.path = maker.path if not isinstance(maker, FlatParam) else maker.weight.path
                if isinstance(maker, FlatOp):
                    made = self.results(maker, maker.node.op.onnx(maker.node, NodeScope(self, maker)))
                    self.tables.update((v, x) for v, x in zip(maker.outputs, made, strict=True) if x is not None)
                elif isinstance(maker, FlatParam):
                    self.tables[value] = self.param(maker)
                else:
                    raise error("E0504", "a scan over places alone has no step")
            self.by_row = by_row
        return self.tables[value]

    # --- recurrences ---

    def carry(self, flat: FlatOp, carry: Carry) -> None:
        builder = self.builder
        builder.path = flat.path
        self.ready(flat, flat.outputs[0].rank)
        names = [f"{carry.layer}.{s.name}" for s in carry.states]
        made, after = flat.node.op.onnx_step(flat.node, NodeScope(self, flat), [self.pasts[n] for n in names])
        for value, x in zip(flat.outputs, self.results(flat, made), strict=True):
            self.values[value] = x
        for name, state, x in zip(names, carry.states, after, strict=True):
            y = builder.cast(x, state.dtype)
            y.shape = self.shape_of(state.shape, "past")
            self.presents.append((name, y))

    def scan(self, flat: FlatScan) -> None:
        carry = self.plan.carries.get(flat)
        if carry is None:
            super().scan(flat)
            return
        builder = self.builder
        builder.path = flat.path
        names = [f"{carry.layer}.{s.name}" for s in carry.states]
        states = [self.started(flat, i, self.pasts[n]) for i, n in enumerate(names)]
        valid = self.valid()
        sequences = [self.value(v) for v in flat.sequences]
        count = len(sequences)

        def body(*inputs: ir.Value) -> list[ir.Value]:
            given = inputs[: len(states) + count]
            self.values.update(zip(flat.body.inputs, given, strict=True))
            self.graph(flat.body)
            results = [self.value(v) for v in flat.body.outputs]
            if valid is not None:
                real = inputs[-1]
                for i, state in enumerate(given[: len(states)]):
                    shown = builder.add("Unsqueeze", [real, list(range(1, carry.states[i].shape.__len__()))])
                    now = builder.cast(results[i], builder.dtype(state))
                    results[i] = builder.add("Where", [shown, now, state])
            return results

        given = sequences if valid is None else [*sequences, valid]
        results = scan(builder, body, states, given, 1)
        self.values.update(zip(flat.finals, results, strict=False))
        self.values.update(zip(flat.stacked, results[len(states) :], strict=True))
        for name, state, x in zip(names, carry.states, results, strict=False):
            x.shape = self.shape_of(state.shape, "past")
            self.presents.append((name, x))

    def started(self, flat: FlatScan, i: int, past: ir.Value) -> ir.Value:
        """A state after the places before; where there are none, what the scan starts from."""
        start, state, builder = flat.starts[i], flat.body.inputs[i], self.builder
        if isinstance(start, Num) and start.value == 0:
            return past
        first = (
            builder.number(start, state.dtype)
            if isinstance(start, Num)
            else builder.cast(self.value(start), state.dtype)
        )
        found: ir.Value = builder.add("Where", [self.at_start(), first, past])
        return found

    def at_start(self) -> ir.Value:
        """Whether there are no places before the new ones."""
        add, builder = self.builder.add, self.builder
        symbols = builder.main.symbols
        return self.once("at start", lambda: add("Equal", [symbols[self.all], symbols[self.new]]))

    # --- attention over what keys and values follow from ---

    def absorbed(self, flat: FlatOp) -> None:
        """Attention that reads the cached tensors themselves. Keys and values are linear maps of them, place by place:
        run on the rows of an identity matrix, the nodes between give the maps, which go over to the queries and the
        result."""
        builder, plan, latent = self.builder, self.plan, self.plan.latents[flat]
        add, path = builder.add, flat.path
        widths = [int(v.shape[-1]) for v in latent.base]
        total, at = sum(widths), 0
        kept = dict(self.values)
        for value, width in zip(latent.base, widths, strict=True):
            block = np.zeros((total, width))
            block[at : at + width] = np.eye(width)
            at += width
            self.values[value] = builder.constant(block.reshape([1] * (value.rank - 2) + [total, width]), value.dtype)
        for node in latent.chain:
            builder.path = f"{node.path}/map"
            made = self.results(node, node.node.op.onnx(node.node, NodeScope(_Plain(self), node)))
            self.values.update(zip(node.outputs, made, strict=True))
        maps = [self.values[v] for v in flat.inputs[1:3] if isinstance(v, Value)]
        self.values = kept
        builder.path = path
        rows = []
        for value in latent.base:
            x = self.full[value]
            rows.append(add("Unsqueeze", [x, [1]]) if value.rank == 3 else x)
        keys = add("Concat", rows, {"axis": -1}) if len(rows) > 1 else rows[0]
        builder.path = path
        scope = NodeScope(self, flat)
        (y,) = self.results(flat, flat.node.op.onnx_absorbed(flat.node, scope, keys, maps[0], maps[1]))
        self.values[flat.outputs[0]] = y
        del plan


class _Plain:
    """The writer, for nodes that are run on an identity matrix rather than in the step."""

    def __init__(self, writer: StepWriter) -> None:
        self.writer = writer
        self.by_row = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.writer, name)

    def operand(self, flat: FlatOp, i: int) -> ir.Value:
        given = flat.inputs[i]
        assert isinstance(given, Value)
        return self.writer.values[given]


def entries(entry: Cache | Carry) -> list[tuple[str, Shape, str]]:
    """What is kept: its name, its shape and type."""
    if isinstance(entry, Cache):
        return [(f"{entry.layer}.{entry.role}", entry.value.shape, entry.value.dtype)]
    return [(f"{entry.layer}.{s.name}", s.shape, s.dtype) for s in entry.states]


def handed_name(plan: Plan, value: Value) -> str:
    """What a tensor is called that is computed before the first step: keys and values of cross-attention by their
    layer."""
    layer = -1
    for node in plan.step.nodes:
        if isinstance(node, FlatOp):
            kept = node.node.op.keeps(node.node)
            if any(node.inputs[i] in plan.before.outputs for i in kept):
                layer += 1
                for i, (_, role) in kept.items():
                    if node.inputs[i] is value:
                        return f"past_key_values.{layer}.encoder.{role}"
    same = [v for v in plan.before.outputs if v.name == value.name]
    name = value.name or "encoder_output"
    return name if len(same) == 1 else f"{name}.{same.index(value)}"


def _poly(name: str) -> Poly:
    found = symbol(name)
    assert isinstance(found, Poly)
    return found
