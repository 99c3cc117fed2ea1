"""Where the tokens of a step stand: lengths, positions by row, padding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import onnx_ir as ir

from archdsl.backends.onnx.targets import GraphOptions
from archdsl.backends.onnx.write import GraphWriter, symbol_name
from archdsl.diagnostics import error
from archdsl.ir.dims import Num, Poly, Shape, symbol
from archdsl.ir.graph import Model
from archdsl.passes.decode import CacheSpec, DecodePlan
from archdsl.passes.forms import ALL, NEW, Form, has, is_time


class RowsUnsupportedError(Exception):
    """An op cannot take positions that differ by row."""


NOWHERE = 2**30
"""The place of a padding key: later than that of any query."""


class PositionsWriter(GraphWriter):
    """Knows two lengths, that of the new positions and that of all, and gives positions of either."""

    def __init__(self, model: Model, options: GraphOptions, plan: DecodePlan, by_row: bool) -> None:
        super().__init__(model, replace(options, names="spec"))
        self.plan = plan
        self.by_row = by_row
        self.in_steps = True
        self.time = plan.time.name
        self.new, self.all = f"{self.time} (new)", f"{self.time} (all)"
        self.form: Form = ()
        """Of the result that is being written."""
        self.table = False
        """Whether a table for all positions, the same for every row, is being written."""
        self.last = False
        """Whether what is being written has one new place of each row."""
        self.asked_positions = False
        """Whether what is being written has asked for positions."""
        self.asked_pairs = 0
        """How many axes the pairs of positions have that it has asked for, that of batch included; 0 for no pairs."""
        self.ranks: dict[ir.Value, int] = {}
        """Of tensors that are made of positions by row: the number of axes, that of batch in front included."""
        self.inputs: list[ir.Value] = []
        self.pasts: dict[str, ir.Value] = {}
        """Inputs that the model itself does not have, by name."""
        self.shared: dict[str, ir.Value] = {}
        """What is computed once, before all nodes."""

    def note_size(self, name: str, x: ir.Value, axis: int) -> None:
        if name != self.time:  # which of the two lengths, nothing but the caller knows
            super().note_size(name, x, axis)

    def shape_of(self, shape: Shape, positions: str) -> ir.Shape:
        names = {self.time: {"new": "sequence_length", "all": "total_sequence_length", "past": "past_sequence_length"}}
        found: list[int | str] = []
        for d in shape:
            name = symbol_name(d.value)
            if d.static:
                found.append(int(d))
            elif name == self.time:
                found.append(1 if self.last and positions == "new" else names[name][positions])
            else:
                found.append("batch_size" if name == "batch" else str(d.value))
        return ir.Shape(found)

    def add_positions(self) -> None:
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
                self.note_size(self.all, x, 1)

    def set_lengths(self) -> None:
        """How many positions there are in all: as many as the attention mask has, or a cache and the new ones."""
        builder = self.builder
        if self.all in builder.main.symbols:
            return
        caches = [e for e in self.plan.entries() if isinstance(e, CacheSpec)]
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
        """Which positions are real: [batch, all]."""
        if "attention_mask" in self.pasts:
            return self.pasts["attention_mask"]
        builder = self.builder
        batch, length = builder.main.symbols["batch"], builder.main.symbols[self.all]
        found: ir.Value = builder.add("Expand", [builder.constant(1, "int"), [batch, length]])
        return found

    def once(self, name: str, make: Callable[[], ir.Value]) -> ir.Value:
        """Something computed once, before all nodes."""
        if name not in self.shared:
            with self.builder.before_all():
                self.builder.path = "positions"
                self.shared[name] = make()
        return self.shared[name]

    def key_positions(self) -> ir.Value:
        """The place of every key, by row [batch, all]; that of padding is NOWHERE."""
        add = self.builder.add

        def make() -> ir.Value:
            real = self.pasts["attention_mask"]
            position = add("Sub", [add("CumSum", [real, 1]), 1])
            found: ir.Value = add("Where", [self.builder.cast(real, "bool"), position, NOWHERE])
            return found

        return self.once("keys", make)

    def valid(self) -> ir.Value | None:
        if not self.by_row:
            return None

        def make() -> ir.Value:
            return self.builder.cast(self.newest_of(self.pasts["attention_mask"], 1), "bool")

        return self.once("valid", make)

    def newest_of(self, x: ir.Value, axis: int) -> ir.Value:
        """The new positions of a tensor that has all."""
        add, builder = self.builder.add, self.builder
        start = add("Neg", [builder.main.symbols[self.new]])
        found: ir.Value = add("Slice", [x, start, [2**62], [axis]])
        return found

    def last_positions(self, x: ir.Value, real_first: bool) -> ir.Value:
        """Of each row of x [batch, new, …] its last real position: [batch, 1, …]."""
        valid, builder, add = self.valid(), self.builder, self.builder.add
        if valid is None:
            found: ir.Value = add("Slice", [x, [-1], [2**62], [1]])
            return found

        def make() -> ir.Value:
            if real_first:
                count = add("ReduceSum", [builder.cast(valid, "int"), [1]], {"keepdims": 1})
                position = add("Max", [add("Sub", [count, 1]), 0])
            else:
                position = self.first_real(valid, select_last_index=1)
            index: ir.Value = add("Unsqueeze", [position, [-1]])
            return index

        found = add("GatherND", [x, self.once("last", make)], {"batch_dims": 1})
        return found

    def first_real(self, valid: ir.Value, **more: int) -> ir.Value:
        """The first real position of each row of a padding mask [batch, new]: [batch, 1]. CUDA has `ArgMax` for real
        numbers alone."""
        real = self.builder.cast(valid, "float32")
        found: ir.Value = self.builder.add("ArgMax", [real], {"axis": 1, "keepdims": 1, **more})
        return found

    def counted(self, new: bool) -> ir.Value:
        """0, 1, … of all positions, or of the new ones."""
        add, builder = self.builder.add, self.builder

        def make() -> ir.Value:
            end = builder.scalar(size_of(self.all))
            first = builder.constant(0, "int")
            if new:
                first = add("Sub", [end, builder.scalar(size_of(self.new))])
            found: ir.Value = add("Range", [first, end, builder.constant(1, "int")])
            return found

        return self.once("new" if new else "all", make)

    def positions(self, length: Num) -> ir.Value:
        if not has(length, self.plan.time):
            return super().positions(length)
        if not is_time(length, self.plan.time):
            raise error("E0504", f"a decode step has no positions up to {length}")
        if self.table:
            return self.counted(new=False)
        self.asked_positions = True
        new = NEW in self.form
        if self.by_row:
            found = self.pasts["position_ids"] if new else self.key_positions()
            self.ranks[found] = 2
            return found
        return self.counted(new)

    def pairs(self, queries: Num, keys: Num, middle: int = 1) -> tuple[ir.Value, ir.Value]:
        time, add = self.plan.time, self.builder.add
        if not has(queries, time) and not has(keys, time):
            return super().pairs(queries, keys, middle)
        if self.table:
            position = self.counted(new=False)
            return add("Unsqueeze", [position, [-1]]), add("Unsqueeze", [position, [0]])
        if not (is_time(queries, time) or queries.value == 1) or not is_time(keys, time):
            raise error("E0504", f"a decode step has no pairs of {queries} queries and {keys} keys")
        self.asked_positions = True
        self.asked_pairs = 3 + middle
        if self.of_all_queries:
            position = self.counted(new=False)
            return add("Unsqueeze", [position, [-1]]), add("Unsqueeze", [position, [0]])
        if self.by_row:
            between, rank = [*range(1, middle + 1)], "" if middle == 1 else f" {middle}"
            axes = [*between, middle + 1], [*between, middle + 2]
            key = self.once(f"key pairs{rank}", lambda: add("Unsqueeze", [self.key_positions(), axes[0]]))
            query = self.once(f"query pairs{rank}", lambda: add("Unsqueeze", [self.pasts["position_ids"], axes[1]]))
            self.ranks[key] = self.ranks[query] = 3 + middle
            return query, key
        return (
            self.once("query pairs", lambda: add("Unsqueeze", [self.counted(new=True), [-1]])),
            self.once("key pairs", lambda: add("Unsqueeze", [self.counted(new=False), [0]])),
        )

    @property
    def of_all_queries(self) -> bool:
        """Whether the result that is being written has all positions along its axis of queries and along that of keys.
        Raises RowsUnsupportedError where rows are padded: padding would be among the queries."""
        found = self.form[-2:] == (ALL, ALL)
        if found and self.by_row:
            raise RowsUnsupportedError("mask")
        return found

    def at_start(self) -> ir.Value:
        """Whether there are no positions before the new ones."""
        add, builder = self.builder.add, self.builder
        symbols = builder.main.symbols
        return self.once("at start", lambda: add("Equal", [symbols[self.all], symbols[self.new]]))

    def turned(self, sign: int) -> ir.Value:
        """Where each new place of a row comes from when its padding in front goes behind (sign -1: and back): [batch,
        new]."""
        builder, add = self.builder, self.builder.add

        def make() -> ir.Value:
            valid = self.valid()
            assert valid is not None
            first = self.first_real(valid)
            length = builder.scalar(size_of(self.new))
            position = add("Range", [builder.constant(0, "int"), length, builder.constant(1, "int")])
            found: ir.Value = add("Mod", [add("Add" if sign > 0 else "Sub", [position, first]), length])
            return found

        return self.once("turn" if sign > 0 else "turn back", make)


def size_of(name: str) -> Poly:
    """The length of that name, as a size."""
    found = symbol(name)
    assert isinstance(found, Poly)
    return found
