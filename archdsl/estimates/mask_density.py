"""How many pairs of a query and a key a mask lets through: the sum of the mask, without making it.

A mask is an expression of truth values in its leaves; as numbers 0 and 1 it is a sum of products of leaves (`a | b` is
`a + b - a b`, `~a` is `1 - a`). Of almost every leaf the keys that one query sees are an interval, or every n-th key;
so are those of a product of leaves, and a row is counted by its two ends. Only random keys are drawn, as the model
draws them.

A leaf that reads a tensor (padding, documents, …) is known only when the model runs. It is taken for full, be it
negated or not: what is told is then an upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from archdsl.ir.cost import Pairs
from archdsl.ir.dims import Num, Poly, Value, add, div, evaluate, mul
from archdsl.ir.masks import TENSOR_RULES, Mask, holds

if TYPE_CHECKING:
    import numpy as np

    Integers = np.ndarray[Any, np.dtype[np.integer[Any]]]

Leaf = tuple[str, tuple[int, ...]]
Sum = dict[frozenset[Leaf], int]
"""Products of leaves, and how often each is added."""

ROWS = 1_048_576
"""Of random keys, so many pairs are drawn at a time."""


def symbolic(pairs: Pairs) -> Value | None:
    """The number of pairs as a function of the sizes, where it is one; None where it has to be counted."""
    rule = pairs.mask.rule
    if rule == "full" or all(leaf.rule in TENSOR_RULES for leaf in pairs.mask.leaves()):
        return pairs.all
    if rule == "causal" and pairs.queries.value == pairs.keys.value:
        positions = pairs.keys.value
        return div(mul(positions, add(positions, 1)), 2)
    return None


def looks_back(mask: Mask) -> bool:
    """Whether no query sees a later key."""
    if mask.rule == "&":
        return any(looks_back(part) for part in mask.parts)
    return mask.rule == "causal" or (mask.rule == "|" and all(looks_back(part) for part in mask.parts))


def count(mask: Mask, queries: int, keys: int, sizes: Mapping[str, int] | None = None) -> int:
    """How many pairs a mask lets through for one row of the batch, the last of `queries` standing at the last key.
    `sizes` are those that its numbers depend on."""
    parts = _sum(mask, sizes or {}, negated=False)
    drawn = {leaves: times for leaves, times in parts.items() if any(rule == "random" for rule, _ in leaves)}
    found = sum(times * _count(leaves, queries, keys) for leaves, times in parts.items() if leaves not in drawn)
    return found + _drawn(drawn, queries, keys)


# --- masks as sums of products ----------------------------------------------------------------------------------------

ONE: Sum = {frozenset(): 1}


def _sum(mask: Mask, sizes: Mapping[str, int], negated: bool) -> Sum:
    """The mask, or what it leaves out, as a sum. Negations are taken down to the leaves, for those that read a
    tensor."""
    if mask.rule == "~":
        return _sum(mask.parts[0], sizes, not negated)
    if mask.rule in ("&", "|"):
        parts = [_sum(part, sizes, negated) for part in mask.parts]
        if (mask.rule == "&") != negated:
            found = ONE
            for part in parts:
                found = _times(found, part)
            return found
        left_out = ONE
        for part in parts:
            left_out = _times(left_out, _rest(part))
        return _rest(left_out)
    if mask.rule in TENSOR_RULES:
        return ONE
    found = _leaf(mask.rule, tuple(_whole(n, sizes) for n in mask.numbers))
    return _rest(found) if negated else found


def _leaf(rule: str, numbers: tuple[int, ...]) -> Sum:
    if rule == "full":
        return ONE
    if rule == "global":  # the first queries see all keys, and all queries the first keys
        return _rest(_times(_rest({frozenset({("rows", numbers)}): 1}), _rest({frozenset({("prefix", numbers)}): 1})))
    if rule == "dilated":
        width, dilation = numbers
        return {frozenset({("window", (width * dilation,)), ("strided", (dilation,))}): 1}
    return {frozenset({(rule, numbers)}): 1}


def _times(a: Sum, b: Sum) -> Sum:
    found: Sum = {}
    for left, m in a.items():
        for right, n in b.items():
            found[left | right] = found.get(left | right, 0) + m * n
    return {leaves: n for leaves, n in found.items() if n}


def _rest(a: Sum) -> Sum:
    """1 - a."""
    found = {leaves: -n for leaves, n in a.items()}
    found[frozenset()] = found.get(frozenset(), 0) + 1
    return {leaves: n for leaves, n in found.items() if n}


def _whole(n: Num, sizes: Mapping[str, int]) -> int:
    value = evaluate(n.value, sizes) if isinstance(n.value, Poly) else n.value
    return math.floor(Fraction(value))


# --- counting one product ---------------------------------------------------------------------------------------------


def _count(leaves: frozenset[Leaf], queries: int, keys: int) -> int:
    rules = {rule for rule, _ in leaves}
    if not leaves:
        return queries * keys
    if rules <= {"causal", "window"} and "causal" in rules and keys >= queries:
        # Of the positions from keys - queries + 1 to keys, each counts as far as the window reaches.
        reach = min([keys, *(numbers[0] for rule, numbers in leaves if rule == "window")])
        return _stairs(keys, reach) - _stairs(keys - queries, reach)
    return (_counted if rules <= INTERVALS else _compared)(leaves, queries, keys)


INTERVALS = {"causal", "window", "chunked", "prefix", "rows", "strided"}
"""Leaves of which a query sees an interval of keys, or every n-th."""


def _compared(leaves: Iterable[Leaf], queries: int, keys: int) -> int:
    """Every pair by its positions, some rows at a time: for rules whose keys are no interval."""
    import numpy as np

    found, rows = 0, max(ROWS // keys, 1)
    for start in range(keys - queries, keys, rows):
        query = np.arange(start, min(start + rows, keys), dtype=np.int64)[:, None]
        truth = np.ones((query.size, keys), dtype=bool)
        for leaf in leaves:
            truth &= _holds(leaf, query, np.arange(keys, dtype=np.int64))
        found += int(np.count_nonzero(truth))
    return found


def _holds(leaf: Leaf, query: Any, key: Any) -> Any:
    """Whether each query sees each key; `rows` are the first queries, as `prefix` the first keys."""
    rule, numbers = leaf
    return holds("prefix", numbers, 0, query) if rule == "rows" else holds(rule, numbers, query, key)


def _stairs(positions: int, reach: int) -> int:
    """1 + 2 + … up to `reach`, then `reach` again and again: the sum over so many positions."""
    rising = max(min(positions, reach), 0)
    return rising * (rising + 1) // 2 + (positions - rising) * max(reach, 0)


def _counted(leaves: Iterable[Leaf], queries: int, keys: int) -> int:
    """Every row by the two ends of the interval that it sees, and the stride between its keys."""
    import numpy as np

    query = np.arange(keys - queries, keys, dtype=np.int64)
    first, last = np.zeros_like(query), np.full_like(query, keys)
    stride = 1
    for rule, numbers in leaves:
        if rule == "causal":
            last = np.minimum(last, query + 1)
        elif rule == "window":
            first, last = np.maximum(first, query - numbers[0] + 1), np.minimum(last, query + numbers[0])
        elif rule == "chunked":
            chunk = query // numbers[0] * numbers[0]
            first, last = np.maximum(first, chunk), np.minimum(last, chunk + numbers[0])
        elif rule == "prefix":
            last = np.minimum(last, numbers[0])
        elif rule == "rows":
            last = np.where(query < numbers[0], last, 0)
        else:
            assert rule == "strided", rule
            stride = math.lcm(stride, numbers[0])
    seen = (last - 1 - query) // stride - (first - 1 - query) // stride
    return int(np.where(last > first, seen, 0).sum())


def _drawn(parts: Sum, queries: int, keys: int) -> int:
    """What products with random keys add up to. Of random keys alone the number is known; where they meet other leaves,
    they are drawn, some rows at a time, and only where they are the others are asked."""
    found = 0
    for leaves in [p for p in parts if len(p) == 1]:
        ((_, (chosen, _)),) = leaves
        found += parts[leaves] * queries * min(chosen, keys)
    parts = {leaves: times for leaves, times in parts.items() if len(leaves) > 1}
    if not parts:
        return found
    import numpy as np

    # Of each product one of its random leaves is drawn, and of the others each is a matrix.
    products = [(sorted(leaves, key=lambda leaf: leaf[0] != "random"), times) for leaves, times in parts.items()]
    random = {leaf for leaves in parts for leaf in leaves if leaf[0] == "random"}
    for start in range(keys - queries, keys, max(ROWS // keys, 1)):
        end = min(start + max(ROWS // keys, 1), keys)
        draws = {leaf: _random(start, end, keys, *leaf[1]) for leaf in random}
        seen: dict[tuple[Leaf, Leaf], Any] = {}
        for (first, *others), times in products:
            row, key = draws[first]
            truth: Any = np.ones(row.size, dtype=bool)
            for leaf in others:
                if (first, leaf) not in seen:
                    if leaf in draws:
                        of_leaf = np.zeros((end - start, keys), dtype=bool)
                        of_leaf[draws[leaf]] = True
                        seen[first, leaf] = of_leaf[row, key]
                    else:
                        seen[first, leaf] = _holds(leaf, row + start, key)
                truth = truth & seen[first, leaf]
            found += times * int(np.count_nonzero(truth))
    return found


# --- random keys ------------------------------------------------------------------------------------------------------

PRIME = 2_147_483_647
"""What hashes are taken modulo of. A power of two less one: what stands above its bits is added to them."""
WORD = 2**63
BLOCK = 32_768
"""So many hashes are computed at a time: they stay in the processor's cache from one operation to the next."""


def _random(start: int, end: int, keys: int, chosen: int, seed: int) -> tuple[Integers, Integers]:
    """For each query from `start` to `end` the keys whose hash with it is largest, as `archdsl.ops.attention.mask`
    defines it: rows, counted from `start`, and keys.

    Nearly all keys are left out by comparing their hashes with a number that a few more than those to be chosen exceed;
    the hashes of a row that are left are partitioned."""
    import numpy as np

    if chosen >= keys:
        row, key = np.divmod(np.arange((end - start) * keys, dtype=np.int64), keys)
        return row, key
    likely = min(1.0, (chosen + 4 * math.sqrt(chosen) + 8) / keys)
    position, value = _largest(start, end, keys, seed, int(PRIME * (1 - likely)) - 1)
    firsts = np.searchsorted(position, np.arange(end - start + 1, dtype=np.int64) * keys)
    counts = np.diff(firsts)
    if counts.min() < chosen:
        position, value = _largest(start, end, keys, seed, -1)
        firsts = np.arange(end - start + 1, dtype=np.int64) * keys
        counts = np.diff(firsts)
    row = np.repeat(np.arange(end - start, dtype=np.int64), counts)
    width = int(counts.max())
    table = np.full((end - start, width), -1, dtype=np.int32)
    table[np.arange(width) < counts[:, None]] = value
    least = np.partition(table, width - chosen, axis=-1)[:, width - chosen]
    taken = value >= np.repeat(least, counts)
    if np.count_nonzero(taken) != chosen * (end - start):  # hashes that are equal: of these only some are chosen
        above = np.bincount(row[value > least[row]], minlength=end - start)
        for i in np.flatnonzero(np.bincount(row[taken], minlength=end - start) > chosen):
            equal = firsts[i] + np.flatnonzero(value[firsts[i] : firsts[i + 1]] == least[i])
            taken[equal[chosen - above[i] :]] = False
    row = row[taken]
    return row, position[taken] - row * keys


def _largest(start: int, end: int, keys: int, seed: int, above: int) -> tuple[Integers, Integers]:
    """Pairs whose hash is larger than a number: their positions, row by row, and their hashes."""
    import numpy as np

    key = np.arange(keys, dtype=np.int64)
    by_key = key * 30_011 % PRIME
    rows = max(BLOCK // keys, 1)
    space = np.empty((2, min(rows, end - start), keys), dtype=np.int64)
    positions: list[Integers] = []
    values: list[Integers] = []
    for first in range(start, end, rows):
        query = np.arange(first, min(first + rows, end), dtype=np.int64)[:, None]
        mixed, spare = space[:, : query.size]
        by_query = (query * 40_503 + seed * 7_919 + 1) % PRIME
        np.add(by_query, by_key, out=mixed)
        most = int(by_query.max() + by_key.max())
        for of_query, of_key in ((97, 1), (0, 89)):
            extra = of_query * end + of_key * keys
            while most * most + extra >= WORD:
                most = _fold(mixed, spare, most)
            np.multiply(mixed, mixed, out=mixed)
            if of_query:
                mixed += of_query * query
            mixed += of_key * key
            most = most * most + extra
        while most >= 2 * PRIME:
            most = _fold(mixed, spare, most)
        found = np.flatnonzero(mixed > above)
        value = mixed.ravel()[found]
        if value.size and value.max() >= PRIME:
            mixed[mixed >= PRIME] -= PRIME
            found = np.flatnonzero(mixed > above)
            value = mixed.ravel()[found]
        positions.append(found + (first - start) * keys)
        values.append(value.astype(np.int32))
    return np.concatenate(positions), np.concatenate(values)


def _fold(x: Integers, spare: Integers, most: int) -> int:
    """Make numbers that are at most `most` smaller in place, each the same modulo the prime; what they are then at
    most."""
    import numpy as np

    np.right_shift(x, 31, out=spare)
    np.bitwise_and(x, PRIME, out=x)
    np.add(x, spare, out=x)
    return PRIME + (most >> 31)
