"""First values from outside: the `init` slot of a body, one scheme or rules by name, and what it reaches.

A rule's pattern means a path below the body that says it, as `state_dict` has it: `*` stands for any characters, dots
too, and a pattern that ends at a step means all weights below. While blocks are elaborated from the outside in, each
step of the path is read off the patterns, so that a block knows what is left of them: blocks for which nothing else is
left are one block.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from archdsl.diagnostics import ArchError, error, nearest
from archdsl.diagnostics.source import Span
from archdsl.ir.dims import Expr
from archdsl.ir.graph import Block, Init, Weight
from archdsl.ir.paths import starred
from archdsl.ir.static import InitRule, Scheme, abstract, spelling, static_key
from archdsl.ir.weights import weights_of
from archdsl.ir.wording import listed
from archdsl.syntax.ast import NOWHERE

Fate = Literal["", "own", "gain", "later", "decides"]
"""What came of a rule, the weakest first: nothing has its name; what has it says its own first values; is a gain that
`*` alone matched; gets them from a later or a nearer rule; or got its first values by it."""
FATES: tuple[Fate, ...] = ("", "own", "gain", "later", "decides")

TURN = "\x01"
"""Stands for the number of a layer in a path: only `*` matches it."""
NAMELESS = "\x02"
"""A step that no pattern says: what matches it is `*`."""


@dataclass(eq=False)
class Rule:
    """A rule, or a scheme for a whole body, as a block within sees it."""

    scheme: Scheme
    rests: frozenset[str] | None
    """What may be left of the pattern; None where it covers every weight from here on."""
    text: str
    """The pattern as it is written; "" for a scheme of a whole body."""
    span: Span
    source: Rule | None = None
    """The same rule for the block around."""
    fate: Fate = ""

    @property
    def fate_rank(self) -> int:
        return FATES.index(self.fate)

    @property
    def key(self) -> tuple[object, ...]:
        return self.rests, bool(self.text), static_key(self.scheme), spelling(self.scheme)

    def note(self, fate: Fate) -> None:
        """Note what came of it, here and where it was said."""
        if FATES.index(fate) > self.fate_rank:
            self.fate = fate
            if self.source is not None:
                self.source.note(fate)

    def below(self, *steps: str) -> Rule | None:
        """The rule below these steps; None where it has nothing to say there."""
        rests = self.rests
        for step in steps:
            if rests is None:
                break
            rests = _read(rests, step)
            if any(not rest.strip("*") for rest in rests):
                rests = None
                break
            rests = _read(rests, ".")
        return replace(self, rests=rests, source=self, fate="") if rests is None or rests else None

    def covers(self, *steps: str) -> bool:
        """Whether it covers all that is below these steps."""
        found = self.below(*steps)
        return found is not None and found.rests is None


def _read(rests: Iterable[str], text: str) -> frozenset[str]:
    """What may be left of a pattern behind a text."""
    found = {r for rest in rests for r in _starts(rest)}
    for c in text:
        eaten = {rest if rest.startswith("*") else rest[1:] for rest in found if rest[:1] in ("*", c)}
        found = {r for rest in eaten for r in _starts(rest)}
    return frozenset(found)


def _starts(rest: str) -> Iterator[str]:
    """A rest, and what is left where its leading `*` stands for nothing."""
    yield rest
    while rest.startswith("*"):
        rest = rest[1:]
        yield rest


def whole(scheme: Scheme, span: Span) -> Rule:
    """The rule that a scheme for a whole body is."""
    return Rule(scheme, None, "", span)


def said(rule: InitRule) -> Rule:
    """Make a rule of what a body's slot `init` says: its pattern is all that is left, and "*" covers every weight."""
    rests = None if not rule.pattern.strip("*") else frozenset([rule.pattern])
    return Rule(rule.scheme, rests, rule.pattern, rule.span)


def within(
    rules: Sequence[Rule], steps: Sequence[str], bind: dict[str, Expr], taken: Collection[str]
) -> tuple[Rule, ...]:
    """The rules for a block below these steps, their numbers under its own names; what these are for the caller goes to
    `bind`."""
    found = (rule.below(*steps) for rule in rules)
    return renamed([rule for rule in found if rule is not None], "", bind, taken)


def renamed(rules: Sequence[Rule], prefix: str, bind: dict[str, Expr], taken: Collection[str] = ()) -> tuple[Rule, ...]:
    """The rules with their numbers under names that begin with a prefix; what these stand for goes to `bind`."""
    return tuple(
        replace(r, scheme=abstract(prefix + _label(r.text), r.scheme, bind, taken), source=r, fate="") for r in rules
    )


def _label(pattern: str) -> str:
    """What the numbers of a rule are called by: `init_out` for `"*.out"`."""
    words = re.findall(r"[A-Za-z0-9_]*[A-Za-z0-9]", pattern)
    return f"init_{words[-1]}" if words else "init"


# --- what a rule reaches ----------------------------------------------------------------------------------------------


def drawn(rules: Sequence[Rule], steps: Sequence[str], weights: Sequence[Weight]) -> tuple[Weight, ...]:
    """The weights of one primitive as the last rule says that reaches each: matrices, embeddings and biases, and gains
    where it says the name of their norm. A bias starts at 0 unless the rule is for it and not for the matrix."""
    return tuple(_drawn(rules, steps, weight, weights) for weight in weights)


def _drawn(rules: Sequence[Rule], steps: Sequence[str], weight: Weight, all_: Sequence[Weight]) -> Weight:
    hits = [r for r in rules if r.covers(*steps, weight.name)]
    if not weight.trained or weight.kind == "raw" or weight.init.scheme != "default":
        _note(hits, "own")
        return weight
    if weight.kind == "gain":
        loose = [r for r in hits if r.covers(*steps[:-1], NAMELESS, weight.name) or r.covers(*steps[:-2], NAMELESS)]
        _note(loose, "gain")
        hits = [r for r in hits if r not in loose]
    if not hits:
        return weight
    *others, rule = hits
    _note(others, "later")
    rule.note("decides")
    alone = rule.text and not any(rule.covers(*steps, w.name) for w in all_ if w.kind != "bias")
    return by_scheme(weight, rule.scheme, rule.span, alone=bool(alone))


def drawn_by_itself(rules: Sequence[Rule], steps: Sequence[str]) -> None:
    """Note that a weight is there that says its own first value."""
    _note((r for r in rules if r.covers(*steps)), "own")


def _note(rules: Iterable[Rule], fate: Fate) -> None:
    for rule in rules:
        if rule.text:
            rule.note(fate)


def by_scheme(weight: Weight, scheme: Scheme, span: Span, *, alone: bool = False) -> Weight:
    """A weight that a scheme draws. A bias starts at 0, unless the scheme is for the bias `alone`. Raises E0204 where a
    vector would be orthogonal."""
    if weight.kind == "bias" and not alone:
        return replace(weight, init=Init("zeros"), told=True)
    if scheme.name == "orthogonal" and weight.kind in ("bias", "gain"):
        raise error("E0204", NO_MATRIX.format(weight.name), span)
    return replace(weight, init=Init(scheme.name, scheme.numbers), told=True)


NO_MATRIX = "`orthogonal` is for matrices, and `{}` is a vector"


# --- rules that change nothing ----------------------------------------------------------------------------------------

WHY: dict[Fate, tuple[str, str]] = {
    "own": (
        "says its first value itself",
        "a `param`, and what is given `init:` by itself, are changed where they are written",
    ),
    "gain": ("is a gain, which only the name of its norm reaches", "a norm's gain starts at 1 by itself"),
    "later": (
        "gets its first value by a later rule, or from a block within",
        "of the rules that match, the last one decides: write those for many weights first",
    ),
}


def unused(rule: Rule, block: Block) -> ArchError:
    """The error E0217 for a rule of a block that decides for no weight."""
    if rule.fate in WHY:
        why, help_ = WHY[rule.fate]
        text = f'the rule `"{rule.text}"` changes nothing: all that it matches {why}'
        return error("E0217", text, rule.span, help=help_)
    paths = list(dict.fromkeys(starred(info.path) for info in weights_of(block) if info.weight.kind != "raw"))
    text = f'the rule `"{rule.text}"` matches no weight of `{block.name}`'
    return error("E0217", text, rule.span, help=_meant(rule.text, paths))


def _meant(pattern: str, paths: Sequence[str]) -> str:
    """What to write for a pattern that matches none of these paths."""
    steps = {step for path in paths for step in path.split(".")}
    if any(word.isdecimal() for word in pattern.split(".")):
        return "the layers of a list are drawn alike: write `*` for their numbers, or give a layer an `init` of its own"
    near = [pattern.replace(w, nearest(w, steps) or w) for w in re.findall(r"\w+", pattern) if w not in steps]
    for guess in dict.fromkeys([*near, pattern]):
        dots = [i + 1 for i, c in enumerate(f".{guess}") if c == "."]
        for deeper in (guess, *(f"{guess[: i - 1]}*.{guess[i - 1 :]}" for i in dots)):
            if any(matches(deeper, path) for path in paths):
                return f'did you mean `"{deeper}"`?'
    return f"its weights are called {listed(paths[:3])}" + " …" * (len(paths) > 3) if paths else "it has no weights"


def matches(pattern: str, path: str) -> bool:
    """Whether a pattern matches a weight by its path, in which `*` stands for the numbers of layers."""
    rule = Rule(Scheme("zeros"), frozenset([pattern]), pattern, NOWHERE)
    return rule.covers(*(TURN if step == "*" else step for step in path.split(".")))
