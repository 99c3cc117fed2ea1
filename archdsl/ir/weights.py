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

import math
from collections.abc import Iterator

from archdsl.diagnostics.source import Span
from archdsl.frozen import Frozen
from archdsl.ir.graph import Block, CallNode, Model, OpNode, ParamNode, Weight
from archdsl.ir.walk import modules


class WeightInfo(Frozen):
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
        return math.prod(self.shape)


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
        if instance.block is not None:
            yield from _of_block(instance.block, f"{prefix}{instance.path}.")
        elif instance.node is not None:
            yield from _of_op(instance.node, block, f"{prefix}{instance.path}.")
    for node, step in modules(block.graph):
        if isinstance(node, CallNode):
            # Of a block that a scan has split in two, the part that takes the steps owns what is shared.
            yield from _of_block(node.block, f"{prefix}{step}.", owner=node.step is None)
        elif isinstance(node, OpNode):
            yield from _of_op(node, block, f"{prefix}{step}.")
        else:
            yield WeightInfo(prefix + step, shape_of(node.weight), node.weight, block, node, node.span)


def _of_op(node: OpNode, block: Block, prefix: str) -> Iterator[WeightInfo]:
    for weight in node.weights:
        yield WeightInfo(prefix + weight.name, shape_of(weight), weight, block, node, node.span)
    for call in node.blocks.values():
        yield from _of_block(call.block, prefix)
