"""Dead-code elimination: what no result, loss or weight needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from archdsl.ir.graph import Graph, Node, OpNode, node_outputs, reads
from archdsl.ir.walk import owns_weights

NodeT = TypeVar("NodeT")


def live(
    nodes: Sequence[NodeT],
    outputs: Iterable[Any],
    *,
    inputs_of: Callable[[Any], Iterable[Any]] = lambda node: node.inputs,
    outputs_of: Callable[[Any], Iterable[Any]] = lambda node: node.outputs,
    keeps: Callable[[NodeT], bool] = lambda node: False,
) -> tuple[NodeT, ...]:
    """Return the nodes that outputs are computed from, in their order, which is one in which they can be computed.

    `inputs_of` says which values a node depends on, those that its inner graphs read included; `keeps` whether it stays
    though nothing reads what it computes."""
    needed = set(outputs)
    found: list[NodeT] = []
    for node in reversed(nodes):
        if keeps(node) or not needed.isdisjoint(outputs_of(node)):
            found.append(node)
            needed.update(inputs_of(node))
    return tuple(reversed(found))


def live_nodes(graph: Graph) -> tuple[Node, ...]:
    """Return the nodes of a block's graph without the primitives that no result, loss or weight needs."""

    def keeps(node: Node) -> bool:
        return not isinstance(node, OpNode) or owns_weights(node)

    return live(graph.nodes, graph.outputs, inputs_of=reads, outputs_of=node_outputs, keeps=keeps)
