"""Steps in the path of a weight: `blocks.3` within a loop. The rules are in `archdsl.ir.weights`."""

from __future__ import annotations

from collections.abc import Callable

from archdsl.ir.graph import CallNode, CondNode, Graph, LoopNode, OpNode, ParamNode, ScanNode

Step = Callable[[str], str]
"""From the name of an application to its steps in the path: `blocks` to `blocks.3` within a loop, `str` outside."""


def counter() -> Step:
    """Numbers the applications of each name within one outermost loop."""
    counts: dict[str, int] = {}

    def step(name: str) -> str:
        index = counts.get(name, 0)
        counts[name] = index + 1
        return f"{name}.{index}"

    return step


def skip(graph: Graph, step: Step) -> None:
    """Count the applications of a branch that is not taken: those after it keep their numbers."""
    for node in graph.nodes:
        if (
            (isinstance(node, CallNode) and node.instance is None)
            or (isinstance(node, OpNode) and node.instance is None and (node.weights or node.blocks))
            or isinstance(node, ParamNode)
        ):
            step(node.name)
        elif isinstance(node, LoopNode):
            for body in node.turns:
                skip(node.bodies[body], step)
        elif isinstance(node, ScanNode):
            skip(node.body, step)
        elif isinstance(node, CondNode):
            skip(node.then, step)
            skip(node.otherwise, step)
