"""How many layers a model has: the iterations of the loops that its stream goes through.

A loop is a stack where it carries a real tensor. Within an iteration, a further stack is counted instead of it where
the stream can take no other way: a stage has the layers of its list, and those that it applies beside it, but an
attention with a loop over heads, around which the residual stream goes, is one layer. Of several stacks those count
whose iterations call blocks, and give a tensor of the shape that they are given: the convolutions before a transformer
are none of its layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

from archdsl.frozen import Frozen
from archdsl.ir.graph import (
    Block,
    CallNode,
    CondNode,
    Graph,
    LoopNode,
    Node,
    OpNode,
    Value,
    node_outputs,
    reads,
)
from archdsl.ir.walk import nodes_below


class _Stack(Frozen):
    """One outermost loop, or an iteration of it: its iterations that apply weights, and whether one of them calls a
    block and gives a tensor of the shape that it is given, as layers do."""

    iterations: int
    of_layers: bool


def layer_count(block: Block) -> int:
    """Return the number of layers of a model, given its root block."""
    stacks = list(_stacks(block.graph, branches=True))
    return sum(s.iterations for s in [s for s in stacks if s.of_layers] or stacks)


def _stacks(graph: Graph, branches: bool) -> Iterator[_Stack]:
    """Yield the stacks of a graph and of the blocks that it calls; without `branches`, only those on every path from
    inputs to outputs."""
    for node in graph.nodes:
        if not branches and not _is_passed(graph, node):
            continue
        if isinstance(node, LoopNode):
            if any(v.is_float for v in node.starts):
                each = [_iteration(body, len(node.starts)) for body in node.bodies]
                every = [each[iteration] for iteration in node.iterations]
                yield _Stack(sum(s.iterations for s in every), any(s.of_layers for s in every))
        elif isinstance(node, CallNode):
            yield from _stacks(node.block.graph, branches) if branches else _parts(node.block.graph)
        elif isinstance(node, CondNode):
            yield from _stacks(node.otherwise, branches)


def _parts(graph: Graph) -> Iterator[_Stack]:
    """Yield the stacks on every path through an iteration, and one more for the blocks called beside them."""
    stacks = list(_stacks(graph, branches=False))
    if stacks:
        yield from stacks
        others = (n for n in graph.nodes if isinstance(n, CallNode) and not any(_parts(n.block.graph)))
        yield _Stack(int(any(_is_like(n.inputs, n.outputs) and _has_matrix(n.block) for n in others)), False)


def _iteration(body: Graph, carried: int) -> _Stack:
    """Count the layers of an iteration: those of its stacks or, without any, one."""
    parts = list(_parts(body))
    if parts:
        return _Stack(sum(s.iterations for s in parts), any(s.of_layers for s in parts))
    calls = any(isinstance(n, CallNode) for n in body.nodes)
    applied = calls or any(isinstance(n, OpNode) and n.weights for n in body.nodes)
    return _Stack(int(applied), calls and _is_like(body.inputs, body.outputs[:carried]))


def _is_like(inputs: Iterable[Value | None], outputs: Iterable[Value | None]) -> bool:
    """Return whether an output has the shape of an input."""
    shapes = [[d.value for d in v.shape] for v in _real(inputs)]
    return any([d.value for d in v.shape] in shapes for v in _real(outputs))


@cache
def _has_matrix(block: Block) -> bool:
    ops = (n for n in nodes_below(block.graph) if isinstance(n, OpNode))
    return any(w.kind == "matrix" for op in ops for w in op.weights)


def _is_passed(graph: Graph, node: Node) -> bool:
    """Return whether every path from the inputs of a graph to its outputs goes through a node."""
    reached: set[Value] = {v for v in graph.inputs if v.is_float}
    for other in graph.nodes:
        if other is not node and not reached.isdisjoint(reads(other)):
            reached.update(node_outputs(other))
    return reached.isdisjoint(_real(graph.outputs))


def _real(values: Iterable[Value | None]) -> Iterator[Value]:
    yield from (v for v in values if v is not None and v.is_float)
