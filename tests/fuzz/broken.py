"""Broken and hostile specs: each must end, soon and within bounds, in findings with a code and a place, or in a model.

    python -m tests.fuzz.broken --count 100000 --seed 1 [--jobs 2] [--keep FOLDER]

An input is a number: `case(seed, number)` makes the same one everywhere. They are mutations of every spec of the
repository (cut, spliced, with words, numbers and characters exchanged) and texts that were built to cost much. Each is
read in a child with one gigabyte of addresses, and no step of it may take longer than its limit in processor time. What
breaks these rules is told once for each place in the compiler, made smaller, and written to `--keep`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
MEMORY = 2**30
"""Bytes of addresses that a child may have."""
SECONDS = 2.0
"""Processor time of each step that reads a spec."""
COSTLY = 6.0
"""The same for texts that were built to come near every limit."""
COUNTING = 20.0
"""Processor time of an estimate, or of laying out the PyTorch file: of a model that is as large as may be."""
EMITTED_NODES = 3_000
"""Larger models are checked and counted only."""
STUCK = 120.0
"""Seconds on the clock after which a child that no signal reaches is killed."""


INSIDE = re.compile(
    r"\b(?:Template|Instance|Declared|Header|ListValue|Value|Num|Scheme|Mask|Word|Span|Source|Fraction|Name|Number)\("
    r"|<archdsl|<class|<function|object at 0x"
)
"""What only the compiler knows, and no diagnostic says."""


class Case(NamedTuple):
    """One input: a text or bytes, files beside it, and `--set`."""

    kind: str
    text: str | bytes
    beside: dict[str, str | bytes] = {}  # noqa: RUF012 (a NamedTuple's default, never changed)
    settings: dict[str, str] = {}  # noqa: RUF012
    costly: bool = False
    """Whether it comes near a limit on purpose."""
    depth: int = 2
    """What is done where nothing is wrong: 0 no more than the check, 1 all estimates, 2 the PyTorch file too."""


@dataclass
class Verdict:
    """What became of one input."""

    outcome: str
    """`refused`, `fine`, or what is wrong with the compiler."""
    where: str = ""
    detail: str = ""
    codes: tuple[str, ...] = ()

    @property
    def is_finding(self) -> bool:
        return self.outcome not in ("refused", "fine")

    @property
    def signature(self) -> str:
        return f"{self.outcome} {self.where}"


# --- inputs -----------------------------------------------------------------------------------------------------------

WORD = re.compile(r'[A-Za-z_][\w.]*|\d[\w.]*|"[^"\n]*"|#[^\n]*|->|\*\*|//|\+=|[=!<>]=|\.\.\.|\s+|.', re.DOTALL)


@cache
def corpus() -> list[str]:
    """Every spec of the repository: the zoo, the library, the examples, and the blocks of the documentation."""
    files = [*ROOT.glob("specs/**/*.arch"), *ROOT.glob("examples/*.arch"), *KEPT.glob("*.arch")]
    texts = [p.read_text(encoding="utf-8", errors="replace") for p in sorted(files)]
    pages = [*ROOT.glob("docs/*.md"), *ROOT.glob("archdsl/diagnostics/pages/*.md"), *ROOT.glob("tests/language/*.md")]
    for page in sorted([*pages, ROOT / "README.md"]):
        for info, block in re.findall(r"^```(arch[^\n]*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
            texts.append(STATEMENTS.format(block) if "statements" in info else block)
    python = sorted(p for p in ROOT.glob("tests/**/*.py") if p.parent != KEPT.parent)
    for page in python:
        for block in re.findall(r'"""\\?\n(.*?)"""', page.read_text(encoding="utf-8"), re.S):
            if re.search(r"^(model|block) \w+", block, re.M):
                texts.append(block)
    return [t for t in dict.fromkeys(texts) if len(t) < 20_000]


@cache
def parsed() -> list[str]:
    """Those of the corpus that are well formed, which most inputs come from; small ones twice."""
    from archdsl.diagnostics import ArchError
    from archdsl.diagnostics.source import Source
    from archdsl.syntax.parse import parse

    found = []
    for text in corpus():
        with contextlib.suppress(ArchError):
            parse(Source("corpus.arch", text))
            if re.search(r"^(?:model|variant)\b", text, re.MULTILINE):
                found += [text] * (1 + (len(text) < 1_500))
    return found


KEPT = Path(__file__).resolve().parent / "kept"
STATEMENTS = "model tiny(x: [batch, time, width]) -> [batch, time, width] {{\n{}}}\n"


@cache
def words() -> list[str]:
    """Every word that stands in the corpus."""
    found = dict.fromkeys(w for t in corpus() for w in WORD.findall(t) if not w.isspace() and w[0] != "#")
    return list(found)


NUMBERS = (
    *("0", "1", "2", "3", "7", "16", "-1", "00", "0.5", "1e-9", "1e999", "1e-999", "9**9**9", "2**63", "2**64"),
    *("10**18", "10**40", "1/0", "1/3", "0/0", "0**-1", "(-1)**0.5", "-(2**70)", "1_000_000", "9" * 24, "9" * 150),
    *("9" * 200, "1e150", "1.5e-150", "0.1", "time", "time / 3", "batch * time", "width ** 16 ** 2", "2 ** 512"),
    *("2 ** -512", "(time + batch + 1) ** 16", "sqrt(-1)", "log(0)", "exp(1e9)", "10 ** 308 * 10.5", "1e308 * 10"),
    *("cos(2 ** 500)",),
)
ODD = (
    *map(chr, (*range(9), 0x0B, 0x0C, 0x1B, 0x7F, 0x85, 0xA0, 0xAD, 0x2028, 0x2029, 0x200B, 0x202E, 0x2066, 0xFEFF)),
    *map(chr, (0xFFFD, 0xD800, 0xDFFF, 0x1F600, 0x301)),
    *"éßıİΩﬁª²٣𝒙一“”‘’–—×−·…→⇒≤≠",
    *"\\`'\"$@?!;{}()[]<>#%^~&|",
)
NAMES = (
    *("self", "torch", "nn", "F", "Tensor", "math", "config", "Config", "__class__", "__init__", "__dict__", "class"),
    *("def", "import", "lambda", "None", "True", "print", "exec", "eval", "open", "forward", "x", "width", "time"),
    *("batch", "training", "shared", "accepts", "given", "option", "offer", "none", "true", "false", "emit", "return"),
    *("param", "Ellipsis", "_", "__", "_0", "T5", "lm", "mha", "sdpa", "a_name_that_does_not_end_where_one_thinks" * 3),
)
KEYWORDS = (
    "import|let|inline|block|model|variant|as|for|in|scan|if|then|else|return|emit|assert|param|buffer|loss|and|or|not"
)


def case(seed: int, number: int) -> Case:
    """The input of that number."""
    rng = random.Random(f"{seed}:{number}")
    return _case(rng)._replace(depth=rng.choice((0, 0, 0, 0, 0, 1, 1, 2)))


def _case(rng: random.Random) -> Case:
    roll = rng.random()
    if roll < 0.02:
        return _built(rng)
    if roll < 0.03:
        return _bombs(rng)
    if roll < 0.05:
        return _bytes(rng)
    text = rng.choice(corpus() if roll < 0.1 else parsed())
    if len(text) > 2_500:  # with fewer of its models, or else most of the time goes to the largest specs
        parts = re.split(r"(?m)^(?=(?:model|variant) )", text)
        text = "".join([parts[0], *rng.sample(parts[1:], min(len(parts) - 1, 1))])
    if roll < 0.11:
        return Case("cut", _cut(rng, text))
    settings = {}
    if roll < 0.14:
        keys = re.findall(r"\b(\w+)\s*(?::|=)", text) or ["layers"]
        settings = {rng.choice(keys): _setting(rng) for _ in range(rng.randint(1, 2))}
        return Case("set", text, settings=settings)
    names = []
    for _ in range(rng.choice((1, 1, 1, 1, 2, 2, 3, 10))):
        change = rng.choice(CHANGES)
        names.append(change.__name__[1:])
        text = change(rng, text)
    return Case(names[0], text[:400_000])


def _setting(rng: random.Random) -> str:
    made = rng.choice(
        (rng.choice(NUMBERS), rng.choice(ODD), rng.choice(words()), "[" * 300, "9" * 5_000, "a" * 100_000)
    )
    return made.strip() or "0"


def _pieces(text: str) -> list[str]:
    return WORD.findall(text)


def _some(rng: random.Random, pieces: list[str]) -> int:
    """A word that is no white space, mostly."""
    for _ in range(4):
        at = rng.randrange(len(pieces))
        if not pieces[at].isspace() and pieces[at][0] != "#":
            return at
    return rng.randrange(len(pieces))


def _cut(rng: random.Random, text: str) -> str:
    return text[: rng.randrange(len(text) + 1)]


def _exchange(rng: random.Random, text: str) -> str:
    pieces = _pieces(text) or [" "]
    pieces[_some(rng, pieces)] = rng.choice(words())
    return "".join(pieces)


NAMED = re.compile(rf"(?<![\w.\"])(?!(?:{KEYWORDS})\b)[A-Za-z_][\w.]*(?=\s*(\(|:|=|,|\)|))")


@cache
def named() -> dict[str, list[str]]:
    """Names of the corpus by what stands behind them: a bracket, a colon, …"""
    found: dict[str, dict[str, None]] = {}
    for text in parsed():
        for match in NAMED.finditer(re.sub("#.*", "", text)):
            found.setdefault(match[1], {})[match[0]] = None
    return {mark: list(names) for mark, names in found.items()}


def _alike(rng: random.Random, text: str) -> str:
    """A name in the place of one that is used like it, mostly of the same text: what still parses."""
    places = [*NAMED.finditer(text)]
    if not places:
        return text
    found = rng.choice(places)
    own = [m[0] for m in places if m[1] == found[1]]
    new = rng.choice((rng.choice(own), rng.choice(own), rng.choice(named().get(found[1], own)), rng.choice(NAMES)))
    return text[: found.start()] + new + text[found.end() :]


def _renamed(rng: random.Random, text: str) -> str:
    """One name, everywhere."""
    own = [w for w in _pieces(text) if re.fullmatch(r"[A-Za-z_]\w*", w)]
    if not own:
        return text
    return re.sub(rf"\b{rng.choice(own)}\b", rng.choice((*NAMES, rng.choice(own), "n" * 5_000)), text)


def _number(rng: random.Random, text: str) -> str:
    places = [*re.finditer(r"(?<![\w.])\d[\d_.]*", text)]
    if not places:
        return text
    found = rng.choice(places)
    return text[: found.start()] + rng.choice(NUMBERS) + text[found.end() :]


def _operand(rng: random.Random, text: str) -> str:
    """A whole operand of another text in the place of a name or number."""
    places = [*re.finditer(r"(?<=[=(,:\[+*/>] )[\w.]+(?:\([^()\n]*\))?", text)]
    other = [m[0] for m in re.finditer(r"(?<=[=(,:\[+*/>] )[\w.]+(?:\([^()\n]*\))?", rng.choice(corpus()))]
    if not places or not other:
        return text
    found = rng.choice(places)
    return text[: found.start()] + rng.choice(other) + text[found.end() :]


def _dropped(rng: random.Random, text: str) -> str:
    pieces = _pieces(text) or [" "]
    at = _some(rng, pieces)
    del pieces[at : at + rng.choice((1, 1, 2, 5, 20))]
    return "".join(pieces)


def _doubled(rng: random.Random, text: str) -> str:
    pieces = _pieces(text) or [" "]
    at = rng.randrange(len(pieces))
    part = pieces[at : at + rng.choice((1, 3, 10, 40))]
    return "".join([*pieces[:at], *part * rng.choice((2, 2, 3, 50)), *pieces[at + len(part) :]])


def _swapped(rng: random.Random, text: str) -> str:
    pieces = _pieces(text) or [" "]
    a, b = _some(rng, pieces), _some(rng, pieces)
    pieces[a], pieces[b] = pieces[b], pieces[a]
    return "".join(pieces)


def _spliced(rng: random.Random, text: str) -> str:
    a, b = _pieces(text), _pieces(rng.choice(corpus()))
    at, start = rng.randrange(len(a) + 1), rng.randrange(len(b) + 1)
    return "".join(
        [*a[:at], *b[start : start + rng.choice((3, 10, 50, 500))], *a[at if rng.random() < 0.5 else len(a) :]]
    )


def _lines(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    line = lines.pop(at)
    what = rng.randrange(4)
    if what == 1:
        lines.insert(rng.randrange(len(lines) + 1), line)
    elif what == 2:
        lines[at:at] = [line] * rng.choice((2, 3, 100))
    elif what == 3:
        lines[at:at] = [line, rng.choice(rng.choice(corpus()).split("\n"))]
    return "\n".join(lines)


def _characters(rng: random.Random, text: str) -> str:
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(ODD) + text[at + rng.randrange(2) :]
    return text


def _wrapped(rng: random.Random, text: str) -> str:
    """An operand within many brackets, signs or calls."""
    places = [*re.finditer(r"(?<=[=(,:] )\w+", text)]
    if not places:
        return text
    found, n = rng.choice(places), rng.choice((2, 20, 90, 99, 101, 500))
    before, after = rng.choice(
        (("(", ")"), ("[", "]"), ("-", ""), ("not ", ""), ("~", ""), ("abs(", ")"), ("sqrt(", ")"))
    )
    return text[: found.start()] + before * n + found[0] + after * n + text[found.end() :]


CHANGES: tuple[Callable[[random.Random, str], str], ...] = (
    *(_alike,) * 8,
    *(_renamed,) * 2,
    *(_number,) * 4,
    *(_operand,) * 5,
    *(_lines,) * 3,
    *(_exchange, _dropped, _doubled, _swapped, _spliced, _characters, _wrapped, _cut),
)


def _bytes(rng: random.Random) -> Case:
    """A file that is no text, or a text with some bytes of another."""
    if rng.random() < 0.3:
        return Case("binary", rng.randbytes(rng.choice((0, 1, 2, 100, 10_000))))
    data = bytearray(rng.choice(corpus()).encode("utf-8", "surrogatepass"))
    for _ in range(rng.choice((1, 1, 5))):
        data[rng.randrange(len(data))] = rng.randrange(256)
    prefix = rng.choice((b"", b"", b"\xef\xbb\xbf", b"\xff\xfe", b"\x00"))
    return Case("bytes", prefix + bytes(data))


def _bombs(rng: random.Random) -> Case:
    """Files that import each other."""
    n = rng.choice((1, 2, 10, 150, 250, 1_000))
    model = "model m(x: [batch, 8]) { return x }\n"
    kind = rng.randrange(6)
    if kind == 0:  # a chain
        files = {f"f{i}.arch": f'import "f{i + 1}.arch" as g\n' for i in range(n)}
        return Case("chain of imports", 'import "f0.arch" as g\n' + model, files)
    if kind == 1:  # each imports all that come after it
        n = min(n, 60)
        files = {f"f{i}.arch": "".join(f'import "f{j}.arch"\n' for j in range(i + 1, n)) for i in range(n)}
        return Case("diamonds of imports", 'import "f0.arch"\n' + model, files)
    if kind == 2:
        files = {f"f{i}.arch": f'import "f{(i + 1) % n}.arch" as g\n' for i in range(n)}
        return Case("circle of imports", 'import "f0.arch" as g\n' + model, files)
    if kind == 3:
        body = "".join(f"block b{i}(x: [batch, width]) = linear(width)\n" for i in range(rng.choice((10, 4_000))))
        files = {f"f{i}.arch": body for i in range(n)}
        return Case(
            "wide imports",
            costly=True,
            text="".join(f'import "f{i}.arch" as g{i}\n' for i in range(n)) + model,
            beside=files,
        )
    if kind == 4:
        path = rng.choice(
            (
                *(
                    "/etc/passwd",
                    "../x.arch",
                    "..",
                    ".",
                    "",
                    "/",
                    "~/x",
                    "/dev/zero",
                    "/proc/self/mem",
                    "\\\\x\\y",
                    "a\x00b",
                ),
                *(
                    "file:///etc/passwd",
                    "x" * 10_000,
                    "a/" * 3_000,
                    "./" * 3_000 + "f0.arch",
                    "f0.arch/",
                    "f0.arch/../f0.arch",
                ),
                *("F0.ARCH", "f0.arch\ud800", "spec.arch", "\n", "%s", "{0}", "*.arch", "http://localhost/"),
            )
        )
        return Case("odd import", f'import "{path}" as g\n' + model, {"f0.arch": "let a = 1\n"})
    junk = rng.choice((b"\xff\xfe", b"\x00" * 100, b"(" * 10_000, rng.randbytes(500), b"model = \n" * 100))
    return Case("broken import", 'import "f0.arch" as g\n' + model, {"f0.arch": junk})


BUILT: tuple[Callable[[random.Random, int], str], ...] = (
    lambda r, n: "(" * n * 100,
    lambda r, n: r.choice('()[]{}<>"#') * n * 100,
    lambda r, n: "".join(r.choice("()[]{}") for _ in range(n * 10)),
    lambda r, n: f"let a = {'(' * n}1{')' * n}\n" + TINY,
    lambda r, n: f"let a = {'[' * n}1{']' * n}\n" + TINY,
    lambda r, n: f"let a = {'f(' * n}1{')' * n}\n" + TINY,
    lambda r, n: (
        f"let a = 1{r.choice(('[0]', '(1)', '[:]', ' + 1', ' ** 2', ' and 1', ' -> a', '.a', ' | 1', ' if'))}" * n
        + "\n"
    ),
    lambda r, n: (
        "let a = 1"
        + r.choice((" + 1", " * 2", " - 1", " / 3", " // 2", " % 7", " ** 1", " < 2", " & 2")) * n
        + "\n"
        + TINY
    ),
    lambda r, n: "let a = " + r.choice(("-", "~", "not ", "- -", "if true then ", "[0 for i in ")) * n + "1\n" + TINY,
    lambda r, n: f"let {'n' * n * 10} = 1\n" + _equations(f"y = {'m' * n * 10}(x)\nreturn y"),
    lambda r, n: f'import "{"p" * n * 10}"\n' + TINY,
    lambda r, n: f"# {'c' * n * 100}\n" + TINY,
    lambda r, n: TINY + "\n" * n * 100,
    lambda r, n: TINY + " \t\r" * n * 30,
    lambda r, n: "".join(f"let a{i} = {i}\n" for i in range(n)) + TINY,
    lambda r, n: (
        "".join(f"let a{i + 1} = a{i} {r.choice('+*')} a{i}\n" for i in range(n))
        + "let a0 = 3\n"
        + _equations(f"return x * a{n}")
    ),
    lambda r, n: (
        "let a0 = [linear(8)]\n"
        + "".join(f"let a{i + 1} = a{i} + a{i}\n" for i in range(n))
        + TINY.replace("2 * layer", f"a{min(n, 30)}")
    ),
    lambda r, n: (
        "".join(f"let a{i} = a{i + 1}\n" for i in range(n))
        + f"let a{n} = {r.choice(('a0', '1', 'layer'))}\n"
        + TINY.replace("2 *", "a0 *")
    ),
    lambda r, n: (
        "".join(f"block b{i}(x: [batch, width]) {{ return x -> b{i + 1} }}\n" for i in range(n))
        + f"block b{n}(x: [batch, width]) = {r.choice(('b0', 'linear(width)'))}\n"
        + _equations("return x -> b0")
    ),
    lambda r, n: (
        "".join(f"block b{i}(x: [batch, width]) {{ return x -> b{i + 1} -> b{i + 1} }}\n" for i in range(min(n, 50)))
        + f"block b{min(n, 50)}(x: [batch, width]) = linear(width)\n"
        + _equations("return x -> b0")
    ),
    lambda r, n: (
        "".join(
            f"inline block b{i}(x: [batch, width]) {{ return x -> b{i + 1} -> b{i + 1} }}\n" for i in range(min(n, 50))
        )
        + f"block b{min(n, 50)}(x: [batch, width]) = linear(width)\n"
        + _equations("return x -> b0")
    ),
    lambda r, n: (
        f"block b(n, x: [batch, width]) {{ return x -> b(n: n {r.choice(('+ 1', '- 1', '* 2', '** 2', '// 2'))}) }}\n"
        + _equations(f"return x -> b(n: {n})")
    ),
    lambda r, n: (
        f"block b(n)(x: [batch, width]) {{ return x -> b(n: n {r.choice(('+ 1', '- 1', '* 2', '** 2', '// 2'))}) }}\n"
        + _equations(f"return x -> b(n: {n})")
    ),
    lambda r, n: "block b(f: block)(x: [batch, width]) { return x -> f(f: f) }\n" + _equations("return x -> b(f: b)"),
    lambda r, n: TINY.replace(
        "2 *", f"{r.choice((n * n, 10**6, 10**9, 10**30, '9**9**9', '(0-1)', 0.5, '10**6 * 10**6'))} *"
    ),
    lambda r, n: TINY.replace("2 * layer", f"[layer for i in {r.choice((n, 10**6, 10**18, 20_000))}]"),
    lambda r, n: TINY.replace("2 * layer", f"[layer(hidden: 8 * (i + 1)) for i in {r.choice((n // 5, 19_999))}]"),
    lambda r, n: TINY.replace("2 * layer", f"[{r.choice(('i + j', '[k for k in 1000]'))} for i in [j for j in 1000]]"),
    lambda r, n: TINY.replace("2 * layer", "[[[layer for i in 1000] for j in 1000] for k in 1000]"),
    lambda r, n: TINY.replace("2 * layer", " + ".join(["layer"] * n)),
    lambda r, n: TINY.replace("2 * layer", " + ".join(f"layer(hidden: {8 + i})" for i in range(min(n, 300)))),
    lambda r, n: TINY.replace("width: 16", f"width: {r.choice((10**12, 10**100, '2**500', n))}"),
    lambda r, n: TINY.replace("vocab: 64", f"vocab: {r.choice((0, -1, 10**18, '10**150', 'time', 0.5))}"),
    lambda r, n: TINY.replace("vocab: 64", "".join(f"k{i}: 1\n" for i in range(n))),
    lambda r, n: _equations("\n".join("x = x + x" for _ in range(n)) + "\nreturn x"),
    lambda r, n: _equations("\n".join("x = x -> linear(width) -> gelu" for _ in range(n)) + "\nreturn x"),
    lambda r, n: _equations("x = x" + " -> relu" * n + "\nreturn x"),
    lambda r, n: _equations("for i in 1000 { for j in 1000 { for k in 1000 { x = x + 1 } } }\nreturn x"),
    lambda r, n: _equations("for i in 1000 { for j in 1000 { for k in 1000 { x = x + i * j * k } } }\nreturn x"),
    lambda r, n: _equations("y = for i in 1000 { z = for j in 1000 { emit x * (i + j) }\nemit z[0] }\nreturn y[0]"),
    lambda r, n: _equations(
        "y = for i in 20000 { emit x }\nz = for a in y { for b in y { x = x + b }\nemit x }\nreturn z[0]"
    ),
    lambda r, n: _equations(f"for i in {n} {{ x = x -> linear(width) }}\nreturn x"),
    lambda r, n: _equations(f"for i in {n} {{ x = x -> linear(width + i) }}\nreturn x"),
    lambda r, n: _equations("if training { " * n + "x = x + 1" + " }" * n + "\nreturn x"),
    lambda r, n: _equations("if true { " * n + "x = x + 1" + " }" * n + "\nreturn x"),
    lambda r, n: _equations("for i in 3 { " * min(n, 90) + "x = x + 1" + " }" * min(n, 90) + "\nreturn x"),
    lambda r, n: _equations("for i in 2 { " * min(n, 90) + "x = x * (i + 1)" + " }" * min(n, 90) + "\nreturn x"),
    lambda r, n: _equations("let n = (time + batch + 1) ** 16\nlet m = n ** 16\nlet k = m ** 16\nreturn x * (k / 7)"),
    lambda r, n: _equations("let n = time // 3 // 2 + 1\n" * min(n, 300) + "return x * n"),
    lambda r, n: _equations("let n = time\n" + "let n = n // 3 + n // 2\n" * min(n, 300) + "return x * n"),
    lambda r, n: _equations("let n = width\n" + f"let n = n {r.choice('+*-')} n\n" * min(n, 2_000) + "return x * n"),
    lambda r, n: _equations(
        "let n = 2.5\n"
        + f"let n = n {r.choice(('+', '*', '-', '**', '/', '//', '%'))} n\n" * min(n, 2_000)
        + "return x * n"
    ),
    lambda r, n: _equations(
        "let n = 1 / 3\n" + f"let n = n {r.choice(('+', '*', '-'))} n * n\n" * min(n, 60) + "return x * n"
    ),
    lambda r, n: _equations("let n = 2\n" + "let n = n * n\n" * min(n, 40) + "return x * n"),
    lambda r, n: _equations("let n = 1.5\n" + "let n = n * n\n" * min(n, 40) + "return x -> linear(n)"),
    lambda r, n: _equations(f"return x -> reshape([{'1, ' * n}width])"),
    lambda r, n: _equations(f"y = {'stack([' * min(n, 60)}x{'], axis: 0)' * min(n, 60)}\nreturn y"),
    lambda r, n: _equations("y = x\n" + "y = concat([y, y], axis: 1)\n" * min(n, 900) + "return y"),
    lambda r, n: _equations("y = x\n" + "y = y * unsqueeze(y, axis: 0)\n" * min(n, 300) + "return y"),
    lambda r, n: _equations(f"return x -> mha(heads: 2, mask: {'~' * n}causal)"),
    lambda r, n: _equations(
        f"return x -> mha(heads: 2, mask: causal{r.choice((' & window(3)', ' & ~window(2)'))}"
        f"{' | strided(2)' * min(n, 90)})"
    ),
    lambda r, n: _equations(
        f"param w: [{r.choice((10**9, 10**40, n, 0, -3))}, width] = normal(0.02)\nreturn x + sum(w)"
    ),
    lambda r, n: "".join(f"model m{i}(x: [batch, 8]) {{ return x }}\n" for i in range(n)),
    lambda r, n: (
        "".join(f"variant v{i} = v{i + 1}()\n" for i in range(n))
        + f"variant v{n} = {r.choice(('v0()', 'tiny()'))}\n"
        + TINY
    ),
    lambda r, n: f"model m({', '.join(f'h{i} = {i}' for i in range(n))})(x: [batch, 8]) {{ return x }}\n",
    lambda r, n: f"model m({', '.join(f'x{i}: [batch, 8]' for i in range(n))}) {{ return x0 }}\n",
    lambda r, n: f"model m(x: [{', '.join(f'a{i}' for i in range(n))}]) {{ return x }}\n",
    lambda r, n: "model m(x: [batch, 8]) { return x }\n" * n,
    lambda r, n: _equations(f"return x{', x' * n}"),
    lambda r, n: _equations(f"a{''.join(f', a{i}' for i in range(n))} = x -> split({', '.join(['1'] * n)})\nreturn x"),
    lambda r, n: _equations(f"y = x[{', '.join([':'] * n)}]\nreturn y"),
    lambda r, n: _equations(f"ys = scan h: [batch, width] = 0 for t in x {{ {'h = h + t ' * n} emit h }}\nreturn ys"),
    lambda r, n: _equations(
        "ys = scan h: [batch, width] = 0 for t in x { " * min(n, 60)
        + "h = h + t emit h"
        + " }" * min(n, 60)
        + "\nreturn ys"
    ),
    lambda r, n: _equations("assert " + " and ".join(["width > 0"] * n) + "\nreturn x"),
    lambda r, n: _equations("assert " + " and ".join(["time > 0"] * n) + "\nreturn x"),
    lambda r, n: _equations(f"return x -> chunk(parts: {r.choice((n, 10**9, 0, -1, 0.5))})"),
    lambda r, n: _equations(f"loss l = 0 * mean(x, axis: [{', '.join(['0'] * n)}])\nreturn x"),
)
"""Texts that were built to cost much: `n` says how much."""

TINY = """\
block layer(hidden: size = 8) {
  attention: mha(heads: 2)
  mask: causal
  ffn: mlp(hidden: hidden)
}
model tiny {
  vocab: 64
  context: 16
  width: 16
  blocks: 2 * layer
  head: lm
}
"""


def _equations(body: str) -> str:
    return "model m(width = 8)(x: [batch, time, width]) {\n" + body + "\n}\n"


def _built(rng: random.Random) -> Case:
    number = rng.randrange(len(BUILT))
    size = rng.choice((1, 3, 30, 100, 300, 1_000, 3_000, 10_000))
    return Case(f"built {number}", BUILT[number](rng, size), costly=True)


# --- judging one ------------------------------------------------------------------------------------------------------


class TooLong(BaseException):
    """A step took more processor time than it may. No `except Exception` of the compiler stops it."""


@contextlib.contextmanager
def within(seconds: float, step: str) -> Iterator[None]:
    """Raises TooLong where what stands inside takes longer, in processor time."""

    def stop(*_: object) -> None:
        raise TooLong(step)

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def judge(case: Case, folder: Path) -> Verdict:
    """What becomes of an input. `folder` is where its files may lie."""
    step = ["reading"]
    try:
        return _judged(case, folder, step)
    except TooLong as problem:
        return Verdict("slow", step[0] + " " + _place(problem), _trace(problem))
    except MemoryError as problem:
        where = step[0] + " " + _place(problem)
        return Verdict("memory", where, where)
    except Exception as problem:
        return Verdict(f"internal {type(problem).__name__}", _place(problem), _trace(problem))


def _place(problem: BaseException) -> str:
    """The innermost function of the compiler."""
    frames = [f for f in traceback.extract_tb(problem.__traceback__) if f"{os.sep}archdsl{os.sep}" in f.filename]
    if isinstance(problem, TooLong | RecursionError):
        # Where it was stopped is chance: the outermost that is no mere driver says more.
        names = [f for f in frames if not f.filename.endswith(("api.py", "cli.py", "load.py"))]
        frames = names[:4] or frames
    return f"{Path(frames[-1].filename).name}:{frames[-1].name}" if frames else type(problem).__name__


def _trace(problem: BaseException) -> str:
    lines = traceback.format_exception(problem)
    return "".join(lines)[-3_000:]


def _judged(case: Case, folder: Path, step: list[str]) -> Verdict:
    from archdsl import api
    from archdsl.diagnostics import ArchError, render
    from archdsl.resources import error_codes

    given: dict[str, Any] = {"set": case.settings or None}
    if isinstance(case.text, bytes) or case.beside:
        _written(folder, {"spec.arch": case.text, **case.beside})
        given["spec"] = folder / "spec.arch"
        given["model"] = None
    else:
        given["text"] = case.text
    most = COSTLY if case.costly else SECONDS
    step[0] = "check"
    with within(most, "check"):
        found = api.check(**given)
    step[0] = "render"
    with within(most, "render"):
        shown = [render.render_text(found), render.render_text(found, color=True), render.render_json(found)]
        shown += [render.render_concise(found), render.render_github(found)]
        for text in shown:
            text.encode("utf-8", "surrogatepass")
    for d in found:
        if d.code not in error_codes():
            return Verdict("unknown code", d.code, d.message)
        if d.span is None and d.is_error and d.code not in ("E0108", "E0210") and not case.settings:
            return Verdict("no place", d.code, d.message)
        if d.span is not None and not 0 <= d.span.start <= d.span.end <= len(d.span.source.text):
            return Verdict("wrong place", d.code, d.message)
        if len(d.message) > 10_000:
            return Verdict("endless message", d.code, d.message[:300])
        inside = INSIDE.search(" ".join((d.message, d.help, *d.notes)))
        if inside is not None and inside[0] not in str(case.text):
            return Verdict("inside of the compiler shown", d.code, d.message[:300])
    codes = tuple(sorted({d.code for d in found if d.is_error}))
    _formatted(case, given, step, codes)
    if codes:
        return Verdict("refused", codes=codes)
    try:
        if case.depth:
            _counted(given, step, emitted=case.depth > 1)
    except ArchError as problem:  # the first model of a file may be one that only its variants complete
        return Verdict("refused", codes=tuple(d.code for d in problem.diagnostics))
    return Verdict("fine")


def _written(folder: Path, files: dict[str, str | bytes]) -> None:
    for old in folder.iterdir():
        old.unlink()
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
        (folder / name).write_bytes(data)


def _formatted(case: Case, given: dict[str, Any], step: list[str], codes: tuple[str, ...]) -> None:
    """What parses can be formatted, and that changes nothing the second time."""
    from archdsl import api
    from archdsl.diagnostics import ArchError
    from archdsl.diagnostics.source import Source
    from archdsl.syntax.parse import parse

    if isinstance(case.text, bytes) or any(c.startswith("E01") for c in codes):
        return
    source = Source("spec.arch", case.text)
    step[0] = "parse"
    try:
        with within(COSTLY, "parse"):
            parse(source)
    except ArchError:
        return
    step[0] = "fmt"
    with within(2 * COSTLY, "fmt"):
        once = api.format_text(text=source.text)
        twice = api.format_text(text=once)
    assert once == twice, "fmt changes what fmt wrote"


def _counted(given: dict[str, Any], step: list[str], *, emitted: bool) -> None:
    """Everything that can be asked of a model that is fine, without a back end that is loaded for it."""
    import ast

    from archdsl import api
    from archdsl.backends.torch import emit
    from archdsl.diagnostics import ArchError
    from archdsl.estimates.flops import estimate as flops
    from archdsl.estimates.memory import estimate as memory
    from archdsl.estimates.params import estimate as count
    from archdsl.frontend.expand import expand_spec
    from archdsl.frontend.load import find_spec, module_of
    from archdsl.ir.text import print_model
    from archdsl.report.diagram import diagram
    from archdsl.report.mermaid import mermaid
    from archdsl.report.tree import tree

    step[0] = "load"
    with within(COSTLY, "load"):
        model = api.load(**given, allow_noncausal=True)
    found = find_spec(given.get("spec"), text=given.get("text"))
    for name, work in (
        ("params", lambda: count(model).model_dump_json()),
        ("flops", lambda: flops(model).model_dump_json()),
        ("memory", lambda: memory(model).model_dump_json()),
        ("tree", lambda: tree(model).model_dump_json()),
        ("ir", lambda: print_model(model)),
        ("diagram", lambda: mermaid(diagram(model))),
        ("expand", lambda: expand_spec(module_of(found), found.model, {}, None)),
    ):
        step[0] = name
        # Refused with a code is fine: an optimizer may not know a size that only the running model knows.
        with within(COUNTING, name), contextlib.suppress(ArchError):
            work()
    if emitted and len(print_model(model).splitlines()) < EMITTED_NODES:
        step[0] = "emit"
        with within(COUNTING, "emit"), contextlib.suppress(ArchError):
            ast.parse(emit(model))


# --- many -------------------------------------------------------------------------------------------------------------


def _limited() -> None:
    """Give this process the memory it may have beside what it began with (a test process may hold torch)."""
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 0
    most = MEMORY + pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


Make = Callable[[int, int], Case]
"""The input of a seed and a number."""
Judge = Callable[[Case, Path], Verdict]


def _child(write: int, seed: int, numbers: range, make: Make, check: Judge) -> None:
    """Judge inputs and tell about each in a line: its number before it is looked at, its verdict after."""
    _limited()
    folder = Path(tempfile.mkdtemp(prefix="broken"))
    os.chdir(folder)
    try:
        for number in numbers:
            os.write(write, f"{number}\n".encode())
            made = make(seed, number)
            verdict = check(made, folder)
            told = (
                {"kind": made.kind, **vars(verdict)}
                if verdict.is_finding
                else [verdict.outcome, made.kind, verdict.codes]
            )
            os.write(write, (json.dumps(told) + "\n").encode())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Worker:
    """A child and what it has told."""

    seed: int
    numbers: range
    make: Make
    check: Judge
    pid: int = 0
    read: int = 0
    rest: bytes = b""
    current: int | None = None
    heard: float = field(default_factory=time.monotonic)

    def start(self) -> None:
        self.read, write = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(self.read)
            code = 1
            try:
                _child(write, self.seed, self.numbers, self.make, self.check)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(write)
        self.rest, self.current, self.heard = b"", None, time.monotonic()

    def lines(self) -> list[Any] | None:
        """What was told since the last time; None where the child has ended."""
        data = os.read(self.read, 1 << 16)
        if not data:
            return None
        self.heard = time.monotonic()
        *whole, self.rest = (self.rest + data).split(b"\n")
        return [json.loads(line) for line in whole]


@dataclass
class Summary:
    """What was found in how many inputs."""

    count: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    findings: dict[str, tuple[int, Verdict]] = field(default_factory=dict)

    def add(self, number: int, kind: str, verdict: Verdict) -> bool:
        """Whether this is the first finding of its signature."""
        self.count += 1
        self.outcomes[verdict.outcome] += 1
        self.codes.update(verdict.codes)
        self.kinds[kind.split(" ")[0]] += 1
        new = verdict.is_finding and verdict.signature not in self.findings
        if new:
            self.findings[verdict.signature] = number, verdict
        return new


def run(
    seed: int, count: int, jobs: int, tell: Callable[[str], None], make: Make = case, check: Judge = judge
) -> Summary:
    """Judge `count` inputs in `jobs` children."""
    if make is case:
        named(), words()
    with tempfile.TemporaryDirectory() as folder:
        # what is imported on the way, children have from here
        check(Case("first", TINY) if make is case else make(seed, 0), Path(folder))
    summary = Summary()
    share = -(-count // jobs)
    parts = (range(i * share, min((i + 1) * share, count)) for i in range(jobs))
    workers = [Worker(seed, part, make, check) for part in parts]
    for worker in workers:
        worker.start()
    started = last = time.monotonic()
    while workers:
        ready, _, _ = select.select([w.read for w in workers], [], [], 5.0)
        for worker in list(workers):
            if worker.read in ready:
                lines = worker.lines()
                if lines is not None:
                    for line in lines:
                        _heard(worker, line, summary, tell)
                    continue
                os.close(worker.read)
                _, status = os.waitpid(worker.pid, 0)
            elif time.monotonic() - worker.heard > STUCK:
                os.kill(worker.pid, signal.SIGKILL)
                continue
            else:
                continue
            workers.remove(worker)
            if status and worker.current is not None:  # it died of this one
                verdict = Verdict("died", f"status {status} kind {make(seed, worker.current).kind}")
                _note(summary, worker.current, "died", verdict, tell)
                worker.numbers = range(worker.current + 1, worker.numbers.stop)
                worker.start()
                workers.append(worker)
        if time.monotonic() - last > 20:
            last = time.monotonic()
            tell(f"{summary.count:,} of {count:,} in {last - started:.0f} s: {dict(summary.outcomes)}")
    return summary


def _heard(worker: Worker, line: Any, summary: Summary, tell: Callable[[str], None]) -> None:
    if isinstance(line, int):
        worker.current = line
        return
    assert worker.current is not None
    if isinstance(line, list):
        kind, verdict = line[1], Verdict(line[0], codes=tuple(line[2]))
    else:
        kind = line.pop("kind")
        verdict = Verdict(line["outcome"], line["where"], line["detail"], tuple(line["codes"]))
    _note(summary, worker.current, kind, verdict, tell)
    worker.current = None


def _note(summary: Summary, number: int, kind: str, verdict: Verdict, tell: Callable[[str], None]) -> None:
    if summary.add(number, kind, verdict):
        tell(f"input {number} ({kind}): {verdict.signature}\n{verdict.detail}")


def shrunk(text: str, still: Callable[[str], bool], tries: int = 400) -> str:
    """A smaller text of which the same is true: parts are left out as long as it stays so."""
    parts = text.splitlines(keepends=True)
    for split in (lambda t: t.splitlines(keepends=True), _pieces):
        parts = split("".join(parts))
        size = max(1, len(parts) // 2)
        while size and tries:
            at = 0
            while at < len(parts) and tries:
                tries -= 1
                fewer = parts[:at] + parts[at + size :]
                if fewer and still("".join(fewer)):
                    parts = fewer
                else:
                    at += size
            size //= 2
    return "".join(parts)


def judged_in_child(made: Case, seconds: float = STUCK) -> Verdict:
    """The verdict on one input, from a child of its own."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        folder = Path(tempfile.mkdtemp(prefix="broken"))
        try:
            _limited()
            os.chdir(folder)
            os.write(write, json.dumps(vars(judge(made, folder))).encode())
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(0)
    os.close(write)
    data = b""
    deadline = time.monotonic() + seconds
    while select.select([read], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(read, 1 << 16)
        if not part:
            break
        data += part
    else:
        os.kill(pid, signal.SIGKILL)
    os.close(read)
    _, status = os.waitpid(pid, 0)
    if not data:
        return Verdict("died", f"status {status}")
    told = json.loads(data)
    return Verdict(told["outcome"], told["where"], told["detail"], tuple(told["codes"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", type=int, help="judge the input of this number alone, and print it")
    parser.add_argument("--keep", type=Path, help="write what was found here, made smaller")
    args = parser.parse_args()
    if args.only is not None:
        made = case(args.seed, args.only)
        print(made.text if isinstance(made.text, str) and len(made.text) < 5_000 else repr(made.text)[:5_000])
        print(made.settings, list(made.beside)[:5])
        verdict = judged_in_child(made)
        print(verdict.signature, verdict.codes, verdict.detail, sep="\n")
        return verdict.is_finding
    started = time.monotonic()
    summary = run(args.seed, args.count, args.jobs, lambda line: print(line, file=sys.stderr, flush=True))
    for signature, (number, _) in summary.findings.items():
        made = case(args.seed, number)
        print(f"\n== {signature}: seed {args.seed}, input {number} ({made.kind})")
        if args.keep is not None:
            args.keep.mkdir(parents=True, exist_ok=True)
            text = made.text
            if isinstance(text, str) and not made.beside:
                text = shrunk(text, lambda t, m=made, s=signature: judged_in_child(m._replace(text=t)).signature == s)
            name = re.sub(r"\W+", "_", signature)[:80]
            data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
            (args.keep / f"{name}.arch").write_bytes(data)
            print(data[:1_500].decode("utf-8", "replace"), made.settings)
    print(f"\nseed {args.seed}: {summary.count:,} inputs in {time.monotonic() - started:.0f} s")
    print("outcomes:", dict(summary.outcomes.most_common()))
    print("kinds:   ", dict(summary.kinds.most_common()))
    print("codes:   ", dict(sorted(summary.codes.items())))
    return 1 if summary.findings else 0


if __name__ == "__main__":
    sys.exit(main())
