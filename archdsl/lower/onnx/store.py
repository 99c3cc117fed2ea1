"""Where the numbers of a graph's weights are: inside it, or in a file beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from archdsl.lower.onnx.write import Written


def inline(written: Written, arrays: Mapping[str, Any]) -> None:
    """Put arrays, by path, into the graph itself: for small models. Raises KeyError where one is missing."""
    for path, value in written.weights.items():
        assert value.dtype is not None
        tensor = ir.tensor(arrays[path].astype(value.dtype.numpy()), dtype=value.dtype, name=value.name)
        value.const_value = tensor


def serialized(written: Written) -> bytes:
    """The graph as the bytes of a file."""
    data: bytes = ir.to_proto(written.model).SerializeToString()
    return data
