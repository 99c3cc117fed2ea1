"""What a diagnostic looks like."""

import json

import pytest

from archdsl.diagnostics import Diagnostic, Label
from archdsl.diagnostics.render import render_concise, render_github, render_json, render_text
from archdsl.diagnostics.source import Source, Span

TEXT = """\
# a small file
#
#
#
#
#
#
#
block layer(x: [batch, time, width]) {

  h = x -> linear(4 * width)
  return x + h
"""
SOURCE = Source("tiny.arch", TEXT)


def at(part: str, source: Source = SOURCE) -> Span:
    start = source.text.index(part)
    return Span(source, start, start + len(part))


SHAPES = Diagnostic(
    "E0301",
    "`+` needs equal shapes, but its two sides differ in the last axis",
    at("x + h"),
    "[batch, time, 768] + [batch, time, 3072]",
    (Label(at("width"), "`x` gets its last axis, 768, here"), Label(at("linear(4 * width)"), "`h` gets its own here")),
    ("4 * width = 4 * 768 = 3072",),
    "project `h` back before adding it: `h -> linear(width)`",
)


@pytest.mark.parametrize(
    ("before", "columns"),
    [("", 0), ("e\u0301", 1), ("宽", 2), ("\u2764\ufe0f", 1), ("é", 1), ("\u200d", 1), ("\u0939\u093f\u0902", 2)],
)
def test_a_mark_stands_below_what_it_marks(before: str, columns: int) -> None:
    """Wide characters take two columns, accents on the character before them none."""
    source = Source("a.arch", f"{before}wrong")
    line, mark = render_text([Diagnostic("E0301", "no", at("wrong", source))]).splitlines()[3:5]
    assert mark.index("^") - line.index("|") == 2 + columns


def test_text() -> None:
    assert (
        render_text([SHAPES])
        == """\
error[E0301]: `+` needs equal shapes, but its two sides differ in the last axis
  --> tiny.arch:12:10
   |
 9 | block layer(x: [batch, time, width]) {
   |                              ----- `x` gets its last axis, 768, here
11 |   h = x -> linear(4 * width)
   |            ----------------- `h` gets its own here
12 |   return x + h
   |          ^^^^^ [batch, time, 768] + [batch, time, 3072]
   |
   = note: 4 * width = 4 * 768 = 3072
   = help: project `h` back before adding it: `h -> linear(width)`
"""
    )


def test_another_file_and_several_labels_of_a_line() -> None:
    library = Source("std/ffn.arch", "\tblock 注意 f(x)\n", library=True)
    found = Diagnostic(
        "W0101",
        "look",
        at("x + h"),
        labels=(
            Label(Span(SOURCE, at("x + h").start, at("x + h").start + 1), "left"),
            Label(Span(SOURCE, at("x + h").end - 1, at("x + h").end), "right"),
            Label(at("# a"), "far"),
            Label(at("f", library), "there"),
        ),
    )
    assert (
        render_text([found])
        == """\
warning[W0101]: look
  --> tiny.arch:12:10
   |
 1 | # a small file
   | --- far
...
12 |   return x + h
   |          ^^^^^
   |          |   |
   |          |   right
   |          left
   |
  ::: std/ffn.arch:1:11
   |
 1 |     block 注意 f(x)
   |                - there
"""
    )


def test_color_only_adds_color() -> None:
    import re

    colored = render_text([SHAPES], color=True)
    assert "\x1b[1;31merror[E0301]\x1b[0m" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == render_text([SHAPES])


def test_no_place_and_several_findings() -> None:
    missing = Diagnostic("E0108", "there is no file `a`", help="one\ntwo")
    assert render_text([missing]) == "error[E0108]: there is no file `a`\n= help: one\n        two\n"
    assert render_text([missing, missing]).count("\n\n") == 1
    assert render_text([]) == ""


def test_the_end_of_a_line_and_an_empty_file() -> None:
    several_lines = Diagnostic("E0101", "m", Span(SOURCE, TEXT.index("return"), len(TEXT)))
    assert render_text([several_lines]).endswith("12 |   return x + h\n   |   ^^^^^^^^^^^^\n")
    empty = Source("empty.arch", "")
    assert render_text([Diagnostic("E0101", "m", Span(empty, 0, 0))]).endswith("1 |\n  | ^\n")


def test_concise() -> None:
    assert render_concise([SHAPES, Diagnostic("W0201", "m")]) == (
        "tiny.arch:12:10: error[E0301]: `+` needs equal shapes, but its two sides differ in the last axis\n"
        "warning[W0201]: m\n"
    )


def test_json() -> None:
    first, second = json.loads(render_json([SHAPES, Diagnostic("W0201", "m")]))
    place = {"file": "tiny.arch", "line": 12, "column": 10, "end_line": 12, "end_column": 15}
    assert {k: first[k] for k in place} == place
    assert (first["code"], first["severity"], first["help"]) == ("E0301", "error", SHAPES.help)
    assert first["labels"][0] | {"text": ""} == {
        "file": "tiny.arch",
        "line": 9,
        "column": 30,
        "end_line": 9,
        "end_column": 35,
        "text": "",
    }
    assert (second["severity"], second["file"], second["line"]) == ("warning", None, None)


def test_github() -> None:
    odd = Source("a,b:c.arch", "x")
    found = Diagnostic("E0101", "50% of\nit", Span(odd, 0, 1), notes=("n",), help="h")
    assert render_github([found, Diagnostic("W0201", "m")]) == (
        "::error file=a%2Cb%3Ac.arch,line=1,endLine=1,col=1,endColumn=2,title=E0101::50%25 of%0Ait%0An%0Ahelp: h\n"
        "::warning title=W0201::m\n"
    )
