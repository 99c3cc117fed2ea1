"""Experts as one operator of onnxruntime: two linear layers and an activation that it knows between them.

What an expert is follows from the nodes that its block is written as, on the weights of all experts; where these are
something else, the experts are written one by one or in a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx_ir as ir

from archdsl.backends.onnx.builder import CONTRIB, Subgraph
from archdsl.backends.onnx.quantize import BLOCK, Quantized
from archdsl.ir.dims import Num
from archdsl.passes.flatten import FlatGraph

if TYPE_CHECKING:
    from archdsl.backends.onnx.write import GraphWriter

UNITS = {"MoE": 8, "QMoE": BLOCK}
"""What the sizes of an expert are a multiple of, by operator: kernels on CUDA read so many numbers of half precision at
once; weights of few bits have whole blocks."""
NEVER = -1e4
"""A logit of an expert that is not asked, in the range of float16: its exponential is 0."""


class ExpertLinear(NamedTuple):
    """A projection of `x` for each expert: weight [experts, out, in], bias [experts, out]."""

    x: ir.Value
    weight: ir.Value | Quantized
    bias: ir.Value | None

    @property
    def parts(self) -> tuple[ir.Value, ...]:
        """The weight, or codes, scales and zero points."""
        return self.weight.parts if isinstance(self.weight, Quantized) else (self.weight,)

    @property
    def sizes(self) -> tuple[int, ...]:
        """[out, in]."""
        return sizes(self.weight)[1:]


class Expert(NamedTuple):
    """`last(activation(first(x)))`; gated, there are two first ones, the gate before the other."""

    activation: str
    first: tuple[ExpertLinear, ...]
    last: ExpertLinear

    @property
    def operator(self) -> str:
        """That of onnxruntime for weights of this kind."""
        return "QMoE" if isinstance(self.last.weight, Quantized) else "MoE"


def at_once(
    writer: GraphWriter, block: FlatGraph, rows: ir.Value, chosen: ir.Value, count: Num, k: int
) -> ir.Value | None:
    """The answers [rows * k, width] of the `chosen` experts [rows, k] to each row; None where the target has no
    operator for such experts."""
    builder = writer.builder
    if not any(writer.target.offers(operator, builder.own) for operator in UNITS):
        return None
    found = _expert(writer, block, rows)
    if found is None or not writer.target.offers(found.operator, builder.own):
        return None
    few = writer.quantizer if found.operator == "QMoE" else None
    if few is not None and not few.reads_experts:
        return None
    add, width = builder.add, int(block.inputs[0].shape[-1])
    if k > 1:
        rows = add("Reshape", [add("Expand", [add("Unsqueeze", [rows, [1]]), [1, k, 1]]), [-1, width]])
    # Each row and expert is a row of its own with one expert, so that weights may be what they like.
    logits = builder.constant([NEVER, 0.0], "float32")
    asked = add("OneHot", [add("Reshape", [chosen, [-1]]), builder.constant([int(count)], "int"), logits], {"axis": -1})
    with builder.before_all():
        builder.path = found.first[0].parts[0].name or ""
        first = [_in_iteration(writer, parts) for parts in zip(*(f.parts for f in found.first), strict=True)]
        last = [_in_iteration(writer, [part]) for part in found.last.parts]
        bias = _in_iteration(writer, [f.bias for f in found.first])
    options: dict[str, Any] = {"activation_type": found.activation, "k": 1, "normalize_routing_weights": 1}
    if found.activation == "swiglu":
        options |= {"swiglu_fusion": 1, "activation_alpha": 1.0, "activation_beta": 0.0}
    inputs: list[ir.Value | None] = [rows, builder.cast(asked, builder.own)]
    if few is None:
        inputs += [*first, bias, *last, found.last.bias]
    else:
        (codes, scales, zeros), (last_codes, last_scales, last_zeros) = first, last
        inputs += [codes, scales, bias, last_codes, last_scales, found.last.bias, None, None, None, zeros, last_zeros]
        options |= {"expert_weight_bits": few.bits, "block_size": BLOCK} | few.rounding(writer)
    y: ir.Value = add(found.operator, inputs, options, domain=CONTRIB)
    return y


def _in_iteration(writer: GraphWriter, parts: Sequence[ir.Value | None]) -> ir.Value | None:
    """A tensor [experts, out, …] as one of three axes; of two, their rows in turn. onnxruntime does it once, when it
    loads the graph."""
    add, held = writer.builder.add, [x for x in parts if x is not None]
    if not held:
        return None
    x, shape = held[0], sizes(held[0])
    if len(held) > 1:
        x = add("Concat", [add("Unsqueeze", [x, [2]]) for x in held], {"axis": 2})
    if len(held) > 1 or len(shape) > 3:
        x = add("Reshape", [x, [0, -1, *([prod(shape[2:])] if len(shape) > 2 else [])]])
    return x


def sizes(x: ir.Value | Quantized) -> tuple[int, ...]:
    """The shape of a weight."""
    return tuple(d for d in x.shape or () if isinstance(d, int))


def _expert(writer: GraphWriter, block: FlatGraph, rows: ir.Value) -> Expert | None:
    """What the block of experts does, read off the nodes that it is written as."""
    frame, path = Subgraph(), writer.builder.path
    with writer.builder.within(frame):
        answer = writer.answer(block, rows, None)
    writer.builder.path = path

    def held(x: ir.Value) -> bool:
        weight = writer.declared.get(x)
        return weight is not None and weight.block.copies is not None and x.producer() is None

    quantizer = writer.quantizer
    few = {id(q.codes): q for q in quantizer.made.values() if len(q.shape) == 3} if quantizer is not None else {}
    found = _Reader(frame.nodes, held, few).expert(answer)
    if found is None or any(f.x is not rows for f in found.first) or len({f.bias is None for f in found.first}) > 1:
        return None
    if len({isinstance(f.weight, Quantized) for f in (*found.first, found.last)}) > 1:
        return None
    return found if all(d % UNITS[found.operator] == 0 for d in found.last.sizes) else None


class _Reader:
    def __init__(
        self, nodes: Sequence[ir.Node], held: Callable[[ir.Value], bool], few: Mapping[int, Quantized]
    ) -> None:
        self.made = {id(n.outputs[0]): n for n in nodes}
        self.held = held
        """Whether a tensor is a weight of all experts."""
        self.few = few
        """Those of few bits, by the identity of their codes."""

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

    def activated(self, x: ir.Value) -> tuple[str, ExpertLinear | None]:
        for operator, name in (("Relu", "relu"), ("Gelu", "gelu")):
            if given := self.node(x, operator):
                exact = name == "gelu" and self.made[id(x)].attributes.get_string("approximate", "none") == "none"
                return name, None if exact else self.linear(given[0])
        return "silu", self.silu(x)

    def silu(self, x: ir.Value) -> ExpertLinear | None:
        """The linear layer whose result x is silu of."""
        given = self.node(x, "Mul")
        for inner, factor in (given, given[::-1]) if given else ():
            if self.node(factor, "Sigmoid") == [inner]:
                return self.linear(inner)
        return None

    def linear(self, x: ir.Value) -> ExpertLinear | None:
        bias = None
        if (sum_ := self.node(x, "Add")) and self.held(sum_[1]):
            x, bias = sum_
        if product := self.node(x, "MatMulNBits"):
            weight = self.few.get(id(product[1]))
            return ExpertLinear(product[0], weight, bias) if weight is not None else None
        product = self.node(x, "FusedMatMul")
        return ExpertLinear(product[0], product[1], bias) if product and self.held(product[1]) else None
