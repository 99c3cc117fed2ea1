"""What a step writes of its tensors: each by the local that stands for it, sizes by what the cache counts. Of tables of
positions each row of a batch has its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from archdsl.backends.torch.classes import Classes
from archdsl.backends.torch.features.both import BothLowering
from archdsl.backends.torch.features.by_row import refuse
from archdsl.backends.torch.features.taking import Taking
from archdsl.backends.torch.lower import Kind
from archdsl.backends.torch.program import Bind, Step
from archdsl.backends.torch.tree import NumberLeaf, Read, mapped, py
from archdsl.ir import dims, static
from archdsl.ir.dims import Var
from archdsl.ir.graph import Block, Graph, NewestNode, OpNode, ParamNode, Value, node_outputs, reads
from archdsl.ir.graph import Node as IrNode
from archdsl.ir.op import Tree
from archdsl.ir.walk import block_tensors
from archdsl.passes.flatten import FlatOp
from archdsl.passes.forms import ALL, NEW, has, is_time
from archdsl.passes.kinds import Kind as Dependence
from archdsl.passes.step_writes import sizes_called


class TableLowering(BothLowering):
    """Lowers the tensors and tables of a step. `taking` says how the block takes it."""

    def __init__(self, classes: Classes, block: Block, kinds: Sequence[Kind], taking: Taking) -> None:
        super().__init__(classes, block, kinds)
        self.taking, self.decoding, self.origin = taking, taking.decoding, taking.origin
        self.flatly = False
        """Within what is computed for the new positions of all rows, one after another, or for all positions."""
        self.flat_of: dict[Value, Value] = {}
        """Of what has an axis of batch in a step, what is there for all rows one after another, too."""
        self.rows_of: dict[Value, Value] = {}
        """Of what is computed for all rows one after another, what is cut by row."""
        self.length: Tree = py("{s}.end", s=self.state)
        """How many positions there are so far; in what is computed once, how many there will be."""
        self.instead: dict[Value, Value] = {}
        """Results of conditions that a node reads, by what they are in a step."""
        self.by_length = False
        """Within what is computed for the new positions, and whose numbers depend on how many there are."""
        self.once = False
        """Within what the first step alone computes."""

    # --- locals and sizes ---

    def read(self, value: Value) -> Tree:
        return super().read(value if self.mode == "whole" else self.local(value))

    def put(self, step: Step) -> None:
        if self.mode == "step":
            if isinstance(step, Bind):
                step = replace(step, targets=tuple(self.local(t) for t in step.targets))
            step = mapped(step, self.spelled)
        super().put(step)

    def local(self, target: Any) -> Any:
        """The local that a tensor of the step has."""
        own = self.flat_of if self.flatly else self.rows_of
        if target in own:
            return own[target]
        found = self.taking.shown.get(target, target)
        return self.instead.get(found, found)

    def spelled(self, x: Any) -> Any:
        """A leaf of a statement, with the number of all positions in place of its name."""
        if isinstance(x, NumberLeaf) and any(self.is_all(n) or self.is_of_rows(n) for n in dims.free_names(x.expr)):
            return self.numbers.spelled_by(x.expr, "real" if x.real else "sizes", self.counted_name)
        return x

    def is_all(self, name: str) -> bool:
        """Whether a name is one of the sizes with all positions."""
        if name.startswith(f"{ALL} "):
            return True
        return (self.once or self.by_length) and (self.is_length(name) or self.is_of_tokens(name))

    def is_of_rows(self, name: str) -> bool:
        """Whether a name is the number of new positions where no tensor tells it: in tables, which have those of all
        rows, and in a block that a step gives no tensor with new positions."""
        return (self.flatly or not self.sized) and self.is_length(name)

    @cached_property
    def sized(self) -> bool:
        """Whether a tensor that a step is given has the new positions."""
        own = {*block_tensors(self.block)} - self.taking.whole - self.taking.unread
        return any(map(self.decoding.counts, (d for v in own for d in v.shape)))

    def counted_name(self, name: str) -> Tree:
        """A name in a number, which may be that of all positions."""
        own = name.removeprefix(f"{ALL} ")
        if self.is_all(name) and self.is_length(own):
            return self.length
        if self.is_all(name) and self.is_of_tokens(own):
            return py("({n} - {s}.front)", n=self.length, s=self.state)
        if self.is_of_rows(name):
            return py("{s}.positions.numel()" if self.flatly else "{s}.positions.size(1)", s=self.state)
        sizes = sizes_called(own, self.block)
        if own != name and any(has(d, self.decoding.step.time) for d in sizes):
            raise refuse(f"a decode step has no size {own} of all positions")
        return NumberLeaf(Var(own), sizes[0].value if sizes else self.numbers.worth(Var(own)))

    def is_length(self, name: str) -> bool:
        """Whether a name of the block is the length of the sequence, with what stands in front of it."""
        return any(map(self.decoding.counts, sizes_called(name, self.block)))

    def is_of_tokens(self, name: str) -> bool:
        """Whether a name of the block is the length of the sequence alone, where something stands in front of it."""
        return self.decoding.front > 0 and self.is_time(name, self.block)

    def is_time(self, name: str, block: Block) -> bool:
        """Whether a name of a block is the length of the sequence alone."""
        return any(is_time(d, self.decoding.step.time) for d in sizes_called(name, block))

    def note_hints(self, node: OpNode) -> None:
        super().note_hints(self.origin(node))

    def note(self, value: Value, node: IrNode) -> str:
        return super().note(self.origin(value), self.origin(node))

    def result(
        self, value: Value, tree: Tree, graph: Graph, node: IrNode, always: bool = False, whole: bool = False
    ) -> None:
        super().result(value if self.mode == "whole" else self.local(value), tree, graph, node, always, whole)

    def twin(self, value: Value, target: Value | None = None) -> Value:
        """Call a tensor of the step, or a further local for one, as the block calls it."""
        found, own = target or value, self.origin(value)
        self.lowered.method.hints[found] = own.name or self.lowered.method.hints.get(own, "h")
        self.source[found] = own
        return found

    def further(self, value: Value) -> Value:
        """A further local for a tensor."""
        return self.twin(value, replace(value))

    # --- tables of positions ---

    @contextmanager
    def in_flat(self) -> Iterator[None]:
        """Have what is read and written within be tables: of all rows one after another, or of all positions."""
        around, self.flatly = self.flatly, True
        yield
        self.flatly = around

    def param(self, node: ParamNode) -> None:
        write = partial(super().param, node)
        if self.mode == "step" and node in self.taking.flatly:
            self.as_table(node, write)
        else:
            write()

    def table(self, node: OpNode, graph: Graph) -> None:
        """An op for all positions, or for the new ones of all rows, one after another."""
        if self.is_part(node):
            self.part(node, graph)
        else:
            self.as_table(node, partial(super().op, node, graph))

    def as_table(self, node: IrNode, write: Callable[[], None]) -> None:
        """Write a node for all rows, and cut what others read of each."""
        self.flat_twins(node)
        with self.in_flat():
            write()
        self.cut(node)

    def is_part(self, node: OpNode) -> bool:
        """Whether an op is told how many positions of something it takes: of all these the new ones are taken."""
        new = self.decoding.step.new
        timed = any(map(self.decoding.step.has, (d for v in reads(node) for d in v.shape)))
        asks = node.op.at_positions(node) or node.op.makes_mask or node.op.alike
        return not timed and not asks and any(has(n, new) for n in static.numbers_of((node.inputs, node.options)))

    def part(self, node: OpNode, graph: Graph) -> None:
        """What an op takes of all positions, and of that the new ones."""
        (output,) = node.outputs
        every = self.further(output)
        around, self.flat_of = self.flat_of, {**self.flat_of, output: every}
        self.by_length = True
        with self.in_flat():
            super().op(node, graph)
        self.by_length, self.flat_of = False, around
        self.take(node, self.read(every), output, self.decoding.flat.axis_of_new(output))

    def flat_twins(self, node: IrNode) -> None:
        """Give results that have an axis of batch for others a local of their own."""
        for value in node_outputs(node):
            if node not in self.taking.flat:
                self.flat_of[value] = self.further(value)
            elif value is not self.origin(value) and value not in self.taking.shown:
                self.twin(value)

    def cut(self, node: IrNode) -> None:
        """Cut the axis of new positions of what has those of all rows into that of batch, in front, and theirs."""
        for value in node_outputs(node):
            if value in self.taking.rows:
                axis, new = self.taking.rows[value][0], self.read_flat(value)
                self.in_rows(value, py("{s}.by_row({x}, {*axis})", s=self.state, x=new, axis=[axis] * bool(axis)))

    def in_rows(self, value: Value, tree: Tree) -> None:
        """A table of each row."""
        between = self.taking.rows[value][1]
        if between:  # or it has axes of size 1 in front that no reader has more
            tree = py(f"{{x}}[:{', None' * between or ', 0' * -between}]", x=tree)
        self.rows_of[value] = self.further(value)
        self.put(Bind((self.rows_of[value],), tree, nested=False))

    def newest(self, node: NewestNode) -> None:
        """The new positions of what is there for all."""
        value, output = node.value, node.output
        if self.local(output) is not output:
            self.source[self.local(output)] = output
        if self.taking.kind[self.origin(value)] == Dependence.SEQUENCE:
            axis = {"axis": node.axis} if node.axis != 1 else {}
            tree = py("{s}.newest({x}, {**axis})", s=self.state, x=self.read(value), axis=axis)
            self.aliases[self.local(output)] = tree
            return
        if node in self.taking.flatly:
            self.take(node, self.read_flat(value), output, node.axis)
            return
        by_row = self.decoding.by_row
        readers = by_row.readers.get(self.taking.unrolled.values[output], ())
        between = {by_row.between(n, i) for n, i in readers if isinstance(n, FlatOp)}
        if value.rank != 2 or node.axis != 0 or len(between) != 1:
            raise refuse(f"`{value.name or 'a tensor'}`, made of positions, is read at all of them and at its own")
        rows = py("{x}[{s}.positions]", x=self.read_flat(value), s=self.state)  # of a mask the queries of each row
        self.aliases[self.local(output)] = with_axes(rows, between.pop())

    def take(self, node: IrNode, every: Tree, output: Value, axis: int) -> None:
        """Take the new positions of what is there for all."""
        apart = self.taking.flatly.isdisjoint(n for n in self.taking.readers.get(output, ()) if n is not None)
        if output in self.taking.rows and axis == 0 and apart:
            self.in_rows(output, py("{x}[{s}.positions]", x=every, s=self.state))
            return

        def write() -> None:
            self.aliases[self.local(output)] = py(f"{{x}}[{':, ' * axis}{{at}}]", x=every, at=self.of_form(NEW))

        self.as_table(node, write)

    def read_flat(self, value: Value) -> Tree:
        """Read what has no axis of batch."""
        with self.in_flat():
            return self.read(value)

    def of_form(self, form: str) -> Tree:
        """The positions for which something is computed: all, or the new ones of all rows, one after another."""
        new, every = (py(text, s=self.state) for text in ("{s}.positions.flatten()", "{s}.keys"))
        nodes = (n for n in self.taking.flatly if isinstance(n, OpNode) and (n.op.at_positions(n) or n.op.makes_mask))
        asked = {self.form(n) for n in nodes}
        if len(asked) == 1 or form not in asked:
            return self.positions(new if form == NEW else every)
        found, keys = self.positions(new), self.shared("keys", every)
        assert isinstance(found, Read)
        assert isinstance(keys, Read)
        self.source[keys.value] = found.value
        return found if form == NEW else keys

    def form(self, node: OpNode) -> str:
        """The form that the results of a node of the step have."""
        return NEW if any(map(self.decoding.flat.is_new, node.outputs)) else ALL


def with_axes(rows: Tree, count: int) -> Tree:
    """A tensor [batch, …] with so many axes of size 1 more behind the first."""
    return py(f"{{x}}[:{', None' * count}]", x=rows) if count else rows
