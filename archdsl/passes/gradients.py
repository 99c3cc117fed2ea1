"""Which tensors of a flat graph a gradient is wanted of."""

from __future__ import annotations

import itertools
from collections import ChainMap
from collections.abc import MutableMapping

from archdsl.ir.graph import Value
from archdsl.passes.flatten import FlatForm, FlatGraph, FlatParam, FlatScan


def wanting(graph: FlatGraph) -> dict[Value, bool]:
    """Which tensors depend on trained weights, so that a gradient is wanted of them."""
    found: dict[Value, bool] = {}
    _wanting(graph, found)
    return found


def _wanting(graph: FlatGraph, found: MutableMapping[Value, bool]) -> None:
    for node in graph.nodes:
        if isinstance(node, FlatParam):
            found[node.output] = node.weight.weight.trained
            continue
        if isinstance(node, FlatScan):
            _of_scan(node, found)
            continue
        if isinstance(node, FlatForm):
            found[node.output] = found.get(node.value, False)
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


def _of_scan(node: FlatScan, found: MutableMapping[Value, bool]) -> None:
    """Find which tensors of a scan want a gradient: those within it in any step, its states after the last step. Steps
    are taken one by one until the states want what they did before."""
    carried, slices = (
        [isinstance(v, Value) and found.get(v, False) for v in ends] for ends in (node.starts, node.sequences)
    )
    ever: dict[Value, bool] = {}
    for turn in itertools.count():
        step = ChainMap(dict(zip(node.body.inputs, (*carried, *slices), strict=True)), found)
        _wanting(node.body, step)
        for value, wants in step.maps[0].items():
            ever[value] = ever.get(value, False) or wants
        after = [step.get(v, False) for v in node.body.outputs[: len(carried)]]
        if turn > len(carried):  # it goes round
            after = [before or now for before, now in zip(carried, after, strict=True)]
        if after == carried:
            break
        carried = after
    found.update(ever)
    found.update(zip(node.finals, carried, strict=True))
    found.update(
        {outer: found.get(v, False) for outer, v in zip(node.stacked, node.body.outputs[len(carried) :], strict=True)}
    )
