"""Masks: sets of pairs (query position, key position), as an algebra.

A mask is data: it is checked, counted, printed and lowered, but never run here.  Positions are counted along the axis
of queries and of keys, the last query standing at the last key.  `&`, `|` and `~` build new sets; `normal` drops what
adds nothing (`full & m` is m).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from archdsl.frozen import Entity
from archdsl.ir.dims import Expr, Num, Poly

if TYPE_CHECKING:
    from archdsl.ir.graph import Value


class Mask(Entity):
    """A leaf is a `rule` with numbers (`window(128)`), or one that reads a tensor (`keys(real)`); `padding` and
    `documents` without a tensor stand for the model's own inputs of that kind. An inner node has `parts`."""

    rule: str
    numbers: tuple[Num, ...] = ()
    tensor: Value | None = None
    parts: tuple[Mask, ...] = ()

    @cached_property
    def key(self) -> Hashable:
        """Equal for equal masks, however their numbers were spelled."""
        return (
            self.rule,
            tuple(n.value for n in self.numbers),
            None if self.tensor is None else id(self.tensor),
            tuple(p.key for p in self.parts),
        )

    @cached_property
    def rules(self) -> int:
        """How many rules it is made of, each as often as it stands in it."""
        return sum(p.rules for p in self.parts) if self.parts else 1

    def leaves(self) -> Iterator[Mask]:
        if self.parts:
            for part in self.parts:
                yield from part.leaves()
        else:
            yield self

    def outward(self, names: Mapping[str, Expr]) -> Mask:
        """The same mask with its numbers in the caller's names."""
        return Mask(
            self.rule,
            tuple(n.outward(names) for n in self.numbers),
            self.tensor,
            tuple(p.outward(names) for p in self.parts),
        )

    @property
    def reads_queries(self) -> bool:
        """Whether two queries may see different keys: a mask of keys alone needs no axis for queries."""
        return any(leaf.rule not in KEY_RULES for leaf in self.leaves())

    def __str__(self) -> str:
        if self.rule in ("&", "|"):
            return f" {self.rule} ".join(f"({p})" if p.parts and p.rule not in ("~",) else str(p) for p in self.parts)
        if self.rule == "~":
            return f"~({self.parts[0]})" if self.parts[0].parts else f"~{self.parts[0]}"
        inner = [str(n) for n in self.numbers]
        if self.tensor is not None:
            inner.append(self.tensor.name or "tensor")
        return f"{self.rule}({', '.join(inner)})" if inner else self.rule


# Rule -> the names of its numbers.
RULES: dict[str, tuple[str, ...]] = {
    "full": (),
    "causal": (),
    "window": ("width",),
    "chunked": ("size",),
    "prefix": ("length",),
    "global": ("count",),
    "strided": ("stride",),
    "dilated": ("width", "dilation"),
    "random": ("count", "seed"),
}
# Rules that read a tensor: `keys(bool)` `queries(bool)` `same(int)`, and the model's inputs `padding` and `documents`.
TENSOR_RULES = ("keys", "queries", "same", "padding", "documents")
KEY_RULES = ("full", "prefix", "keys", "padding")

FULL = Mask("full")


def both(a: Mask, b: Mask) -> Mask:
    return normal(Mask("&", parts=(a, b)))


def either(a: Mask, b: Mask) -> Mask:
    return normal(Mask("|", parts=(a, b)))


def complement(a: Mask) -> Mask:
    return a.parts[0] if a.rule == "~" else Mask("~", parts=(a,))


def normal(mask: Mask) -> Mask:
    """Flatten `&` and `|` of masks that are so already, drop repetitions and what adds nothing."""
    if mask.rule not in ("&", "|"):
        return mask
    parts: dict[Hashable, Mask] = {}
    for part in mask.parts:
        for p in part.parts if part.rule == mask.rule else (part,):
            parts.setdefault(p.key, p)
    if mask.rule == "&":
        parts.pop(FULL.key, None)
    elif FULL.key in parts:
        return FULL
    kept = tuple(parts.values())
    if not kept:
        return FULL
    return kept[0] if len(kept) == 1 else Mask(mask.rule, parts=kept)


def without_padding(mask: Mask) -> Mask:
    """The mask for rows without padding, where that is said by a part of its own (`causal & padding`)."""
    if mask.rule != "&":
        return mask
    return normal(Mask("&", parts=tuple(p for p in mask.parts if p.rule != "padding" or p.tensor is not None)))


def limited_causal(mask: Mask) -> tuple[str, Num | None] | None:
    """Of a mask that is causal, alone or together with one rule of one number, that rule and its number: ("", None),
    ("window", n) or ("chunked", n); None for other masks."""
    if mask.rule == "causal":
        return "", None
    rules = {part.rule: part for part in mask.parts} if mask.rule == "&" else {}
    limit = next((rules[r] for r in ("window", "chunked") if rules.keys() == {"causal", r}), None)
    return None if limit is None else (limit.rule, limit.numbers[0])


def in_documents(mask: Mask) -> dict[str, Mask] | None:
    """The parts, by rule, of a mask that is a window, or documents, or both, causal or not: of its own document a query
    sees one piece around its position. None for other masks."""
    parts = mask.parts if mask.rule == "&" else (mask,)
    rules = {part.rule: part for part in parts}
    fits = len(rules) == len(parts) and rules.keys() <= {"causal", "window", "documents"} and rules.keys() != {"causal"}
    return rules if fits else None


def ahead(mask: Mask) -> int | None:
    """How many positions past its own a query may see, at most; None where there is no bound."""
    if mask.rule == "causal":
        return 0
    if mask.rule in ("window", "chunked"):
        return _number(mask.numbers[0], -1)
    if mask.rule == "dilated":
        width, dilation = (n.value for n in mask.numbers)
        return (width - 1) * dilation if isinstance(width, int) and isinstance(dilation, int) else None
    return _of_parts(mask, map(ahead if mask.rule == "&" else reach, mask.parts))


def behind(mask: Mask) -> int | None:
    """How many positions before its own a query may see, at most; None where there is no bound."""
    if mask.rule in ("window", "chunked", "dilated"):
        return ahead(mask)  # as far back as ahead
    return _of_parts(mask, map(behind, mask.parts))


def _of_parts(mask: Mask, bounds: Iterable[int | None]) -> int | None:
    """The bound of masks that are joined, from theirs."""
    known = [b for b in bounds if b is not None]
    if mask.rule == "&":
        return min(known, default=None)
    return max(known) if mask.rule == "|" and len(known) == len(mask.parts) else None


def breadth(mask: Mask) -> Num | None:
    """How many positions a query may see, its own included: a number of the mask's; None where there is no bound, or
    none that is one of its numbers."""
    bound = behind(mask)
    leaves = mask.parts if mask.rule == "&" else (mask,)
    found = (p.numbers[0] for p in leaves if p.rule in ("window", "chunked"))
    return next((n for n in found if bound is not None and n.value == bound + 1), None)


def reach(mask: Mask) -> int | None:
    """Like `ahead`, but a prefix, which every query sees, counts by its length."""
    if mask.rule == "prefix":
        return _number(mask.numbers[0], -1)
    return ahead(mask)


def sees(mask: Mask, query: int, key: int) -> bool | None:
    """Whether a mask lets a query see a key in a sequence of one document without padding; None where that depends on
    more than their positions."""
    if mask.rule in ("&", "|", "~"):
        found = [sees(part, query, key) for part in mask.parts]
        if mask.rule == "~":
            return None if found[0] is None else not found[0]
        decides = mask.rule == "|"
        return decides if decides in found else None if None in found else not decides
    if mask.rule in ("padding", "documents"):
        return True
    if mask.rule not in RULES or mask.rule == "random" or any(not isinstance(n.value, int) for n in mask.numbers):
        return None
    return mask.rule == "full" or bool(holds(mask.rule, [int(n) for n in mask.numbers], query, key))


def holds(rule: str, numbers: Sequence[int], query: Any, key: Any) -> Any:
    """Whether a rule of positions lets a query see a key; of arrays of positions, for each of them."""
    match rule:
        case "causal":
            return key <= query
        case "window":
            return abs(query - key) < numbers[0]
        case "chunked":
            return query // numbers[0] == key // numbers[0]
        case "prefix":
            return key < numbers[0]
        case "global":
            return (query < numbers[0]) | (key < numbers[0])
        case "strided":
            return (query - key) % numbers[0] == 0
    assert rule == "dilated", rule
    return (abs(query - key) < numbers[0] * numbers[1]) & ((query - key) % numbers[1] == 0)


def _number(n: Num, offset: int) -> int | None:
    return None if isinstance(n.value, Poly) else int(n.value) + offset
