"""Rows of several lengths: how a step computes what is made of positions alone, of which each row has its own.

Such tensors have no axis of batch. Where every op from the positions to the readers takes positions of any shape, they
are computed of those of each row, [batch, …, new]. Else they are computed for the new positions of all rows one after
another along one axis, so that every op is as in `forward`, and that axis is cut into batch and new positions where
another tensor reads it. What is there for all positions has no axis of batch; its rows are taken.
"""

from __future__ import annotations

from collections.abc import Iterator

from archdsl.diagnostics import ArchError, error
from archdsl.diagnostics.source import Span
from archdsl.ir.dims import Num
from archdsl.ir.graph import Value
from archdsl.passes.flat_step import FlatStep
from archdsl.passes.flatten import FlatNode, FlatOp, FlatParam, FlatScan
from archdsl.passes.forms import axes_between, has, in_front, is_time, takes_any_positions, takes_rows


class ByRow:
    """Says how a step computes each tensor that is made of positions alone."""

    def __init__(self, step: FlatStep) -> None:
        self.step = step
        self.nodes = step.step.nodes
        self.batch = step.step.inputs[0].shape[0].value
        self.readers: dict[Value, list[tuple[FlatNode, int]]] = {}
        for node in self.nodes:
            for i, v in enumerate(node.inputs):
                if isinstance(v, Value):
                    self.readers.setdefault(v, []).append((node, i))
        self.tables, self.uniform = self.of_positions()
        self.masks: set[Value] = set()
        """What ops that ask for pairs themselves make, and what is made of that; no masks that meet pairs."""
        self.seen: set[FlatNode] = set()
        """Masks that meet pairs of the spec's own, and are such."""
        self.find_masks()
        self.directly = self.of_new_positions()
        """What is made of the new positions of each row: how many axes the readers have between those of batch and
        time."""
        self.made = self.find()
        """What is computed for all rows one after another, and what else reads it; the rest leads to it."""
        self.flatly: set[FlatNode] = set()
        """Those that are computed for all rows one after another, or for all positions."""
        self.flat: set[FlatNode] = set()
        """Those of them that make nothing else."""
        wanted: set[Value] = set()
        for node in reversed(self.nodes):
            self.demand(node, wanted)
        self.further: dict[tuple[FlatNode, int], int] = {}
        """Inputs made of them, and how many axes more they need behind that of batch than for other readers."""
        self.rows = dict(self.of_rows())
        """Of what is cut by row, the axis of the new positions, and how many axes there are in all readers between that
        of batch and its own."""

    def axes(self, value: Value) -> list[int]:
        """The axes of time."""
        return [a for a, d in enumerate(value.shape) if self.step.of.has(d)]

    def is_positional(self, node: FlatNode) -> bool:
        """Whether a node makes something of positions alone."""
        return all(v in self.step.positional for v in node.outputs)

    def of_positions(self) -> tuple[set[Value], set[Value]]:
        """Tensors made of positions alone, and those that are the same everywhere: with what is made of these they are
        computed at the new positions. Those that take their type from one that is not are neither."""
        found: set[Value] = set()
        uniform: set[Value] = set()
        for node in self.nodes:
            timed = (v for v in node.inputs if v in self.step.positional or v in self.step.moving)
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
        return own and any(isinstance(n, Num) and self.step.of.has(n) for n in node.inputs)

    def is_plain_mask(self, node: FlatNode) -> bool:
        """Whether an op makes a mask of positions alone."""
        return isinstance(node, FlatOp) and node.node.op.makes_mask and node.outputs[0].rank == 2

    def is_pairs(self, mask: FlatNode) -> bool:
        """Whether of a mask and of pairs of the spec's own others are made: it then has no axis of batch, either."""
        read = [n for n, _ in self.readers.get(mask.outputs[0], ()) if self.is_positional(n)]
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
                    readers = [r for v in node.outputs for r in self.readers.get(v, ())]
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
        """Whether an op makes something of the new positions alone, whatever the shape of these."""
        if any(v not in self.tables or len(self.axes(v)) != 1 or not self.step.is_new(v) for v in flat.outputs):
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
        return [self.step.makers.get(v) for v in flat.inputs if isinstance(v, Value) and self.axes(v)]

    def middle(self, flat: FlatNode, i: int, known: dict[FlatNode, int]) -> int | None:
        """How many axes a reader of something made of positions has between those of batch and time; None where it
        does not read it at its own position."""
        if any(v in self.tables for v in flat.outputs):
            return known.get(flat)
        return self.between(flat, i) if isinstance(flat, FlatOp) and self.takes_rows(flat, i) else None

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

    def is_new(self, node: FlatNode, i: int) -> bool:
        """Whether something else reads an input at the new positions, with all keys if there are two axes of time."""
        value = node.inputs[i]
        assert isinstance(value, Value)
        first, *others = (has(value.shape[a], self.step.of.new) for a in self.axes(value))
        if any(others):
            raise misread(node)
        return first

    def demand(self, node: FlatNode, wanted: set[Value]) -> None:
        """Note how a node is computed, and what it reads so, when its readers are known."""
        made = any(v in self.made for v in node.outputs)
        if not (made or any(v in wanted for v in node.outputs)):
            return
        new, every = self.step.of.new, self.step.of.all
        sizes = [d for v in node.outputs for d in v.shape]
        fits = all(any(is_time(d, s) or in_front(d, s) for s in (new, every)) for d in sizes if self.step.of.has(d))
        fits = fits and all(self.step.of.has(d) or d.value != self.batch for d in sizes)
        if isinstance(node, FlatScan) or not fits or not all(map(self.axes, node.outputs)):
            raise refuse(f"what {name_of(node)} makes of positions has no decode step", span_of(node))
        wanted.update(v for v in node.inputs if isinstance(v, Value) and v in self.step.positional and self.axes(v))
        self.flatly.add(node)
        if made or all(n in self.flat for v in node.outputs for n, _ in self.readers.get(v, ())):
            self.flat.add(node)

    # --- rows ---

    def of_rows(self) -> Iterator[tuple[Value, tuple[int, int]]]:
        """What else reads of tensors of all rows at the new positions."""
        for value in self.made:
            between: dict[tuple[FlatNode, int], int] = {}
            for node, i in self.readers.get(value, ()):
                if node not in self.flat and self.is_new(node, i):
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
        fits = takes_rows(flat.node, i) or self.step.spreads(flat)
        return fits and (output in self.step.positional or output.shape[0].value == self.batch)

    def between(self, flat: FlatNode, i: int) -> int:
        """How many axes a reader has between that of batch and those of a table."""
        assert isinstance(flat, FlatOp)
        axes, output = axes_between(flat.node, i), flat.outputs[0]
        if output in self.step.positional:  # it has an axis of batch more than its shape says, as its readers have
            more = {self.between(n, j) for n, j in self.readers.get(output, ()) if n not in self.flat}
            return max(more, default=0) + axes + 1
        return axes


def refuse(message: str, span: Span | None = None, cure: str = "") -> ArchError:
    without = "compile it without `generate`; `--to onnx --decode` may take it step by step"
    return error("E0504", message, span, help=f"{cure}; or {without}" if cure else without)


def misread(node: FlatNode) -> ArchError:
    """The error for a node that reads what is made of positions otherwise than row by row."""
    what = "reads a tensor made of positions, which are others in each row, in a way that has no decode step"
    return refuse(f"{name_of(node)} {what}", span_of(node))


def name_of(node: FlatNode) -> str:
    """A node as messages name it."""
    return f"`{node.node.op.name}`" if isinstance(node, FlatOp) else "a scan"


def span_of(node: FlatNode) -> Span | None:
    return node.weight.node.span if isinstance(node, FlatParam) else node.node.span
