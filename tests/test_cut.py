"""Minimum cuts: those of networkx, on graphs put together at random."""

import random

import networkx as nx
import pytest

from archdsl.passes.cut import minimum_cut


@pytest.mark.parametrize("seed", range(400))
def test_as_networkx_cuts(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(2, 12)
    edges: dict[tuple[int, int], int | None] = {}
    for _ in range(draw.randint(1, 4 * count)):
        start, end = draw.sample(range(count), 2)
        edges[start, end] = draw.choice([1, 1, 2, 3, 7, None])
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from((0, 1))
    for (start, end), capacity in edges.items():
        graph.add_edge(start, end, **({} if capacity is None else {"capacity": capacity}))
    told = [(start, end, capacity) for (start, end), capacity in edges.items()]
    try:
        flow, (near, _) = nx.minimum_cut(graph, 0, 1)
    except nx.NetworkXUnbounded:
        with pytest.raises(ValueError, match="cannot be cut"):
            minimum_cut(told, 0, 1)
        return
    assert minimum_cut(told, 0, 1) == (flow, near)


def test_edges_between_the_same_nodes_add_up() -> None:
    assert minimum_cut([("a", "b", 2), ("a", "b", 3), ("b", "c", 9)], "a", "c") == (5, {"a"})
