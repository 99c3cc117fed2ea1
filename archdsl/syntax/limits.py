"""The limits that keep a hostile or broken input from costing more than an error message.

Each has a name, by which the message of an input beyond it calls it. `ARCHDSL_LIMITS=list=50_000,nodes=100_000` in the
environment sets some of them: what a spec costs then is its user's own choice.
"""

from __future__ import annotations

import os
import re

VARIABLE = "ARCHDSL_LIMITS"

DEFAULTS = {
    "source": 512 * 1024,
    "imports": 200,
    "errors": 20,
    "name": 200,
    "nesting": 100,
    "models": 200,
    "blocks": 60,
    "list": 20_000,
    "signature": 1_000,
    "nodes": 10_000,
    "operations": 100_000,
    "steps": 1_000_000,
    "digits": 160,
    "bits": 512,
    "expression": 2_000,
    "mask": 1_000,
}
"""Every limit by its name, and what it is where nobody sets it."""


def _given(text: str) -> tuple[dict[str, int], str]:
    """The limits that a text sets, and what is wrong with it, or nothing."""
    found: dict[str, int] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, number = (p.strip() for p in part.partition("="))
        if name not in DEFAULTS:
            return found, f"there is no limit `{name[:40]}`: there are {', '.join(DEFAULTS)}"
        if not re.fullmatch(r"[1-9][0-9_]{0,17}", number):
            return found, f"the limit `{name}` is a whole number above 0, not `{number[:40]}`"
        found[name] = int(number)
    return found, ""


_NOW = {**DEFAULTS, **_given(os.environ.get(VARIABLE, ""))[0]}


def wrong() -> str:
    """What is wrong with the limits that the environment sets, or nothing."""
    return _given(os.environ.get(VARIABLE, ""))[1]


MAX_FILE_BYTES = _NOW["source"]
"""`source`: bytes of a spec and all that it imports; a larger file is refused unread."""

MAX_IMPORTS = _NOW["imports"]
"""`imports`: how many files one spec may import, directly or not."""

MAX_PROBLEMS = 5 * _NOW["errors"]
"""So many errors of one model, or declarations of one file, are told."""

MAX_SYNTAX_ERRORS = _NOW["errors"]
"""`errors`: after so many syntax errors of one file the rest is not looked at."""

MAX_NAME = _NOW["name"]
"""`name`: characters of a name."""

MAX_NESTING = _NOW["nesting"]
"""`nesting`: how deep the nodes of a syntax tree may stand in each other; whatever walks the tree may therefore
recurse."""

MAX_OPEN = 5 * MAX_NESTING
"""How many symbols the parser may hold unfinished, which bounds brackets without content: `((((…`."""

MAX_MODELS = _NOW["models"]
"""`models`: how many models and variants a file may declare."""

MAX_SIGNATURE = _NOW["signature"]
"""`signature`: how many hyper-parameters and tensors a block or a model may take."""

MAX_BLOCK_DEPTH = _NOW["blocks"]
"""`blocks`: how deep blocks may be applied within blocks, and `let`s be defined by others; a block that applies itself
ends here."""

MAX_LIST = _NOW["list"]
"""`list`: how many elements a list may have (`126 * layer` has 126)."""

MAX_AXES = 64
"""Axes of a tensor: PyTorch has no more."""

MAX_NODES = _NOW["nodes"]
"""`nodes`: how many operations the distinct blocks of a model may have together: what `check` and `compile` cost."""

MAX_OPERATIONS = _NOW["operations"]
"""`operations`: how many operations a model may have with every loop and every block written out: what `estimate`
costs."""

MAX_STEPS = _NOW["steps"]
"""`steps`: how many expressions may be evaluated while a model is built; an iteration of a loop counts as twenty. A
list of 162 layers that all differ, as architecture search finds them, takes 40,000."""

MAX_DIGITS = _NOW["digits"]
"""`digits`: a number of a spec may be written with so many; no size comes near."""

MAX_BITS = _NOW["bits"]
"""`bits`: of a computed whole number. A fraction with more above or below its bar goes on as a float."""

MAX_EXPRESSION = _NOW["expression"]
"""`expression`: how many numbers and names a computed size may be made of."""

MAX_MASK = _NOW["mask"]
"""`mask`: how many rules a mask may be made of, each counted as often as it stands in it."""

MAX_PRODUCTS = 20 * MAX_EXPRESSION
"""How many terms a product of two sizes may have before equal ones are added up."""


def raising(name: str) -> str:
    """What a message of an input beyond a limit says about it: its name, and how to raise it."""
    assert name in DEFAULTS, name
    return f"the limit `{name}` is {_NOW[name]:,}; {VARIABLE}={name}=N in the environment sets another"
