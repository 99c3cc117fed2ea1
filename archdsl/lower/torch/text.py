"""Text on its way into the file: tokens for what is not known yet when a line is written, and how things are spelled.

A token is a control character, what it stands for, and END.  None comes from a spec: names are identifiers there, and
its doc comments are quoted only when all tokens are gone.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from typing import TypeVar

from archdsl.lower.python import local_name

END = "\x03"
"""Ends every token."""
IN = "\x02"
"""`i:strength`: input i of the node being written, in parentheses if it binds less; the node's scope fills it in."""
NAME = "\x04"
"""A name of the block read in `forward`: becomes a setting `self.name`, or a size that only the running model knows."""
FREE = "\x05"
"""A name of the block read in `__init__`: becomes a field of the Config, a number or an argument."""
PART = "\x06"
"""In a loop within a loop, a list of modules: becomes the slice of it that belongs to the outer turn."""

INPUT_TOKEN = re.compile(f"{IN}(-?\\d+):(\\d+){END}")
NAME_TOKEN = re.compile(f"{NAME}([^{END}]*){END}")
FREE_TOKEN = re.compile(f"{FREE}([^{END}]*){END}")
PART_TOKEN = re.compile(f"{PART}(\\w+){END}")

NUMBER = re.compile(r"-?[\d_.]+(e-?\d+)?")
"""A plain number, as the whole of a text."""

Line = tuple[int, str]
"""A line of `forward`: how far it is indented, and its text."""

T = TypeVar("T", bound=Hashable)


def in_forward(name: str) -> str:
    """The token for a name that `forward` reads."""
    return f"{NAME}{name}{END}"


def in_init(name: str) -> str:
    """The token for a name that `__init__` reads."""
    return f"{FREE}{name}{END}"


def argument(name: str) -> str:
    """A name of a block, perhaps with a dot, as an argument or attribute."""
    return local_name(name.replace(".", "_"))


def quoted(text: str) -> str:
    """Text of a spec within a Python string or docstring."""
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return "".join(c if c.isprintable() else "\ufffd" for c in text)  # no control characters, none that turn a line


def starred(path: str) -> str:
    """A path with `*` for numbers of layers."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", path)


def defined(source: str) -> str:
    """The name that a helper's source defines."""
    found = re.search(r"^(?:def|class) (\w+)", source.strip(), re.MULTILINE)
    assert found is not None
    return found[1]


def loop_header(variables: list[str], sources: list[str], count: str) -> str:
    """The first line of a `for` over lists side by side; where there is none it just counts."""
    if not variables:
        return f"for _ in range({count}):"
    if len(variables) == 1:
        return f"for {variables[0]} in {sources[0]}:"
    return f"for {', '.join(variables)} in zip({', '.join(sources)}):"


def runs(items: Iterable[T]) -> list[tuple[T, int]]:
    """Equal neighbours together: each with how many of it follow one another."""
    found: list[tuple[T, int]] = []
    for item in items:
        if found and found[-1][0] == item:
            found[-1] = (item, found[-1][1] + 1)
        else:
            found.append((item, 1))
    return found


def first_sentence(doc: str) -> str:
    """The first sentence of a doc comment, quoted; abbreviations end none."""
    text = " ".join(doc.split())
    m = re.match(r"(.*?[.!?])(?= [A-Z`]|$)", text)
    found = m[1] if m else text
    while m and re.search(r"\b(al|e\.g|i\.e|vs|cf|Eq|Fig|Sec)\.$", found) and len(found) < len(text):
        rest = re.match(r"(.*?[.!?])(?= [A-Z`]|$)", text[len(found) :])
        if rest is None:
            return quoted(text)
        found += rest[1]
    return quoted(found)
