"""Masks: sets of pairs (query position, key position), as an algebra.

A mask is data: it is checked, counted, printed and lowered, but never run here.  Positions are counted along the axis
of queries and of keys, the last query standing at the last key.  `&`, `|` and `~` build new sets; `normal` drops what
adds nothing (`full & m` is m).
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal

from archdsl.frozen import Entity, Frozen
from archdsl.ir.dims import Num, Poly

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

    def each(self, number: Callable[[Num], Num]) -> Mask:
        """The same mask with other numbers, each made of the old one."""
        return Mask(self.rule, tuple(map(number, self.numbers)), self.tensor, tuple(p.each(number) for p in self.parts))

    @property
    def reads_queries(self) -> bool:
        """Whether two queries may see different keys: a mask of keys alone needs no axis for queries."""
        return any(reads_query(leaf.rule) for leaf in self.leaves())

    @property
    def drawn(self) -> bool:
        """Whether keys are chosen by comparing all of them."""
        return any(leaf.rule in RULES and RULES[leaf.rule].drawn for leaf in self.leaves())

    def __str__(self) -> str:
        if self.rule in ("&", "|"):
            return f" {self.rule} ".join(f"({p})" if p.parts and p.rule not in ("~",) else str(p) for p in self.parts)
        if self.rule == "~":
            return f"~({self.parts[0]})" if self.parts[0].parts else f"~{self.parts[0]}"
        inner = [str(n) for n in self.numbers]
        if self.tensor is not None:
            inner.append(self.tensor.name or "tensor")
        return f"{self.rule}({', '.join(inner)})" if inner else self.rule


class PositionRule(Frozen):
    """A rule that compares positions: a row of `RULES`, which the checks, counts and back ends read."""

    condition: str
    """Whether a query sees a key, in Python: of the positions `query` and `key`, of their `distance`, which is never
    negative, and of the numbers by name, joined by + - * // % < <= > >= == & |."""
    numbers: tuple[str, ...] = ()
    example: tuple[int, ...] = ()
    """Numbers of an example."""
    ahead: Callable[..., int] | None = None
    """How many positions past its own a query sees at most, by the numbers; None if there is no bound."""
    from_start: bool = False
    """Whether it sees that many at the first position, and fewer at each that follows."""
    behind: Callable[..., int] | None = None
    """How many positions before its own, likewise."""
    parameter: str = ""
    """What its number is called in an emitted function, where numbers of other rules may stand beside it."""
    drawn: bool = False
    """Whether keys are chosen by comparing all of them: the condition is the call of a function."""
    own: bool = False
    """Whether a query sees the key at its own position, whatever the numbers are."""


class TensorRule(Frozen):
    """A rule that reads a tensor, a row of `TENSOR_RULES`: a bool of each query or of each key, or an integer that is
    equal at both."""

    parameter: str
    """What the tensor is called in an emitted function."""
    reads: Literal["query", "key", "both"]
    is_input: bool = False
    """Whether the rule without a tensor stands for the model's own input of this type."""

    @property
    def kind(self) -> str:
        """The tensor's type."""
        return "int" if self.reads == "both" else "bool"


RULES: dict[str, PositionRule] = {
    "full": PositionRule("key >= 0", own=True),
    "causal": PositionRule("key <= query", ahead=lambda: 0, own=True),
    "window": PositionRule(
        "distance < width",
        ("width",),
        (4,),
        ahead=lambda width: width - 1,
        behind=lambda width: width - 1,
        parameter="window",
        own=True,
    ),
    "chunked": PositionRule(
        "query // size == key // size",
        ("size",),
        (6,),
        ahead=lambda size: size - 1,
        behind=lambda size: size - 1,
        parameter="chunk",
        own=True,
    ),
    "prefix": PositionRule(
        "key < length", ("length",), (3,), ahead=lambda length: length - 1, from_start=True, parameter="prefix"
    ),
    "global": PositionRule("(query < count) | (key < count)", ("count",), (2,)),
    "strided": PositionRule("(query - key) % stride == 0", ("stride",), (3,), own=True),
    "dilated": PositionRule(
        "(distance < width * dilation) & ((query - key) % dilation == 0)",
        ("width", "dilation"),
        (3, 2),
        ahead=lambda width, dilation: (width - 1) * dilation,
        behind=lambda width, dilation: (width - 1) * dilation,
        own=True,
    ),
    "random": PositionRule("random_keys(query, key, count, seed)", ("count", "seed"), (2, 1), drawn=True),
}
TENSOR_RULES: dict[str, TensorRule] = {
    "keys": TensorRule("keys", "key"),
    "queries": TensorRule("queries", "query"),
    "same": TensorRule("group", "both"),
    "padding": TensorRule("padding", "key", is_input=True),
    "documents": TensorRule("documents", "both", is_input=True),
}
INPUTS = tuple(name for name, rule in TENSOR_RULES.items() if rule.is_input)
"""Rules that stand for the model's own input of this type where they are given no tensor."""


def reads_query(rule: str) -> bool:
    """Whether what a rule lets a query see depends on the query."""
    if rule in TENSOR_RULES:
        return TENSOR_RULES[rule].reads != "key"
    return RULES[rule].drawn or bool({"query", "distance"} & words(RULES[rule].condition))


@cache
def words(condition: str) -> frozenset[str]:
    """The names in a condition."""
    return frozenset(re.findall(r"[a-z_]+", condition))


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


def ahead(mask: Mask, before: int = 0) -> int | None:
    """How many positions past its own a query may see, at most, where the first one stands behind `before` keys; None
    where there is no bound."""
    if mask.parts:
        return _of_parts(mask, (ahead(part, before) for part in mask.parts))
    rule = RULES.get(mask.rule)
    bound = _bound(mask, rule.ahead) if rule is not None else None
    return bound if bound is None or rule is None or not rule.from_start else bound - max(before, 0)


def sees_itself(mask: Mask) -> bool:
    """Whether every query is known to see the key at its own position, or in a step that of a real token if its own is
    padding: of which no tensor knows."""
    if mask.rule in ("&", "|"):
        return (all if mask.rule == "&" else any)(map(sees_itself, mask.parts))
    return mask.rule in RULES and RULES[mask.rule].own


def behind(mask: Mask) -> int | None:
    """How many positions before its own a query may see, at most; None where there is no bound."""
    if not mask.parts:
        return _bound(mask, RULES[mask.rule].behind) if mask.rule in RULES else None
    return _of_parts(mask, map(behind, mask.parts))


def _bound(mask: Mask, bound: Callable[..., int] | None) -> int | None:
    """What a rule's bound is for its numbers, if they are known."""
    numbers = [n.value for n in mask.numbers]
    return None if bound is None or any(isinstance(n, Poly) for n in numbers) else bound(*map(int, numbers))  # type: ignore[arg-type]


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
    numbers = (p.numbers[0] for p in leaves if p.numbers and behind(p) == bound)
    return next((n for n in numbers if bound is not None and n.value == bound + 1), None)


def sees(mask: Mask, query: int, key: int) -> bool | None:
    """Whether a mask lets a query see a key in a sequence of one document without padding; None where that depends on
    more than their positions."""
    if mask.rule in ("&", "|", "~"):
        found = [sees(part, query, key) for part in mask.parts]
        if mask.rule == "~":
            return None if found[0] is None else not found[0]
        decides = mask.rule == "|"
        return decides if decides in found else None if None in found else not decides
    if mask.rule in INPUTS:
        return True
    rule = RULES.get(mask.rule)
    if rule is None or rule.drawn or any(not isinstance(n.value, int) for n in mask.numbers):
        return None
    return bool(holds(mask.rule, [int(n) for n in mask.numbers], query, key))


def holds(rule: str, numbers: Sequence[int], query: Any, key: Any) -> Any:
    """Whether a rule of positions lets a query see a key; of arrays of positions, for each of them."""
    row = RULES[rule]
    assert not row.drawn, rule
    names = {"query": query, "key": key, "distance": abs(query - key), **dict(zip(row.numbers, numbers, strict=True))}
    return _value(_parsed(row.condition), names)


_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
}


@cache
def _parsed(condition: str) -> ast.expr:
    return ast.parse(condition, mode="eval").body


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return the value of a condition of `RULES` for these positions and numbers."""
    match node:
        case ast.Name(id=name):
            return names[name]
        case ast.Constant(value=number):
            return number
        case ast.BinOp(left=left, op=op, right=right) | ast.Compare(left=left, ops=[op], comparators=[right]):
            return _OPERATORS[type(op)](_value(left, names), _value(right, names))
    raise ValueError(f"a condition is made of names, numbers and {', '.join(c.__name__ for c in _OPERATORS)}")
