"""Exact parameter counts, from the IR alone and memoized by block: a thousand layers cost what their distinct blocks
cost.

What counts as what:

* **total**: every trained number once, shared and tied weights included once; buffers are not parameters.
* **non_embedding**: the total without tables that are looked up (tokens, positions, segments), without raw weights that
  join the input before the first layer (a learned class token), and without the matrix of an output projection that is
  not tied: the linear layer onto the vocabulary whose result the model gives back.
* **active**: what one token meets. Of `E` routed experts that is `k`, the rest of the model counts whole.
* **rule_of_thumb**: 12 · n_layer · d², n_layer being all layers (`estimates.layers`) and d the model's width.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from pydantic import BaseModel

from archdsl.estimates.counts import Counts, sorted_layers, titles, uses
from archdsl.estimates.layers import layer_count
from archdsl.ir.graph import (
    Block,
    CallNode,
    Graph,
    LoopNode,
    Model,
    Node,
    OpNode,
    ParamNode,
    Value,
    Weight,
    node_outputs,
)
from archdsl.ir.weights import shape_of
from archdsl.shown import Shown

# --- the report -------------------------------------------------------------------------------------------------------


class BlockParams(BaseModel):
    """One distinct block: a declaration with its hyper-parameters and sizes."""

    block: str
    source: str
    layers: dict[str, list[int]] = {}
    """By the list of layers, `blocks`, those that it stands in."""
    count: int
    """How many sets of its weights the model has."""
    each: int
    """Parameters of one, those of the blocks inside it included."""
    total: int


class WeightParams(BaseModel):
    """All weights that differ only in their indices: `blocks.*.attention.q.weight`."""

    path: str
    shape: tuple[int, ...]
    count: int
    total: int
    kind: str
    trained: bool


class Params(BaseModel):
    """Counts of one model. `ratio` is non_embedding / rule_of_thumb; both are None where a model has no stack of layers
    or no width."""

    total: int
    non_embedding: int
    active: int
    embedding: int
    output_projection: int
    """Numbers of an output projection that is not tied to the embedding."""
    layers: int
    width: int | None
    rule_of_thumb: int | None
    ratio: float | None
    buffers: int
    """Numbers in saved buffers."""
    by_block: list[BlockParams]
    by_weight: list[WeightParams]


class ParamsReport(BaseModel, Shown):
    """What `archdsl estimate` prints."""

    model: str
    source: str
    config: dict[str, int | float]
    params: Params


def estimate(model: Model) -> ParamsReport:
    """Count a model's parameters."""
    counts = Counts()
    root = counts.block(model.block)
    head = sum(prod(shape_of(w)) for w in output_projections(model))
    inputs = _raw_inputs(model.block)
    non_embedding = root.total - root.embedding - head - inputs
    width = _width(model)
    layers = layer_count(model.block)
    thumb = 12 * layers * width**2 if layers and width else None
    return ParamsReport(
        model=model.name,
        source=model.source_name,
        config={f.name: _number(f.value.value) for f in model.config},
        params=Params(
            total=root.total,
            non_embedding=non_embedding,
            active=root.active,
            embedding=root.embedding + inputs,
            output_projection=head,
            layers=layers,
            width=width,
            rule_of_thumb=thumb,
            ratio=round(non_embedding / thumb, 4) if thumb else None,
            buffers=root.buffers,
            by_block=_by_block(model.block, counts),
            by_weight=[
                WeightParams(
                    path=path,
                    shape=shape,
                    count=n,
                    total=n * prod(shape),
                    kind=weight.kind,
                    trained=weight.trained,
                )
                for (path, shape, _), (n, weight) in root.weights.items()
            ],
        ),
    )


def _number(value: Any) -> int | float:
    return value if isinstance(value, int) else float(value)


def _by_block(root: Block, counts: Counts) -> list[BlockParams]:
    """Each distinct block in order of appearance, callers first."""
    found = uses(root)
    names = titles(found)
    rows = []
    for block, use in found.items():
        each = counts.whole(block)
        if each == 0 and block is not root:
            continue
        row = BlockParams(
            block=names[block],
            source=str(block.span),
            layers=sorted_layers(use),
            count=use.times,
            each=each,
            total=use.times * each,
        )
        rows.append(row)
    return rows


# --- what is not a layer's --------------------------------------------------------------------------------------------


def _width(model: Model) -> int | None:
    """The model's width: its `width`, or the last axis of what its first stack carries."""
    for config in model.config:
        if config.name == "width" and isinstance(config.value.value, int):
            return config.value.value
    for loop in _outside_loops(model.block):
        for value in loop.starts if isinstance(loop, LoopNode) else ():
            if value.is_float and value.rank >= 2 and value.shape[-1].static:
                return int(value.shape[-1])
    return None


def _outside_loops(block: Block) -> Iterator[Node]:
    """The nodes of a block and of those that it calls, but for what stands in loops, recurrences and branches."""
    for node in block.graph.nodes:
        yield node
        if isinstance(node, CallNode):
            yield from _outside_loops(node.block)


def _raw_inputs(block: Block) -> int:
    """Raw weights that the model itself joins to its input, before the first stack of layers."""
    found = 0
    nodes = block.graph.nodes
    if not any(isinstance(n, LoopNode) for n in nodes):
        return 0
    for node in nodes:
        if isinstance(node, LoopNode):
            break
        if isinstance(node, ParamNode) and node.weight.trained and node.weight.kind != "embedding":
            found += prod(shape_of(node.weight))
    return found


def output_projections(model: Model) -> list[Weight]:
    """The matrices that are the last to touch a vocabulary of logits which the model gives back."""
    vocabularies = {f.value.value for f in model.config if f.name == "vocab"} | set(_tables(model.block))
    seen: dict[tuple[int, int], int] = {}

    def within(block: Block, index: int) -> list[Weight]:
        output = [v for v in block.graph.outputs if v is not None][index]
        return [] if (id(block), id(output)) in seen else back(block.graph, output, block)

    def back(graph: Graph, value: Value, block: Block) -> list[Weight]:
        """Follow a value to where its last axis was made."""
        if (id(block), id(value)) in seen or not value.shape or value.shape[-1].value not in vocabularies:
            return []
        seen[id(block), id(value)] = 1
        makers = {id(v): n for n in graph.nodes for v in node_outputs(n)}
        maker = makers.get(id(value))
        if isinstance(maker, CallNode):
            found = (
                []
                if maker.instance is not None
                else within(maker.block, [id(v) for v in maker.outputs].index(id(value)))
            )
            return found or [w for v in maker.inputs if v is not None for w in back(graph, v, block)]
        if not isinstance(maker, OpNode):
            return []
        matrices = [
            w
            for w in maker.weights
            if w.kind == "matrix" and w.trained and w.fan_out is not None and w.fan_out.value == value.shape[-1].value
        ]
        if matrices and maker.instance is None:
            return matrices
        return [w for v in maker.inputs if isinstance(v, Value) for w in back(graph, v, block)]

    return [
        w
        for i, v in enumerate(v for v in model.block.graph.outputs if v is not None)
        if v.is_float
        for w in within(model.block, i)
    ]


def vocabulary(model: Model) -> int | None:
    """How many tokens there are: the fewest rows that any table has in which the model looks tokens up, or its
    `vocab`."""
    rows = [int(n) for n in _tables(model.block)] or [int(f.value) for f in model.config if f.name == "vocab"]
    return min(rows, default=None)


def _tables(block: Block) -> Iterator[Any]:
    """How many rows the tables have in which tokens are looked up."""
    for node in _outside_loops(block):
        if isinstance(node, OpNode) and any(isinstance(v, Value) and v.dtype == "token" for v in node.inputs):
            yield from (w.shape[0].value for w in node.weights if w.kind == "embedding")
