"""Weights without torch: draws each as the spec says and writes a safetensors file, one tensor at a time.

The numbers of a weight depend on the seed and on its path alone, so that adding a layer changes no other.  The file is
the format's plain form: eight bytes with the length of a header, the header in JSON, then the tensors one after
another.  Matrices under `orthogonal` go through LAPACK, and may differ in the last bit of a float32 from one machine to
another; all others are equal bit by bit."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archdsl.analyses.init import Laws, laws_of
from archdsl.analyses.weights import WeightInfo, weights
from archdsl.ir.dims import product

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from archdsl.ir.graph import Model

# What the format calls a type -> bytes a number.
TYPES = {"float32": ("F32", 4), "float16": ("F16", 2), "bfloat16": ("BF16", 2), "int64": ("I64", 8)}

Progress = Callable[[str, int], None]


def draw(model: Model, seed: int, dtype: str, path: Path, progress: Progress | None = None) -> None:
    """Write every weight and saved buffer of a model, drawn with a seed, to a safetensors file.

    `dtype` is float32, float16 or bfloat16. `progress` is told each path and how many numbers it holds, once it is
    written. The file appears when it is complete; the memory needed is that of the largest tensor at most. Raises
    OSError where it cannot be written."""
    infos = saved(model)
    laws = laws_of(model)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file, ThreadPoolExecutor(os.cpu_count()) as pool:
            file.write(header(infos, dtype))
            for info in infos:
                for piece in _numbers(info, laws, seed, pool):
                    file.write(_encoded(piece, _type(info, dtype)))
                if progress is not None:
                    progress(info.path, info.size)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def saved(model: Model) -> list[WeightInfo]:
    """Every weight that belongs to the model's state, in order of appearance."""
    return [w for w in weights(model) if w.weight.trained or w.weight.saved]


def arrays(model: Model, seed: int) -> Iterator[tuple[str, NDArray[Any]]]:
    """Every weight by its path as an array: what `draw` writes, in float64 (or int64)."""
    import numpy as np

    laws = laws_of(model)
    for info in saved(model):
        pieces = list(_numbers(info, laws, seed))
        flat = np.concatenate(pieces) if pieces else np.zeros(0)
        yield info.path, flat.astype("int64" if info.weight.dtype == "int64" else "float64").reshape(info.shape)


def header(infos: list[WeightInfo], dtype: str) -> bytes:
    """The beginning of the file: where each tensor lies."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for info in infos:
        name, size = TYPES[_type(info, dtype)]
        end = at + size * prod(info.shape)
        entries[info.path] = {"dtype": name, "shape": list(info.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _type(info: WeightInfo, dtype: str) -> str:
    return dtype if info.weight.dtype == "float" else info.weight.dtype


def _numbers(info: WeightInfo, laws: Laws, seed: int, pool: Executor | None = None) -> Iterator[NDArray[np.float64]]:
    from archdsl.lower.draws import drawn

    law = laws.of(info.block, info.node, info.weight)
    yield from drawn(law, info.shape, seed, info.path, many_matrices(info.weight), pool)


def many_matrices(weight: Any) -> bool:
    """Whether the first axis of a weight counts experts."""
    shape, fan_in = weight.shape, weight.fan_in
    return (
        weight.kind == "matrix"
        and len(shape) > 2
        and fan_in is not None
        and product(shape[1:]).value != fan_in.value
        and product(shape[2:]).value == fan_in.value
    )


def _encoded(numbers: NDArray[np.float64], dtype: str) -> bytes:
    """The bytes of some numbers, little-endian. Every type is rounded from float32, to even in the middle; bfloat16 is
    its upper half."""
    import numpy as np

    if dtype == "int64":
        return numbers.astype("<i8").tobytes()
    single = numbers.astype("<f4")
    if dtype != "bfloat16":
        return single.astype({"float32": "<f4", "float16": "<f2"}[dtype]).tobytes()
    bits = single.view("<u4")
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return rounded.astype("<u2").tobytes()
