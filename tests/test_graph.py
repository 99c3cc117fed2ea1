"""The graph views of the IR: networkx answers what is a question of graphs."""

import networkx as nx

from archdsl import load
from archdsl.ir.graph import Graph, LoopNode, Node


def test_a_graph_is_written_in_a_topological_order() -> None:
    graph = load("transformer").block.graph
    view = graph.as_networkx()
    assert nx.is_directed_acyclic_graph(view)
    place: dict[Node, int] = {node: i for i, node in enumerate(graph.nodes)}
    assert all(place[a] < place[b] for a, v in view.edges if a in place for b in view.successors(v) if b in place)


def test_what_the_logits_depend_on() -> None:
    """Both stacks and both inputs of an encoder-decoder lie before its logits."""
    graph: Graph = load("transformer").block.graph
    before = nx.ancestors(graph.as_networkx(), graph.outputs[0])
    assert set(graph.inputs) <= before
    assert {n for n in graph.nodes if isinstance(n, LoopNode)} <= before
