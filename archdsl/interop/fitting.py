"""Surgery on a checkpoint: keep the weights that fit a changed spec, and initialize the rest.

The checkpoint's own config gives its tensors the names of a spec; a tensor then fits by its name and shape."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from archdsl.diagnostics import error
from archdsl.files import written_beside
from archdsl.interop.huggingface import TensorSource
from archdsl.interop.mapping import Mapper, Shape, Transfer
from archdsl.ir.graph import OpNode
from archdsl.ir.walk import ops_below
from archdsl.ir.weights import WeightInfo
from archdsl.weights.carried import DTYPES
from archdsl.weights.initialization import laws_of
from archdsl.weights.safetensors import TYPES, Progress, encoded, kind_of, numbers, saved, write_raw

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archdsl.ir.graph import Model


class Mapped:
    """A checkpoint's tensors, in the names and shapes of the spec that its config describes. Raises ArchError E0532
    where names or shapes disagree."""

    def __init__(self, source: TensorSource, mapper: Mapper) -> None:
        self.source = source
        self.names = mapper.demand(source.shapes)
        self.transfers = {path: t for t in mapper.transfers for path in t.ours}
        self.last: tuple[Transfer, list[NDArray[Any]]] | None = None
        """The last transfer and its weights: the next weight may be another piece of the same tensor."""

    @property
    def shapes(self) -> dict[str, Shape]:
        return {path: t.shapes[t.ours.index(path)] for path, t in self.transfers.items()}

    def type_of(self, name: str) -> str:
        return self.source.type_of(self.names[self.transfers[name].theirs[0]])

    def tensor(self, name: str) -> NDArray[Any]:
        t = self.transfers[name]
        if self.last is None or self.last[0] is not t:
            self.last = t, t.to_ours([self.source.tensor(self.names[n]) for n in t.theirs])
        weight = self.last[1][t.ours.index(name)]
        return weight if t.value is None else t.value.to_ours(weight, self.type_of(name), name)

    def __enter__(self) -> Mapped:
        self.source.__enter__()
        return self

    def __exit__(self, *problem: object) -> None:
        self.source.__exit__(*problem)


def demand_one_rotation(origin: Model, model: Model) -> None:
    """Raise ArchError E0532 where RoPE pairs the channels of queries and keys differently in two models."""
    theirs, ours = (
        {kind for n in ops_below(m.block.graph) if (kind := n.op.rotated_pairs(n))} for m in (origin, model)
    )
    if theirs and ours and theirs != ours:
        raise error(
            "E0532",
            f"the spec's rope turns `{'`, `'.join(sorted(ours))}` of channels together, and the checkpoint's "
            f"`{'`, `'.join(sorted(theirs))}`",
            help="`rope(interleaved: true)` turns pairs (2i, 2i + 1), `rope()` halves (i, i + n / 2)",
        )


# --- what becomes of each weight --------------------------------------------------------------------------------------


class Fitted(NamedTuple):
    """Paths of a spec's weights, by what became of them."""

    kept: list[str]
    """Taken from the checkpoint."""
    rows: dict[str, tuple[int, int]]
    """Weights with some rows from the checkpoint: (rows kept, rows in all)."""
    drawn: list[str]
    """Randomly initialized."""
    left: list[str]
    """Tensors of the checkpoint that the spec lacks, or has in another shape."""

    def lines(self) -> Iterator[str]:
        """Yield the lines that the command prints."""
        whole = len(self.kept) + len(self.rows) + len(self.drawn)
        known = [*self.kept, *self.rows]
        yield f"kept: {len(self.kept):,} of {whole:,} weights"
        for path, (rows, size) in self.rows.items():
            yield f"kept: the first {rows:,} of {size:,} rows of {path}"
        if self.drawn:
            yield f"initialized: {', '.join(modules_of(self.drawn, known))}"
        if self.left:
            yield f"not taken from the checkpoint: {', '.join(modules_of(self.left, known))}"


def modules_of(paths: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return the largest modules that hold `paths` and none of `others`, several layers as one: `blocks.{2,3}.ffn`."""
    around = {other[: dot.start()] for other in others for dot in re.finditer(r"\.", other)}
    groups: dict[tuple[str, str], dict[str, None]] = {}
    for path in paths:
        ends = [*(dot.start() for dot in re.finditer(r"\.", path)), len(path)]
        module = next((path[:end] for end in ends if path[:end] not in around), path)
        before, index, after = (*re.split(r"(?<=\.)(\d+)(?=\.|$)", module, maxsplit=1), "", "")[:3]
        groups.setdefault((before, after), {})[index] = None
    return [f"{a}{{{','.join(ns)}}}{b}" if len(ns) > 1 else f"{a}{next(iter(ns))}{b}" for (a, b), ns in groups.items()]


def write_fitted(
    model: Model, source: TensorSource, output: Path, seed: int, progress: Progress | None = None
) -> Fitted:
    """Write the weights of a model: those of `source`, in the spec's names, where name and shape are the same, and all
    others as the spec initializes them with a seed. A table that has another number of rows keeps those that both have,
    and so does what has a row for each of its rows (an LM head, its bias). Numbers keep their types.

    Raises ArchError E0532 where nothing fits; OSError."""
    infos, shapes = saved(model), source.shapes
    types = {i.path: source.type_of(i.path) for i in infos if i.path in shapes}
    infos_alike = [i for i in infos if i.path in types and kind_of(types[i.path]) == i.weight.dtype]
    kept = [i.path for i in infos_alike if shapes[i.path] == i.shape]
    rows = _rows_kept(infos_alike, shapes)
    if not kept and not rows:
        raise _nothing_fits(model, infos, shapes)
    usual = next((kind for path in (*kept, *rows) if (kind := types[path]) in ("F32", "F16", "BF16")), "F32")
    entries = []
    for info in infos:
        drawn_type = usual if info.weight.dtype == "float" else TYPES[info.weight.dtype]
        entries.append((info.path, types[info.path] if info.path in {*kept, *rows} else drawn_type, info.shape))
    laws = laws_of(model)
    whole = {*kept}
    with (
        source,
        written_beside(output) as beside,
        beside.open("wb") as file,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        write = write_raw(file, entries)
        for info, (path, kind, shape) in zip(infos, entries, strict=True):
            if path in whole:
                write(source.tensor(path))
            else:
                count = rows[path][0] if path in rows else 0
                if count:
                    write(source.tensor(path)[:count])
                skipped = count * prod(shape[1:])
                for piece in numbers(info, laws, seed, pool):
                    file.write(_bytes(piece[skipped:], kind, path))
                    skipped = max(skipped - piece.size, 0)
            if progress is not None:
                progress(path, info.size)
    taken = whole | rows.keys()
    return Fitted(kept, rows, [i.path for i in infos if i.path not in taken], [n for n in shapes if n not in taken])


def _rows_kept(infos: Sequence[WeightInfo], shapes: Mapping[str, Shape]) -> dict[str, tuple[int, int]]:
    """Return the weights of which some rows are kept, with (rows kept, rows in all)."""
    resized = {
        i.path: (shapes[i.path][0], i.shape[0])
        for i in infos
        if i.shape and shapes[i.path] != i.shape and shapes[i.path][1:] == i.shape[1:]
    }
    tables = {i.path for i in infos if isinstance(i.node, OpNode) and i.node.op.table(i.node) is not None}
    sizes_of_tables = {sizes for path, sizes in resized.items() if path in tables}
    return {path: (min(sizes), sizes[1]) for path, sizes in resized.items() if sizes in sizes_of_tables}


def _nothing_fits(model: Model, infos: Sequence[WeightInfo], shapes: Mapping[str, Shape]) -> Exception:
    other = next((i for i in infos if i.path in shapes), None)
    if not shapes:
        note = "the checkpoint holds no tensors"
    elif other is not None:
        note = f"`{other.path}` is {[*shapes[other.path]]} in the checkpoint, and the spec's is {[*other.shape]}"
    else:
        note = f"the checkpoint has `{next(iter(shapes))}`, and the spec `{infos[0].path}`"
    return error(
        "E0532",
        f"no tensor of the checkpoint has the name and the shape of a weight of `{model.name}`",
        notes=[note],
        help="`--rename OLD=NEW` replaces the beginning of names",
    )


def _bytes(piece: NDArray[Any], kind: str, path: str) -> bytes:
    """Encode initialized numbers in a type of safetensors (`F32`, `BF16`, …)."""
    if kind == "F64":
        return piece.astype("<f8").tobytes()
    return encoded(piece, DTYPES[kind] if kind_of(kind) == "float" else kind_of(kind), path)
