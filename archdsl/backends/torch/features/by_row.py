"""Rows of several lengths: how a step computes what is made of positions alone, of which each row has its own.

Such tensors have no axis of batch. Where every op from the positions to the readers takes positions of any shape, they
are computed of those of each row, [batch, …, new]. Else they are computed for the new positions of all rows one after
another along one axis, so that every op is as in `forward`, and that axis is cut into batch and new positions where
another tensor reads it; what an op cannot make of new positions alone is made of all, and rows are taken.
"""

from __future__ import annotations

from collections.abc import Iterator

from archdsl.backends.torch.features.reading import Reading, misread, refuse, span_of
from archdsl.ir.dims import Num
from archdsl.ir.graph import Value
from archdsl.passes.flatten import FlatNode, FlatOp, FlatScan
from archdsl.passes.forms import ALL, NEW, axes_between, has, in_front, is_time, takes_any_positions, takes_rows


class ByRow:
    """Says how a step computes each tensor that is made of positions alone."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.nodes = reading.nodes
        self.batch = reading.root.block.graph.inputs[0].shape[0].value
        self.tables, self.uniform = self.of_positions()
        self.masks: set[Value] = set()
        """What ops that ask for pairs themselves make, and what is made of that; no masks that meet pairs."""
        self.seen: set[FlatNode] = set()
        """Masks that meet pairs of the spec's own, and are such."""
        self.find_masks()
        self.flat: set[FlatNode] = set()
        """Those that make nothing but what is computed for all rows one after another."""
        self.directly = self.of_new_positions()
        """What is made of the new positions of each row: how many axes the readers have between those of batch and
        time."""
        self.made = self.find()
        """What is computed for all rows one after another, and what else reads it; the rest leads to it."""
        self.forms: dict[Value, set[str]] = {}
        """The forms, NEW or ALL, in which a step needs each tensor of these."""
        for node in reversed(self.nodes):
            self.demand(node)
        self.further: dict[tuple[FlatNode, int], int] = {}
        """Inputs made of them, and how many axes more they need behind that of batch than for other readers."""
        self.rows = dict(self.of_rows())
        """Of what is cut by row, the axis of the new positions, and how many axes there are in all readers between that
        of batch and its own."""

    def axes(self, value: Value) -> list[int]:
        """The axes of time."""
        return [a for a, d in enumerate(value.shape) if has(d, self.reading.time)]

    def is_positional(self, node: FlatNode) -> bool:
        """Whether a node makes something of positions alone."""
        return all(v in self.reading.positional for v in node.outputs)

    def of_positions(self) -> tuple[set[Value], set[Value]]:
        """Tensors made of positions alone, and those that are the same everywhere: with what is made of these they are
        computed at the new positions. Those that take their type from one that is not are neither."""
        found: set[Value] = set()
        uniform: set[Value] = set()
        for node in self.nodes:
            timed = (v for v in node.inputs if v in self.reading.positional or v in self.reading.moving)
            if self.is_positional(node) and all(v in found or v in uniform for v in timed):
                alike = isinstance(node, FlatOp) and node.node.op.alike
                same_everywhere = alike or any(v in uniform for v in node.inputs)
                part = uniform if same_everywhere and len(self.axes(node.outputs[0])) == 1 else found
                part |= set(node.outputs)
        return found, uniform

    # --- masks ---

    def find_masks(self) -> None:
        """Note what ops make that ask for pairs of positions themselves."""
        own = [n for n in self.nodes if self.is_positional(n)]
        for node in own:
            if (self.asks(node) and not self.is_plain_mask(node)) or any(v in self.masks for v in node.inputs):
                self.masks |= set(node.outputs)
        self.seen = {n for n in own if self.is_plain_mask(n) and self.is_pairs(n)}
        for node in own:
            if any(v in self.masks for v in node.inputs) or (self.asks(node) and node not in self.seen):
                self.masks |= set(node.outputs)

    def asks(self, node: FlatNode) -> bool:
        """Whether an op asks for pairs of positions itself."""
        own = isinstance(node, FlatOp) and node.node.op.positional
        return own and any(isinstance(n, Num) and has(n, self.reading.time) for n in node.inputs)

    def is_plain_mask(self, node: FlatNode) -> bool:
        """Whether an op makes a mask of positions alone."""
        return isinstance(node, FlatOp) and node.node.op.makes_mask and node.outputs[0].rank == 2

    def is_pairs(self, mask: FlatNode) -> bool:
        """Whether of a mask and of pairs of the spec's own others are made: it then has no axis of batch, either."""
        read = [n for n, _ in self.reading.readers.get(mask.outputs[0], ()) if self.is_positional(n)]
        pairs = [n for n in read if all(len(self.axes(v)) > 1 for v in n.outputs)]
        return any(self.masks.isdisjoint(n.outputs) for n in pairs)

    # --- of the positions of each row ---

    def of_new_positions(self) -> dict[FlatNode, int]:
        """What can be made of the new positions of each row, since every op from the positions to their readers takes
        positions of any shape."""
        found: set[FlatNode] = {n for n in self.nodes if isinstance(n, FlatOp) and self.takes_positions(n)}
        middle: dict[FlatNode, int] = {}
        while True:
            middle = {}
            for node in reversed(self.nodes):
                if node in found:
                    readers = [r for v in node.outputs for r in self.reading.readers.get(v, ())]
                    axes = {self.middle(n, i, middle) for n, i in readers if n in found or not self.is_apart(n)}
                    if len(axes) == 1 and None not in axes and all(m in found for m in self.makers_of_positions(node)):
                        middle[node] = next(a for a in axes if a is not None)
            if middle.keys() == found:
                return middle
            found = {*middle}

    def is_apart(self, node: FlatNode) -> bool:
        """Whether a node makes something of positions that is no mask: it asks for these in a form of its own."""
        return self.is_positional(node) and self.masks.isdisjoint(node.outputs)

    def takes_positions(self, flat: FlatOp) -> bool:
        """Whether an op makes something of positions alone, whatever the shape of these."""
        if any(v not in self.tables or len(self.axes(v)) != 1 for v in flat.outputs):
            return False
        timed = {i: self.axes(v) for i, v in enumerate(flat.inputs) if isinstance(v, Value) and self.axes(v)}
        if self.is_by_length(flat):
            return True
        return all(flat.inputs[i] in self.tables for i in timed) and takes_any_positions(flat.node, timed)

    def is_by_length(self, flat: FlatNode) -> bool:
        """Whether an op makes a table of positions whose numbers depend on how many there are so far."""
        if not isinstance(flat, FlatOp) or len(flat.inputs) > 1 or not self.asks(flat):
            return False
        return not flat.node.op.at_positions(flat.node)

    def makers_of_positions(self, flat: FlatNode) -> list[FlatNode | None]:
        return [self.reading.makers.get(v) for v in flat.inputs if isinstance(v, Value) and self.axes(v)]

    def middle(self, flat: FlatNode, i: int, known: dict[FlatNode, int]) -> int | None:
        """How many axes a reader of something made of positions has between those of batch and time; None where it
        does not read it at its own position."""
        if any(v in self.tables for v in flat.outputs):
            return known.get(flat)
        fits = isinstance(flat, FlatOp) and self.takes_rows(flat, i)
        return self.between(flat, i) if fits and not self.reading.reads_all(flat, i) else None

    # --- of all rows one after another ---

    def find(self) -> set[Value]:
        """Tensors that are not made of the positions of each row, and what is made of them; no masks, which have an
        axis of batch."""
        found: set[Value] = set()
        for node in self.nodes:
            apart = self.is_apart(node) and node not in self.directly
            if apart and (any(v in found for v in node.inputs) or any(map(self.is_made, node.outputs))):
                found |= set(node.outputs)
        return found

    def is_made(self, value: Value) -> bool:
        """Whether a tensor of positions is neither the same everywhere nor has an axis of batch."""
        axes = self.axes(value)
        return bool(axes) and value.shape[0].value != self.batch and (value not in self.uniform or len(axes) > 1)

    def wanted(self, node: FlatNode, i: int) -> str:
        """The form in which something else reads an input: NEW with all keys, if there are two axes, or ALL."""
        (first, *others), *more = {self.reading.form(copy, i) for copy in self.reading.copies[node]}
        if more or any(f != ALL for f in others):
            raise misread(node)
        return first

    def demand(self, node: FlatNode) -> None:
        """Note what a node makes, and reads, in which forms, when its readers are known."""
        readers = [reader for v in node.outputs for reader in self.reading.readers.get(v, ())]
        made = any(v in self.made for v in node.outputs)
        forms = {f for v in node.outputs for f in self.forms.get(v, ())}
        if not (made or forms):
            return
        sizes = [d for v in node.outputs for d in v.shape]
        time = self.reading.time
        fits = all(is_time(d, time) or in_front(d, time) or not (has(d, time) or d.value == self.batch) for d in sizes)
        if isinstance(node, FlatScan) or not fits or not all(map(self.axes, node.outputs)):
            raise refuse("the result of this op on pairs of positions has no decode step", span_of(node))
        forms |= {self.wanted(n, i) for n, i in readers if n not in self.flat} if made else set()
        if NEW in forms and self.at_new(node) is None:
            forms.add(ALL)  # of which rows are taken
        for form in forms:
            for i, read in self.reads(node, form).items():
                value = node.inputs[i]
                assert isinstance(value, Value)
                self.forms.setdefault(value, set()).add(read)
        self.forms |= dict.fromkeys(node.outputs, forms)
        if made or all(n in self.flat for n, _ in readers):
            self.flat.add(node)

    def reads(self, node: FlatNode, form: str) -> dict[int, str]:
        """The forms of inputs made of positions from which a node makes its result in a form."""
        new = self.at_new(node) if form == NEW else None
        return dict.fromkeys(self.timed(node), ALL) if new is None else new

    def timed(self, node: FlatNode) -> list[int]:
        """Inputs made of positions that have an axis of time."""
        return [i for i, v in enumerate(node.inputs) if v in self.reading.positional and self.axes(v)]

    def at_new(self, node: FlatNode) -> dict[int, str] | None:
        """The same for new positions; None where the op makes all of them."""
        if not isinstance(node, FlatOp):
            return None
        if node.node.op.at_positions(node.node) or node in self.seen:
            return {}
        sizes = (n for n in (*node.inputs, *node.node.options.values()) if isinstance(n, Num))
        copy = next((c for c in self.reading.copies[node] if self.reading.is_new(c)), None)
        if copy is None or any(has(n, self.reading.time) for n in sizes):
            return None
        found = {i: self.reading.form(copy, i)[0] for i in self.timed(node)}
        return found if NEW in found.values() else None

    # --- rows ---

    def of_rows(self) -> Iterator[tuple[Value, tuple[int, int]]]:
        """What else reads of tensors of all rows at the new positions."""
        for value in self.made:
            between: dict[tuple[FlatNode, int], int] = {}
            for node, i in self.reading.readers.get(value, ()):
                if node not in self.flat and self.wanted(node, i) == NEW:
                    if not isinstance(node, FlatOp) or not self.takes_rows(node, i):
                        raise misread(node)
                    between[node, i] = self.between(node, i)
            if between:
                least = min(between.values())
                self.further |= {reader: n - least for reader, n in between.items()}
                yield value, (self.axes(value)[0], least)

    def takes_rows(self, flat: FlatOp, i: int) -> bool:
        """Whether an op takes an input with a further axis of batch in front."""
        output = flat.outputs[0]
        fits = takes_rows(flat.node, i) or self.reading.spreads(flat)
        return fits and (output in self.reading.positional or output.shape[0].value == self.batch)

    def between(self, flat: FlatNode, i: int) -> int:
        """How many axes a reader has between that of batch and those of a table."""
        assert isinstance(flat, FlatOp)
        axes, output = axes_between(flat.node, i), flat.outputs[0]
        if output in self.reading.positional:  # it has an axis of batch more than its shape says, as its readers have
            more = {self.between(n, j) for n, j in self.reading.readers.get(output, ()) if n not in self.flat}
            return max(more, default=0) + axes + 1
        return axes
