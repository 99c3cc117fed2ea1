"""What a name of a spec can stand for before anything runs: numbers, words, lists, blocks, shared instances, masks,
schemes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from archdsl.diagnostics.source import Span
from archdsl.frozen import Entity, Frozen
from archdsl.ir.dims import Expr, Lit, Num, Var
from archdsl.ir.masks import Mask

if TYPE_CHECKING:
    from archdsl.ir.graph import Block
    from archdsl.ir.op import Primitive
    from archdsl.syntax import ast


class EnumValue(Frozen):
    """A bare word of the library: `pre`, `same`, `serial`."""

    name: str

    def __str__(self) -> str:
        return self.name


INFINITE = {"inf": math.inf, "-inf": -math.inf}
"""The words for what is larger, or smaller, than every number. Among tensors they are numbers; no size or option is."""


def as_operand(value: Any) -> Any:
    """The number that a word for infinity is among tensors; any other value as it is."""
    if isinstance(value, EnumValue) and value.name in INFINITE:
        return Num(INFINITE[value.name], Lit(value.name))
    return value


class ElementRef(Frozen):
    """An index into a list's distinct elements."""

    index: int


class RepeatedPattern(Frozen):
    """`count * part`; `times` is what the count comes to."""

    count: Expr
    part: Pattern
    times: int


class JoinedPattern(Frozen):
    parts: tuple[Pattern, ...]


Pattern = ElementRef | RepeatedPattern | JoinedPattern


class ListValue(Entity):
    """A list; `pattern` is how the spec wrote it, over indices into `items`."""

    items: tuple[Any, ...]
    pattern: Pattern


class BlockValue(Entity):
    """A block with some hyper-parameters set: a declaration, or a primitive. Every application makes its own weights.
    `label` is the hyper-parameter, slot or `let` it came through, if any."""

    target: Declared | Primitive
    args: Mapping[str, Any]
    label: str = ""
    span: Span | None = None
    alias: str = ""
    """The first such name: it tells two classes of one block apart (`let dense = layer(…)`)."""

    @property
    def name(self) -> str:
        return self.target.name

    def labelled(self, name: str) -> BlockValue:
        """The same block, called by the name it now came through."""
        return replace(self, label=name, alias=self.alias or name)


class Declared(Entity):
    """A block or model declaration and the file whose names its body sees."""

    node: ast.BlockDecl | ast.ModelDecl
    module: Any

    @property
    def name(self) -> str:
        return self.node.name


@dataclass(eq=False)
class SharedModule:
    """`shared(block)`: one set of weights, wherever it is applied. `owner` is the frame that it lives in; block and
    path step are fixed by the first use."""

    template: BlockValue
    owner: object
    label: str
    span: Span | None = None
    block: Block | None = None
    node: Any = None
    """For a shared primitive: the first OpNode made of it."""
    path: str = ""
    bind: Mapping[str, Expr] = field(default_factory=dict)
    """The block's own names in the owner's."""
    joined: dict[str, Expr] = field(default_factory=dict)
    """Numbers of the template under the names that other blocks know them by, in the owner's names."""

    @property
    def name(self) -> str:
        return self.template.name


class Scheme(Entity):
    """A way to draw weights: `normal(0.02)`, `depth_scaled(0.02, layers)`."""

    name: str
    numbers: Mapping[str, Num] = field(default_factory=dict)
    lists: Mapping[str, tuple[Num, ...]] = field(default_factory=dict)
    """What it takes several numbers for: the divisors of `longrope`."""

    def each(self, number: Callable[[str, Num], Num]) -> Scheme:
        """The scheme with other numbers, each made of its name and the old one."""
        lists = {k: tuple(number(f"{k}_{i}", n) for i, n in enumerate(v)) for k, v in self.lists.items()}
        return Scheme(self.name, {k: number(k, n) for k, n in self.numbers.items()}, lists)


class InitRule(Entity):
    """`"*.out": zeros`: the scheme of the weights whose names the pattern matches."""

    pattern: str
    scheme: Scheme
    span: Span


class InitRules(Entity):
    """`["*": normal(0.02), "*.out": zeros]`: of the rules that match a weight, the last one decides."""

    rules: tuple[InitRule, ...]


def static_key(value: Any) -> Hashable:
    """Equal for values that mean the same, however their numbers were spelled: the key of every memo."""
    if isinstance(value, Num):
        return ("num", value.value) if not isinstance(value.value, float) else ("num", Fraction(value.value))
    if isinstance(value, BlockValue):
        return (
            "template",
            id(value.target.node if isinstance(value.target, Declared) else value.target),
            static_key(value.args),
            value.label,
        )
    if isinstance(value, ListValue):
        return ("list", static_key(value.items), value.pattern)
    if isinstance(value, Mask):
        return ("mask", value.key)
    if isinstance(value, SharedModule):
        return ("instance", id(value))
    if isinstance(value, Scheme):
        return ("scheme", value.name, static_key(value.numbers), static_key(value.lists))
    if isinstance(value, InitRules):
        return ("rules", tuple((r.pattern, static_key(r.scheme)) for r in value.rules))
    if isinstance(value, bool | str | EnumValue) or value is None:
        return (type(value).__name__, value)
    if isinstance(value, tuple | list):
        return tuple(map(static_key, value))
    if isinstance(value, Mapping):
        return tuple((k, static_key(v)) for k, v in value.items())
    return ("object", id(value))


def spelling(value: Any) -> Hashable:
    """How the numbers of a static value were written."""
    return tuple(n.expr for n in numbers_of(value))


def numbers_of(value: Any) -> Iterator[Num]:
    """Every number in a static value, or in several, in an order that is the same for values of one key."""
    if isinstance(value, Num):
        yield value
    elif isinstance(value, BlockValue):
        yield from numbers_of(tuple(value.args.values()))
    elif isinstance(value, Scheme):
        yield from (*value.numbers.values(), *numbers_of(tuple(value.lists.values())))
    elif isinstance(value, InitRules):
        yield from numbers_of([r.scheme for r in value.rules])
    elif isinstance(value, Mask):
        yield from (*value.numbers, *numbers_of(value.parts))
    elif isinstance(value, ListValue):
        yield from numbers_of(value.items)
    elif isinstance(value, Mapping):
        yield from numbers_of(tuple(value.values()))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from numbers_of(item)


def floats(value: Any) -> Any:
    """A list of numbers, or of such lists, as nested tuples of floats."""
    return tuple(map(floats, value.items)) if isinstance(value, ListValue) else float(value)


def counts_of(pattern: Pattern) -> Iterator[RepeatedPattern]:
    """Every repetition in a list."""
    if isinstance(pattern, RepeatedPattern):
        yield pattern
        yield from counts_of(pattern.part)
    elif isinstance(pattern, JoinedPattern):
        for part in pattern.parts:
            yield from counts_of(part)


def instantiate(value: Any, names: Mapping[str, Expr]) -> Any:
    """A static value, or several, in the caller's names."""
    return each_number(value, lambda n: n.outward(names))


def each_number(value: Any, number: Callable[[Num], Num]) -> Any:
    """A static value, or several, with other numbers, each made of the old one."""
    if isinstance(value, Num):
        return number(value)
    if isinstance(value, Mask):
        return value.each(number)
    if isinstance(value, Scheme):
        return value.each(lambda _, n: number(n))
    if isinstance(value, InitRules):
        return InitRules(tuple(replace(r, scheme=each_number(r.scheme, number)) for r in value.rules))
    if isinstance(value, BlockValue):
        return replace(value, args=each_number(value.args, number))
    if isinstance(value, ListValue):
        return ListValue(each_number(value.items, number), value.pattern)
    if isinstance(value, tuple | list):
        return tuple(each_number(v, number) for v in value)
    return {k: each_number(v, number) for k, v in value.items()} if isinstance(value, Mapping) else value


def abstract(name: str, value: Any, bind: dict[str, Expr], taken: Collection[str] = ()) -> Any:
    """A caller's value under a callee's name; what each new name is in the caller's goes to `bind`.

    The numbers inside a block, mask or scheme get joined names, none of those that are `taken`: `expert_hidden` for
    `expert: swiglu(hidden: 2048)`."""
    if isinstance(value, Num):
        bind[name] = value.expr
        return value.named(name)
    return _abstract(name, value, bind, "", taken)


def free_name(name: str, expr: Expr, bind: Mapping[str, Expr], taken: Collection[str]) -> str:
    """The name, with `_` behind it as long as it is taken or stands for something else."""
    while name in taken or bind.get(name, expr) != expr:
        name += "_"
    return name


def _abstract(name: str, value: Any, bind: dict[str, Expr], label: str, taken: Collection[str]) -> Any:
    if isinstance(value, Num):
        return abstract(free_name(name, value.expr, bind, taken), value, bind)
    if isinstance(value, BlockValue):
        args = {k: _abstract(f"{name}_{k}", v, bind, k, taken) for k, v in value.args.items()}
        return replace(value, args=args, label=label or name, alias=value.alias or label or name)
    if isinstance(value, Mask):
        return _localise_mask(name, value, bind, taken, [0])
    if isinstance(value, Scheme):
        # A number that the scheme fills in by itself needs no name.
        return value.each(lambda k, n: n if n.origin is None else _abstract(f"{name}_{k}", n, bind, "", taken))
    if isinstance(value, InitRules):
        schemes = [_abstract(f"{name}_{i}", r.scheme, bind, "", taken) for i, r in enumerate(value.rules)]
        return InitRules(tuple(replace(r, scheme=s) for r, s in zip(value.rules, schemes, strict=True)))
    if isinstance(value, ListValue):
        # Repeated elements share their names, as they share their class.
        seen: dict[Hashable, Any] = {}
        items = []
        for item in value.items:
            key = (static_key(item), spelling(item))
            if key not in seen:
                inner = f"{name}_{len(seen)}" if len(value.items) > 1 else name
                seen[key] = _abstract(inner, item, bind, label or name, taken)
            items.append(seen[key])
        return ListValue(tuple(items), _rename_pattern(value.pattern, name, bind, taken))
    return value


def _localise_mask(name: str, mask: Mask, bind: dict[str, Expr], taken: Collection[str], count: list[int]) -> Mask:
    numbers = []
    for n in mask.numbers:
        count[0] += 1
        joined = f"{name}_{mask.rule}" if count[0] == 1 else f"{name}_{mask.rule}_{count[0]}"
        numbers.append(_abstract(joined, n, bind, "", taken))
    parts = tuple(_localise_mask(name, p, bind, taken, count) for p in mask.parts)
    return Mask(mask.rule, tuple(numbers), mask.tensor, parts)


def _rename_pattern(pattern: Pattern, name: str, bind: dict[str, Expr], taken: Collection[str]) -> Pattern:
    """Counts of a list (`layers * block`) are numbers too."""
    if isinstance(pattern, RepeatedPattern):
        part = pattern.part
        if isinstance(pattern.count, Lit):
            return replace(pattern, part=_rename_pattern(part, name, bind, taken))
        joined = f"{name}_count"
        while joined in taken or bind.get(joined, pattern.count) != pattern.count:
            joined += "_2"
        bind[joined] = pattern.count
        return RepeatedPattern(Var(joined), _rename_pattern(part, name, bind, taken), pattern.times)
    if isinstance(pattern, JoinedPattern):
        return JoinedPattern(tuple(_rename_pattern(p, name, bind, taken) for p in pattern.parts))
    return pattern


def kind_of(value: Any) -> str:
    """What the value of an expression is, in the words of a diagnostic."""
    if isinstance(value, EnumValue) and value.name in INFINITE:
        return f"`{value.name}`"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)} results"
    return KINDS.get(type(value), "a tensor").format(value)


KINDS: dict[type, str] = {
    type(None): "none",
    bool: "true or false",
    Num: "a number",
    str: "a string",
    ListValue: "a list",
    Mask: "a mask",
    list: "a list of tensors",
    EnumValue: "the word `{0.name}`",
    BlockValue: "the block `{0.name}`",
    SharedModule: "a shared `{0.name}`",
    Scheme: "the scheme `{0.name}`",
    InitRules: "a list of rules for first values",
}
"""What values of a type are called; anything else is a tensor."""


def format_value(value: Any) -> str:
    """A static value in a diagnostic: a number as it is, anything else by what it is."""
    return str(value) if isinstance(value, Num) else kind_of(value)
