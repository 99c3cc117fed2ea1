"""The LALR(1) tables of `grammars/arch.lark`.

lark reads the grammar, looks for conflicts and computes the tables. They are kept in the user's cache under the hash
of the grammar, so that lark is not even imported the next time.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
from dataclasses import field
from typing import Any

from archdsl.frozen import Frozen
from archdsl.resources import grammar_text
from archdsl.syntax import cache

STARTS = ("file", "header", "expression")
END = "$END"


class Rule(Frozen):
    """A rule of the grammar as the parser needs it."""

    name: str
    length: int
    kept: tuple[int, ...]
    """Which of its symbols are children: all but its keywords and punctuation."""
    transparent: bool
    """Whether its one child stands for itself (`?rule` of the grammar)."""
    many: bool
    """Whether it only gathers a list for the rule it stands in (`_rule`, and the repetitions that lark names)."""


class Tables(Frozen):
    """What to do in each state, and how to cut a text into tokens."""

    shifts: list[dict[str, int]]
    """For each state and terminal the next state, and for each state and rule where to go on after it."""
    reduces: list[dict[str, int]]
    """For each state and terminal the rule that ends there."""
    rules: list[Rule]
    starts: dict[str, int]
    fixed: dict[str, str]
    """The keywords and punctuation: text -> terminal."""
    patterns: dict[str, str]
    """The other terminals: name -> regular expression, in the order they are tried."""
    ignored: list[str]

    climbed: dict[tuple[int, int, str], int] = field(default_factory=dict, repr=False)
    """What `climb` found."""

    def climb(self, key: tuple[int, int, str]) -> int:
        """The state in which a value arrives that stands for itself in one rule after the other.

        The key is the state below the value, the value's own, and the terminal that follows. A plain name climbs
        fifteen precedences to become an expression; found once, it is one step.
        """
        below, state, terminal = key
        while (number := self.reduces[state].get(terminal)) is not None:
            rule = self.rules[number]
            if not rule.transparent or rule.length != 1:
                break
            state = self.shifts[below][rule.name]
        self.climbed[key] = state
        return state

    @functools.cached_property
    def keywords(self) -> frozenset[str]:
        """The reserved words."""
        return frozenset(text for text in self.fixed if text.isidentifier())

    @functools.cached_property
    def scanner(self) -> re.Pattern[str]:
        """One pattern for a whole token: what is ignored before it, then a group named as its terminal.

        The group `ERROR` takes what is no token, and `$` ends the text.
        """
        punctuation = sorted((t for t in self.fixed if not t.isidentifier()), key=lambda t: (-len(t), t))
        groups = [f"(?P<{name}>{pattern})" for name, pattern in self.patterns.items()]
        groups.append(f"(?P<FIXED>{'|'.join(map(re.escape, punctuation))})")
        return re.compile(f"(?:{'|'.join(self.ignored)})*(?:{'|'.join(groups)}|(?P<ERROR>.)|$)", re.DOTALL)

    @functools.cached_property
    def texts(self) -> dict[str, str]:
        """How a keyword or punctuation terminal is written: terminal -> text."""
        return {name: text for text, name in self.fixed.items()}


@functools.cache
def tables() -> Tables:
    """The tables, from the cache or made anew."""
    text = grammar_text()
    key = hashlib.sha256(f"{_lark_stamp()}\n{text}".encode()).hexdigest()[:32]
    data = cache.load(f"grammar-{key}")
    if data is not None:
        try:
            return _from_data(data)
        except (KeyError, TypeError, ValueError, IndexError):
            pass  # a file of another format under our name: made anew and overwritten
    data = _generate(text)
    cache.store(f"grammar-{key}", data)
    return _from_data(data)


def _lark_stamp() -> str:
    """Which lark is installed, without importing it: its position, size and date."""
    spec = importlib.util.find_spec("lark")
    if spec is None or spec.origin is None:
        return ""
    try:
        stat = os.stat(spec.origin)
    except OSError:
        return spec.origin
    return f"{spec.origin} {stat.st_size} {stat.st_mtime_ns}"


def _generate(text: str) -> Any:
    """Let lark compute the tables, and write them as plain lists and dictionaries."""
    from lark import Lark
    from lark.grammar import Rule as LarkRule
    from lark.lexer import TerminalDef

    lark = Lark(text, parser="lalr", lexer="basic", start=list(STARTS), maybe_placeholders=False)
    data, memo = lark.memo_serialize([TerminalDef, LarkRule])
    parser = data["parser"]["parser"]
    names: dict[int, str] = parser["tokens"]
    states: dict[int, dict[int, tuple[int, Any]]] = parser["states"]
    order = _order(states, names, [parser["start_states"][start] for start in STARTS])

    rules: list[Any] = []
    index: dict[int, int] = {}
    shifts: list[dict[str, int]] = []
    reduces: list[dict[str, int]] = []
    for state in order:
        shift: dict[str, int] = {}
        reduce: dict[str, int] = {}
        for token, (is_reduce, target) in sorted(states[state].items(), key=lambda item: names[item[0]]):
            if not is_reduce:
                shift[names[token]] = order[target]
                continue
            number = target["@"]
            if number not in index:
                index[number] = len(rules)
                rules.append(_rule(memo[number]))
            reduce[names[token]] = index[number]
        shifts.append(shift)
        reduces.append(reduce)

    fixed: dict[str, str] = {}
    patterns: list[tuple[int, str, str]] = []
    ignored: list[str] = []
    conf = data["parser"]["lexer_conf"]
    for reference in conf["terminals"]:
        terminal = memo[reference["@"]]
        value = terminal["pattern"]["value"]
        if terminal["name"] in conf["ignore"]:
            ignored.append(value)
        elif terminal["pattern"]["__type__"] == "PatternStr":
            fixed[value] = terminal["name"]
        else:
            patterns.append((-terminal["priority"], terminal["name"], value))
    return {
        "shifts": shifts,
        "reduces": reduces,
        "rules": rules,
        "starts": {name: order[state] for name, state in parser["start_states"].items()},
        "fixed": fixed,
        "patterns": [[name, value] for _, name, value in sorted(patterns)],
        "ignored": sorted(ignored),
    }


def _order(states: Any, names: dict[int, str], starts: list[int]) -> dict[int, int]:
    """The states in the order they are reached: lark numbers them anew in every run."""
    order = dict.fromkeys(starts)
    waiting = list(order)
    for state in waiting:
        for _, (is_reduce, target) in sorted(states[state].items(), key=lambda item: names[item[0]]):
            if not is_reduce and target not in order:
                order[target] = None
                waiting.append(target)
    return {state: i for i, state in enumerate(order)}


def _rule(rule: Any) -> list[Any]:
    expansion = rule["expansion"]
    keep_all = rule["options"]["keep_all_tokens"]
    name = rule["origin"]["name"]
    kept = [i for i, symbol in enumerate(expansion) if keep_all or not symbol.get("filter_out")]
    transparent = bool(rule["options"]["expand1"]) and len(kept) == 1
    return [name, len(expansion), kept, transparent, name.startswith("_")]


def _from_data(data: Any) -> Tables:
    return Tables(
        shifts=data["shifts"],
        reduces=data["reduces"],
        rules=[
            Rule(name, length, tuple(kept), transparent, many)
            for name, length, kept, transparent, many in data["rules"]
        ],
        starts=data["starts"],
        fixed=data["fixed"],
        patterns=dict(data["patterns"]),
        ignored=data["ignored"],
    )
