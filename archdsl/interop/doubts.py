"""What a mapping that fits has most likely wrong: tensors of one size that stand for each other, by their names and
their order. Nothing proves it but a comparison of outputs (`--check`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations

from archdsl.interop.checkpoint_file import INDEX, atoms
from archdsl.interop.mapping import Mapper, Transfer
from archdsl.ir.paths import starred
from archdsl.weights.safetensors import saved

NEAR, SURE = 0.5, 0.7
"""What a word counts that is short for another, and by how much other names must agree better."""


def doubts(mapper: Mapper) -> list[str]:
    """Sentences, one for each group of tensors that differ in their indices alone."""
    found = [*_pieces(mapper), *_turned(mapper), *_exchanged(mapper)]
    return [*dict.fromkeys(re.sub(r"\b\d+\b", "*", text) for text in found)]


def _pieces(mapper: Mapper) -> Iterator[str]:
    """Pieces in another order than the spec makes them in, which is that of queries, keys and values."""
    place = {w.path: i for i, w in enumerate(saved(mapper.model))}
    for transfer in mapper.transfers:
        right = sorted(transfer.ours, key=place.__getitem__)
        if len(right) > 1 and [*transfer.ours] != right:
            last, wanted = ([path.split(".")[-2] for path in paths] for paths in (transfer.ours, right))
            yield f"`{transfer.theirs[0]}` has the pieces {', '.join(last)}; the spec makes {', '.join(wanted)}"


def _turned(mapper: Mapper) -> Iterator[str]:
    """Square matrices that lie otherwise than all others."""
    own = {w.path: w for w in saved(mapper.model)}
    square: dict[str, bool] = {}
    others = set()
    for transfer in mapper.transfers:
        if own[transfer.ours[0]].weight.kind != "matrix" or len(transfer.theirs) > 1 or len(transfer.shape) != 2:
            continue
        turned = transfer.axes is not None and atoms(transfer.axes[0])[0] == atoms(transfer.axes[1])[-1]
        if transfer.shape[0] == transfer.shape[1]:
            square[transfer.theirs[0]] = turned
        elif INDEX not in atoms(transfer.axes[1] if transfer.axes is not None else ()):
            others.add(turned)
    lie = {True: "[inputs, outputs]", False: "[outputs, inputs]"}
    if len(others) == 1:
        (all_,) = others
        for name, turned in square.items():
            if turned != all_:
                yield f"`{name}` is read as {lie[turned]}, and other matrices of the checkpoint as {lie[all_]}"


def _exchanged(mapper: Mapper) -> Iterator[str]:
    """Pairs of one size whose names agree better the other way about."""
    seen: dict[str, Transfer] = {}
    for t in mapper.transfers:
        if len(t.ours) == 1:
            seen.setdefault(starred(t.theirs[0]), t)
    for a, b in combinations(seen.values(), 2):
        if a.shapes != b.shapes or a.axes != b.axes or len(a.theirs) != len(b.theirs):
            continue
        as_is = _likeness(a.theirs[0], a.ours[0]) + _likeness(b.theirs[0], b.ours[0])
        exchanged = _likeness(a.theirs[0], b.ours[0]) + _likeness(b.theirs[0], a.ours[0])
        if exchanged >= as_is + SURE:
            yield f"`{a.theirs[0]}` is given to `{a.ours[0]}`, and `{b.theirs[0]}` to `{b.ours[0]}`: exchanged?"


def _likeness(theirs: str, ours: str) -> float:
    """How many words of two names agree; what something stands before or behind (`post_attention_`) is none."""
    left, right = _words(re.sub(r"(post|pre)_[a-z]+_", "", theirs)), _words(ours)
    return sum(max((_alike(x, y) for x in left), default=0.0) for y in right)


def _words(name: str) -> set[str]:
    return {w.lower() for w in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)} - {"weight", "bias"}


def _alike(x: str, y: str) -> float:
    if x == y:
        return 1.0
    short, long = sorted((x, y), key=len)
    return NEAR if long.startswith(short) or (len(short) > 3 and short in long) else 0.0
