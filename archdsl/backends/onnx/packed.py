"""Attention that takes queries, keys and values in one tensor and turns them by their positions itself.

Three products of the same tensor become one, with the rows of the three weights under each other; a tensor that was
cut in three stays whole; and rotary positions fall away. Works on nodes before they are a graph; where anything else is
done to one of the three, all stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import onnx_ir as ir

from archdsl.backends.onnx.builder import CONTRIB, Builder, Subgraph

TURNED = 16
"""What the size of a head, and of the part of it that is turned, is a multiple of in onnxruntime's attention."""
COS, SIN = 7, 8
"""Inputs of `GroupQueryAttention`."""
PRODUCTS = ("FusedMatMul", "MatMulNBits")
"""Linear layers: their first input is x, the others have a row for each number of the result."""


class ConstantLinear(NamedTuple):
    """A linear layer whose weights are constants."""

    product: ir.Node
    bias: ir.Value | None

    @property
    def rows(self) -> int:
        weight = self.product.inputs[1]
        assert weight is not None
        assert weight.shape is not None
        return int(weight.shape.numpy()[0])

    @property
    def alike(self) -> tuple[Any, ...]:
        """What maps have in common that can be one."""
        x, *weights = self.product.inputs
        options = {name: a.value for name, a in self.product.attributes.items() if name != "N"}
        return id(x), self.product.op_type, len(weights), options, self.bias is None


def packed(nodes: Sequence[ir.Node], builder: Builder) -> list[ir.Node]:
    """The nodes, queries, keys and values of causal attention as one tensor where they can be. What nothing reads any
    more is still among them; what is computed of weights alone is in the builder's prologue."""
    return [made for node in nodes for made in _replaced(node, builder)]


def _replaced(node: ir.Node, builder: Builder) -> list[ir.Node]:
    if node.op_type != "GroupQueryAttention":
        return [node]
    q, k, v = (_rotary(x) for x in node.inputs[:3])
    given = [x if r is None else r.inputs[0] for x, r in zip(node.inputs, (q, k, v), strict=False)]
    if v is not None or _turning(q) != _turning(k):
        return [node]
    frame = Subgraph()
    with builder.within(frame):
        builder.path = (node.name or "").rpartition("/")[0]
        whole, rows = _uncut(given) or _product(builder, given) or (None, 0)
    if whole is None or (q is not None and not _turns(q, rows // node.attributes["num_heads"].as_int(), builder)):
        return [node]
    inputs = [whole, None, None, *node.inputs[3:]]
    options = {name: a.value for name, a in node.attributes.items()}
    if q is not None:
        inputs += [None] * (SIN + 1 - len(inputs))
        inputs[COS], inputs[SIN] = (builder.of_positions[x] for x in q.inputs[1:3] if x is not None)
        options |= {"do_rotary": 1, "rotary_interleaved": q.attributes.get_int("interleaved", 0)}
    made = [ir.Value(name=x.name, type=x.type, shape=x.shape) for x in node.outputs]
    for old, new in zip(node.outputs, made, strict=True):
        ir.convenience.replace_all_uses_with(old, new)
    return [*frame.nodes, ir.node(node.op_type, inputs, options, domain=CONTRIB, outputs=made, name=node.name)]


# --- rotary positions ---


def _rotary(x: ir.Value | None) -> ir.Node | None:
    node = _maker(x, "RotaryEmbedding")
    return node if node is not None and not node.domain and len(node.inputs) == 3 else None


def _turning(rotary: ir.Node | None) -> Any:
    """By which angles something is turned, and how."""
    if rotary is None:
        return None
    how = (rotary.attributes.get_int(name, 0) for name in ("interleaved", "rotary_embedding_dim"))
    return (*map(id, rotary.inputs[1:]), *how)


def _turns(rotary: ir.Node, size: int, builder: Builder) -> bool:
    """Whether onnxruntime's attention turns heads of that size by these angles: those of a position, wherever in the
    batch it is."""
    turned = rotary.attributes.get_int("rotary_embedding_dim", 0) or size
    return size % TURNED == 0 and turned % TURNED == 0 and rotary.inputs[1] in builder.of_positions


# --- one tensor: with the number of queries in it ---


def _uncut(given: Sequence[ir.Value | None]) -> tuple[ir.Value, int] | None:
    """The tensor that the three were cut from, side by side."""
    split = _maker(given[0], "Split")
    if split is None or len(split.inputs) < 2 or [*map(id, split.outputs)] != [*map(id, given)]:
        return None
    whole, sizes = split.inputs[0], split.inputs[1]
    if whole is None or sizes is None or sizes.const_value is None or split.attributes.get_int("axis", 0) != -1:
        return None
    return whole, int(sizes.const_value.numpy()[0])


def _product(builder: Builder, given: Sequence[ir.Value | None]) -> tuple[ir.Value, int] | None:
    """The product that stands for three."""
    linear = [p for x in given if (p := _linear(x)) is not None]
    if len(linear) < 3 or any(p.alike != linear[0].alike for p in linear):
        return None
    add, product = builder.add, linear[0].product
    with builder.before_all():
        builder.path = product.name or ""
        weights = [add("Concat", w, {"axis": 0}) for w in zip(*(p.product.inputs[1:] for p in linear), strict=True)]
        bias = add("Concat", [p.bias for p in linear], {"axis": 0}) if linear[0].bias is not None else None
    rows = [p.rows for p in linear]
    options = {name: a.value for name, a in product.attributes.items()}
    if "N" in options:
        options["N"] = sum(rows)
    y = add(product.op_type, [product.inputs[0], *weights], options, domain=CONTRIB)
    return (y if bias is None else add("Add", [y, bias])), rows[0]


def _linear(x: ir.Value | None) -> ConstantLinear | None:
    """The linear layer that x is made by."""
    bias = None
    if (sum_ := _maker(x, "Add")) is not None:
        x, bias = sum_.inputs
        if bias is None or bias.producer() is not None:
            return None
    for operator in PRODUCTS:
        product = _maker(x, operator)
        if product is not None and all(w is not None and w.producer() is None for w in product.inputs[1:]):
            return ConstantLinear(product, bias)
    return None


def _maker(x: ir.Value | None, operator: str) -> ir.Node | None:
    """The node that x is made by, if it is one of that operator."""
    node = x.producer() if x is not None else None
    return node if node is not None and node.op_type == operator else None
