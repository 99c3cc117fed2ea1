"""What values and nodes of a graph have to do with each other."""

import networkx as nx

from archdsl import load
from archdsl.ir.graph import Graph, LoopNode, Node, node_outputs, reads
from archdsl.ir.walk import above


def test_a_graph_is_written_in_a_topological_order() -> None:
    graph = load("transformer").block.graph
    view = nx.DiGraph([(v, n) for n in graph.nodes for v in reads(n)])
    view.add_edges_from((n, v) for n in graph.nodes for v in node_outputs(n))
    assert nx.is_directed_acyclic_graph(view)
    place: dict[Node, int] = {node: i for i, node in enumerate(graph.nodes)}
    assert all(place[a] < place[b] for a, v in view.edges if a in place for b in view.successors(v) if b in place)


def test_what_the_logits_depend_on() -> None:
    """Both stacks and both inputs of an encoder-decoder lie before its logits."""
    graph: Graph = load("transformer").block.graph
    assert graph.outputs[0] is not None
    before = above(graph, graph.outputs[0])
    assert set(graph.inputs) <= before
    assert {v for n in graph.nodes if isinstance(n, LoopNode) for v in n.outputs} <= before
