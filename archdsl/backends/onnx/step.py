"""A step of decoding as an ONNX graph, by the plan of `archdsl.passes.decode`.

Inputs are those that existing runtimes feed: `input_ids` [batch, new], `attention_mask` [batch, all] (1 where a token
is real), `position_ids` [batch, new], and for every cache `past_key_values.{layer}.{role}`, which comes back, longer,
as `present.{layer}.{role}`. Rows may be padded on either side: positions are counted by row, over the real tokens, and
a padding key stands at a position that no query has reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from archdsl.backends.onnx.extents import FormsWriter
from archdsl.backends.onnx.positions import RowsUnsupportedError, size_of
from archdsl.backends.onnx.scope import OnnxNodeScope, scan
from archdsl.backends.onnx.targets import GraphOptions, target_for
from archdsl.backends.onnx.write import GraphWriter, Written, written_by
from archdsl.ir.dims import Num, Shape
from archdsl.ir.graph import Model, Value
from archdsl.passes.decode import CacheSpec, CarriedState, DecodePlan, plan
from archdsl.passes.flatten import FlatGraph, FlatNode, FlatOp, FlatScan
from archdsl.passes.forms import ALL, FIXED, has, is_time


def write_steps(model: Model, options: GraphOptions, steps: DecodePlan | None = None) -> dict[str, Written]:
    """The graphs that generate: `model`, a step; and, where a model has other inputs than the sequence, `encoder`,
    which is run once before.

    `steps` is the model's plan, if that is known. Errors as of `write`, which writes the model for whole sequences, and
    ArchError E0504 where it cannot be taken step by step."""
    target_for(options)
    steps = plan(model) if steps is None else steps
    encoder: dict[str, GraphWriter] = {}
    if steps.before.outputs:
        encoder["encoder"] = EncoderWriter(model, options, steps.before, handed_names(steps))
    try:
        return written_by({"model": StepWriter(model, options, steps, by_row=True), **encoder})
    except RowsUnsupportedError:
        return written_by({"model": StepWriter(model, options, steps, by_row=False), **encoder})


class EncoderWriter(GraphWriter):
    """Writes what is computed before the first step: `before`, whose outputs are `called` so."""

    def __init__(self, model: Model, options: GraphOptions, before: FlatGraph, called: Mapping[Value, str]) -> None:
        super().__init__(model, options)
        self.before, self.called = before, called

    def whole(self) -> Written:
        builder, before = self.builder, self.before
        names = {v: n for n, v in self.model.inputs}
        inputs = [self.own_input(names[v], v) for v in before.inputs]
        self.graph(before)
        builder.path = ""
        outputs = []
        for value in before.outputs:
            x = builder.add("Identity", [self.value(value)])
            x.name = builder.unique(self.called[value])
            x.shape = self.shape(value.shape)
            outputs.append(x)
        return self.finish(inputs, outputs)


class StepWriter(FormsWriter):
    """Writes the graph of a step."""

    def __init__(self, model: Model, options: GraphOptions, plan: DecodePlan, by_row: bool) -> None:
        super().__init__(model, options, plan, by_row)
        self.only_last = options.last
        self.presents: list[tuple[str, ir.Value]] = []
        self.appending: set[FlatNode] = set()
        """Nodes whose operators append to their caches themselves: then each row of new positions is turned, so that
        its real tokens come first."""
        self.handed_names = handed_names(plan)
        self.crossed: list[tuple[str, ir.Value]] = []
        """What a step that computes it the first time gives of the encoder."""

    def whole(self) -> Written:
        plan, builder = self.plan, self.builder
        crossing = set(plan.before.outputs)
        self.appending = self.find_appending()
        self.add_inputs()
        self.add_positions()
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
        first, read = plan.tail() if self.only_last else (len(plan.step.nodes), ())
        for node in plan.step.nodes[:first]:
            self.node(node)
        self.leave_out(read)
        for node in plan.step.nodes[first:]:
            self.node(node)
        (output,) = plan.step.outputs
        builder.path = ""
        x = self.value(output)
        if self.appending and self.by_row and not self.last:
            turn = self.turned(-1)
            x = builder.add("GatherND", [x, builder.add("Unsqueeze", [turn, [-1]])], {"batch_dims": 1})
        x = builder.add("Identity", [x])
        x.name = builder.unique(next(n for n, _ in self.model.outputs) or "logits")
        x.shape = self.shape_of(output.shape, "new")
        outputs = [x]
        found = dict(self.presents)
        for name in (n for e in plan.entries() for n, _, _ in entries(e)):
            kept = found[name]
            # Itself under that name, where it can be: an `Identity` would copy the cache.
            own = kept.producer() is not None and all(kept is not o for o in outputs)
            y = kept if own else builder.add("Identity", [kept])
            y.name = builder.unique(f"present.{name}")
            y.shape = kept.shape
            outputs.append(y)
        for name, x in self.crossed:
            x.name = builder.unique(f"present.{name}")
            outputs.append(x)
        return self.finish(self.inputs, outputs)

    def add_inputs(self) -> None:
        """The inputs of the model that a step takes, and what was computed before it."""
        plan = self.plan
        names = {v: n for n, v in self.model.inputs}
        for value in plan.step.inputs:
            if value in self.handed_names:
                self.inputs.append(self.input(self.handed_names[value], value, value.dtype))
            elif value.dtype != "padding":
                self.inputs.append(self.sequence("input_ids" if value is plan.ids else names[value], value))

    def leave_out(self, values: Sequence[Value]) -> None:
        """From here on each row has its last position alone, of these tensors [batch, new, …]."""
        self.builder.path = "last"
        for value in values:
            self.values[value] = self.last_positions(self.value(value), bool(self.appending))
        self.last = self.only_last

    def sequence(self, name: str, value: Value) -> ir.Value:
        """An input of the model, of which a step takes the new positions."""
        builder = self.builder
        x = ir.Value(
            name=builder.unique(name),
            type=ir.TensorType(builder.type_of(value.dtype)),
            shape=self.shape_of(value.shape, "new"),
        )
        self.values[value] = x
        for axis, d in enumerate(value.shape):
            if is_time(d, self.plan.time):
                self.note_size(self.new, x, axis)
        self.note_sizes(x, value.shape)
        return x

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
        """Put the new positions of a tensor behind those of before."""
        cache = self.plan.caches[value]
        name = f"{cache.layer}.{cache.role}"
        builder, path = self.builder, self.builder.path
        builder.path = f"{path}/cache" if path else "cache"
        found = builder.add("Concat", [self.pasts[name], self.value(value)], {"axis": cache.axis})
        found.shape = self.shape_of(value.shape, "all")
        builder.path = path
        self.full[value] = found
        self.presents.append((name, found))

    def find_appending(self) -> set[FlatNode]:
        """All attention, if all of it can append to its caches itself and nothing else looks at positions of keys."""
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
            itself = node.node.op.caches_itself(node.node, OnnxNodeScope(self, node))
            once = all(users.get(v, 0) == 1 for v in kept if isinstance(v, Value) and v not in plan.positional)
            fine = fine and itself and once
            found.add(node)
        flat = all(v.rank == 2 for v in plan.step.inputs if any(has(d, plan.time) for d in v.shape))
        return found if fine and flat else set()

    def appends(self, flat: FlatOp) -> bool:
        return flat in self.appending

    def new_positions(self, flat: FlatOp, i: int) -> ir.Value:
        return self.value(flat.tensor(i))

    def past(self, flat: FlatOp, i: int) -> ir.Value | None:
        cache = self.plan.caches[flat.tensor(i)]
        return self.pasts[f"{cache.layer}.{cache.role}"]

    def keep_as(self, flat: FlatOp, i: int, x: ir.Value) -> None:
        given = flat.tensor(i)
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

        total = self.once("total", lambda: builder.cast(builder.scalar(size_of(self.all)), "int32"))
        return self.once("real keys", counts), total

    def turn_rows(self) -> None:
        """Real tokens first: what comes in is turned."""
        for value in self.plan.step.inputs:
            if value in self.values and any(is_time(d, self.plan.time) for d in value.shape):
                self.values[value] = self.real_first(self.values[value])
        self.pasts["position_ids"] = self.real_first(self.pasts["position_ids"])

    def real_first(self, x: ir.Value) -> ir.Value:
        """[batch, new] with the padding in front of each row behind it."""
        return self.once(
            f"turned {x.name}", lambda: self.builder.add("GatherElements", [x, self.turned(1)], {"axis": 1})
        )

    def node(self, node: FlatNode) -> None:
        plan = self.plan
        if any(v in plan.positional for v in node.outputs):
            return  # written when it is asked for, in the form that is asked for
        super().node(node)
        for value in node.outputs:
            if value in plan.caches:
                self.keep(value)

    def op(self, flat: FlatOp) -> None:
        plan = self.plan
        first = flat.outputs[0]
        form = plan.forms.get(first, ())
        if self.by_row and flat in plan.beside:
            raise RowsUnsupportedError(flat.node.op.name)
        with self.writing(form, length=plan.lengths.get(flat, FIXED)):
            if flat in plan.carries:
                self.carry(flat, plan.carries[flat])
            elif flat in plan.latents:
                self.absorbed(flat)
            elif flat in plan.spread and self.is_by_row(flat, 0):
                self.values[flat.outputs[0]] = self.builder.add("Squeeze", [self.operand(flat, 0), [1]])
            else:
                self.ready(flat)
                super().op(flat)

    def ready(self, flat: FlatOp) -> None:
        """See to it that inputs made of positions by row fit the others, whose first axis is that of the batch."""
        if not any(self.is_by_row(flat, i) for i in range(len(flat.inputs))):
            return
        op, shape, batch = flat.node.op, flat.outputs[0].shape, self.plan.step.inputs[0].shape[0].value
        if not (op.elementwise or op.by_rows) or not shape or shape[0].value != batch:
            raise RowsUnsupportedError(op.name)

    def carry(self, flat: FlatOp, carry: CarriedState) -> None:
        builder = self.builder
        builder.path = flat.path
        self.ready(flat)
        names = [f"{carry.layer}.{s.name}" for s in carry.states]
        made, after = flat.node.op.onnx_step(flat.node, OnnxNodeScope(self, flat), [self.pasts[n] for n in names])
        for value, x in zip(flat.outputs, self.results(flat, made), strict=True):
            self.values[value] = x
        for name, state, x in zip(names, carry.states, after, strict=True):
            y = builder.cast(x, state.dtype)
            y.shape = self.shape_of(state.shape, "past")
            self.presents.append((name, y))

    def scan(self, flat: FlatScan) -> None:
        carry = self.plan.carries.get(flat)
        if carry is None:
            with self.writing(self.plan.forms.get(flat.outputs[0], ())):
                super().scan(flat)
            return
        builder = self.builder
        builder.path = flat.path
        names = [f"{carry.layer}.{s.name}" for s in carry.states]
        states = [self.started(flat, i, self.pasts[n]) for i, n in enumerate(names)]
        valid = self.valid()
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
                    shown = builder.add("Unsqueeze", [real, list(range(1, len(carry.states[i].shape)))])
                    now = builder.cast(results[i], builder.dtype(state))
                    results[i] = builder.add("Where", [shown, now, state])
            return results

        given = sequences if valid is None else [*sequences, builder.swapped(valid, 2, 1)]
        results = scan(builder, body, states, given)
        self.scanned(flat, results)
        for name, state, x in zip(names, carry.states, results, strict=False):
            x.shape = self.shape_of(state.shape, "past")
            self.presents.append((name, x))

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
        builder, latent = self.builder, self.plan.latents[flat]
        add, path = builder.add, flat.path
        widths = [int(v.shape[-1]) for v in latent.base]
        total, at = sum(widths), 0
        kept = dict(self.values)
        for value, width in zip(latent.base, widths, strict=True):
            block = np.zeros((total, width))
            block[at : at + width] = np.eye(width)
            at += width
            self.values[value] = builder.constant(block.reshape([1] * (value.rank - 2) + [total, width]), value.dtype)
        by_row, self.by_row, self.plain = self.by_row, False, True
        for node in latent.chain:
            builder.path = f"{node.path}/map"
            made = self.results(node, node.node.op.onnx(node.node, OnnxNodeScope(self, node)))
            self.values.update(zip(node.outputs, made, strict=True))
        self.by_row, self.plain = by_row, False
        maps = [self.values[v] for v in flat.inputs[1:3] if isinstance(v, Value)]
        self.values = kept
        builder.path = path
        rows = []
        for value in latent.base:
            x = self.full[value]
            rows.append(add("Unsqueeze", [x, [1]]) if value.rank == 3 else x)
        keys = add("Concat", rows, {"axis": -1}) if len(rows) > 1 else rows[0]
        scope = OnnxNodeScope(self, flat)
        (y,) = self.results(flat, flat.node.op.onnx_absorbed(flat.node, scope, keys, maps[0], maps[1]))
        self.values[flat.outputs[0]] = y


def entries(entry: CacheSpec | CarriedState) -> list[tuple[str, Shape, str]]:
    """What is kept: its name, its shape and type."""
    if isinstance(entry, CacheSpec):
        return [(f"{entry.layer}.{entry.role}", entry.value.shape, entry.value.dtype)]
    return [(f"{entry.layer}.{s.name}", s.shape, s.dtype) for s in entry.states]


def handed_names(plan: DecodePlan) -> dict[Value, str]:
    """What the tensors are called that are computed before the first step: keys and values of cross-attention by their
    layer."""
    before = plan.before.outputs
    found: dict[Value, str] = {}
    layer = -1
    for node in plan.step.nodes:
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
