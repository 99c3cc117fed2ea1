"""Experts as one operator of onnxruntime: two linear maps and an activation that it knows between them.

What an expert is follows from the nodes that its block is written as, on the weights of all experts; where these are
something else, the experts are written one by one or in a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import onnx_ir as ir

from archdsl.ir.dims import Num
from archdsl.ir.flat import FlatGraph
from archdsl.lower.onnx.builder import CONTRIB, Frame

if TYPE_CHECKING:
    from archdsl.lower.onnx.write import Writer

UNIT = 8
"""What the sizes of an expert are a multiple of: its kernels on CUDA read so many numbers of half precision at once."""
NEVER = -1e4
"""A logit of an expert that is not asked, in the range of float16: its exponential is 0."""


class Linear(NamedTuple):
    """A linear map of `x` for each expert: weight [experts, out, in], bias [experts, out]."""

    x: ir.Value
    weight: ir.Value
    bias: ir.Value | None


class Expert(NamedTuple):
    """`last(activation(first(x)))`; gated, there are two first ones, the gate before the other."""

    activation: str
    first: tuple[Linear, ...]
    last: Linear


def at_once(writer: Writer, block: FlatGraph, rows: ir.Value, chosen: ir.Value, count: Num, k: int) -> ir.Value | None:
    """The answers [rows * k, width] of the `chosen` experts [rows, k] to each row; None where the target has no
    operator for such experts."""
    builder = writer.builder
    if writer.quantizer is not None or not writer.target.offers("MoE", builder.own):
        return None
    found = _expert(writer, block, rows)
    if found is None:
        return None
    add, width = builder.add, int(block.inputs[0].shape[-1])
    if k > 1:
        rows = add("Reshape", [add("Expand", [add("Unsqueeze", [rows, [1]]), [1, k, 1]]), [-1, width]])
    # Each row and expert is a row of its own with one expert, so that weights may be what they like.
    logits = builder.constant([NEVER, 0.0], "float32")
    asked = add("OneHot", [add("Reshape", [chosen, [-1]]), builder.constant([int(count)], "int"), logits], {"axis": -1})
    with builder.before_all():
        builder.path = found.first[0].weight.name or ""
        weight, bias = _interleaved(writer, found.first, width)
    options = {"activation_type": found.activation, "k": 1, "normalize_routing_weights": 1}
    if found.activation == "swiglu":
        options |= {"swiglu_fusion": 1, "activation_alpha": 1.0, "activation_beta": 0.0}
    inputs = [rows, builder.cast(asked, builder.own), weight, bias, found.last.weight, found.last.bias]
    y: ir.Value = add("MoE", inputs, options, domain=CONTRIB)
    return y


def _interleaved(writer: Writer, first: Sequence[Linear], width: int) -> tuple[ir.Value, ir.Value | None]:
    """Weight and bias of the first map; of two, their rows in turn. onnxruntime does it once, when it loads the
    graph."""
    if len(first) == 1:
        return first[0].weight, first[0].bias
    add = writer.builder.add

    def in_turn(parts: Sequence[ir.Value | None], rest: Sequence[int]) -> ir.Value | None:
        held = [add("Unsqueeze", [x, [2]]) for x in parts if x is not None]
        return add("Reshape", [add("Concat", held, {"axis": 2}), [0, -1, *rest]]) if held else None

    weight = in_turn([f.weight for f in first], [width])
    assert weight is not None
    return weight, in_turn([f.bias for f in first], [])


def _expert(writer: Writer, block: FlatGraph, rows: ir.Value) -> Expert | None:
    """What the block of experts does, read off the nodes that it is written as."""
    frame, path = Frame(), writer.builder.path
    with writer.builder.within(frame):
        answer = writer.answer(block, rows, None)
    writer.builder.path = path

    def held(x: ir.Value) -> bool:
        weight = writer.declared.get(x)
        return weight is not None and weight.block.copies is not None and x.producer() is None

    found = _Reader(frame.nodes, held).expert(answer)
    if found is None or any(f.x is not rows for f in found.first) or len({f.bias is None for f in found.first}) > 1:
        return None
    return found if all(d % UNIT == 0 for d in (found.last.weight.shape or (1,))[1:]) else None


class _Reader:
    def __init__(self, nodes: Sequence[ir.Node], held: Callable[[ir.Value], bool]) -> None:
        self.made = {id(n.outputs[0]): n for n in nodes}
        self.held = held
        """Whether a tensor is a weight of all experts."""

    def node(self, x: ir.Value | None, operator: str) -> list[ir.Value]:
        """The inputs of what x is made by, if it is that operator."""
        node = self.made.get(id(x))
        if node is None or node.op_type != operator:
            return []
        return [i for i in node.inputs if i is not None]

    def expert(self, answer: ir.Value) -> Expert | None:
        last = self.linear(answer)
        if last is None:
            return None
        gated = self.node(last.x, "Mul")
        for activated, other in (gated, gated[::-1]) if gated else ():
            gate, up = self.silu(activated), self.linear(other)
            if gate is not None and up is not None:
                return Expert("swiglu", (gate, up), last)
        activation, first = self.activated(last.x)
        return Expert(activation, (first,), last) if first is not None else None

    def activated(self, x: ir.Value) -> tuple[str, Linear | None]:
        for operator, name in (("Relu", "relu"), ("Gelu", "gelu")):
            if given := self.node(x, operator):
                exact = name == "gelu" and self.made[id(x)].attributes.get_string("approximate", "none") == "none"
                return name, None if exact else self.linear(given[0])
        return "silu", self.silu(x)

    def silu(self, x: ir.Value) -> Linear | None:
        """The linear map whose result x is silu of."""
        given = self.node(x, "Mul")
        for inner, factor in (given, given[::-1]) if given else ():
            if self.node(factor, "Sigmoid") == [inner]:
                return self.linear(inner)
        return None

    def linear(self, x: ir.Value) -> Linear | None:
        bias = None
        if (sum_ := self.node(x, "Add")) and self.held(sum_[1]):
            x, bias = sum_
        product = self.node(x, "FusedMatMul")
        return Linear(product[0], product[1], bias) if product and self.held(product[1]) else None
