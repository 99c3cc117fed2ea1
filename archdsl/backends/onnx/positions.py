"""Where the tokens of a step stand: lengths, positions by row, padding."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from archdsl.backends.onnx.builder import Builder
from archdsl.ir.dims import Poly, add, mul, of_atom
from archdsl.passes.step import Stepped

NOWHERE = 2**30
"""The place of a padding key: later than that of any query."""


class Positions:
    """Knows two lengths, that of the new positions and that of all, and gives positions of either. `by_row` says
    whether each row has its own; `fed` are the inputs that tell them, by name."""

    def __init__(self, builder: Builder, step: Stepped, by_row: bool) -> None:
        self.builder = builder
        self.by_row = by_row
        self.new: Poly = of_atom(step.new)
        self.all: Poly = of_atom(step.all)
        self.lengths = step.new.name, step.all.name, step.time.name
        self.first = step.first
        self.fed: dict[str, ir.Value] = {}
        self.shared: dict[str, ir.Value] = {}
        """What is computed once, before all nodes."""

    # --- what is fed ---

    def feed(self) -> list[ir.Value]:
        """The inputs that say which tokens are real and where they stand."""
        for name, length in (("attention_mask", "total_sequence_length"), ("position_ids", "sequence_length")):
            self.fed[name] = ir.Value(
                name=self.builder.unique(name),
                type=ir.TensorType(ir.DataType.INT64),
                shape=ir.Shape(["batch_size", length]),
            )
        return [*self.fed.values()]

    def set_lengths(self, past: ir.Value | None, axis: int, front: int = 0) -> list[ir.Value]:
        """Read how many positions there are in all: as many as the attention mask has, or a cache, along an axis, less
        those in `front` of the sequence, and the new ones. Where there is neither, an input says how many came before,
        which is given back."""
        builder, inputs = self.builder, []
        mask = self.fed.get("attention_mask")
        if mask is None and past is None:
            kind = ir.TensorType(ir.DataType.INT64)
            inputs.append(ir.Value(name=builder.unique("past_length"), type=kind, shape=ir.Shape([1])))
        new, every, time = self.lengths
        with builder.before_all():
            if mask is not None:
                total = builder.add("Shape", [mask], {"start": 1, "end": 2})
            else:
                before = (
                    builder.add("Shape", [past], {"start": axis, "end": axis + 1}) if past is not None else inputs[0]
                )
                if front:  # a cache holds none of them before the first step
                    before = builder.add("Sub", [before, builder.add("Min", [before, [front]])])
                total = builder.add("Add", [before, builder.main.symbols[new]])
            if self.first is not None:
                at_start = builder.add("Equal", [total, builder.main.symbols[new]])
                builder.main.symbols[self.first.name] = builder.cast(at_start, "int")
        builder.main.symbols |= {every: total, time: total}  # a table that the spec gives has all positions
        return inputs

    # --- what follows from it ---

    def once(self, name: str, make: Callable[[], ir.Value]) -> ir.Value:
        """Something computed once, before all nodes."""
        if name not in self.shared:
            with self.builder.before_all():
                self.builder.path = "positions"
                self.shared[name] = make()
        return self.shared[name]

    def led(
        self, name: str, front: int, of_front: Callable[[ir.Value], ir.Value], of_new: Callable[[], ir.Value]
    ) -> ir.Value:
        """What is known of the new positions of each row [batch, new], behind what `of_front` makes of the places in
        front of them: these are new in the first step."""

        def make() -> ir.Value:
            builder, add = self.builder, self.builder.add
            count = self.count(front)
            own = add("Range", [builder.constant(0, "int"), builder.scalar(count), builder.constant(1, "int")])
            shape = add("Concat", [builder.main.symbols["batch"], builder.size(count)], {"axis": 0})
            found: ir.Value = add("Concat", [add("Expand", [of_front(own), shape]), of_new()], {"axis": 1})
            return found

        return self.once(behind(name, front), make)

    def count(self, front: int) -> Poly:
        """How many places in front of the sequence are new."""
        assert self.first is not None
        found = mul(front, of_atom(self.first))
        assert isinstance(found, Poly)
        return found

    def mask(self) -> ir.Value:
        """Which positions are real: [batch, all]."""
        if "attention_mask" in self.fed:
            return self.fed["attention_mask"]
        builder = self.builder
        shape = [builder.main.symbols["batch"], builder.size(self.all)]
        found: ir.Value = builder.add("Expand", [builder.constant(1, "int"), shape])
        return found

    def of_keys(self, front: int = 0) -> ir.Value:
        """The place of every key, by row [batch, all]; that of padding is NOWHERE. So many real keys stand in `front`
        of each row."""
        add = self.builder.add

        def make() -> ir.Value:
            real = self.fed["attention_mask"]
            real = add("Pad", [real, [0, front, 0, 0], 1]) if front else real
            position = add("Sub", [add("CumSum", [real, 1]), 1])
            found: ir.Value = add("Where", [self.builder.cast(real, "bool"), position, NOWHERE])
            return found

        return self.once(behind("keys", front), make)

    def new_places(self, front: int) -> ir.Value:
        """The places of the new positions behind those in `front`, which are new in the first step: by row [batch,
        …]."""
        if not self.by_row:
            return self.counted(new=True, front=front, led=True)
        fed, add = self.fed["position_ids"], self.builder.add
        return self.led("new places", front, lambda own: own, lambda: add("Add", [fed, front]))

    def counted(self, new: bool, front: int = 0, led: bool = False) -> ir.Value:
        """0, 1, … of all positions, and of those in `front`, or of the new ones, which stand behind these; or, `led`,
        are with them in the first step."""
        add, builder = self.builder.add, self.builder

        def make() -> ir.Value:
            end = builder.scalar(self.all)
            end = add("Add", [end, front]) if front else end
            first = builder.constant(0, "int")
            if new:
                first = add("Sub", [end, builder.scalar(self.new)])
            if led:
                first = add("Sub", [first, builder.scalar(self.count(front))])
            found: ir.Value = add("Range", [first, end, builder.constant(1, "int")])
            return found

        return self.once(behind("led" if led else "new" if new else "all", front), make)

    def pairs(self, middle: int, front: int = 0, led: int = 0) -> tuple[ir.Value, ir.Value]:
        """The positions of the new queries and those of all keys, of which so many stand in `front`, as they broadcast
        to pairs: by row [batch, …, query, key] with so many axes between. `led` are the places in front of the queries,
        which are new in the first step."""
        between = [*range(1, middle + 1)] if self.by_row else []
        axes, own = ([*between, middle + 2], [*between, middle + 1]) if self.by_row else ([-1], [0])
        rank = behind(f" {middle}" if self.by_row and middle != 1 else "", front)
        if led:
            places, rank = self.new_places(led), f"{rank}, led {led}"
            query = places
            if front != led:
                query = self.once(f"query{rank}", lambda: self.builder.add("Add", [places, front - led]))
            key = self.of_keys(front) if self.by_row else self.counted(new=False, front=front)
        elif self.by_row:
            fed = self.fed["position_ids"]
            query = self.once(behind("new", front), lambda: self.builder.add("Add", [fed, front])) if front else fed
            key = self.of_keys(front)
        else:
            query, key = self.counted(new=True, front=front), self.counted(new=False, front=front)
        return (
            self.once(f"query pairs{rank}", lambda: self.builder.add("Unsqueeze", [query, axes])),
            self.once(f"key pairs{rank}", lambda: self.builder.add("Unsqueeze", [key, own])),
        )

    def at_start(self) -> ir.Value:
        """Whether there are no positions before the new ones."""
        builder = self.builder
        return self.once("at start", lambda: builder.add("Equal", [builder.size(self.all), builder.size(self.new)]))

    def newest_of(self, x: ir.Value, axis: int, front: int = 0) -> ir.Value:
        """The new positions of a tensor that has all, and those in `front` of them, which are new in the first step."""
        builder = self.builder
        start = builder.add("Neg", [builder.size(plus(self.new, self.count(front)) if front else self.new)])
        found: ir.Value = builder.add("Slice", [x, start, [2**62], [axis]])
        return found

    # --- padding ---

    def valid(self, front: int = 0, turned: bool = False) -> ir.Value | None:
        """Which of the new positions are real [batch, new], with those in `front` of them, which are; None where all
        are. Where they are `turned`, padding stands behind."""
        if not self.by_row:
            return None
        valid = self.once("valid", lambda: self.builder.cast(self.newest_of(self.fed["attention_mask"], 1), "bool"))
        if not front:
            return valid
        led = self.led("valid", front, lambda own: self.builder.add("GreaterOrEqual", [own, 0]), lambda: valid)
        return self.real_first(led, front) if turned else led

    def last(self, x: ir.Value, real_first: bool) -> ir.Value:
        """Of each row of x [batch, new, …] its last real position: [batch, 1, …]. `real_first` says that padding stands
        behind."""
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

    def turned(self, sign: int, front: int = 0) -> ir.Value:
        """Where each new place of a row comes from when its padding in front goes behind (sign -1: and back): [batch,
        new]. Places in `front` of the sequence stay there."""
        builder, add = self.builder, self.builder.add

        def make() -> ir.Value:
            valid = self.valid()
            assert valid is not None
            first = self.first_real(valid)
            length = builder.scalar(self.new)
            position = add("Range", [builder.constant(0, "int"), length, builder.constant(1, "int")])
            found: ir.Value = add("Mod", [add("Add" if sign > 0 else "Sub", [position, first]), length])
            return found

        name = "turn" if sign > 0 else "turn back"
        text = self.once(name, make)
        if not front:
            return text
        return self.led(name, front, lambda own: own, lambda: add("Add", [text, builder.size(self.count(front))]))

    def real_first(self, x: ir.Value, front: int = 0) -> ir.Value:
        """[batch, new] with the padding in front of each row behind it."""
        return self.once(
            f"turned {x.name}", lambda: self.builder.add("GatherElements", [x, self.turned(1, front)], {"axis": 1})
        )

    def turned_back(self, x: ir.Value) -> ir.Value:
        """[batch, new, …] with the padding in front of each row again."""
        return self.taken(x, self.turned(-1))

    def taken(self, x: ir.Value, places: ir.Value) -> ir.Value:
        """[batch, new, …] at other places of each row [batch, new]."""
        index = self.builder.add("Unsqueeze", [places, [-1]])
        found: ir.Value = self.builder.add("GatherND", [x, index], {"batch_dims": 1})
        return found

    def filled(self, front: int = 0) -> tuple[ir.Value, ir.Value]:
        """How many keys of each row are real, with those in `front`, less 1; and how many there are."""
        builder, add = self.builder, self.builder.add

        def counts() -> ir.Value:
            if self.by_row:
                real = add("ReduceSum", [self.fed["attention_mask"], [1]], {"keepdims": 0})
                return builder.cast(add("Sub", [real, 1 - front]), "int32")
            last = add("Sub", [builder.size(self.all), 1 - front])
            return builder.cast(add("Expand", [last, [builder.main.symbols["batch"]]]), "int32")

        every = plus(self.all, front)
        total = self.once(behind("total", front), lambda: builder.cast(builder.scalar(every), "int32"))
        return self.once(behind("real keys", front), counts), total


def plus(a: Poly, b: int | Poly) -> Poly:
    """The sum of a size that the running model knows and another."""
    found = add(a, b)
    assert isinstance(found, Poly)
    return found


def behind(name: str, front: int) -> str:
    """What positions are called that are counted behind so many in front."""
    return f"{name} behind {front}" if front else name
