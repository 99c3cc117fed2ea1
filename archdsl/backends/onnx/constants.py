"""Constants whose size only the running model knows, made where they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from archdsl.ir.dims import same_shape
from archdsl.passes.flatten import FlatWeight, flat_init

if TYPE_CHECKING:
    from archdsl.backends.onnx.write import GraphWriter


def constant(writer: GraphWriter, weight: FlatWeight) -> ir.Value:
    """What the spec gives it: a number everywhere, or an expression over positions and numbers."""
    builder, w = writer.builder, weight.weight
    kind = w.dtype.replace("int64", "int")
    if w.init.graph is not None:
        flat = flat_init(w.init.graph)
        writer.graph(flat)
        result = flat.outputs[0]
        made: ir.Value = builder.cast(writer.value(result), kind)
        is_whole = same_shape(result.shape, w.shape)
        return made if is_whole else builder.add("Expand", [made, builder.vector(list(w.shape))])
    value = {"zeros": 0.0, "ones": 1.0}.get(w.init.scheme)
    number = builder.constant(value, kind) if value is not None else builder.number(w.init.numbers["value"], kind)
    found: ir.Value = builder.add("Expand", [number, builder.vector(list(w.shape))])
    return found
