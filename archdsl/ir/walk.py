"""Visits of the nodes of graphs, of the blocks that they call, and of what has weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeGuard

from archdsl.diagnostics.source import Span
from archdsl.ir.graph import (
    Block,
    CallNode,
    Graph,
    Input,
    LoopNode,
    Node,
    OpNode,
    ParamNode,
    Value,
    node_outputs,
    reads,
    subgraphs,
)
from archdsl.ir.paths import Step, counter


def calls_of(node: Node) -> tuple[CallNode, ...]:
    """Return the calls that a node makes: a call itself, or those of blocks that a primitive applies."""
    if isinstance(node, CallNode):
        return (node,)
    return tuple(node.blocks.values()) if isinstance(node, OpNode) else ()


def every_node(graph: Graph) -> Iterator[Node]:
    """Yield the nodes of a graph, those of its inner graphs included."""
    for node in graph.nodes:
        yield node
        for inner in subgraphs(node):
            yield from every_node(inner)


def nodes_below(graph: Graph, seen: set[Graph] | None = None) -> Iterator[Node]:
    """Yield the nodes of a graph, of its inner graphs, and of the blocks that it calls, each block at its first
    call."""
    seen = set() if seen is None else seen
    for node in every_node(graph):
        yield node
        for inner in (call.block.graph for call in calls_of(node)):
            if inner not in seen:
                seen.add(inner)
                yield from nodes_below(inner, seen)


def ops_below(graph: Graph) -> Iterator[OpNode]:
    """Yield the primitives among `nodes_below` a graph."""
    return (node for node in nodes_below(graph) if isinstance(node, OpNode))


def runs(graph: Graph, times: int = 1, loop: LoopNode | None = None) -> Iterator[tuple[Node, int, LoopNode | None]]:
    """Yield the nodes of a graph and of its inner graphs, each with the number of times that it runs and the outermost
    loop around it."""
    for node in graph.nodes:
        yield node, times, loop
        counts = Counter(node.iterations) if isinstance(node, LoopNode) else {}
        for i, inner in enumerate(subgraphs(node)):
            outermost = loop or node if isinstance(node, LoopNode) else loop
            yield from runs(inner, times * counts.get(i, 1), outermost)


def operations(graph: Graph, known: dict[Graph, int] | None = None) -> int:
    """Return the number of nodes of a graph with every iteration of a loop and every call of a block written out."""
    known = {} if known is None else known
    if graph not in known:
        known[graph] = sum(
            times * (1 + sum(operations(call.block.graph, known) for call in calls_of(node)))
            for node, times, _ in runs(graph)
        )
    return known[graph]


def above(graph: Graph, value: Value) -> set[Value]:
    """Return every value of a graph that a value is computed from, itself included."""
    makers = {v: node for node in graph.nodes for v in node_outputs(node)}
    found, todo = {value}, [value]
    while todo:
        node = makers.get(todo.pop())
        new = {*reads(node)} - found if node is not None else set()
        found |= new
        todo += new
    return found


def typed_at(nodes: Iterable[Node], value: Value, taken: Mapping[Value, Value | None]) -> Span | None:
    """Return where a tensor came to its type: what made it, or the first of what it is computed from that has the
    type. None where it came with it. `taken` says what inputs of loops are taken from."""
    makers = {v: node for node in nodes for v in node_outputs(node)}
    todo, seen = [value], {value}
    while todo:
        value = todo.pop()
        node = makers.get(value)
        if isinstance(node, OpNode):
            before: Sequence[Input] = node.inputs
        elif isinstance(node, LoopNode) and value in node.outputs:
            before = node.bodies[node.iterations[-1]].outputs[node.outputs.index(value) :][:1]
        else:
            before = (taken[value],) if value in taken else ()
        same = [v for v in before if isinstance(v, Value) and v.dtype == value.dtype]
        if not same and node is not None:
            return node.span
        todo += [v for v in reversed(same) if v not in seen]
        seen |= {*same}
    return None


# --- what has weights -------------------------------------------------------------------------------------------------


def is_module(node: Node) -> TypeGuard[CallNode | OpNode | ParamNode]:
    """Whether a node is a step in the path of weights: a use of a shared module is none, nor an op without weights."""
    if isinstance(node, CallNode):
        return node.instance is None
    return isinstance(node, ParamNode) or owns_weights(node)


def owns_weights(node: Node) -> TypeGuard[OpNode]:
    """Whether a node is a primitive with weights of its own."""
    return isinstance(node, OpNode) and node.instance is None and bool(node.weights or node.blocks)


def modules(graph: Graph, step: Step = str) -> Iterator[tuple[CallNode | OpNode | ParamNode, str]]:
    """Yield what is a step in the path of weights, as often as it is applied, with that step: `attention`, and
    `blocks.3` within a loop."""
    for node in graph.nodes:
        if isinstance(node, LoopNode):
            inner = step if step is not str else counter()
            for which in node.iterations:
                yield from modules(node.bodies[which], inner)
        elif is_module(node):
            yield node, step(node.name)
        else:
            for body in subgraphs(node):
                yield from modules(body, step)


def module_names(graph: Graph) -> list[str]:
    """Return the steps in the path of names that a graph's own applications take (those of shared blocks left out)."""
    found = (n.name for n in every_node(graph) if is_module(n))
    return list(dict.fromkeys(name for name in found if name))


def block_tensors(block: Block) -> list[Value]:
    """Return every tensor that a block is handed: its inputs, then its contexts'."""
    return [*block.graph.inputs, *(c.value for c in block.contexts if isinstance(c.value, Value))]
