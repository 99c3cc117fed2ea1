"""Files of a graph: where the numbers of its weights are, and how they get there.

Three ways: a safetensors file beside the graph, in PyTorch's layout, so that both run from one file; a file of plain
numbers beside it, as ONNX has it (`model.onnx_data`); or the graph itself. Tensors go through memory piece by piece.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import field
from io import BytesIO
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple

import numpy as np
import onnx_ir as ir

from archdsl.backends.onnx.builder import OPSET
from archdsl.backends.onnx.opset import at_opset
from archdsl.backends.onnx.quantize import Quantized, in_rows, quantized
from archdsl.backends.onnx.write import Written
from archdsl.diagnostics import error
from archdsl.files import make_folder, open_regular, together, written_beside
from archdsl.frozen import Frozen
from archdsl.ir.graph import Model
from archdsl.ir.weights import WeightInfo
from archdsl.signals import stop_if_asked
from archdsl.weights.initialization import laws_of
from archdsl.weights.safetensors import (
    BYTES,
    Checkpoint,
    Progress,
    header,
    header_of,
    numbers,
    saved,
    write_numbers,
    write_tensors,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

Store = Literal["safetensors", "onnx_data", "inline"]

LARGEST = 2**31 - 1
"""Bytes of an ONNX file: protobuf holds no more."""
ALIGNMENT = 64

# What a graph calls a type -> what safetensors does.
NAMES = {
    ir.DataType.FLOAT: "F32",
    ir.DataType.FLOAT16: "F16",
    ir.DataType.BFLOAT16: "BF16",
    ir.DataType.INT64: "I64",
    ir.DataType.BOOL: "BOOL",
    ir.DataType.UINT8: "U8",
}

Pieces = Callable[[WeightInfo], Iterator["NDArray[Any]"]]
"""The numbers of a weight, in order, in pieces of any size."""


class OnnxFiles(Frozen):
    """The files that were written."""

    graphs: tuple[Path, ...]
    weights: Path | None
    """The file that the graphs refer to: None where all is inside them."""
    has_weights: bool
    """Whether that file was written, or was there: not where the graph alone was asked for."""
    quantized: Mapping[str, int]
    """How many numbers each matrix of few bits stands for, by path."""
    plain: Mapping[str, int]
    """The same of all other weights."""
    configs: tuple[Path, ...] = ()
    """Files by which runtimes know a graph that decodes."""
    remark: str = ""
    """Why there are none, or not all."""
    by_expert: tuple[str, ...] = ()
    """Paths of experts that are computed one after the other: on CUDA the CPU reads which of them have rows."""


class Storage(Frozen):
    """Where the numbers of graphs come from, where they go, and what is written beside them."""

    weights: Path | None = None
    """A safetensors file with the names of the model."""
    seed: int | None = None
    """Of weights that are randomly initialized."""
    store: Store = "safetensors"
    opset: int = OPSET
    metadata: Mapping[str, str] = field(default_factory=dict)
    """What goes into each graph."""
    progress: Progress | None = None


class ByteRange(NamedTuple):
    """Where a tensor lies in a file, in bytes."""

    offset: int
    length: int


def save(graphs: Mapping[Path, Written], model: Model, storage: Storage) -> OnnxFiles:
    """Write the graphs of one model, each to its path, and their weights to where `store` says: `safetensors` (beside
    the first graph, its name with this suffix), `onnx_data` (beside it, its name with `_data` behind it) or `inline`.

    With neither `weights` nor `seed`, the graphs refer to the safetensors file that `archdsl init` would write. A file
    of `weights` that lies beside the graphs and has their types is referred to as it is. All graphs lie in one
    directory and are of one type. Files appear when they are complete; their directory is made where there is none.

    Raises OSError where a file cannot be written; ArchError: E0503 where `weights` is not the model's, E0504 where
    there are no weights to put where they shall go, a file would be the checkpoint itself, or a graph is larger than
    2 GB."""
    weights, seed, store, progress = storage.weights, storage.seed, storage.store, storage.progress
    first, every = next(iter(graphs)), tuple(graphs.values())
    dtype = every[0].dtype
    matrices = {path: q for w in every for path, q in w.quantized.items()}
    infos = saved(model)
    checkpoint = Checkpoint(weights) if weights is not None else None
    if checkpoint is not None:
        checkpoint.demand(infos)
    given = checkpoint is not None or seed is not None
    if not given and (matrices or store != "safetensors"):
        why = "quantization needs the numbers of the weights" if matrices else "no numbers can be stored in the file"
        raise error("E0504", f"{why}: the model has no weights yet", help="give `--weights FILE` or `--seed N`")
    turned = matmul_ready(every) if store != "safetensors" else frozenset()
    with ExitStack() as stack:
        stack.enter_context(together())
        make_folder(first.parent, parents=False)
        pieces: Pieces = _pieces(model, checkpoint, seed, stack)
        file: Path | None = None
        if store == "inline":
            _inside(every, infos, turned, pieces, progress)
        elif checkpoint is not None and store == "safetensors" and as_they_lie(every, checkpoint, first.parent):
            file = checkpoint.path
            refer(
                every, file.name, {name: ByteRange(e.start, e.end - e.start) for name, e in checkpoint.entries.items()}
            )
        elif store == "safetensors" and not matrices:
            file = first.with_suffix(".safetensors")
            refer(every, file.name, layout(infos, dtype))
            if given:
                out = stack.enter_context(_fresh(file, checkpoint))
                write_tensors(out, infos, dtype, pieces, progress)
            else:
                given = _begins_with(file, header(infos, dtype))
        else:
            plain = store == "onnx_data"
            file = first.with_name(f"{first.name}_data") if plain else first.with_suffix(".safetensors")
            start, places = own_layout(every, plain)
            refer(every, file.name, places)
            out = stack.enter_context(_fresh(file, checkpoint))
            out.write(start)
            _fill(out, every, infos, turned, places, pieces, progress)
        for path, written in graphs.items():
            written.model.metadata_props.update(storage.metadata)
            stack.enter_context(_fresh(path, checkpoint)).write(serialized(written, storage.opset))
    return OnnxFiles(
        tuple(graphs),
        file,
        given,
        {path: prod(q.shape) for path, q in matrices.items()},
        {path: prod(_shape(x)) for w in every for path, x in w.weights.items()},
        by_expert=tuple(dict.fromkeys(path for w in every for path in w.by_expert)),
    )


def serialized(written: Written, opset: int = OPSET) -> bytes:
    """The graph as the bytes of a file, in the operators of an opset. Raises ArchError E0504 where that would be more
    than 2 GB."""
    inside = sum(
        x.const_value.nbytes
        for x in written.model.graph.initializers.values()
        if x.const_value is not None and not isinstance(x.const_value, ir.ExternalTensor)
    )
    if inside < LARGEST:
        try:
            data: bytes = at_opset(ir.to_proto(written.model), opset).SerializeToString(deterministic=True)
        except Exception as problem:  # protobuf: what it raises for more than 2 GB has changed with its versions
            if inside < LARGEST // 2:
                raise
            raise _too_large(inside) from problem
        if len(data) <= LARGEST:
            return data
    raise _too_large(inside)


def _too_large(inside: int) -> Exception:
    return error(
        "E0504",
        f"the graph would hold {inside / 1e9:,.1f} GB of numbers, and an ONNX file is smaller than 2 GB",
        help="weights beside the graph have no such limit: leave `--store inline` out",
    )


def inline(written: Written, arrays: Mapping[str, Any]) -> None:
    """Put arrays, by path, into a graph whose weights are of one type. Raises KeyError where one is missing."""
    assert not written.quantized
    for path, value in written.weights.items():
        assert value.dtype is not None
        tensor = ir.tensor(arrays[path].astype(value.dtype.numpy()), dtype=value.dtype, name=value.name)
        value.const_value = tensor


def graph_path(output: str | Path) -> Path:
    """The file that a graph is written to: `output` itself, or `model.onnx` in it where it is a directory. One that is
    not there yet is meant by a name that ends in a slash or has no suffix.

    Raises ArchError E0504 for another suffix than `.onnx`."""
    path = Path(output)
    slash = str(output).endswith(("/", os.sep))
    if path.exists() and not path.is_dir():
        if path.suffix in ("", ".onnx") and not slash:
            return path
    elif path.is_dir() or slash or not path.suffix:
        return path / "model.onnx"
    elif path.suffix == ".onnx":
        return path
    raise error("E0504", f"`{output}` is no name of an ONNX file", help="`-o FILE.onnx`, or `-o DIRECTORY/`")


def matmul_ready(graphs: Sequence[Written]) -> frozenset[str]:
    """Let matrices that products read turned about, [out, in], be initializers [in, out], as other programs want them
    (quantizers look for a MatMul of an initializer); their paths. A matrix that is read in another way too, as a tied
    embedding is, stays as it is, in all graphs."""
    uses: dict[str, list[ir.Node]] = {}
    kept: set[str] = set()
    for written in graphs:
        for path, value in written.weights.items():
            nodes = [use.node for use in value.uses()]
            uses.setdefault(path, []).extend(nodes)
            if value.is_graph_output() or not all(_turns(node, value) for node in nodes):
                kept.add(path)
    turned = frozenset(path for path, nodes in uses.items() if nodes and path not in kept)
    for written in graphs:
        for path in turned & written.weights.keys():
            value = written.weights[path]
            for node in [use.node for use in value.uses()]:
                if node.op_type == "Transpose":
                    ir.convenience.replace_all_uses_with(node.outputs[0], value)
                    assert node.graph is not None
                    node.graph.remove(node, safe=True)
                else:
                    node.op_type, node.domain = "MatMul", ""
                    node.attributes.clear()
            value.shape = ir.Shape(reversed(_shape(value)))
    return turned


def _turns(node: ir.Node, weight: ir.Value) -> bool:
    """Whether a node reads a matrix only with its axes changed about."""
    if node.op_type == "FusedMatMul":
        return node.inputs[1] is weight and {n: a.value for n, a in node.attributes.items()} == {"transB": 1}
    turns = node.op_type == "Transpose" and tuple(node.attributes["perm"].value) == (1, 0)
    return turns and not any(x.is_graph_output() for x in node.outputs)


# --- where tensors lie ------------------------------------------------------------------------------------------------


def refer(graphs: Sequence[Written], location: str, places: Mapping[str, ByteRange]) -> None:
    """Let the initializers be what lies in a file of the graphs' directory."""
    for written in graphs:
        for name, value in _initializers(written):
            assert value.dtype is not None
            at, length = places[name]
            shape = ir.Shape(_shape(value))
            value.const_value = ir.ExternalTensor(location, at, length, value.dtype, shape=shape, name=name)


def layout(infos: list[WeightInfo], dtype: str) -> dict[str, ByteRange]:
    """Where `archdsl init` puts each weight in a safetensors file of that type."""
    return places_in(header(infos, dtype))


def places_in(start: bytes) -> dict[str, ByteRange]:
    """Where each tensor of a safetensors file lies that begins like this."""
    entries = json.loads(start[8:])
    return {
        name: ByteRange(len(start) + e["data_offsets"][0], e["data_offsets"][1] - e["data_offsets"][0])
        for name, e in entries.items()
        if name != "__metadata__"
    }


def own_layout(graphs: Sequence[Written], plain: bool) -> tuple[bytes, dict[str, ByteRange]]:
    """The beginning of a file of what the graphs read, and where each tensor lies in it: a safetensors file; or, if it
    is `plain`, numbers alone, each tensor at a multiple of 64 bytes."""
    tensors: dict[str, tuple[str, str, tuple[int, ...]]] = {}
    for name, value in (item for w in graphs for item in _initializers(w)):
        assert value.dtype is not None
        tensors[name] = name, NAMES[value.dtype], _shape(value)
    if not plain:
        start = header_of([*tensors.values()])
        return start, places_in(start)
    places: dict[str, ByteRange] = {}
    at = 0
    for name, kind, shape in tensors.values():
        places[name] = ByteRange(at, BYTES[kind] * prod(shape))
        at += places[name].length + -places[name].length % ALIGNMENT
    return b"", places


def _initializers(written: Written) -> Iterator[tuple[str, ir.Value]]:
    """Each that a file holds, and its name there."""
    for value in (*written.weights.values(), *(x for q in written.quantized.values() for x in q.parts)):
        assert value.name is not None
        yield value.name, value


def _shape(value: ir.Value) -> tuple[int, ...]:
    assert value.shape is not None
    return tuple(int(d) for d in value.shape.numpy())


def _begins_with(path: Path, start: bytes) -> bool:
    try:
        with open_regular(path) as file:
            return file.read(len(start)) == start
    except OSError:
        return False


def as_they_lie(graphs: Sequence[Written], checkpoint: Checkpoint, directory: Path) -> bool:
    """Whether the graphs can refer to the checkpoint itself: onnxruntime reads no file of another directory."""
    if checkpoint.path.is_symlink() or checkpoint.path.resolve().parent != directory.resolve():
        return False
    return all(
        name in checkpoint.entries and x.dtype is not None and checkpoint.entries[name].dtype == NAMES[x.dtype]
        for w in graphs
        for name, x in _initializers(w)
    )


# --- numbers ----------------------------------------------------------------------------------------------------------


def _pieces(model: Model, checkpoint: Checkpoint | None, seed: int | None, stack: ExitStack) -> Pieces:
    if checkpoint is not None:
        stack.enter_context(checkpoint)
        return checkpoint.pieces
    laws = laws_of(model)
    pool = stack.enter_context(ThreadPoolExecutor(os.cpu_count()))
    return lambda info: numbers(info, laws, seed or 0, pool)


@contextmanager
def _fresh(path: Path, checkpoint: Checkpoint | None) -> Iterator[BinaryIO]:
    """A file that takes its name when the whole work ends well."""
    if checkpoint is not None and path.exists() and path.samefile(checkpoint.path):
        raise error(
            "E0504",
            f"`{path}` is the checkpoint itself, and would be replaced by numbers of another type or in another order",
            help="write the graph into another directory, or give it another name",
        )
    with written_beside(path) as beside, beside.open("wb") as file:
        yield file


def _fill(
    file: BinaryIO,
    graphs: Sequence[Written],
    infos: Iterable[WeightInfo],
    turned: Collection[str],
    places: Mapping[str, ByteRange],
    pieces: Pieces,
    progress: Progress | None,
) -> None:
    """Write what the graphs read, each tensor to its place; of those in `turned` the axes change about."""
    dtype = graphs[0].dtype
    plain = {path for w in graphs for path in w.weights}
    matrices = {path: q for w in graphs for path, q in w.quantized.items()}
    for info in infos:
        if info.path in plain:
            file.seek(places[info.path].offset)
            parts = pieces(info)
            if info.path in turned:
                parts = iter([np.concatenate(list(parts)).reshape(info.shape).T.reshape(-1)])
            write_numbers(file, info, dtype, parts)
        if info.path in matrices:
            _fill_quantized(file, matrices[info.path], dtype, places, pieces(info))
        if progress is not None:
            progress(info.path, info.size)


def _fill_quantized(
    file: BinaryIO, matrix: Quantized, dtype: str, places: Mapping[str, ByteRange], pieces: Iterator[NDArray[Any]]
) -> None:
    at = [places[v.name or ""].offset for v in matrix.parts]
    for rows in in_rows(pieces, matrix.shape[-1]):
        stop_if_asked()
        for i, part in enumerate(quantized(rows, matrix.bits, dtype)):
            data = part.tobytes()
            file.seek(at[i])
            file.write(data)
            at[i] += len(data)


def _inside(
    graphs: Sequence[Written],
    infos: list[WeightInfo],
    turned: Collection[str],
    pieces: Pieces,
    progress: Progress | None,
) -> None:
    """Put the numbers into the graphs themselves."""
    _, places = own_layout(graphs, plain=True)
    total = sum(p.length for p in places.values())
    if total > LARGEST:
        raise _too_large(total)
    buffer = BytesIO()
    _fill(buffer, graphs, infos, turned, places, pieces, progress)
    view = buffer.getbuffer()
    for written in graphs:
        for name, value in _initializers(written):
            assert value.dtype is not None
            at, length = places[name]
            array = np.frombuffer(view[at : at + length], dtype=value.dtype.numpy())
            value.const_value = ir.tensor(array.reshape(_shape(value)), dtype=value.dtype, name=name)
