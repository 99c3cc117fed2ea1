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
from archdsl.ir.masks import TENSOR_RULES, Mask

if TYPE_CHECKING:
    import numpy as np

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
        places = pairs.keys.value
        return div(mul(places, add(places, 1)), 2)
    return None


def is_bound(mask: Mask) -> bool:
    """Whether the mask reads a tensor, so that its pairs are no more than counted, and perhaps fewer."""
    return any(leaf.rule in TENSOR_RULES for leaf in mask.leaves())


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
        # Of the places from keys - queries + 1 to keys, each counts as far as the window reaches.
        reach = min([keys, *(numbers[0] for rule, numbers in leaves if rule == "window")])
        return _stairs(keys, reach) - _stairs(keys - queries, reach)
    return _counted(leaves, queries, keys)


def _stairs(places: int, reach: int) -> int:
    """1 + 2 + … up to `reach`, then `reach` again and again: the sum over so many places."""
    rising = max(min(places, reach), 0)
    return rising * (rising + 1) // 2 + (places - rising) * max(reach, 0)


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
    """What products with random keys add up to, some rows at a time. Random keys alone are known without a draw."""
    found = 0
    for leaves in [p for p in parts if len(p) == 1]:
        ((_, (chosen, _)),) = leaves
        found += parts[leaves] * queries * min(chosen, keys)
    parts = {leaves: times for leaves, times in parts.items() if len(leaves) > 1}
    if not parts:
        return found
    import numpy as np

    key = np.arange(keys, dtype=np.int64)[None, :]
    for start in range(keys - queries, keys, max(ROWS // keys, 1)):
        query = np.arange(start, min(start + max(ROWS // keys, 1), keys), dtype=np.int64)[:, None]
        seen: dict[Leaf, Any] = {}
        for leaf in {leaf for leaves in parts for leaf in leaves}:
            seen[leaf] = _truth(leaf, query, key)
        for leaves, times in parts.items():
            first, *others = sorted(leaves, key=lambda leaf: leaf[0] != "random")
            truth = seen[first].copy()
            for leaf in others:
                truth &= seen[leaf]
            found += times * int(np.count_nonzero(truth))
    return found


def _truth(leaf: Leaf, query: np.ndarray[Any, Any], key: np.ndarray[Any, Any]) -> Any:
    """The truth values of a leaf."""
    rule, numbers = leaf
    match rule:
        case "causal":
            return key <= query
        case "window":
            return abs(query - key) < numbers[0]
        case "chunked":
            return query // numbers[0] == key // numbers[0]
        case "prefix":
            return key < numbers[0]
        case "rows":
            return query < numbers[0]
        case "strided":
            return (query - key) % numbers[0] == 0
    return _random(query, key, *numbers)


PRIME = 2_147_483_647


def _random(query: np.ndarray[Any, Any], key: np.ndarray[Any, Any], chosen: int, seed: int) -> Any:
    """The keys of each query whose hash with it is largest, as `archdsl.ops.mask` defines it."""
    import numpy as np

    keys = key.shape[-1]
    if chosen >= keys:
        return np.ones((query.shape[0], keys), dtype=bool)
    mixed = (query * 40_503 + key * 30_011 + seed * 7_919 + 1) % PRIME
    mixed = _folded(mixed * mixed + query * 97 + key)
    mixed = _folded(mixed * mixed + key * 89).astype(np.int32)
    least = np.partition(mixed, keys - chosen, axis=-1)[:, keys - chosen, None]
    seen = mixed >= least
    if np.count_nonzero(seen) != chosen * query.shape[0]:  # hashes that are equal: of these only some are chosen
        seen = np.zeros(mixed.shape, dtype=bool)
        np.put_along_axis(seen, np.argpartition(mixed, keys - chosen, axis=-1)[:, keys - chosen :], True, axis=-1)
    return seen


def _folded(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """`x % PRIME`, the prime being a power of two less one: what stands above its bits is added to them."""
    import numpy as np

    x = (x & PRIME) + (x >> 31)
    x = (x & PRIME) + (x >> 31)
    return np.where(x == PRIME, 0, x)
