"""The header of a GGUF file: its fields, and where its tensors lie.

The file is a stranger's: every length and count is compared with what is left of it before anything is read or made,
so that no header costs more than the file has bytes. The format: github.com/ggml-org/ggml/blob/master/docs/gguf.md."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from archdsl.files import open_regular

MAGIC, VERSIONS = b"GGUF", (2, 3)
SCALARS = dict(enumerate(("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?"))) | {10: "<Q", 11: "<q", 12: "<d"}
"""Format of each scalar type, as `struct` writes it."""
STRING, ARRAY = 8, 9
AXES = 4
"""Most axes of a tensor."""
LEAST_FIELD, LEAST_TENSOR = 13, 32
"""Fewest bytes of a field (the length of its name, a type, a value) and of a tensor's entry."""
ALIGNMENT = 32
"""Alignment of tensors in bytes, unless the field `general.alignment` gives another."""


class TensorEntry(NamedTuple):
    """Where a tensor lies in the file."""

    shape: tuple[int, ...]
    """The first axis is the innermost."""
    kind: int
    """The number of its type."""
    start: int
    size: int
    """Bytes."""


class Header(NamedTuple):
    """Fields and tensor entries of a file, by name."""

    fields: dict[str, Any]
    tensors: dict[str, TensorEntry]


def read_header(path: Path, blocks: Mapping[int, tuple[int, int]]) -> Header:
    """Read the header of a file. `blocks` maps each tensor type to the numbers and the bytes of one of its blocks.

    Raises OSError, and ValueError where the file is no GGUF file, is cut off, or says what cannot be."""
    with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _Reader(data).header(blocks)


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.size = len(data)
        self.at = 0

    def header(self, blocks: Mapping[int, tuple[int, int]]) -> Header:
        if self._bytes(4) != MAGIC:
            raise ValueError("it does not begin with `GGUF`")
        version = self._number("<I")
        if version not in VERSIONS:
            raise ValueError(f"its version is {version}, and 2 and 3 are read")
        tensors, count = self._count(LEAST_TENSOR), self._count(LEAST_FIELD)
        fields: dict[str, Any] = {}
        for _ in range(count):
            name, kind = self._string(), self._number("<I")
            if name in fields:
                raise ValueError(f"it has the field `{name}` twice")
            fields[name] = self._array() if kind == ARRAY else self._value(kind)
        return Header(fields, self._tensors(tensors, fields.get("general.alignment", ALIGNMENT), blocks))

    def _tensors(self, count: int, alignment: Any, blocks: Mapping[int, tuple[int, int]]) -> dict[str, TensorEntry]:
        entries = [self._entry(blocks) for _ in range(count)]
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise ValueError("its alignment is no power of two")
        begin = self.at + -self.at % alignment
        tensors: dict[str, TensorEntry] = {}
        for name, entry in entries:
            if name in tensors:
                raise ValueError(f"it has the tensor `{name}` twice")
            tensors[name] = entry._replace(start=begin + entry.start)
            if tensors[name].start + entry.size > self.size:
                raise ValueError(f"it ends within the tensor `{name}`")
        end = begin
        for entry in sorted(tensors.values(), key=lambda e: e.start):
            if entry.start < end:
                raise ValueError("its tensors overlap")
            end = entry.start + entry.size
        return tensors

    def _entry(self, blocks: Mapping[int, tuple[int, int]]) -> tuple[str, TensorEntry]:
        name, axes = self._string(), self._number("<I")
        if not 1 <= axes <= AXES:
            raise ValueError(f"the tensor `{name}` has {axes} axes")
        shape = tuple(self._number("<Q") for _ in range(axes))
        kind, start = self._number("<I"), self._number("<Q")
        if kind not in blocks:
            raise ValueError(f"the tensor `{name}` is of an unknown type, {kind}")
        numbers, size = blocks[kind]
        if min(shape) < 1 or shape[0] % numbers:
            raise ValueError(f"the tensor `{name}` cannot have the shape {list(shape)}")
        return name, TensorEntry(shape, kind, start, prod(shape) // numbers * size)

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind not in SCALARS:
            raise ValueError(f"a field is of an unknown type, {kind}")
        return self._number(SCALARS[kind])

    def _array(self) -> list[Any]:
        kind = self._number("<I")
        if kind == STRING:
            return [self._string() for _ in range(self._count(8))]
        if kind not in SCALARS:
            raise ValueError(f"an array holds values of an unknown type, {kind}")
        item = SCALARS[kind]
        count = self._count(struct.calcsize(item))
        return [*struct.unpack(f"<{count}{item[1]}", self._bytes(count * struct.calcsize(item)))]

    def _count(self, least: int) -> int:
        """Read how many items of at least `least` bytes follow; raise ValueError if the file is too small."""
        count = int(self._number("<Q"))
        if count > (self.size - self.at) // least:
            raise ValueError(f"it says that {count:,} values follow, and has {self.size:,} bytes in all")
        return count

    def _string(self) -> str:
        return self._bytes(self._count(1)).decode("utf-8")

    def _number(self, kind: str) -> Any:
        return struct.unpack(kind, self._bytes(struct.calcsize(kind)))[0]

    def _bytes(self, count: int) -> bytes:
        if count > self.size - self.at:
            raise ValueError("it ends within its header")
        self.at += count
        return self.data[self.at - count : self.at]
