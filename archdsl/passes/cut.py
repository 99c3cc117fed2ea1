"""Minimum cuts of small graphs (Edmonds and Karp, 1972).

Every estimate plans how a model decodes. networkx has the same, but importing it takes a fifth of the time of a whole
estimate; `tests/test_cut.py` compares the two."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def minimum_cut(edges: Iterable[tuple[Node, Node, int | None]], source: Node, sink: Node) -> tuple[int, set[Node]]:
    """The capacity of a minimum cut, and the nodes on the source's side: of all such cuts the one nearest to the sink.
    An edge is where it starts, where it ends and its capacity, None for one that cannot be cut; two from one node to
    another are one with both capacities.

    Raises ValueError where a path from the source to the sink has no edge that can be cut."""
    room: dict[Node, dict[Node, float]] = {source: {}, sink: {}}
    for start, end, capacity in edges:
        here, there = room.setdefault(start, {}), room.setdefault(end, {})
        here[end] = here.get(end, 0) + (float("inf") if capacity is None else capacity)
        there.setdefault(start, 0)
    flow = 0
    while True:
        path = _path(room, source, sink)
        if path is None:
            break
        most = min(room[a][b] for a, b in path)
        if most == float("inf"):
            raise ValueError("a path from the source to the sink cannot be cut")
        for a, b in path:
            room[a][b] -= most
            room[b][a] += most
        flow += int(most)
    far, todo = {sink}, [sink]
    while todo:
        end = todo.pop()
        for start in room[end]:
            if start not in far and room[start][end] > 0:
                far.add(start)
                todo.append(start)
    return flow, set(room) - far


def _path(room: dict[Node, dict[Node, float]], source: Node, sink: Node) -> list[tuple[Node, Node]] | None:
    """The shortest path along which more can flow."""
    came: dict[Node, Node] = {source: source}
    todo = deque([source])
    while todo:
        here = todo.popleft()
        for there, left in room[here].items():
            if left > 0 and there not in came:
                came[there] = here
                if there == sink:
                    path, end = [], sink
                    while end != source:
                        path.append((came[end], end))
                        end = came[end]
                    return path
                todo.append(there)
    return None
