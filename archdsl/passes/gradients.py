"""Which tensors of a flat graph a gradient is wanted of."""

from __future__ import annotations

from archdsl.ir.graph import Value
from archdsl.passes.flatten import FlatGraph, FlatParam, FlatScan


def wanting(graph: FlatGraph) -> dict[Value, bool]:
    """Which tensors depend on trained weights, so that a gradient is wanted of them."""
    found: dict[Value, bool] = {}
    _wanting(graph, found)
    return found


def _wanting(graph: FlatGraph, found: dict[Value, bool]) -> None:
    for node in graph.nodes:
        if isinstance(node, FlatParam):
            found[node.output] = node.weight.weight.trained
            continue
        if isinstance(node, FlatScan):
            given = zip(node.body.inputs, (*node.starts, *node.sequences), strict=True)
            found.update({inner: isinstance(v, Value) and found.get(v, False) for inner, v in given})
            _wanting(node.body, found)
            # What is carried depends on what any step makes of it: once more, from there.
            for inner, value in zip(node.body.inputs[: len(node.starts)], node.body.outputs, strict=False):
                found[inner] = found.get(inner, False) or found.get(value, False)
            _wanting(node.body, found)
            carried = len(node.starts)
            emitted = zip((*node.finals, *node.stacked), node.body.outputs, strict=True)
            assert len(node.finals) == carried
            found.update({outer: found.get(v, False) for outer, v in emitted})
            continue
        wants = any(w.weight.trained for w in node.weights.values()) or any(
            isinstance(v, Value) and found.get(v, False) and node.node.op.differentiates(node.node, i)
            for i, v in enumerate(node.inputs)
        )
        for inner_graph in node.blocks.values():
            found.update(
                {v: isinstance(node.inputs[0], Value) and found.get(node.inputs[0], False) for v in inner_graph.inputs}
            )
            _wanting(inner_graph, found)
            wants = wants or any(found.get(v, False) for v in inner_graph.outputs)
        found.update({v: wants and v.is_float for v in node.outputs})
