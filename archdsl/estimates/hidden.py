"""What masks hide of the tensors of attention that is written out: its pairs there cost nothing, as in `sdpa`.

Forwards it is followed where a tensor is a known number, whatever its inputs are: `where(mask, scores, -inf)` is minus
infinity where the mask says no, and its softmax 0. Backwards it is followed which elements of a tensor no result needs:
those of `scores` there. A contraction then costs nothing where its result is not needed, or where one of its sides is
0."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import field
from functools import reduce

from archdsl.frozen import Frozen
from archdsl.ir.cost import Amount, Pairs, elements
from archdsl.ir.dims import Num, Poly, div, mul, same_shape
from archdsl.ir.dims import Value as Size
from archdsl.ir.graph import OpNode, Value
from archdsl.ir.masks import Mask, both, complement
from archdsl.ir.op import same


class Hidden(Frozen):
    """The elements of a tensor that a mask rules out: their query and key stand along two of its axes, counted from the
    right."""

    key: Hashable
    query: int
    keys: int
    mask: Mask = field(compare=False)


Known = tuple[tuple[Hidden, float], ...]
"""Elements, and the number that all of them are."""
Places = frozenset[Hidden]
"""Elements that no result needs."""
NOWHERE: Places = frozenset()


def known(node: OpNode, given: Sequence[Known]) -> Known:
    """What is known of an op's only result from what is known of its inputs."""
    op = node.op
    if len(node.outputs) != 1:
        return ()
    if op.makes_mask:
        mask: Mask = node.options["mask"]
        sides = (mask, 0.0), (complement(mask), 1.0)
        return tuple((Hidden(side.key, -2, -1, side), value) for side, value in sides)
    if not any(given):
        return ()
    output, first = node.outputs[0], node.inputs[0]
    joint = op.joint(node)
    found: dict[Hidden, float | None] = {}
    if op.elementwise:
        found = {h: op.constant(node, numbers(node, given, h)) for facts in given for h, _ in facts}
    elif joint is not None:
        for facts, term, nothing in zip(given, joint.terms, joint.nothing, strict=True):
            for h, value in facts:
                names = term[h.query], term[h.keys]
                if value == nothing and {*names} <= {*joint.result}:
                    query, keys = (joint.result.index(n) - len(joint.result) for n in names)
                    found[Hidden(h.key, query, keys, h.mask)] = 0.0
    elif op.moves and isinstance(first, Value):
        axes = [next((j for j in range(output.rank) if read == same(j)), None) for read in op.reads(node)[0]]
        for h, value in given[0]:
            places = axes[h.query], axes[h.keys]
            if places[0] is not None and places[1] is not None:
                query, keys = (p - output.rank for p in places if p is not None)
                found[Hidden(h.key, query, keys, h.mask)] = value
    elif isinstance(first, Value) and len(node.inputs) == 1 and same_shape(first.shape, output.shape):
        found = {h: op.constant(node, (value,)) for h, value in given[0]}
    return tuple((h, value) for h, value in found.items() if value is not None and not math.isnan(value))


def numbers(node: OpNode, given: Sequence[Known], hidden: Hidden) -> list[float | None]:
    """What the inputs of an element-wise op are at some elements, as far as it is known."""
    found: list[float | None] = []
    for value, facts in zip(node.inputs, given, strict=True):
        static = isinstance(value, Num) and value.static
        found.append(float(value) if static and isinstance(value, Num) else dict(facts).get(hidden))
    return found


def unneeded(node: OpNode, given: Sequence[Known], out: Places) -> Iterator[Places]:
    """Of each input the elements that an op does not need: those that no needed element of its result reads, and those
    for which others decide what the result is."""
    output = node.outputs[0] if len(node.outputs) == 1 else None
    reads = node.op.reads(node) if output is not None and out else ()
    for i, value in enumerate(node.inputs):
        found: set[Hidden] = set()
        if not isinstance(value, Value) or output is None:
            yield NOWHERE
            continue
        for h in out:
            places = [same(axis + output.rank) for axis in (h.query, h.keys)]
            own = [axis for place in places for axis, read in enumerate(reads[i]) if read == place]
            if len(own) == 2:
                found.add(Hidden(h.key, own[0] - value.rank, own[1] - value.rank, h.mask))
        others = {h for j, facts in enumerate(given) for h, _ in facts if j != i} if node.op.elementwise else ()
        for h in others:
            spread = any(value.rank < -a or value.shape[a].value != output.shape[a].value for a in (h.query, h.keys))
            without = [None if j == i else n for j, n in enumerate(numbers(node, given, h))]
            if not spread and node.op.constant(node, without) is not None:
                found.add(h)
        yield frozenset(found)


def costing(node: OpNode, amount: Amount, given: Sequence[Known], out: Places) -> Amount:
    """What a contraction costs without the pairs that are hidden."""
    if amount.pairs is not None or len(node.outputs) != 1:
        return amount
    output, joint = node.outputs[0], node.op.joint(node)
    masks: dict[Hashable, list[tuple[Hidden, Value]]] = {}
    if _share(amount.flops, elements(output.shape)) is not None:
        for h in out:
            axes = (h.query, h.keys) if joint is None else (joint.result[h.query], joint.result[h.keys])
            masks.setdefault(axes, []).append((h, output))
    if joint is not None and len(node.inputs) == 2:
        for value, facts, term, nothing in zip(node.inputs, given, joint.terms, joint.nothing, strict=True):
            for h, number in facts:
                if number == nothing and isinstance(value, Value):
                    masks.setdefault((term[h.query], term[h.keys]), []).append((h, value))
    for hidden in masks.values():
        h, value = hidden[0]
        queries, keys = value.shape[h.query], value.shape[h.keys]
        flops = _share(amount.flops, mul(queries.value, keys.value))
        if flops is not None:
            unique = sorted({h.key: h.mask for h, _ in hidden}.values(), key=str)
            return Amount(flops, Pairs(reduce(both, unique), queries, keys))
    return amount


def _share(flops: Size, parts: Size) -> Size | None:
    """What each of so many parts costs; None where they do not cost the same."""
    found: Size | None = div(flops, parts)
    if isinstance(flops, Poly) and isinstance(parts, Poly):  # `time * (time + 4)` has several terms
        ratios = (div(Poly((term,)), Poly(parts.terms[:1])) for term in flops.terms)
        found = next((ratio for ratio in ratios if mul(ratio, parts) == flops), None)
    if isinstance(found, Poly):
        whole = all(power > 0 for monomial, _ in found.terms for _, power in monomial) and found.denominator == 1
        return found if whole else None
    return found if isinstance(found, int) else None
