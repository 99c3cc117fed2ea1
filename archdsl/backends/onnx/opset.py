"""Graphs for runtimes that know older operators: those that came later are written as what they are made of.

The bodies are the standard's own, inlined by the onnx package."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import onnx
import onnx_ir as ir
from onnx import inliner
from onnx_ir.passes.common import RemoveUnusedNodesPass

from archdsl.backends.onnx.builder import IR_VERSION, OPSET

IR_VERSIONS = {21: 10, 22: 10}
"""Of the releases of ONNX that brought an opset; `IR_VERSION` of all others."""


def at_opset(proto: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The same graph in the operators of an older opset."""
    if opset == OPSET:
        return proto
    later = sorted({("", name) for name in _operators(proto.graph) if _since(name) > opset})
    for _, name in later:
        schema = onnx.defs.get_schema(name, OPSET)
        # Of those without a function that came later, `TensorScatter` alone, no graph is made.
        assert schema.has_function or schema.has_context_dependent_function, name  # type: ignore[attr-defined]
    if later:
        proto = inliner.inline_selected_functions(proto, later, inline_schema_functions=True)
    for imported in proto.opset_import:
        if not imported.domain:
            imported.version = opset
    proto.ir_version = IR_VERSIONS.get(opset, IR_VERSION)
    model = ir.from_proto(proto)
    RemoveUnusedNodesPass()(model)
    for i, node in enumerate(model.graph.all_nodes()):  # older runtimes fuse nodes by names, and want different ones
        node.name = node.name or f"{node.op_type}__{i}"
    return ir.to_proto(model)


def _operators(graph: onnx.GraphProto) -> Iterator[str]:
    """The standard operators of a graph and those within it."""
    for node in graph.node:
        if not node.domain:
            yield node.op_type
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _operators(attribute.g)


def _since(name: str) -> int:
    """The opset that an operator came with."""
    return _first()[name]


@functools.cache
def _first() -> dict[str, int]:
    found: dict[str, int] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain:
            found[schema.name] = min(schema.since_version, found.get(schema.name, OPSET))
    return found
