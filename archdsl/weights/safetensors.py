"""Weights without torch: draws each as the spec says and writes a safetensors file, one tensor at a time.

The numbers of a weight depend on the seed and on its path alone, so that adding a layer changes no other.  The file is
the format's plain form: eight bytes with the length of a header, the header in JSON, then the tensors one after
another.  Matrices under `orthogonal` go through LAPACK, and may differ in the last bit of a float32 from one machine to
another; all others are equal bit by bit."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from archdsl.diagnostics import error
from archdsl.files import open_regular, written_beside
from archdsl.ir.dims import product
from archdsl.ir.weights import WeightInfo, weights
from archdsl.signals import stop_if_asked
from archdsl.weights.initialization import Laws, laws_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from archdsl.ir.graph import Model

TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "bool": "BOOL"}
"""What the format calls a type."""

BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "U8": 1, "BOOL": 1}
"""Bytes a number."""

Progress = Callable[[str, int], None]


def draw(
    model: Model, seed: int, dtype: str, path: Path, progress: Progress | None = None, *, given: bool = False
) -> None:
    """Write every weight and saved buffer of a model, drawn with a seed, to a safetensors file. A buffer that is
    `given` holds zeros, or, to try the model with, numbers from 0 to 1.

    `dtype` is float32, float16 or bfloat16. `progress` is told each path and how many numbers it holds, once it is
    written. The file appears when it is complete; the memory needed is that of the largest tensor at most. Raises
    OSError where it cannot be written."""
    infos = saved(model)
    laws = laws_of(model)
    with (
        written_beside(path) as beside,
        beside.open("wb") as file,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):

        def pieces(info: WeightInfo) -> Iterator[NDArray[np.float64]]:
            if given and info.weight.init.scheme == "given":
                return _tried(info, seed)
            return numbers(info, laws, seed, pool)

        write_tensors(file, infos, dtype, pieces, progress)


def _tried(info: WeightInfo, seed: int) -> Iterator[NDArray[np.float64]]:
    """Numbers to try a model with in place of those that come with its weights: real ones between 0 and 1, and of whole
    ones, which may be indices, 0 and 1."""
    from archdsl.weights.random_numbers import Stream

    found = Stream(seed, info.path).uniform(info.size)
    yield found if info.weight.dtype == "float" else (found < 0.5).astype("float64")


def write_tensors(
    file: BinaryIO,
    infos: list[WeightInfo],
    dtype: str,
    pieces: Callable[[WeightInfo], Iterator[NDArray[Any]]],
    progress: Progress | None = None,
) -> None:
    """Write a safetensors file, tensor by tensor: the numbers of each come in pieces, which are rounded to its type."""
    file.write(header(infos, dtype))
    for info in infos:
        write_numbers(file, info, dtype, pieces(info))
        if progress is not None:
            progress(info.path, info.size)


def write_numbers(file: BinaryIO, info: WeightInfo, dtype: str, pieces: Iterable[NDArray[Any]]) -> None:
    """Write the numbers of a weight where the file stands, rounded to its type."""
    for piece in pieces:
        stop_if_asked()
        file.write(encoded(piece, stored_type(info, dtype), info.path))


def saved(model: Model) -> list[WeightInfo]:
    """Every weight that belongs to the model's state, in order of appearance."""
    return [w for w in weights(model) if w.weight.trained or w.weight.saved]


def arrays(model: Model, seed: int) -> Iterator[tuple[str, NDArray[Any]]]:
    """Every weight by its path as an array: what `draw` writes, in float64, int64 or bool."""
    import numpy as np

    laws = laws_of(model)
    for info in saved(model):
        pieces = list(numbers(info, laws, seed))
        flat = np.concatenate(pieces) if pieces else np.zeros(0)
        kind = "float64" if info.weight.dtype == "float" else info.weight.dtype
        yield info.path, flat.astype(kind).reshape(info.shape)


def write_raw(file: BinaryIO, tensors: list[tuple[str, str, tuple[int, ...]]]) -> Callable[[NDArray[Any]], None]:
    """Begin a safetensors file of tensors, each with its type as the format calls it and its shape; return what writes
    the bits of the next one."""
    file.write(header_of(tensors))

    def write(bits: NDArray[Any]) -> None:
        stop_if_asked()
        file.write(bits.tobytes())

    return write


def header(infos: list[WeightInfo], dtype: str) -> bytes:
    """The beginning of the file of a model's weights: where each lies."""
    return header_of([(i.path, TYPES[stored_type(i, dtype)], i.shape) for i in infos])


def header_of(tensors: list[tuple[str, str, tuple[int, ...]]]) -> bytes:
    """The beginning of a file: name, type and shape of each tensor, and where it lies."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, kind, shape in tensors:
        end = at + BYTES[kind] * prod(shape)
        entries[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def stored_type(info: WeightInfo, dtype: str) -> str:
    """The type of a weight where the model's own is `dtype`."""
    return dtype if info.weight.dtype == "float" else info.weight.dtype


def numbers(info: WeightInfo, laws: Laws, seed: int, pool: Executor | None = None) -> Iterator[NDArray[np.float64]]:
    """The numbers of a weight as the spec says, drawn with a seed, in pieces; the threads of `pool` draw several at
    once."""
    from archdsl.weights.random_numbers import drawn

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


def encoded(numbers: NDArray[Any], dtype: str, path: str = "") -> bytes:
    """The bytes of some numbers, little-endian. Every type is rounded from float32, to even in the middle; bfloat16 is
    its upper half. Raises ArchError E0503, of the weight at `path`, for numbers beyond what float16 can hold."""
    import numpy as np

    if dtype == "int64":
        return numbers.astype("<i8").tobytes()
    if dtype == "bool":
        return numbers.astype("?").tobytes()
    single = numbers.astype("<f4", copy=False)
    if dtype == "float32":
        return single.tobytes()
    if dtype == "float16":
        with np.errstate(over="ignore"):
            half = single.astype("<f2")
        if (np.isinf(half) & np.isfinite(single)).any():
            raise error(
                "E0503",
                f"`{path}` holds numbers beyond 65,504, the largest of float16",
                help="`--dtype bfloat16` or `float32`",
            )
        return half.tobytes()
    bits = single.view("<u4")
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(single), np.uint32(0x7FC0), rounded).astype("<u2").tobytes()


# --- files that are there ---------------------------------------------------------------------------------------------

READ = 1 << 22
"""Bytes of a file that are in memory at a time."""


class Entry(NamedTuple):
    """A tensor of a safetensors file."""

    dtype: str
    """As the format calls it: `F32`."""
    shape: tuple[int, ...]
    start: int
    """The first of its bytes in the file."""
    end: int


class Checkpoint:
    """A safetensors file, read piece by piece. As a context, it is open within. Raises ArchError E0503 where there is
    no such file, or it is no safetensors file."""

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self.path = path
        try:
            with open_regular(path) as file:
                with safe_open(path, framework="numpy"):  # checks that the header and the file agree
                    pass
                length = int.from_bytes(file.read(8), "little")
                entries = json.loads(file.read(length))
        except FileNotFoundError:
            raise error("E0503", f"there is no file `{path}`") from None
        except (SafetensorError, OSError, ValueError, RecursionError) as problem:
            reason = problem.strerror if isinstance(problem, OSError) else None
            said = reason or " ".join(str(problem).split())
            raise error("E0503", f"`{path}` is no safetensors file: {said}") from None
        self.entries = {
            name: Entry(e["dtype"], tuple(e["shape"]), *(8 + length + at for at in e["data_offsets"]))
            for name, e in entries.items()
            if name != "__metadata__"
        }
        self.file: BinaryIO | None = None

    def __enter__(self) -> Checkpoint:
        self.file = open_regular(self.path)
        return self

    def __exit__(self, *problem: object) -> None:
        assert self.file is not None
        self.file.close()

    def demand(self, infos: list[WeightInfo]) -> None:
        """Raises ArchError E0503 where the file does not hold just these weights: their names, shapes and kinds of
        numbers."""
        demand_same(self.path, {i.path: i.shape for i in infos}, {k: e.shape for k, e in self.entries.items()})
        for info in infos:
            found, own = self.entries[info.path].dtype, info.weight.dtype
            if kind_of(found) != own:
                text = f"`{info.path}` in `{self.path}` holds numbers of type {found}"
                raise error("E0503", text, help=f"{READ_AS[own]} can be read")

    def pieces(self, info: WeightInfo) -> Iterator[NDArray[Any]]:
        """The numbers of a weight, in pieces."""
        import numpy as np

        assert self.file is not None
        entry = self.entries[info.path]
        self.file.seek(entry.start)
        left = entry.end - entry.start
        while left:
            data = self.file.read(min(READ, left))
            if not data:
                raise error("E0503", f"`{self.path}` ends within `{info.path}`")
            left -= len(data)
            if entry.dtype == "BF16":
                yield (np.frombuffer(data, "<u2").astype("<u4") << np.uint32(16)).view("<f4")
            else:
                yield np.frombuffer(data, READABLE[entry.dtype])

    def bits(self, name: str) -> NDArray[Any]:
        """A whole tensor as unsigned numbers of its width."""
        import numpy as np

        assert self.file is not None
        entry = self.entries[name]
        self.file.seek(entry.start)
        data = self.file.read(entry.end - entry.start)
        if len(data) != entry.end - entry.start:
            raise error("E0503", f"`{self.path}` ends within `{name}`")
        return np.frombuffer(data, f"<u{BYTES[entry.dtype]}").reshape(entry.shape)


READABLE = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8", "I64": "<i8", "BOOL": "?"}
READ_AS = {
    "float": "F32, F16, BF16 and F64",
    "int64": "whole numbers of type I64",
    "bool": "true and false of type BOOL",
}
"""By what a weight holds, the types that it is read from."""


def kind_of(kind: str) -> str:
    """What a tensor of a type of the format holds, as a weight says it: `float`, `int64` or `bool`; "" of any other."""
    return {"I64": "int64", "BOOL": "bool"}.get(kind, "float" if kind in READABLE else "")


def demand_same(path: Path, own: Mapping[str, tuple[int, ...]], theirs: Mapping[str, tuple[int, ...]]) -> None:
    """Raises ArchError E0503 where a file does not hold just the weights of a model, given by name and shape."""
    missing, extra = [n for n in own if n not in theirs], [n for n in theirs if n not in own]
    other = [n for n in own if n in theirs and own[n] != theirs[n]]
    notes = []
    if missing:
        notes.append(f"missing: {', '.join(missing[:3])}{', …' if len(missing) > 3 else ''}")
    if extra:
        notes.append(f"unexpected: {', '.join(extra[:3])}{', …' if len(extra) > 3 else ''}")
    notes += [f"`{n}` is {list(theirs[n])}, and the model's is {list(own[n])}" for n in other[:3]]
    if notes:
        raise error(
            "E0503",
            f"the keys of `{path}` do not match the spec: {len(missing)} missing, {len(extra)} unexpected"
            if missing or extra
            else f"the shapes in `{path}` do not match the spec",
            notes=notes,
            help="`archdsl init` writes randomly initialized weights of a spec; `archdsl weights --from hf FILE "
            "--init-missing` keeps those that fit, and initializes the others",
        )
