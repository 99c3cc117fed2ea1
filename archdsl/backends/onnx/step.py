"""A step of decoding as an ONNX graph: the nodes of `archdsl.passes.flat_step`, each in the form in which it stands.

Inputs are those that existing runtimes feed: `input_ids` [batch, new], `attention_mask` [batch, all] (1 where a token
is real), `position_ids` [batch, new], and for all that is kept `past_key_values.{layer}.{role}`, which comes back, of a
cache longer, as `present.{layer}.{role}`. Rows may be padded on either side: positions are counted by row, over the
real tokens, and a padding key stands at a position that no query has reached. What is made of positions alone has an
axis of batch in front then: an op that cannot take one more axis is not by row, and then no op is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
import onnx_ir as ir

from archdsl.backends.onnx.positions import Positions
from archdsl.backends.onnx.scope import OnnxNodeScope, scan
from archdsl.backends.onnx.targets import GraphOptions, target_for
from archdsl.backends.onnx.write import GraphWriter, Written, written_by
from archdsl.diagnostics import error
from archdsl.ir.dims import Num, Poly, Shape, sub, symbol, with_symbol
from archdsl.ir.graph import AppendNode, FirstNode, Model, Value
from archdsl.passes.flat_step import FlatStep, Kept, resized, unroll_step
from archdsl.passes.flatten import FlatForm, FlatGraph, FlatNode, FlatOp, FlatParam, FlatScan
from archdsl.passes.forms import has as has_size
from archdsl.passes.forms import in_front
from archdsl.passes.step import stepped

LAST = symbol("last position")
"""The size of an axis of new positions of which each row has the last alone."""


class RowsUnsupportedError(Exception):
    """An op cannot take positions that differ by row."""


def write_steps(model: Model, options: GraphOptions, steps: FlatStep | None = None) -> dict[str, Written]:
    """The graphs that generate: `model`, a step; and, where a model has other inputs than the sequence, `encoder`,
    which is run once before.

    `steps` is the model's step, if that is known. Errors as of `write`, which writes the model for whole sequences, and
    ArchError E0504 where it cannot be taken step by step."""
    target_for(options)
    steps = unroll_step(stepped(model)) if steps is None else steps
    encoder: dict[str, GraphWriter] = {}
    if steps.before.outputs:
        encoder["encoder"] = EncoderWriter(steps, options, steps.before, handed_names(steps))
    try:
        return written_by({"model": StepWriter(steps, options, by_row=True), **encoder})
    except RowsUnsupportedError:
        return written_by({"model": StepWriter(steps, options, by_row=False), **encoder})


class EncoderWriter(GraphWriter):
    """Writes what is computed before the first step: `before`, whose outputs are `called` so."""

    def __init__(self, steps: FlatStep, options: GraphOptions, before: FlatGraph, called: Mapping[Value, str]) -> None:
        super().__init__(steps.of.whole, options)
        self.steps, self.before, self.called = steps, before, called

    def whole(self) -> Written:
        builder, before = self.builder, self.before
        inputs = [self.own_input(self.steps.names[v], v) for v in before.inputs]
        self.graph(before)
        builder.path = ""
        outputs = []
        for value in before.outputs:
            x = builder.add("Identity", [self.value(value)])
            x.name = builder.unique(self.called[value])
            x.shape = self.shape(value.shape)
            outputs.append(x)
        return self.finish(inputs, outputs)


class StepWriter(GraphWriter):
    """Writes the graph of a step."""

    def __init__(self, steps: FlatStep, options: GraphOptions, by_row: bool) -> None:
        super().__init__(steps.of.whole, replace(options, names="spec"))
        self.steps = steps
        self.by_row = by_row
        self.in_steps = True
        self.only_last = options.last
        self.last = False
        """Whether nodes are written for the last new position of each row alone."""
        self.places = Positions(self.builder, steps.of, by_row)
        self.new, self.all = self.places.new, self.places.all
        self.whole_sizes = steps.of.as_whole(self.all)
        self.inputs: list[ir.Value] = []
        self.pasts: dict[str, ir.Value] = {}
        """What the step before gave, by name."""
        self.presents: dict[str, ir.Value] = {}
        self.kept: dict[FlatNode, list[Kept]] = {}
        for kept in steps.kept:
            self.kept.setdefault(kept.node, []).append(kept)
        self.handed_names = handed_names(steps)
        self.crossed: list[tuple[str, ir.Value]] = []
        """What a step that computes it the first time gives of the encoder."""
        self.appending: set[FlatNode] = set()
        """Nodes whose operators append to their caches themselves: then each row of new positions is turned, so that
        its real tokens come first."""
        self.ranks: dict[ir.Value, int] = {}
        """Of tensors that are made of positions by row: the number of axes, that of batch in front included."""
        self.turning: FlatOp | None = None
        """A recurrence that is given the real positions of each row first."""
        self.asked = 0
        """How many axes the positions have that the node at hand has asked for, that of batch included; 0 for none."""
        self.table = False
        """Whether a table is being written: a tensor for all positions from 0 on, the same for every row."""
        self.tables: dict[Value, ir.Value] = {}
        """The tables that are in the graph."""

    # --- the whole graph ---

    def whole(self) -> Written:
        steps, builder = self.steps, self.builder
        if self.by_row and steps.without_rows is not None:
            raise RowsUnsupportedError(steps.without_rows.role)
        self.appending = self.find_appending()
        self.add_inputs()
        if self.by_row:
            self.inputs += self.places.feed()
        for kept in steps.kept:
            self.add_past(kept)
        cache = next((k for k in steps.kept if k.kind == "cache"), None)
        past = self.pasts[cache.name] if cache is not None else None
        axis = 0 if cache is None else cache.axis
        front = 0 if cache is None else steps.of.front(cache.shape[axis])
        self.inputs += self.places.set_lengths(past, axis, front)
        if self.appending and self.by_row:
            self.turn_rows()
        for value in steps.step.inputs:
            if value not in self.values:
                self.values[value] = builder.cast(self.places.mask(), "bool")  # the padding of the sequence
        first, read = steps.tail() if self.only_last else (len(steps.step.nodes), ())
        for node in steps.step.nodes[:first]:
            self.node(node)
        self.leave_out(read)
        for node in steps.step.nodes[first:]:
            self.node(node)
        return self.finish(self.inputs, self.results_of_step())

    def results_of_step(self) -> list[ir.Value]:
        """The outputs, by the names that they have in the graph of the whole, the first one `logits` if it has none;
        then all that is kept."""
        builder, outputs = self.builder, list[ir.Value]()
        builder.path = ""
        names = [next(n for n, _ in self.model.outputs) or "logits", *self.names.outputs[1:]]
        for i, output in zip(self.steps.of.results, self.steps.step.outputs, strict=True):
            x = self.value(output)
            if self.appending and self.by_row and not self.last and self.steps.is_new(output):
                x = self.along(output, x, self.places.turned_back)
            x = builder.add("Identity", [x])
            x.name = builder.unique(names[i])
            x.shape = self.shape(output.shape)
            outputs.append(x)
        for kept in self.steps.kept:
            given = self.presents[kept.name]
            # Itself under that name, where it can be: an `Identity` would copy the cache.
            own = given.producer() is not None and all(given is not o for o in outputs)
            y = given if own else builder.add("Identity", [given])
            y.name = builder.unique(f"present.{kept.name}")
            y.shape = self.shape(kept.shape)
            outputs.append(y)
        for name, x in self.crossed:
            x.name = builder.unique(f"present.{name}")
            outputs.append(x)
        return outputs

    def add_inputs(self) -> None:
        """The inputs of the model that a step takes, and what was computed before it."""
        for value in self.steps.step.inputs:
            if value in self.handed_names:
                self.inputs.append(self.input(self.handed_names[value], value, value.dtype))
            elif value.dtype != "padding":
                self.inputs.append(self.sequence(value))

    def sequence(self, value: Value) -> ir.Value:
        """An input of the model, of which a step takes the new positions."""
        name = "input_ids" if value is self.steps.ids else self.steps.names[value]
        x = self.outer(name, value.shape, value.dtype)
        self.values[value] = x
        self.note_sizes(x, value.shape)
        return x

    def add_past(self, kept: Kept) -> None:
        x = self.outer(f"past_key_values.{kept.name}", kept.shape, kept.dtype)
        shape, name = [*kept.shape], "past_sequence_length"
        if kept.kind == "cache" and (front := self.steps.of.front(shape[kept.axis])):
            shape[kept.axis] = shape[kept.axis].where(self.steps.of.all.name, sub(self.all, front))  # 0 at first
            name = f"{name}_with_{front}_in_front"
        x.shape = self.shape(tuple(shape), name)
        self.inputs.append(x)
        self.pasts[kept.name] = x

    def outer(self, name: str, shape: Shape, dtype: str) -> ir.Value:
        """An input of the graph."""
        builder = self.builder
        kind = ir.TensorType(builder.type_of(dtype))
        return ir.Value(name=builder.unique(name), type=kind, shape=self.shape(shape))

    def shape(self, shape: Shape, every: str = "total_sequence_length") -> ir.Shape:
        """Return a shape of the graph: static sizes as numbers, others by name. All positions are called `every`."""
        new, total, _ = self.places.lengths
        names = {new: 1 if self.last else symbol("sequence_length"), total: symbol(every)}
        found: list[int | str] = []
        for d in shape:
            size = d.value
            for name, other in names.items():
                size = with_symbol(size, name, other)
            found.append("batch_size" if str(size) == "batch" else str(size) if isinstance(size, Poly) else int(size))
        return ir.Shape(found)

    def leave_out(self, values: Sequence[Value]) -> None:
        """From here on each row has its last position alone, of these tensors [batch, new, …]."""
        if not self.only_last:
            return
        self.last, self.builder.path = True, "last"
        self.builder.main.symbols[str(LAST)] = self.builder.constant([1], "int")
        for value in values:
            last = partial(self.places.last, real_first=bool(self.appending))
            self.values[value] = self.along(value, self.value(value), last)

    def along(self, value: Value, x: ir.Value, taken: Callable[[ir.Value], ir.Value]) -> ir.Value:
        """What is taken of [batch, new, …] of a tensor whose new positions are along any axis."""
        order = [*range(value.rank)]
        axis = self.steps.axis_of_new(value)
        order[1], order[axis] = axis, 1
        if axis == 1:
            return taken(x)
        turned = self.builder.add("Transpose", [x], {"perm": order})
        found: ir.Value = self.builder.add("Transpose", [taken(turned)], {"perm": order})
        return found

    # --- nodes ---

    def node(self, node: FlatNode) -> None:
        steps = self.steps
        if self.by_row and node in steps.beside:
            raise RowsUnsupportedError(node.node.op.name if isinstance(node, FlatOp) else "scan")
        if isinstance(node, FlatForm):
            self.form(node)
        elif self.by_row and any(v in steps.positional for v in node.outputs):
            self.of_rows(node)
        elif node not in steps.chain:
            super().node(node)

    def form(self, form: FlatForm) -> None:
        """The other form of a tensor: its new positions put behind those of before, or the new ones of all."""
        builder, value, axis, steps = self.builder, form.value, form.node.axis, self.steps
        if isinstance(form.node, AppendNode):
            (kept,) = self.kept[form]
            builder.path = f"{form.path}/cache" if form.path else "cache"
            x = builder.add("Concat", [self.pasts[kept.name], self.value(value)], {"axis": axis})
            x.shape = self.shape(form.output.shape)
            self.presents[kept.name] = x
        elif isinstance(form.node, FirstNode):
            builder.path = form.path or value.name
            x = builder.add("Slice", [self.value(value), [0], builder.size(form.output.shape[axis].value), [axis]])
        elif self.by_row and value in steps.positional:
            self.at_positions(form.output)
            return
        else:
            builder.path = form.path or value.name
            x = self.places.newest_of(self.value(value), axis, steps.of.front(value.shape[axis]))
        self.values[form.output] = x

    def op(self, flat: FlatOp) -> None:
        steps = self.steps
        self.ready(flat)
        if flat.node.kept:
            self.carry(flat)
        elif flat in steps.latents:
            self.absorbed(flat)
        elif steps.spreads(flat) and self.is_by_row(flat, 0):
            self.values[flat.outputs[0]] = self.builder.add("Squeeze", [self.operand(flat, 0), [1]])
        else:
            super().op(replace(flat, node=resized(flat.node, {steps.of.new: LAST})) if self.last else flat)

    def ready(self, flat: FlatOp) -> None:
        """See to it that inputs made of positions by row fit the others, whose first axis is that of the batch."""
        if not any(self.is_by_row(flat, i) for i in range(len(flat.inputs))):
            return
        op, shape, batch = flat.node.op, flat.outputs[0].shape, self.steps.step.inputs[0].shape[0].value
        fits = op.elementwise or op.by_rows or self.steps.spreads(flat)
        if not fits or not shape or shape[0].value != batch:
            raise RowsUnsupportedError(op.name)

    def value(self, value: Value) -> ir.Value:
        if self.by_row and value not in self.values:
            raise RowsUnsupportedError(value.name)
        return self.values[value]

    def operand(self, flat: FlatOp, i: int) -> ir.Value:
        given = flat.tensor(i)
        if self.table:
            return self.as_table(given)
        x = self.aligned(flat, self.value(given))
        if flat is not self.turning or not self.steps.is_new(given):
            return x
        return self.along(given, x, partial(self.places.taken, places=self.places.turned(1, self.front(flat))))

    def newest(self, flat: FlatOp, i: int) -> ir.Value:
        given, steps = flat.tensor(i), self.steps
        axes = steps.of_all(given)
        if self.table or not axes or not steps.is_new(flat.outputs[0]):
            return self.operand(flat, i)
        if (form := steps.form_of(given)) is not None:
            return self.value(form.value)
        front = steps.of.front(given.shape[axes[0]])
        return self.places.newest_of(self.value(given), axes[0] - given.rank, front)

    # --- what is kept ---

    def carry(self, flat: FlatOp) -> None:
        builder, states = self.builder, self.kept[flat]
        builder.path = flat.path
        pasts = [self.pasts[s.name] for s in states]
        # Padding of a row would stand between its tokens and the places in front of them, which are kept, too.
        front = self.front(flat) if self.by_row else 0
        self.turning = flat if front else None
        made, after = flat.node.op.onnx_step(flat.node, OnnxNodeScope(self, flat), pasts)
        self.turning = None
        results = self.results(flat, made)
        if front:
            back = partial(self.places.taken, places=self.places.turned(-1, front))
            results = [x if x is None else self.along(v, x, back) for v, x in zip(flat.outputs, results, strict=True)]
        self.values.update(zip(flat.outputs, results, strict=True))
        self.presents.update((s.name, builder.cast(x, s.dtype)) for s, x in zip(states, after, strict=True))

    def scan(self, flat: FlatScan) -> None:
        if not flat.node.kept:
            super().scan(flat)
            return
        builder, kept = self.builder, self.kept[flat]
        builder.path = flat.path
        states = [self.started(flat, i, self.pasts[k.name]) for i, k in enumerate(kept)]
        valid = self.valid(flat)
        sequences = [builder.swapped(self.value(v), v.rank, 1) for v in flat.sequences]
        count = len(sequences)

        def body(*inputs: ir.Value) -> list[ir.Value]:
            given = inputs[: len(states) + count]
            self.values.update(zip(flat.body.inputs, given, strict=True))
            self.graph(flat.body)
            results = [self.value(v) for v in flat.body.outputs]
            if valid is not None:
                real = inputs[-1]
                for i, state in enumerate(given[: len(states)]):
                    shown = builder.add("Unsqueeze", [real, list(range(1, len(kept[i].shape)))])
                    now = builder.cast(results[i], builder.dtype(state))
                    results[i] = builder.add("Where", [shown, now, state])
            return results

        given = sequences if valid is None else [*sequences, builder.swapped(valid, 2, 1)]
        results = scan(builder, body, states, given)
        self.scanned(flat, results)
        self.presents.update((k.name, x) for k, x in zip(kept, results, strict=False))

    def started(self, flat: FlatScan, i: int, past: ir.Value) -> ir.Value:
        """A state after the positions before; where there are none, what the scan starts from."""
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

    def absorbed(self, flat: FlatOp) -> None:
        """Attention that reads the cached tensors themselves. Keys and values are projections of them, position by
        position: run on the rows of an identity matrix, the nodes between give the maps, which go over to the queries
        and the result."""
        builder, latent = self.builder, self.steps.latents[flat]
        add, path = builder.add, flat.path
        base = [form.output for form in latent.base]
        widths = [int(v.shape[-1]) for v in base]
        total, at = sum(widths), 0
        kept, by_row = dict(self.values), self.by_row
        for value, width in zip(base, widths, strict=True):
            block = np.zeros((total, width))
            block[at : at + width] = np.eye(width)
            at += width
            self.values[value] = builder.constant(block.reshape([1] * (value.rank - 2) + [total, width]), value.dtype)
        self.by_row = False
        for node in latent.chain:
            builder.path = f"{node.path}/map"
            made = self.results(node, node.node.op.onnx(node.node, OnnxNodeScope(self, node)))
            self.values.update(zip(node.outputs, made, strict=True))
        maps = [self.values[v] for v in flat.inputs[1:3] if isinstance(v, Value)]
        self.values, self.by_row = kept, by_row
        builder.path = path
        rows = [add("Unsqueeze", [x, [1]]) if v.rank == 3 else x for v in base for x in [self.value(v)]]
        keys = add("Concat", rows, {"axis": -1}) if len(rows) > 1 else rows[0]
        scope = OnnxNodeScope(self, flat)
        (y,) = self.results(flat, flat.node.op.onnx_absorbed(flat.node, scope, keys, maps[0], maps[1]))
        self.values[flat.outputs[0]] = y

    # --- operators that append themselves ---

    def find_appending(self) -> set[FlatNode]:
        """All attention, if all of it can append to its caches itself and nothing else looks at positions of keys."""
        steps = self.steps
        kinds = {k.kind for k in steps.kept}
        rows = all(v.rank == 2 for v in steps.step.inputs if any(map(steps.of.has, v.shape)))
        if kinds != {"cache"} or steps.latents or not rows:
            return set()
        readers = Counter(v for n in steps.step.nodes for v in n.inputs if isinstance(v, Value))
        found: set[FlatNode] = set()
        self.appending = {*steps.step.nodes}
        for node in steps.step.nodes:
            if not isinstance(node, FlatOp) or any(v in steps.positional for v in node.outputs):
                continue
            given = [v for v in node.inputs if isinstance(v, Value) and steps.of_all(v)]
            if not given:
                continue
            once = all(steps.form_of(v) and readers[v] == 1 for v in given if v not in steps.positional)
            if not once or not node.node.op.caches_itself(node.node, OnnxNodeScope(self, node)):
                return set()
            found.add(node)
        return found

    def appends(self, flat: FlatOp) -> bool:
        return flat in self.appending

    def new_positions(self, flat: FlatOp, i: int) -> ir.Value:
        form = self.steps.form_of(flat.tensor(i))
        assert form is not None
        return self.value(form.value)

    def kept_of(self, flat: FlatOp, i: int) -> Kept:
        form = self.steps.form_of(flat.tensor(i))
        assert form is not None
        return self.kept[form][0]

    def past(self, flat: FlatOp, i: int) -> ir.Value | None:
        return self.pasts[self.kept_of(flat, i).name]

    def keep_as(self, flat: FlatOp, i: int, x: ir.Value) -> None:
        self.presents[self.kept_of(flat, i).name] = x

    def filled(self, flat: FlatOp) -> tuple[ir.Value, ir.Value]:
        return self.places.filled(self.steps.of.front(self.kept_of(flat, 1).shape[self.kept_of(flat, 1).axis]))

    def turn_rows(self) -> None:
        """Real tokens first: what comes in is turned."""
        for value in self.steps.step.inputs:
            if value in self.values and self.steps.is_new(value):
                self.values[value] = self.places.real_first(self.values[value])
        self.places.fed["position_ids"] = self.places.real_first(self.places.fed["position_ids"])

    def is_turned(self, flat: FlatOp) -> bool:
        return flat is self.turning

    def turned(self, sign: int) -> ir.Value:
        return self.places.turned(sign)

    # --- positions ---

    def front(self, flat: FlatNode) -> int:
        """How many places stand in front of the new positions that an op makes, in the first step."""
        return max((self.led(d) for v in flat.outputs for d in v.shape), default=0)

    def valid(self, flat: FlatNode) -> ir.Value | None:
        return self.places.valid(self.front(flat), turned=flat is self.turning)

    def at_start(self) -> ir.Value:
        return self.places.at_start()

    def number(self, n: Num, dtype: str) -> ir.Value:
        """How many positions there are as a number counts all, whichever are asked for."""
        for of, size in self.whole_sizes.items():
            n = n.where(of.name, size)
        return super().number(n, dtype)

    def led(self, length: Num) -> int:
        """How many places stand in front of so many new positions, in the first step."""
        return self.steps.of.front(length) if has_size(length, self.steps.of.new) else 0

    def positions(self, length: Num) -> ir.Value:
        if (front := self.led(length)) and not self.table:
            found = self.places.new_places(front)
            if self.by_row:
                self.asked = self.ranks[found] = 2
            return found
        front = in_front(length, self.steps.of.all)
        if length.value not in (self.new, self.all) and not (front and self.by_row):  # a table, the same for each row
            return super().positions(length)
        new = length.value == self.new
        if not self.by_row:
            return self.places.counted(new)
        found = self.places.fed["position_ids"] if new else self.places.of_keys(front)
        self.asked = self.ranks[found] = 2
        return found

    def pairs(self, queries: Num, keys: Num, middle: int = 1) -> tuple[ir.Value, ir.Value]:
        add, has = self.builder.add, self.steps.of.has
        if not has(queries) and not has(keys):
            return super().pairs(queries, keys, middle)
        of = self.steps.of
        front, led = in_front(keys, of.all), of.front(queries)
        known = queries.value in (self.new, self.all, 1) or led
        if not known or not (front or keys.value == self.all):
            raise error("E0504", f"a decode step has no pairs of {queries} queries and {keys} keys")
        if self.table or has_size(queries, of.all):
            if self.by_row:
                raise RowsUnsupportedError("mask")  # padding would be among the queries
            query, key = self.places.counted(new=False, front=led), self.places.counted(new=False, front=front)
            query = add("Add", [query, front - led]) if front != led else query
            return add("Unsqueeze", [query, [-1]]), add("Unsqueeze", [key, [0]])
        query, key = self.places.pairs(middle, front, led)
        if self.by_row:
            self.asked = self.ranks[query] = self.ranks[key] = 3 + middle
        return query, key

    # --- rows of several lengths ---

    def is_by_row(self, flat: FlatOp, i: int) -> bool:
        return self.rank_of(flat, i) > 0

    def varies_by_row(self, flat: FlatOp, i: int) -> bool:
        return self.by_row and self.is_by_row(flat, i)

    def rank_of(self, flat: FlatOp, i: int) -> int:
        """How many axes an input made of positions by row has; 0 for any other."""
        given = flat.inputs[i]
        known = isinstance(given, Value) and given in self.steps.positional and given in self.values
        return self.ranks.get(self.values[given], 0) if known and isinstance(given, Value) else 0

    def of_rows(self, node: FlatNode) -> None:
        """What is made of positions, for each row. What has no such form is not written; nobody may read it then."""
        if isinstance(node, FlatOp) and self.is_direct(node):
            with suppress(RowsUnsupportedError):
                self.by_rows(node)
            return
        for value in node.outputs:
            self.at_positions(value)

    def by_rows(self, flat: FlatOp) -> None:
        self.builder.path = flat.path or flat.outputs[0].name
        self.asked = 0
        made = self.results(flat, flat.node.op.onnx(flat.node, OnnxNodeScope(self, flat)))
        ranks = [r for i in range(len(flat.inputs)) if (r := self.rank_of(flat, i))]
        for value, x in zip(flat.outputs, made, strict=True):
            self.values[value] = x
            if ranks or self.asked:
                own = max(value.rank + 1, *ranks) if flat.node.op.elementwise and ranks else 0
                self.ranks[x] = own or (self.asked if self.asked > 2 else value.rank + 1)

    def is_direct(self, flat: FlatOp) -> bool:
        """Whether an op can be written for each row as it stands: it asks for positions, or has its own place of inputs
        in that form."""
        op, known = flat.node.op, self.steps.positional
        # Of all positions those of padding stand nowhere: an op that only moves numbers may have them, no table has.
        if op.elementwise or (op.by_rows and (op.positional or op.moves or not self.steps.of_all(flat.outputs[0]))):
            return True
        if op.by_rows and op.table(flat.node) is not None:  # of weights, which have no positions
            return flat.inputs[0] not in known
        return op.positional and not any(v in known for v in flat.inputs if isinstance(v, Value))

    def at_positions(self, value: Value) -> None:
        """The rows of a table at the positions of the new tokens: [batch, …], wherever the axis of time is. The keys of
        a row begin behind its padding, so that no table has them."""
        axes = [i for i, d in enumerate(value.shape) if self.steps.of.has(d)]
        if not axes:
            self.values[value] = self.as_table(value)
        elif len(axes) == 1 and self.steps.is_new(value):
            axis, add = axes[0], self.builder.add
            front = self.steps.of.front(value.shape[axis])
            at = self.places.new_places(front) if front else self.places.fed["position_ids"]
            x = add("Gather", [self.as_table(value), at], {"axis": axis})
            order = [axis, *range(axis), *range(axis + 1, value.rank + 1)]
            x = add("Transpose", [x], {"perm": order}) if axis else x
            self.values[value] = x
            self.ranks[x] = value.rank + 1

    def aligned(self, flat: FlatOp, x: ir.Value) -> ir.Value:
        """A tensor of positions by row, [batch, …], with as many axes as the result of an element-wise op has."""
        rank = self.ranks.get(x) if self.by_row else None
        op, first = flat.node.op, flat.outputs[0]
        if rank is None or not (op.elementwise or op.family == "attention"):
            return x
        target = first.rank
        if first in self.steps.positional:
            target = max(target + 1, *(self.rank_of(flat, i) for i in range(len(flat.inputs))))
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

    def every_position(self, flat: FlatOp, i: int) -> ir.Value | None:
        given = flat.tensor(i)
        return self.as_table(given) if given in self.steps.positional else None

    def as_table(self, value: Value) -> ir.Value:
        """A tensor made of positions, for all of them from 0 on, the same for every row. Raises RowsUnsupportedError
        where padded rows ask for what a scan makes."""
        steps = self.steps
        if value not in steps.positional or not (self.places.by_row or steps.is_new(value)):
            return self.value(value)
        if value not in self.tables:
            maker = steps.makers[value]
            if isinstance(maker, FlatScan):
                raise RowsUnsupportedError("scan")
            before = self.by_row, self.table, self.builder.path
            self.by_row, self.table = False, True
            self.builder.path = maker.weight.path if isinstance(maker, FlatParam) else maker.path or value.name
            if isinstance(maker, FlatOp):
                node = resized(maker.node, self.whole_sizes)
                flat = replace(maker, node=node)
                made = self.results(flat, node.op.onnx(node, OnnxNodeScope(self, flat)))
                self.tables.update((v, x) for v, x in zip(maker.outputs, made, strict=True) if x is not None)
            elif isinstance(maker, FlatParam):
                self.tables[value] = self.param(maker)
            else:
                self.tables[value] = self.as_table(maker.value)
            self.by_row, self.table, self.builder.path = before
        return self.tables[value]


def handed_names(steps: FlatStep) -> dict[Value, str]:
    """What the tensors are called that are computed before the first step: keys and values of cross-attention by their
    layer."""
    before = steps.before.outputs
    found: dict[Value, str] = {}
    layer = -1
    for node in steps.step.nodes:
        if isinstance(node, FlatOp):
            kept = node.node.op.cached_inputs(node.node)
            crossing = {i: v for i in kept if isinstance(v := node.inputs[i], Value) and v in before}
            layer += bool(crossing)
            for i, value in crossing.items():
                found.setdefault(value, f"past_key_values.{layer}.encoder.{kept[i][1]}")
    for value in before:
        if value not in found:
            same = [v for v in before if v.name == value.name]
            name = value.name or "encoder_output"
            found[value] = name if len(same) == 1 else f"{name}.{same.index(value)}"
    return found
