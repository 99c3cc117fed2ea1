"""A mapping resolved against a model: what each tensor of a checkpoint is in the model's weights, and back.

Everything is judged by names and shapes, before a byte of a tensor is read: each weight of ours is given exactly once,
each tensor of theirs is taken or dropped by name, sizes agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from archdsl.diagnostics import ArchError, Diagnostic
from archdsl.interop.checkpoint_file import (
    INDEX,
    PIECES,
    Axes,
    CheckpointFile,
    TensorRule,
    atoms,
    without_input,
)
from archdsl.interop.values import ValueMap
from archdsl.ir.dims import Num
from archdsl.ir.graph import OpNode
from archdsl.ir.paths import starred
from archdsl.ir.walk import calls_of, every_node, modules
from archdsl.ir.weights import WeightInfo
from archdsl.weights.safetensors import saved

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archdsl.ir.graph import Block, Model

Shape = tuple[int, ...]
SHOWN = 5
"""So many names of tensors are told in a message."""


@dataclass(frozen=True)
class Transfer:
    """Some tensors of theirs that are some weights of ours: one and one, one and its pieces, or one for each index of
    an axis of ours."""

    theirs: tuple[str, ...]
    shape: Shape
    """Of each of theirs."""
    ours: tuple[str, ...]
    shapes: tuple[Shape, ...]
    axes: tuple[Axes, Axes] | None
    sizes: Mapping[str, int]
    """Of each axis by its name."""
    pieces: tuple[int, ...]
    """How much of the axis `{}` each of ours has."""
    value: ValueMap | None = None
    """What becomes of the numbers themselves."""

    def to_ours(self, tensors: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Weights of ours from `theirs`, in order."""
        import numpy as np

        if self.axes is None:
            return list(tensors)
        theirs, ours = self._orders(self.axes)
        whole = np.stack(tensors) if INDEX in ours else tensors[0]
        split = whole.reshape([sum(self.pieces) if a == PIECES else _size(a, self.sizes) for a in theirs])
        parts = np.split(split, _ends(self.pieces), theirs.index(PIECES)) if PIECES in theirs else [split]
        order = [theirs.index(a) for a in ours]
        return [part.transpose(order).reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def to_theirs(self, weights: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Tensors of theirs from `ours`, in order."""
        import numpy as np

        if self.axes is None:
            return list(weights)
        theirs, ours = self._orders(self.axes)
        order = [ours.index(a) for a in theirs]
        parts = []
        for weight, size in zip(weights, self.pieces or (0,), strict=True):
            split = weight.reshape([size if a == PIECES else _size(a, self.sizes) for a in ours])
            parts.append(split.transpose(order))
        whole = np.concatenate(parts, theirs.index(PIECES)) if PIECES in theirs else parts[0]
        if INDEX in ours:
            return [one.reshape(self.shape) for one in whole]
        return [whole.reshape(self.shape)]

    def _orders(self, axes: tuple[Axes, Axes]) -> tuple[list[str], list[str]]:
        """The axes as theirs stand (an index, of which each is a tensor, outermost), and as ours do; without those of
        one number."""
        left, right = ([a for a in atoms(side) if a != "1"] for side in axes)
        return [INDEX, *left] if INDEX in right else left, right


def _ends(pieces: Sequence[int]) -> list[int]:
    """Where each piece ends but the last."""
    return [sum(pieces[: i + 1]) for i in range(len(pieces) - 1)]


class Misfits:
    """What is wrong between a mapping, a model and a checkpoint."""

    def __init__(self) -> None:
        self.found: list[Diagnostic] = []

    def add(self, message: str, names: Iterable[str] = (), **more: Any) -> None:
        listed = [f"`{n}`" for n in names]
        shown = ", ".join(listed[:SHOWN]) + (f" and {len(listed) - SHOWN} more" if listed[SHOWN:] else "")
        self.found.append(Diagnostic("E0532", f"{message}{': ' if shown else ''}{shown}", **more))

    def raise_any(self) -> None:
        if self.found:
            raise ArchError(self.found[:20])


class Mapper:
    """The transfers of a model by a mapping. Of rules that stand for each other (`else`) it takes the first whose
    tensors are `present`, or the first."""

    def __init__(self, mapping: CheckpointFile, model: Model, present: Iterable[str] = ()) -> None:
        self.mapping, self.model = mapping, model
        self.misfits = Misfits()
        numbers = {**{f.name: f.value for f in model.config}, **model.block.hypers}
        self.known = {name: n.value for name, n in numbers.items() if isinstance(n, Num) and type(n.value) is int}
        self.transfers = self._transfers([*present])
        self._demand_rotation()
        self.misfits.raise_any()
        self.taken = frozenset(n for t in self.transfers for n in t.theirs)
        """Every tensor of theirs that is some of ours."""

    def _demand_rotation(self) -> None:
        """Note where a rotary embedding of the spec turns other channels together than that of the checkpoint."""
        rope, parts = self.mapping.rope, [(pattern(path), kind) for path, kind in self.mapping.ropes.items()]
        if rope is None:
            return
        met = set()
        wrong: dict[str, tuple[str, str]] = {}
        for path, kind in rotations(self.model.block, ""):
            part = next((i for i, (below, _) in enumerate(parts) if below.fullmatch(path)), None)
            met.add(part)
            theirs = rope if part is None else parts[part][1]
            if kind != theirs:
                wrong.setdefault(starred(path), (kind, f"`{theirs}` of channels" if theirs else "none"))
        for path, (kind, theirs) in wrong.items():
            self.misfits.add(
                f"the spec's rope turns `{kind}` of channels together{path and f' in `{path}`'}, and the checkpoint's "
                f"{theirs}",
                help="`rope(interleaved: true)` turns pairs (2i, 2i + 1), `rope()` halves (i, i + n / 2); of a part "
                "of the spec a mapping says `rope pairs in blocks.*.attention`",
            )
        for i, path in enumerate(self.mapping.ropes):
            if i not in met:
                self.misfits.add(f"the mapping says how a rope in `{path}` turns, where the spec has none")

    def _transfers(self, present: list[str]) -> list[Transfer]:
        """One for each weight of ours, or group of pieces. Notes weights that no rule gives, or several do."""
        own = {w.path: w for w in saved(self.model)}
        patterns = [[pattern(ours) for ours in rule.ours] for rule in self.mapping.rules]
        base = self.mapping.base
        there = {starred(name) for n in present for name in (n, base + n)}
        groups: dict[tuple[int, tuple[str, ...], str], dict[int, str]] = {}
        unknown = []
        for path in own:
            met = [
                (i, k, m)
                for i, row in enumerate(patterns)
                for k, regex in enumerate(row)
                if (m := regex.fullmatch(path)) is not None
            ]
            if any(self.mapping.rules[i].otherwise for i, _, _ in met):
                names = [starred(self.mapping.rules[i].theirs + (m.groups()[-1] or "")) for i, _, m in met]
                met = ([m for m, name in zip(met, names, strict=True) if name in there] or met)[:1]
            if not met:
                unknown.append(path)
            elif len(met) > 1:
                rules = [self.mapping.rules[i] for i, _, _ in met]
                self.misfits.add(f"{len(met)} rules give `{path}`", span=rules[1].span)
            else:
                i, k, m = met[0]
                indices, ending = m.groups()[:-1], m.groups()[-1] or ""
                groups.setdefault((i, indices, ending), {})[k] = path
        if unknown:
            self.misfits.add(f"no rule of `{self.mapping.path.name}` gives {len(unknown)} weights of the spec", unknown)
        found = []
        for (i, indices, ending), paths in groups.items():
            rule = self.mapping.rules[i]
            if len(paths) < len(rule.ours):
                self.misfits.add(
                    f"`{rule.theirs}` has {len(rule.ours)} pieces, and the spec {len(paths)} of them", span=rule.span
                )
                continue
            ours = [own[paths[k]] for k in range(len(rule.ours))]
            self._demand_roles(rule, ours[0])
            transfer = self._transfer(rule, indices, ending, [w.path for w in ours], [w.shape for w in ours])
            if transfer is not None:
                found.append(transfer)
        return found

    def _demand_roles(self, rule: TensorRule, info: WeightInfo) -> None:
        """Note an axis `i` of inputs, or `o` of outputs, that is none in our matrix [outputs, inputs]."""
        if rule.axes is None or info.weight.kind != "matrix":
            return
        axes = [a for a in rule.axes[1] if a != INDEX]
        if len(axes) == 2 and (axes[0] == "i" or axes[1] == "o"):
            text = f"`{info.path}` is a matrix [outputs, inputs], not [{_text(rule.axes[1])}]"
            self.misfits.add(text, span=rule.span)

    def _transfer(
        self, rule: TensorRule, indices: tuple[str, ...], ending: str, ours: Sequence[str], shapes: Sequence[Shape]
    ) -> Transfer | None:
        if rule.axes is not None and len(shapes[0]) == len(rule.axes[1]) - 1:
            rule = without_input(rule)
        indexed = rule.axes is not None and INDEX in atoms(rule.axes[1])
        if rule.theirs.count("*") != len(indices) + indexed:
            self.misfits.add(f"`{rule.theirs}` and `{rule.ours[0]}` have different numbers of `*`", span=rule.span)
            return None
        if rule.axes is None:
            name = _filled(rule.theirs, indices) + ending
            return Transfer((name,), shapes[0], (*ours,), (*shapes,), None, {}, (), rule.value)
        left, right = rule.axes
        sizes: dict[str, int] = {}
        pieces = []
        for path, shape in zip(ours, shapes, strict=True):
            own = self._sizes(right, shape, sizes)
            if own is None:
                self.misfits.add(f"`{path}` is {list(shape)}, not [{_text(right)}]", span=rule.span)
                return None
            pieces.append(own)
        total = {**sizes, PIECES: sum(pieces)}
        whole = tuple(prod(_size(a, total) for a in atoms((axis,))) for axis in left)
        every = [(*indices, str(k)) for k in range(sizes[INDEX])] if indexed else [indices]
        names = tuple(_filled(rule.theirs, filling) + ending for filling in every)
        split = tuple(pieces) if PIECES in atoms(left) else ()
        return Transfer(names, whole, (*ours,), (*shapes,), rule.axes, sizes, split, rule.value)

    def _sizes(self, axes: Axes, shape: Shape, sizes: dict[str, int]) -> int | None:
        """Find the size of every axis of one weight of ours; the size of its piece (0 without one), or None where the
        shape is no such thing."""
        if len(axes) != len(shape):
            return None
        piece = 0
        for axis, size in zip(axes, shape, strict=True):
            open_: list[str] = []
            for name in atoms((axis,)):
                n = int(name) if name.isdigit() else sizes.get(name, self.known.get(name))
                if name == PIECES or n is None:
                    open_.append(name)
                    continue
                if name in self.known:
                    sizes[name] = n
                if n == 0 or size % n:
                    return None
                size //= n
            if len(open_) > 1 or (not open_ and size != 1):
                return None
            if open_ == [PIECES]:
                piece = size
            elif open_:
                sizes[open_[0]] = size
        return piece

    # --- against a checkpoint ---

    def demand(self, theirs: Mapping[str, Shape]) -> dict[str, str]:
        """Judge the tensors of a checkpoint by names and shapes; what each name of the mapping is called there.

        Raises ArchError E0532 where a tensor is missing, has another shape, or is nothing of ours."""
        base, misfits = self.mapping.base, Misfits()
        named = {}
        for transfer in self.transfers:
            for name in transfer.theirs:
                bare = name.removeprefix(base) if base else name
                named[name] = name if name in theirs or bare not in theirs else bare
        missing = [n for n in named.values() if n not in theirs]
        if missing:
            help_ = "`archdsl weights --init-missing` keeps the weights that fit a spec, and initializes the others"
            misfits.add(f"the checkpoint lacks {len(missing)} of {len(named)} tensors", missing, help=help_)
        taken = {*named.values()}
        dropped = [pattern(p) for p in (*self.mapping.drops, *(a for a, _ in self.mapping.ties))]
        left = [n for n in theirs if n not in taken and not any(p.fullmatch(m) for p in dropped for m in (n, base + n))]
        if left:
            misfits.add(
                f"{len(left)} tensors of the checkpoint match no weight of the spec",
                left,
                help="a mapping drops by name what is not wanted: `drop a.*.b`",
            )
        for transfer in self.transfers:
            for name in transfer.theirs:
                shape = theirs.get(named[name], transfer.shape)
                if shape != transfer.shape:
                    misfits.add(f"`{named[name]}` is {list(shape)}, and the spec makes it {list(transfer.shape)}")
        misfits.raise_any()
        return named


def rotations(block: Block, path: str) -> Iterator[tuple[str, str]]:
    """Yield where rotary embeddings stand, by the path of weights there, and which channels they turn together."""
    for instance in block.instances:
        if instance.block is not None:
            yield from rotations(instance.block, f"{path}.{instance.path}".removeprefix("."))
    for op in every_node(block.graph):
        if isinstance(op, OpNode) and (kind := op.op.rotated_pairs(op)):
            yield path, kind
    for node, step in modules(block.graph):
        for call in calls_of(node):
            below = f"{path}.{step}".removeprefix(".")
            yield from rotations(call.block, below)


def _size(name: str, sizes: Mapping[str, int]) -> int:
    return int(name) if name.isdigit() else sizes[name]


def _text(axes: Axes) -> str:
    return " ".join(a if isinstance(a, str) else f"({_text(a)})" for a in axes)


def pattern(template: str) -> re.Pattern[str]:
    """Matches a name and everything below it; its groups are the indices, and the ending. An index may be the star that
    transformers writes where it names a table of all layers."""
    return re.compile(re.escape(template).replace(r"\*", r"(\d++|\*)") + r"(\..+)?")


def _filled(template: str, indices: Iterable[str]) -> str:
    rest = iter(indices)
    return re.sub(r"\*", lambda _: next(rest), template)
