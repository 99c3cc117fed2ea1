"""Every weight of a model by its path: the keys of `state_dict`, of the safetensors file and of the ONNX initializers.

A path is read off the hierarchy, with these rules:

1. a call of a block is a step (`attention`), a primitive too if it has weights (`q`); the weight's own name ends the
   path (`weight`), but for a `param`, whose step is the whole of it;
2. within a loop a step is followed by a running index: the k-th iteration that applies it, counted over the outermost
   loop (`blocks.0`, `blocks.1`, …), whichever body it stands in;
3. scans and conditions add nothing;
4. a shared block lives once, with the block that owns it, before what that block applies; its uses have no weights;
5. the weights of a block that a primitive applies itself (an expert) lie below the primitive's step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from archdsl.diagnostics.source import Span
from archdsl.ir.graph import (
    Block,
    CallNode,
    CondNode,
    Graph,
    LoopNode,
    Model,
    Node,
    OpNode,
    ParamNode,
    ScanNode,
    Weight,
)
from archdsl.ir.paths import Step, counter
from archdsl.ir.static import SharedModule


@dataclass(frozen=True)
class WeightInfo:
    """A weight at its position in the model."""

    path: str
    shape: tuple[int, ...]
    weight: Weight
    block: Block
    """The block that it stands in: its sizes are in that block's names."""
    node: OpNode | ParamNode
    """What it is a weight of."""
    span: Span | None

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        count = 1
        for dim in self.shape:
            count *= dim
        return count


def weights(model: Model) -> Iterator[WeightInfo]:
    """Every weight in order of appearance: trained ones, and buffers. Linear in the number of paths."""
    yield from _of_block(model.block, "")


def weights_of(block: Block) -> Iterator[WeightInfo]:
    """Every weight that lives in a block, by its path there."""
    yield from _of_block(block, "")


def shape_of(weight: Weight) -> tuple[int, ...]:
    """The sizes as numbers; () for a buffer whose size only the running model knows."""
    return tuple(int(d) for d in weight.shape) if all(d.static for d in weight.shape) else ()


def _of_block(block: Block, prefix: str, owner: bool = True) -> Iterator[WeightInfo]:
    for instance in block.instances if owner else ():
        yield from _of_instance(instance, block, prefix)
    yield from _of_graph(block.graph, block, prefix, str)


def _of_instance(instance: SharedModule, owner: Block, prefix: str) -> Iterator[WeightInfo]:
    if instance.block is not None:
        yield from _of_block(instance.block, f"{prefix}{instance.path}.")
    elif instance.node is not None:
        yield from _of_op(instance.node, owner, f"{prefix}{instance.path}.")


def _of_op(node: OpNode, block: Block, prefix: str) -> Iterator[WeightInfo]:
    for weight in node.weights:
        yield WeightInfo(prefix + weight.name, shape_of(weight), weight, block, node, node.span)
    for call in node.blocks.values():
        yield from _of_block(call.block, prefix)


def _of_graph(graph: Graph, block: Block, prefix: str, step: Step) -> Iterator[WeightInfo]:
    for node in graph.nodes:
        yield from _of_node(node, block, prefix, step)


def _of_node(node: Node, block: Block, prefix: str, step: Step) -> Iterator[WeightInfo]:
    if isinstance(node, CallNode):
        if node.instance is None:
            # Of a block that a scan has split in two, the part that takes the steps owns what is shared.
            yield from _of_block(node.block, f"{prefix}{step(node.name)}.", owner=node.step is None)
    elif isinstance(node, OpNode):
        if node.instance is None and (node.weights or node.blocks):
            yield from _of_op(node, block, f"{prefix}{step(node.name)}.")
    elif isinstance(node, ParamNode):
        yield WeightInfo(prefix + step(node.name), shape_of(node.weight), node.weight, block, node, node.span)
    elif isinstance(node, LoopNode):
        inner = step if step is not str else counter()
        for body in node.iterations:
            yield from _of_graph(node.bodies[body], block, prefix, inner)
    elif isinstance(node, ScanNode):
        yield from _of_graph(node.body, block, prefix, step)
    elif isinstance(node, CondNode):
        yield from _of_graph(node.then, block, prefix, step)
        yield from _of_graph(node.otherwise, block, prefix, step)
