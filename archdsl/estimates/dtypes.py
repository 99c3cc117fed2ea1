"""How many bytes a number takes."""

from __future__ import annotations

from typing import Literal

from archdsl.ir.graph import BOOLEANS, INTEGERS

Dtype = Literal["float32", "bfloat16", "float16"]

Low = Literal["float8", "int8", "int4"]
"""Types of few bits, of weights and of KV caches."""

LOW_BYTES: dict[Low, float] = {"float8": 1, "int8": 1, "int4": 4.5 / 8}
"""Of a number; in int4 32 numbers share a scale of 16 bits."""

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "uint8": 1, "bool": 1}


def width(kind: str, dtype: Dtype) -> int:
    """Bytes of a number of a tensor, given the type that the IR says and the model's own."""
    if kind == "float":
        return BYTES[dtype]
    if kind in BOOLEANS:
        return BYTES["bool"]
    return BYTES["int64"] if kind in INTEGERS else BYTES[kind]
