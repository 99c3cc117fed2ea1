"""What the tensors of a decoded model depend on: weights alone, other inputs than the sequence, positions, or the
sequence. And which op, the first as they are written, has no step."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any

from archdsl.ir.graph import (
    Block,
    CallNode,
    CondNode,
    Graph,
    LoopNode,
    Node,
    OpNode,
    ParamNode,
    ScanNode,
    Value,
    WeightNode,
    node_outputs,
    reads,
    subgraphs,
)
from archdsl.ir.walk import block_tensors
from archdsl.passes.dce import live
from archdsl.passes.forms import ALL, Forms, behind, blame, has, reads_numbers, shown


class Kind(IntEnum):
    """What a tensor depends on: each on what stands before it, too."""

    WEIGHTS = 0
    ONCE = 1
    """Other inputs than the sequence."""
    POSITIONS = 2
    SEQUENCE = 3


class Kinds:
    """The kinds of the tensors of blocks, for those of their inputs."""

    def __init__(self, forms: Forms) -> None:
        self.forms = forms
        self.known: dict[Hashable, tuple[dict[Value, Kind], tuple[Kind, ...]]] = {}
        self.judged: set[Hashable] = set()

    def kinds(self, block: Block, given: tuple[Kind, ...]) -> tuple[dict[Value, Kind], tuple[Kind, ...]]:
        """What each tensor of a block depends on, and each of its results."""
        key = block, given
        if key not in self.known:
            kind = dict(zip(block_tensors(block), given, strict=True))
            self.of_graph(block.graph, kind)
            self.known[key] = kind, tuple(kind[v] for v in block.graph.outputs if v is not None)
        return self.known[key]

    def of_graph(self, graph: Graph, kind: dict[Value, Kind]) -> None:
        """Note the kinds of the tensors of a graph."""
        for node in graph.nodes:
            self.of_node(node, kind)

    def of_node(self, node: Node, kind: dict[Value, Kind]) -> None:
        """Note the kinds of what a node gives. What a loop carries is of one kind in every turn."""
        match node:
            case OpNode():
                kind.update(dict.fromkeys(node.outputs, self.of_op(node, kind)))
            case CallNode():
                found = self.kinds(node.block, kinds_given(node, kind))[1]
                kind.update(zip(node.outputs, found, strict=True))
            case LoopNode():
                carried = [kind[v] for v in node.starts]
                while True:
                    before = list(carried)
                    for t, which in enumerate(node.iterations):
                        body = node.bodies[which]
                        for value, one in zip(body.inputs, carried, strict=True):
                            kind[value] = max(kind.get(value, Kind.WEIGHTS), one)
                        self.of_graph(body, kind)
                        ends = [kind[v] for v in body.outputs if v is not None]
                        carried = [max(a, b) for a, b in zip(carried, ends, strict=False)]
                        if node.emitted:
                            kind.update(zip(node.emitted[t], ends[len(carried) :], strict=True))
                    if carried == before:
                        break
                kind.update(zip(node.outputs, carried, strict=True))
            case ScanNode():
                one = max((kind[v] for v in reads(node)), default=Kind.WEIGHTS)
                kind.update(dict.fromkeys((*node.body.inputs, *node_outputs(node)), one))
                self.of_graph(node.body, kind)
            case CondNode():
                self.of_graph(node.otherwise, kind)
                kind.update((v, kind[o]) for v, o in zip(node.outputs, node.otherwise.outputs, strict=True) if o)
            case ParamNode():
                kind[node.output] = Kind.POSITIONS if self.forms.axes(node.output) else Kind.WEIGHTS
            case WeightNode():
                kind[node.output] = Kind.WEIGHTS

    def of_op(self, node: OpNode, kind: Mapping[Value, Kind]) -> Kind:
        """What an op depends on. One that reads the type alone of a tensor of the sequence stands in each step, too, as
        what depends on positions does."""
        given = {i: kind[v] for i, v in enumerate(node.inputs) if isinstance(v, Value)}
        around = [kind[v] for call in node.blocks.values() for v in values_of(call.contexts)]
        moving = Kind.SEQUENCE in around or any(k == Kind.SEQUENCE and reads_numbers(node, i) for i, k in given.items())
        if moving or self.forms.has_rows(node):
            return Kind.SEQUENCE
        if self.forms.speaks(node.inputs, node.outputs):
            return Kind.POSITIONS
        return max((min(k, Kind.POSITIONS) for k in (*given.values(), *around)), default=Kind.WEIGHTS)

    # --- what has no step ---------------------------------------------------------------------------------------------

    def demand(self, block: Block, given: tuple[Kind, ...], scan: bool) -> None:
        """Raise ArchError E0504 for the first op of a block that has no step, whoever reads its results."""
        if (block, given, scan) not in self.judged:
            self.judged.add((block, given, scan))
            kind = self.kinds(block, given)[0]
            self.demand_graph(block.graph, kind, scan, [v for v in block.graph.outputs if v is not None])

    def demand_graph(self, graph: Graph, kind: Mapping[Value, Kind], scan: bool, outputs: Iterable[Value]) -> None:
        """The same of the nodes that outputs are computed from, in their order."""
        wanted = {*live(graph.nodes, [*outputs], inputs_of=reads, outputs_of=node_outputs)}
        for node in graph.nodes:
            if node not in wanted:
                continue
            if isinstance(node, OpNode):
                self.demand_op(node, max((kind[v] for v in node.outputs), default=Kind.WEIGHTS), scan)
            elif isinstance(node, CallNode):
                self.demand(node.block, kinds_given(node, kind), scan)
            else:
                if isinstance(node, ScanNode) and kind[node_outputs(node)[0]] == Kind.SEQUENCE:
                    self.demand_slices(node, kind, scan)
                for inner in without_training(node):
                    ends = [v for v in inner.outputs if v is not None]
                    self.demand_graph(inner, kind, scan or isinstance(node, ScanNode), ends)

    def demand_slices(self, node: ScanNode, kind: Mapping[Value, Kind], scan: bool) -> None:
        """Raise ArchError E0504 for a scan of the sequence that reads other positions than those of its slices."""
        along = any(has(v.shape[1], self.forms.time) for v in node.sequences)
        for value in reads(node):
            if self.forms.front(value) and not self.forms.led:
                raise behind(node, f"reads {shown(value)}, which has a fixed prefix")
            if self.forms.axes(value) and along and value not in node.sequences:
                raise blame(node, f"reads {shown(value)}, which has an axis of time, at every step")
            if self.forms.axes(value) and kind[value] == Kind.POSITIONS:
                raise blame(node, "reads a table of positions")
        if along and scan:
            raise blame(node, "runs along time within another one")
        for value in node_outputs(node):
            self.forms.result(node, value)

    def demand_op(self, node: OpNode, kind: Kind, scan: bool) -> None:
        """The same of an op."""
        if kind >= Kind.POSITIONS:
            self.forms.demand_steps(node)
        if kind == Kind.SEQUENCE:
            taken = self.forms.take(node)
            if scan and (taken.states or any(ALL in form for _, form, _ in taken.wanted)):
                raise blame(node, "reads other positions than its own within a scan")
        within = scan and kind >= Kind.POSITIONS and self.forms.speaks(node.inputs, node.outputs)
        if within and node.op.positional and not (node.op.moves or node.op.alike):
            raise blame(node, "asks which positions there are within a scan")


def kinds_given(node: CallNode, kind: Mapping[Value, Kind]) -> tuple[Kind, ...]:
    """Return the kinds of the tensors that a block is called with; one that is left out depends on nothing."""
    return tuple(Kind.WEIGHTS if v is None else kind[v] for v in (*node.inputs, *values_of(node.contexts)))


def without_training(node: Node) -> tuple[Graph, ...]:
    """Return the graphs that a node runs where the model is not trained."""
    return (node.otherwise,) if isinstance(node, CondNode) else subgraphs(node)


def inference_nodes(graph: Graph) -> Iterator[Node]:
    """Yield the nodes of a graph and of those inside it, of `if training` only what is not training."""
    for node in graph.nodes:
        yield node
        for inner in without_training(node):
            yield from inference_nodes(inner)


def values_of(given: Iterable[Any]) -> list[Value]:
    """The tensors among these."""
    return [v for v in given if isinstance(v, Value)]
