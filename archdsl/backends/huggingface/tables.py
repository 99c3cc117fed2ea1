"""What a decoder makes of positions alone. The library says which positions the new ones are, of each row its own: a
table of these has an axis of the batch in front."""

from __future__ import annotations

from collections.abc import Sequence

from archdsl.ir.dims import Num
from archdsl.ir.graph import Value
from archdsl.passes.flat_step import FlatStep
from archdsl.passes.flatten import FlatNode, FlatOp, FlatParam, Unrolled
from archdsl.passes.forms import axes_between, reads_numbers, takes_any_positions, takes_rows


class Tables:
    """Tables of positions in a step, and pairs of positions.

    `axes` tells of each op that makes a table how many axes its readers have between those of batch and time; None
    where it is not one number, or something does not take positions [batch, time]. Calls of blocks that make a table of
    `pairs`, of the new positions and of all, are no matter of it: what is in them, and what they give."""

    def __init__(self, step: FlatStep, pairs: Sequence[Unrolled] = ()) -> None:
        self.step = step
        self.within = {n for call in pairs for n, _ in call.homes()}
        self.given = {call.values[v] for call in pairs for v in call.block.graph.outputs if v is not None}
        self.batch = step.step.inputs[0].shape[0].value
        readers: dict[Value, list[tuple[FlatNode, int]]] = {}
        for node in step.step.nodes:
            for i, value in enumerate(node.inputs if node not in self.within else ()):
                if isinstance(value, Value):
                    readers.setdefault(value, []).append((node, i))
        self.axes: dict[FlatNode, int | None] = {}
        for node in reversed(step.step.nodes):
            if node in self.within or not isinstance(node, FlatOp):
                continue
            if any(len(self.times(v)) == 1 for v in node.outputs if v in step.positional):
                read = [(n, i, v) for v in node.outputs for n, i in readers.get(v, ())]
                each = {self.axes[n] if n in self.axes else self.between(n, i, v) for n, i, v in read}
                self.axes[node] = each.pop() if len(each) == 1 and self.takes_positions(node) else None

    def times(self, value: Value) -> list[int]:
        """The axes of time."""
        return [i for i, d in enumerate(value.shape) if self.step.of.has(d)]

    def takes_positions(self, node: FlatOp) -> bool:
        """Whether an op makes something of the new positions, whatever their shape."""
        read = ((i, v) for i, v in enumerate(node.inputs) if isinstance(v, Value) and reads_numbers(node.node, i))
        timed = {i: self.times(v) for i, v in read if self.times(v)}
        new = not any(map(self.step.of_all, (node.outputs[0], *map(node.tensor, timed))))
        return new and takes_any_positions(node.node, timed)

    def between(self, node: FlatNode, i: int, value: Value) -> int | None:
        """How many axes what reads a table has between those of batch and time; None where it does not take one that
        differs by row."""
        if not isinstance(node, FlatOp) or any(v in self.step.positional for v in node.outputs):
            return None
        rows = node.outputs[0].shape[0].value == self.batch
        fits = takes_rows(node.node, i) or self.step.spreads(node)
        return axes_between(node.node, i) if rows and fits else None

    def are_others(self) -> bool:
        """Whether the model has buffers of positions, or makes pairs of them itself: beside masks, and what ops make
        that are given how many there are."""
        asked = {*self.given}
        for node in self.step.step.nodes:
            if node in self.within or not {*node.outputs} <= self.step.positional:
                continue
            op = node.node.op if isinstance(node, FlatOp) else None
            counts = any(isinstance(n, Num) and self.step.of.has(n) for n in node.inputs)
            if (op is not None and op.positional and counts) or not asked.isdisjoint(node.inputs):
                asked.update(v for v in node.outputs if op is None or not op.makes_mask or v.rank != 2)
            elif isinstance(node, FlatParam) or any(len(self.times(v)) > 1 for v in node.outputs):
                return True
        return False
