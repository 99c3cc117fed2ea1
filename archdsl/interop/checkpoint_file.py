"""`.checkpoint` files: what tensors and config fields of a checkpoint are in a spec (`grammars/checkpoint.lark`)."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archdsl.diagnostics import error, shortened
from archdsl.diagnostics.source import Source, Span
from archdsl.interop.values import FUNCTIONS, ValueMap
from archdsl.ir.paths import starred
from archdsl.resources import grammar_text, imported_files, mapping_files

if TYPE_CHECKING:
    from lark import Lark, Token, Tree

Axes = tuple[Any, ...]
"""Axes of an equation, outermost first: names, numbers, `*`, `{}`, and tuples of these for products."""

PIECES, INDEX = "{}", "*"

# A mapping may be a stranger's, as a spec may. The largest that ships has 3 included files, 60 rules and 2 blocks in
# each other.
MAX_INCLUDES = 100
"""How many files a mapping may include, directly or not."""
MAX_RULES = 10_000
MAX_DEPTH = 50
"""How deep blocks of rules, and products of axes, may stand in each other."""
MAX_SIZE = 10**12
"""The largest number that an axis may be."""


@dataclass(frozen=True)
class TensorRule:
    """`theirs = ours`: templates of names, and how their axes become ours."""

    theirs: str
    ours: tuple[str, ...]
    """One template, or those of the pieces of theirs."""
    axes: tuple[Axes, Axes] | None
    span: Span
    value: ValueMap | None = None
    """What becomes of the numbers themselves."""
    otherwise: bool = False
    """Whether it stands for rules before it, where the checkpoint has nothing of theirs."""


@dataclass(frozen=True)
class MappedField:
    """A field of their config: where it may stand, its default as JSON, and the expression that it is in the spec."""

    names: tuple[str, ...]
    default: str | None
    ours: str
    span: Span
    kinds: tuple[tuple[str, str], ...] = ()
    """Of a list with a kind for each layer: the kinds, and the layers of the slot `ours` that they are."""
    also: tuple[str, ...] = ()
    """Of a text or a list: others that may stand for it, lists as JSON, which are read and never written."""

    @property
    def by_index(self) -> bool:
        """Whether it lists the indices of the layers of its last kind, `at`."""
        return bool(self.kinds) and self.kinds[-1][0] == "at"


@dataclass
class CheckpointFile:
    """One `.checkpoint` file with what it includes."""

    path: Path
    spec: Path
    """The family's `.arch` file."""
    types: dict[str, str] = field(default_factory=dict)
    """`model_type` to the model of the spec beside the file."""
    prefixes: dict[str, str] = field(default_factory=dict)
    """By `model_type`, what the names of its classes begin with, which the spec leaves out; or a class as a whole."""
    base: str = ""
    """A prefix that files without a head leave out."""
    bases: dict[str, str] = field(default_factory=dict)
    """By `model_type`, what stands in place of `base`."""
    rope: str | None = ""
    """Which channels rotary embeddings turn together, `halves` or `pairs`; "" where there are none, None where they are
    the spec's own."""
    ropes: dict[str, str] = field(default_factory=dict)
    """By a path of the spec, `rope` of what stands there."""
    fields: list[MappedField] = field(default_factory=list)
    quotients: list[tuple[str, str, str]] = field(default_factory=list)
    """Two fields, and the name in the spec for what the first is by the second, where both are there."""
    ignored: list[str] = field(default_factory=list)
    """Fields that say nothing where all others fit."""
    rules: list[TensorRule] = field(default_factory=list)
    drops: list[str] = field(default_factory=list)
    ties: list[tuple[str, str]] = field(default_factory=list)

    def of(self, kind: str) -> CheckpointFile:
        """The mapping in the names that tensors of a `model_type` have."""
        base = self.bases.get(kind, self.base)

        def named(theirs: str) -> str:
            return base + theirs.removeprefix(self.base) if theirs.startswith(self.base) else theirs

        return replace(
            self,
            base=base,
            rules=[replace(r, theirs=named(r.theirs)) for r in self.rules],
            drops=[named(d) for d in self.drops],
            ties=[(named(a), named(b)) for a, b in self.ties],
        )


def read(path: Path) -> CheckpointFile:
    """Read a mapping. Raises ArchError E0531 where it is none."""
    found = CheckpointFile(path, path.with_suffix(".arch"))
    _Reader(path, found).read(path, ())
    return found


def renamed(names: Mapping[str, str]) -> CheckpointFile:
    """The mapping of a checkpoint that holds the spec's own weights: `names` are theirs by those of the spec."""
    nowhere = Path("names of the spec")
    span = Span(Source(nowhere.name, ""), 0, 0)
    templates = {(starred(theirs), starred(ours)): None for ours, theirs in names.items()}
    rules = [TensorRule(theirs, (ours,), None, span) for theirs, ours in templates]
    return CheckpointFile(nowhere, nowhere, rope=None, rules=rules)


@functools.cache
def shipped() -> dict[str, CheckpointFile]:
    """The mappings that ship with the compiler, by `model_type`: for reading."""
    return {kind: found.of(kind) for path in mapping_files() for found in [read(path)] for kind in found.types}


@functools.cache
def _parser() -> Lark:
    from lark import Lark

    return Lark(grammar_text("checkpoint"), parser="lalr", propagate_positions=True)


def _trees(tree: Tree[Token]) -> list[Tree[Token]]:
    return [c for c in tree.children if not isinstance(c, str)]


def _span(tree: Tree[Token], source: Source) -> Span:
    return Span(source, tree.meta.start_pos, tree.meta.end_pos)


class _Reader:
    """Reads a file and those that it includes, all below one folder: that of the first, or the working directory where
    the first lies below that; or files that ship with the compiler."""

    def __init__(self, path: Path, into: CheckpointFile) -> None:
        full, here = path.resolve(), Path.cwd()
        self.root = here if full.is_relative_to(here) else full.parent
        self.into = into
        self.includes = 0

    def read(self, path: Path, chain: tuple[Path, ...]) -> None:
        from lark.exceptions import UnexpectedInput, UnexpectedToken

        from archdsl.syntax.parse import read_source

        source = read_source(path, path.name)
        try:
            tree = _parser().parse(source.text)
        except UnexpectedInput as problem:
            start = problem.pos_in_stream
            assert start is not None  # which it is of characters and of tokens
            if isinstance(problem, UnexpectedToken) and problem.token.type == "$END":  # stands where the last one does
                text, start = "the file ends within a line or a block", len(source.text.rstrip()) - 1
            else:
                text = f"`{shortened(source.text[start:].split()[0], 40)}` is not expected here"
            raise error(
                "E0531",
                text,
                Span(source, start, start + 1),
                help="a mapping is lines `theirs = ours`, blocks of these, and `type`, `config`, `base`, `tie`, `drop`",
            ) from None
        for statement in _trees(tree):
            self.statement(statement, source, (*chain, path))

    def beside(self, written: str, path: Path, span: Span) -> Path:
        """A file that a mapping names. Raises ArchError E0531 for one that does not lie below the folder."""
        try:
            target = (path.parent / written).resolve()
        except (OSError, ValueError, RuntimeError) as problem:  # a zero byte, or links that lead to each other
            raise error("E0531", f"`{shortened(written)}` cannot be read: {problem}", span) from None
        if not target.is_relative_to(self.root) and target not in (*mapping_files(), *imported_files().values()):
            help_ = "name files that lie in the folder of the mapping or below it, by a relative path"
            raise error("E0531", f"`{shortened(written)}` leads out of the folder", span, help=help_)
        return path.parent / written

    def statement(self, tree: Tree[Token], source: Source, chain: tuple[Path, ...]) -> None:
        words = [str(c) for c in tree.children if isinstance(c, str)]
        span = _span(tree, source)
        into = self.into
        match tree.data:
            case "type":
                into.types[words[0]] = words[1]
                into.prefixes[words[0]] = words[2][1:-1] if len(words) > 2 else ""
                into.bases |= {words[0]: f"{words[3][1:-1]}."} if len(words) > 3 else {}
            case "spec":
                into.spec = self.beside(words[0][1:-1], chain[-1], span)
            case "include":
                path = self.beside(words[0][1:-1], chain[-1], span)
                if path.resolve() in [p.resolve() for p in chain]:
                    raise error("E0531", f"`{words[0][1:-1]}` includes itself", span)
                self.includes += 1
                if self.includes > MAX_INCLUDES:
                    raise error("E0531", f"more than {MAX_INCLUDES} files are included", span)
                self.read(path, chain)
            case "base":
                into.base = f"{words[0]}."
            case "rope":
                if words[0] not in ("halves", "pairs"):
                    raise error("E0531", f"`rope` is `halves` or `pairs`, not `{words[0]}`", span)
                if len(words) > 1:
                    into.ropes[words[1]] = words[0]
                else:
                    into.rope = words[0]
            case "ignore":
                into.ignored += words
            case "drop":
                into.drops += words
            case "tie":
                into.ties.append((words[0], words[1]))
            case "config":  # of a file that is included, what that which includes it has said counts
                before = {f.names[0] for f in into.fields if f.span.source.name != source.name}
                for f in _trees(tree):
                    if f.data == "quotient":
                        into.quotients.append((str(f.children[0]), str(f.children[1]), str(f.children[2]).strip()))
                    elif len(chain) == 1 or str(f.children[0]) not in before:
                        into.fields.append(_field(f, _span(f, source)))
            case "rule" | "otherwise":
                into.rules += islice(_rules(tree, source, "", ""), MAX_RULES + 1 - len(into.rules))
                if len(into.rules) > MAX_RULES:
                    raise error("E0531", f"these are more than {MAX_RULES:,} rules", span)


def _field(tree: Tree[Token], span: Span) -> MappedField:
    *names, ours = map(str, tree.children)
    default = names.pop() if len(names) > 1 and re.fullmatch(r'".*"|null|true|false|[-+\d].*', names[-1]) else None
    if default is not None and default[0] != '"':
        default = default.replace("_", "")
    one = r'"[^"]*"|\[[^]]*\]'
    ours, *also = re.findall(one, ours) if re.fullmatch(rf"\s*({one})(\s*\|\s*({one}))+\s*", ours) else [ours]
    lists = [text for text in (ours.strip(), *also) if text.startswith("[")]
    if not all(_is_json(text) for text in (default or "null", *lists)):
        raise error("E0531", "a default is a word of JSON: a number, a text, `true`, `false` or `null`", span)
    kinds = re.fullmatch(r"(\w+)\s*\{(.*)\}", ours.strip())
    if kinds is None:
        return MappedField(tuple(names), default, ours.strip(), span, also=tuple(word.strip('"') for word in also))
    pairs = [p.split(":") for p in kinds[2].replace(" ", "").split(",")]
    if any(len(p) != 2 for p in pairs):
        raise error("E0531", "kinds of layers are pairs", span, help="as `blocks { full_attention: far }`")
    return MappedField(tuple(names), default, kinds[1], span, tuple((a, b) for a, b in pairs))


def _is_json(text: str) -> bool:
    """Whether a text is a value of JSON; a number is finite, but for those of a list (`[0.0, Infinity]`)."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return not (isinstance(value, float) and not math.isfinite(value))


def _rules(tree: Tree[Token], source: Source, theirs: str, ours: str, depth: int = 0) -> Iterator[TensorRule]:
    """The rules of a statement, those of its block with the prefixes around them."""
    span = _span(tree, source)
    if depth > MAX_DEPTH:
        raise error("E0531", f"this is nested more than {MAX_DEPTH} deep", Span(source, span.start, span.start + 1))
    if tree.data == "otherwise":
        yield from (replace(r, otherwise=True) for r in _rules(_trees(tree)[0], source, theirs, ours, depth + 1))
        return
    paths = [str(c) for c in tree.children if isinstance(c, str)]
    inner = _trees(tree)
    axes = [_axes(c, span) for c in inner if c.data == "equation"]
    value = next((_value(c, span) for c in inner if c.data == "value"), None)
    block = next((c for c in inner if c.data == "block"), None)
    theirs += paths[0]
    before = ours
    ours += paths[1] if len(paths) > 1 else ""
    if block is not None:
        if axes or value or "{" in theirs + ours:
            raise error("E0531", "a prefix of rules has neither axes, nor alternatives, nor a function", span)
        for inside in _trees(block):
            yield from _rules(inside, source, f"{theirs}.", f"{ours}." if len(paths) > 1 else before, depth + 1)
        return
    if len(axes) == 1:
        raise error("E0531", "an equation names the axes of both sides", span, help="as `a [i o] = b [o i]`")
    if axes:
        _demand_axes(atoms(axes[0]), atoms(axes[1]), span)
    if not axes or PIECES not in atoms(axes[0]):
        left, right = _alternatives(theirs, span), _alternatives(ours, span)
        if len(left) != len(right):
            raise error("E0531", f"{len(left)} tensors of theirs and {len(right)} of ours", span)
        both = (axes[0], axes[1]) if axes else None
        yield from (TensorRule(a, (b,), both, span, value) for a, b in zip(left, right, strict=True))
        return
    if "{" in theirs:
        raise error("E0531", "pieces lie in one tensor of theirs", span, help="write a rule for each of them")
    rule = TensorRule(theirs, tuple(_alternatives(ours, span)), (axes[0], axes[1]), span, value)
    yield rule


def _demand_axes(theirs: list[str], ours: list[str], span: Span) -> None:
    """Raise ArchError E0531 where axes of an equation are not the same on both sides, each once; one of one number may
    stand anywhere."""
    for side in (theirs, ours):
        if twice := [a for a in side if a != "1" and side.count(a) > 1]:
            help_ = "each axis has a name of its own: `[(heads d 2) i] = [(heads 2 d) i]`"
            raise error("E0531", f"the axis `{twice[0]}` stands twice on one side", span, help=help_)
    if alone := sorted(({*theirs} ^ ({*ours} - {INDEX})) - {"1"}):
        raise error("E0531", f"only one side has the axis `{alone[0]}`", span)


def _value(tree: Tree[Token], span: Span) -> ValueMap:
    name, *given = map(str, tree.children)
    if name not in FUNCTIONS:
        raise error("E0531", f"there is no function `{name}`", span, help=f"there are {', '.join(FUNCTIONS)}")
    number = float(given[0].replace("_", "")) if given else 0.0
    if bool(given) is (name == "neg_exp") or (name == "times" and number == 0) or not math.isfinite(number):
        raise error("E0531", f"`{name}` has other arguments", span, help="`add(1)`, `times(0.5)` or `neg_exp`")
    return ValueMap(name, number)


def _alternatives(template: str, span: Span) -> list[str]:
    """`ffn.{gate,up}` as `ffn.gate` and `ffn.up`."""
    parts = re.split(r"\{([^}]*)\}", template)
    choices = [p.split(",") if i % 2 else [p] for i, p in enumerate(parts)]
    if (count := math.prod(map(len, choices))) > MAX_RULES:
        raise error(
            "E0531",
            f"this stands for {count:,} names, of at most {MAX_RULES:,}",
            span,
            help="write the rules one by one",
        )
    return ["".join(words) for words in product(*choices)]


def _axes(tree: Tree[Token], span: Span, depth: int = 0) -> Axes:
    if depth > MAX_DEPTH:
        raise error("E0531", f"this product is nested more than {MAX_DEPTH} deep", span)
    axes = tuple(str(c) if isinstance(c, str) else _axes(c, span, depth + 1) for c in tree.children)
    for axis in axes:
        if isinstance(axis, str) and axis.isdecimal() and not (len(axis) < 20 and 0 < int(axis) <= MAX_SIZE):
            raise error("E0531", f"an axis has no size `{shortened(axis, 40)}`", span)
    return axes


def atoms(axes: Axes) -> list[str]:
    """The axes without their products."""
    return [a for axis in axes for a in ([axis] if isinstance(axis, str) else atoms(axis))]


def without_input(rule: TensorRule) -> TensorRule:
    """Return the rule of a bias, given that of its weight: the same equation without the axis `i` of inputs."""
    assert rule.axes is not None
    left, right = (tuple(a for a in side if a != "i") for side in rule.axes)
    return replace(rule, axes=(left, right))
