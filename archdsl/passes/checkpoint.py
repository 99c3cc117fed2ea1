"""Which layers activation checkpointing computes again in the backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from archdsl.diagnostics import error
from archdsl.ir.graph import CallNode, CondNode, Graph, LoopNode, Model, OpNode, ScanNode, subgraphs
from archdsl.ir.walk import ops_below

Checkpoint = Literal["none", "selective", "full"]


def checkpointed(model: Model, kind: Checkpoint) -> list[CallNode]:
    """Return the calls of layers that are computed again.

    Raises ArchError E0527 where the model has no stack of layers, or `selective` finds nothing in it to keep."""
    if kind == "none":
        return []
    found = list(layers(model.block.graph))
    if not found:
        raise error(
            "E0527",
            f"`{model.name}` has no stack of layers to recompute",
            help="a layer is a block that a `for` over a list calls; compile it without `--checkpoint`",
        )
    kept = (
        [n for n in found if not any(op.op.in_place for op in ops_below(n.block.graph))]
        if kind == "selective"
        else found
    )
    if not kept:
        raise error(
            "E0527",
            f"the layers of `{model.name}` are recurrences, of which no product can be kept alone",
            help="`--checkpoint full` recomputes whole layers",
        )
    return kept


def layers(graph: Graph) -> Iterator[CallNode]:
    """The calls that the iterations of the outermost loops make, in the model's own graph and those of blocks it
    calls."""
    for node in graph.nodes:
        if isinstance(node, LoopNode):
            for body in node.bodies:
                yield from _calls(body)
        elif isinstance(node, CondNode):
            for inner in subgraphs(node):
                yield from layers(inner)
        elif isinstance(node, CallNode):
            yield from layers(node.block.graph)


def _calls(graph: Graph) -> Iterator[CallNode]:
    """The calls of an iteration: within a recurrence there are steps, and no layers."""
    for node in graph.nodes:
        if isinstance(node, CallNode):
            if node.step is None:
                yield node
        elif not isinstance(node, ScanNode | OpNode):
            for inner in subgraphs(node):
                yield from _calls(inner)
