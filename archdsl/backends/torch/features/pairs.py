"""What a spec computes itself of pairs of positions, in steps of decoding: a bias of distances, a mask by hand.

Such tensors are made of positions alone. A step makes them for its new positions, those of all rows one after another
along one axis, and all keys: then every op is as in `forward`. Where another tensor reads them, that axis is cut into
batch and new positions. What an op cannot make of new positions alone it makes of all, and rows are taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from archdsl.diagnostics import ArchError, error
from archdsl.diagnostics.source import Span
from archdsl.ir.dims import Num
from archdsl.ir.graph import Value
from archdsl.ir.op import At, same
from archdsl.passes.decode import DecodePlan
from archdsl.passes.flatten import FlatNode, FlatOp, FlatParam, FlatScan
from archdsl.passes.forms import ALL, NEW, has, is_time


def refuse(message: str, span: Span | None = None) -> ArchError:
    help_ = "compile it without `generate`; `--to onnx --decode` may take it step by step"
    return error("E0504", message, span, help=help_)


def misread(node: FlatNode) -> ArchError:
    return refuse("this op reads pairs of positions in a way that has no decode step", span_of(node))


def span_of(node: FlatNode) -> Span | None:
    return node.weight.node.span if isinstance(node, FlatParam) else node.node.span


Readers = Mapping[Value, Sequence[tuple[FlatNode, int]]]


class Pairs:
    """The nodes of a step that make pairs of positions, and what these are made of.

    `tables` are tensors made of positions that have another way through a step, unless pairs are made of them."""

    def __init__(self, plan: DecodePlan, readers: Readers, tables: Set[Value]) -> None:
        self.plan, self.readers, self.tables = plan, readers, tables
        self.batch = plan.step.inputs[0].shape[0].value
        self.forms: dict[Value, set[str]] = {}
        """The forms, NEW or ALL, in which a step needs each tensor."""
        self.nodes: set[FlatNode] = set()
        """Those that make nothing else."""
        self.masks: set[Value] = set()
        """What ops that ask for pairs themselves make, and what is made of that; no masks that meet pairs."""
        self.seen: set[FlatNode] = set()
        """Masks that meet pairs of the spec's own, and are such."""
        self.made = self.find()
        """What they make that others read; the rest leads to it."""
        for node in reversed(plan.step.nodes):
            self.demand(node)

    def find(self) -> set[Value]:
        """Tensors with two axes of time, and what is made of them; no masks, which have an axis of batch, and no
        tables."""
        found: set[Value] = set()
        own = [n for n in self.plan.step.nodes if set(n.outputs) <= self.plan.positional]
        for node in own:
            if (self.asks(node) and not self.is_plain_mask(node)) or any(v in self.masks for v in node.inputs):
                self.masks |= set(node.outputs)
        self.seen = {n for n in own if self.is_plain_mask(n) and self.is_pairs(n)}
        for node in own:
            if any(v in self.masks for v in node.inputs) or (self.asks(node) and node not in self.seen):
                self.masks |= set(node.outputs)
        for node in own:
            made = any(v in found for v in node.inputs) or not all(map(self.is_table, node.outputs))
            if made and self.masks.isdisjoint(node.outputs):
                found |= set(node.outputs)
        return found

    def asks(self, node: FlatNode) -> bool:
        """Whether an op asks for pairs of positions itself."""
        own = isinstance(node, FlatOp) and node.node.op.positional
        return own and any(isinstance(n, Num) and has(n, self.plan.time) for n in node.inputs)

    def is_plain_mask(self, node: FlatNode) -> bool:
        """Whether an op makes a mask of positions alone."""
        return isinstance(node, FlatOp) and node.node.op.makes_mask and node.outputs[0].rank == 2

    def is_pairs(self, mask: FlatNode) -> bool:
        """Whether of a mask and of pairs of the spec's own others are made: it then has no axis of batch, either."""
        read = [n for n, _ in self.readers.get(mask.outputs[0], ()) if set(n.outputs) <= self.plan.positional]
        pairs = [n for n in read if all(len(self.axes(v)) > 1 for v in n.outputs)]
        return any(self.masks.isdisjoint(n.outputs) for n in pairs)

    def is_table(self, value: Value) -> bool:
        """Whether a tensor has one axis of time, of which readers take the new positions and find the batch in front of
        them."""
        axes = self.axes(value)
        if not axes or value.shape[0].value == self.batch:
            return True
        outside = [(n, i) for n, i in self.readers.get(value, ()) if self.is_outside(n) and not self.asks(n)]
        leading = [n.node.op.leading(n.node, i) or 0 for n, i in outside if isinstance(n, FlatOp)]
        fits = len(axes) < 2 and value in self.tables and axes[0] <= min(leading, default=axes[0])
        return fits and all(self.wanted(n, i) == NEW for n, i in outside)

    def is_outside(self, node: FlatNode) -> bool:
        """Whether a node is none that pairs can be made by."""
        return not set(node.outputs) <= self.plan.positional - self.masks

    def wanted(self, node: FlatNode, i: int) -> str:
        """The form in which something else reads an input: NEW with all keys, if there are two axes, or ALL."""
        value = node.inputs[i]
        assert isinstance(value, Value)
        found = [f for f in self.plan.needs.get((node, i), ()) if f]
        if not found and isinstance(node, FlatOp):
            query, reads = self.axes(node.outputs[0])[0], node.node.op.reads(node.node)[i]
            found = [NEW if reads[a] == same(query) else ALL for a in self.axes(value)]
        if not all(f == ALL for f in found[1:]):
            raise misread(node)
        return found[0]

    def axes(self, value: Value) -> list[int]:
        """The axes of time."""
        return [a for a, d in enumerate(value.shape) if has(d, self.plan.time)]

    def demand(self, node: FlatNode) -> None:
        """Note what a node makes, and reads, in which forms, when its readers are known."""
        readers = [reader for v in node.outputs for reader in self.readers.get(v, ())]
        made = any(v in self.made for v in node.outputs)
        forms = {f for v in node.outputs for f in self.forms.get(v, ())}
        forms |= {self.wanted(n, i) for n, i in readers if n not in self.nodes} if made else set()
        if not forms:
            return
        sizes = [d for v in node.outputs for d in v.shape]
        fits = all(is_time(d, self.plan.time) or not (has(d, self.plan.time) or d.value == self.batch) for d in sizes)
        if isinstance(node, FlatScan) or not fits or not all(map(self.axes, node.outputs)):
            raise refuse("the result of this op on pairs of positions has no decode step", span_of(node))
        if NEW in forms and self.at_new(node) is None:
            forms.add(ALL)  # of which rows are taken
        for form in forms:
            for i, read in self.reads(node, form).items():
                value = node.inputs[i]
                assert isinstance(value, Value)
                self.forms.setdefault(value, set()).add(read)
        self.forms |= dict.fromkeys(node.outputs, forms)
        if made or all(n in self.nodes for n, _ in readers):
            self.nodes.add(node)

    def reads(self, node: FlatNode, form: str) -> dict[int, str]:
        """The forms of inputs made of positions from which a node makes its result in a form."""
        new = self.at_new(node) if form == NEW else None
        timed = (i for i, v in enumerate(node.inputs) if v in self.plan.positional and self.axes(v))
        return dict.fromkeys(timed, ALL) if new is None else new

    def at_new(self, node: FlatNode) -> dict[int, str] | None:
        """The same for new positions; None where the op makes all of them."""
        if not isinstance(node, FlatOp):
            return None
        if node.node.op.at_positions(node.node) or node in self.seen:
            return {}
        query, found = self.axes(node.outputs[0])[0], dict[int, str]()
        for i, (value, reads) in enumerate(zip(node.inputs, node.node.op.reads(node.node), strict=True)):
            if isinstance(value, Value) and value in self.plan.positional and self.axes(value):
                own, *others = (reads[a] for a in self.axes(value))
                if any(_reads_axis(r, query) for r in (*others, *[own] * (own != same(query)))):
                    return None
                found[i] = NEW if own == same(query) else ALL
        sizes = (n for n in (*node.inputs, *node.node.options.values()) if isinstance(n, Num))
        return found if NEW in found.values() and not any(has(n, self.plan.time) for n in sizes) else None


def _reads_axis(read: At | None, axis: int) -> bool:
    """Whether which positions are read depends on that along an axis of the result."""
    return read is not None and any(a == axis for r in (read, *read.also) for a, _ in r.axes)
