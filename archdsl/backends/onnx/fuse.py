"""Operators of onnxruntime that do the work of two: a sum and the norm that reads it.

Works on nodes before they are a graph; the sum stays readable for whoever else wants it.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from archdsl.backends.onnx.builder import CONTRIB
from archdsl.backends.onnx.targets import Target

NORMS = {
    "RMSNormalization": "SkipSimplifiedLayerNormalization",
    "LayerNormalization": "SkipLayerNormalization",
}


def fuse(nodes: Sequence[ir.Node], target: Target, own: str) -> list[ir.Node]:
    """The nodes, `y = norm(a + b)` written as one where the target has an operator for it.

    It takes three axes [batch, time, width] and no broadcasting."""
    if not any(target.offers(name, own) for name in NORMS.values()):
        return list(nodes)
    at = {id(node): i for i, node in enumerate(nodes)}
    replaced: dict[int, ir.Node] = {}
    dropped: set[int] = set()
    for node in nodes:
        add = node.inputs[0].producer() if node.op_type in NORMS and node.inputs[0] is not None else None
        if add is None or id(add) not in at or id(add) in replaced or not _fits(node, add, target, own, at):
            continue
        fused = _fused(node, add)
        replaced[id(add)] = fused
        dropped.add(id(node))
        ir.convenience.replace_all_uses_with(add.outputs[0], fused.outputs[3])
        ir.convenience.replace_all_uses_with(node.outputs[0], fused.outputs[0])
    return [replaced.get(id(n), n) for n in nodes if id(n) not in dropped]


def _fits(norm: ir.Node, add: ir.Node, target: Target, own: str, at: dict[int, int]) -> bool:
    sum_ = add.outputs[0]
    if add.op_type != "Add" or add.domain or not target.offers(NORMS[norm.op_type], own):
        return False
    if sum_.dtype is None or norm.attributes["axis"].value != -1:
        return False
    shapes = [x.shape if x is not None else None for x in add.inputs]
    if any(s is None or len(s) != 3 or s != sum_.shape for s in shapes):
        return False
    types = {x.dtype for x in (*add.inputs, *norm.inputs) if x is not None}
    others = [x.producer() for x in norm.inputs[1:] if x is not None]
    return len(types) == 1 and all(p is None or at.get(id(p), at[id(add)]) < at[id(add)] for p in others)


def _fused(norm: ir.Node, add: ir.Node) -> ir.Node:
    normed, total = norm.outputs[0], add.outputs[0]
    names = (normed.name, "", "", total.name)
    outputs = [ir.Value(name=name, type=total.type if name else None) for name in names]
    outputs[0].shape, outputs[3].shape = normed.shape, total.shape
    return ir.node(
        NORMS[norm.op_type],
        [*add.inputs, *norm.inputs[1:]],
        {"epsilon": norm.attributes["epsilon"].value},
        domain=CONTRIB,
        outputs=outputs,
        name=norm.name,
    )
