"""Trees, their spans and documentation, and what is refused."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import archdsl
from archdsl.diagnostics import ArchError
from archdsl.diagnostics.source import Source, Span
from archdsl.syntax import ast, limits
from archdsl.syntax.format import format_expr
from archdsl.syntax.limits import MAX_FILE_BYTES, MAX_NAME, MAX_NESTING
from archdsl.syntax.parse import parse, parse_expression, parse_header, read_source

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.arch"))


def file(text: str) -> ast.File:
    return parse(Source("t.arch", text))


def expr(text: str) -> ast.Expr:
    return parse_expression(Source("e", text))


def nodes(value: object) -> Iterator[ast.Node]:
    if isinstance(value, ast.Node):
        yield value
        for name in value.__dataclass_fields__:
            yield from nodes(getattr(value, name))
    elif isinstance(value, tuple):
        for item in value:
            yield from nodes(item)


def refused(text: str) -> list[str]:
    with pytest.raises(ArchError) as raised:
        file(text)
    assert all(d.span is not None and d.span.end > d.span.start for d in raised.value.diagnostics)
    return [d.code for d in raised.value.diagnostics]


# --- trees ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_the_examples_parse(path: Path) -> None:
    tree = file(path.read_text(encoding="utf-8"))
    assert tree.declarations
    assert tree.doc.startswith(tree.doc.split("\n")[0])


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_the_span_of_an_expression_is_its_text(path: Path) -> None:
    """What a span covers is, parsed for itself, the node again."""
    for node in nodes(file(path.read_text(encoding="utf-8"))):
        assert node.span.text == node.span.text.strip() or isinstance(node, ast.File)
        if isinstance(
            node, (ast.Number, ast.Name, ast.Binary, ast.Call, ast.Index, ast.IfElse, ast.List, ast.Pipeline)
        ):
            assert expr(node.span.text) == node


@pytest.mark.parametrize(
    ("text", "grouped"),
    [
        ("a + b * c", "a + (b * c)"),
        ("a - b - c", "(a - b) - c"),
        ("-a ** b", "-(a ** b)"),
        ("a ** -b ** c", "a ** (-(b ** c))"),
        ("a | b & c", "a | (b & c)"),
        ("a & b + c", "a & (b + c)"),
        ("a == b | c", "a == (b | c)"),
        ("not a == b and c or d", "((not (a == b)) and c) or d"),
        ("if a then b else c or d", "if a then b else (c or d)"),
        ("if a then b else c -> f", "if a then b else (c -> f)"),
        ("~a & b", "(~a) & b"),
        ("f(x) as y + z", "(f(x) as y) + z"),
        ("a[0](b)[1]", "((a[0])(b))[1]"),
    ],
)
def test_precedence(text: str, grouped: str) -> None:
    assert expr(text) == expr(grouped)


def test_parentheses_belong_to_no_span_but_the_one_around() -> None:
    tree = expr(" ( a + b ) * (c) ")
    assert isinstance(tree, ast.Binary)
    assert tree.span.text == "( a + b ) * (c)"
    assert tree.left.span.text == "a + b"


def test_names_have_spans() -> None:
    source = Source("t.arch", "block a { mask: x -> f as g }")
    (block,) = parse(source).declarations
    assert isinstance(block, ast.BlockDecl)
    assert isinstance(block.body, ast.Body)
    (slot,) = block.body.slots
    assert isinstance(slot.value, ast.Pipeline)
    (stage,) = slot.value.stages
    assert isinstance(stage, ast.As)
    assert [s.text for s in (block.name_span, slot.key_span, stage.name_span)] == ["a", "mask", "g"]
    assert block.span == Span(source, 0, 29)


def test_pipeline_and_slices() -> None:
    tree = expr("x[:, 1:, :n, ..., :][0] -> f -> g(1, a: 2) as h")
    assert isinstance(tree, ast.Pipeline)
    assert [type(s) for s in tree.stages] == [ast.Name, ast.As]
    assert format_expr(tree) == "x[:, 1:, :n, ..., :][0] -> f -> g(1, a: 2) as h"


@pytest.mark.parametrize(
    ("text", "hypers", "tensors", "results"),
    [
        ("f", None, None, None),
        ("f()", 0, None, None),
        ("f(a, b = 2, c: size, d: block = gelu,)", 4, None, None),
        ("f(x: [..., w])", None, 1, None),
        ("f(x: token[b, t], m: [] = none,) -> [b]", None, 2, 1),
        ("f()(x: [w]) -> (y: [w], z: int[w],)", 0, 1, 2),
        ("f(a)(x: [w])", 1, 1, None),
    ],
)
def test_headers(text: str, hypers: int | None, tensors: int | None, results: int | None) -> None:
    name, header = parse_header(Source("op", text))
    assert name == "f"
    lists = (header.hypers, header.tensors, header.results)
    assert tuple(None if entries is None else len(entries) for entries in lists) == (hypers, tensors, results)


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        ("model m { y = x -> f * ) }", "x -> f *", "a pipeline is never mixed with an operator without parentheses"),
        ("variant a = b(c: 3) ->", "->", "expected a declaration (`block`, `model`, `let`, …), found `->`"),
        ("block f(x: [a], , d: 3) {}", ",", "expected a name or `)`, found `,`"),
        ("block f(x: [a], c\n d: [b]) {}", "d", "expected `:`, found the name `d`"),
        ("let a = if b then 3\n if c", "if", "expected `else`, found `if`"),
    ],
)
def test_words_out_of_place_are_named_where_they_stand(text: str, where: str, said: str) -> None:
    with pytest.raises(ArchError) as caught:
        parse(Source("m.arch", text))
    (found,) = caught.value.diagnostics
    assert (found.message, found.span and found.span.text) == (said, where)


def test_behind_a_whole_signature_nothing_is_expected() -> None:
    with pytest.raises(ArchError, match="expected the end, found the name `b`"):
        parse_header(Source("op", "f(x: [a]) -> [a] b"))


def test_documentation() -> None:
    tree = file(
        "# File.\n#   More.\n\nlet a = 1  # no\n# One.\n#\n# Two.\nblock b {}\n"
        "\n# far\n\nmodel c {}\n# inl\ninline block d {}"
    )
    _, b, c, d = tree.declarations
    assert tree.doc == "File.\n  More."
    assert isinstance(b, ast.BlockDecl)
    assert isinstance(c, ast.ModelDecl)
    assert isinstance(d, ast.BlockDecl)
    assert (b.doc, c.doc, d.doc) == ("One.\n\nTwo.", "", "inl")
    assert d.inline


def test_line_ends_and_byte_order_marks() -> None:
    text = "# Doc.\nblock a {\n\tnorm: f\n}\n"
    assert file("\ufeff" + text.replace("\n", "\r\n")) == file(text)
    assert file("\ufeff" + text.replace("\n", "\r\n")).doc == "Doc."


# --- errors -----------------------------------------------------------------------------------------------------------


def test_independent_errors_are_all_reported() -> None:
    text = "let a = =\nblock b { norm: }\nlet ok = 1\n  let c = f(\nmodel d { x: 3x }\n"
    assert refused(text) == ["E0101", "E0101", "E0102", "E0105"]


def test_errors_do_not_cascade() -> None:
    assert refused("block a {\n  x = = (\n  y = ]\n  block: 3\n}\nlet b = 1") == ["E0101"]


def test_the_number_of_errors_is_limited() -> None:
    assert len(refused("let a = =\n" * 1000)) == 20


@pytest.mark.parametrize(
    ("text", "help_", "note"),
    [
        ("y + x -> f(1) -> g as h", "y + (x -> f(1) -> g as h)", "all of `y + x`"),
        ("y + 0.5 * x -> f", "y + 0.5 * (x -> f)", "all of `y + 0.5 * x`"),
        ("-x -> f", "-(x -> f)", "all of `-x`"),
        # A number at the left end is computed with first; one that stands before the arrow is not piped.
        ("0.5 * x -> f(1) -> g as h", "(0.5 * x) -> f(1) -> g as h", "only `x`"),
        ("1 - x -> sigmoid", "(1 - x) -> sigmoid", "only `x`"),
        ("1e-5 ** x -> f", "(1e-5 ** x) -> f", "only `x`"),
        ("x * 2 -> f", "(x * 2) -> f", ""),
        ("x -> f + 1", "(x -> f) + 1", ""),
    ],
)
def test_a_fix_is_proposed(text: str, help_: str, note: str) -> None:
    with pytest.raises(ArchError) as raised:
        file(f"let a = {text}")
    (found,) = raised.value.diagnostics
    assert (found.code, found.help) == ("E0103", f"write `{help_}`")
    assert [n.partition(" is to be")[0] for n in found.notes] == ([f"if {note}"] if note else [])


@pytest.mark.parametrize(
    "fragment", ["", "{", "}", "(", "->", "as", "let", ":", "=", ",", "...", '"', "3x", "|", "for"]
)
@pytest.mark.parametrize("path", EXAMPLES[:4], ids=lambda p: p.stem)
def test_every_broken_text_ends_in_a_diagnostic(path: Path, fragment: str) -> None:
    """Cut anywhere, or with a word too many anywhere: a tree or a diagnostic, nothing else."""
    text = path.read_text(encoding="utf-8")
    for place in range(0, len(text), 17):
        for broken in (text[:place] + fragment, f"{text[:place]} {fragment} {text[place:]}"):
            said = ()
            try:
                file(broken)
            except ArchError as problem:
                said = problem.diagnostics
            assert all(d.code.startswith("E01") and d.message for d in said)


@pytest.mark.parametrize(
    "text",
    [
        "let a = " + "(" * 1_000_000,
        "let a = " + "[" * 1_000_000,
        "let a = " + "f(" * 500_000,
        "let a = " + "-" * 1_000_000,
        "let a = x" + "+x" * 500_000,
        "let a = x" + "**x" * 300_000,
        "let a = x" + "(1)" * 300_000,
        "let a = " + "if a then " * 100_000,
        "block a {" + "if a {" * 100_000,
        "block a { if a {}" + "else if a {}" * 80_000,
    ],
)
def test_deep_nesting_is_refused_at_once(text: str) -> None:
    start = time.perf_counter()
    assert refused(text) == ["E0107"]
    assert time.perf_counter() - start < 2


def test_nesting_up_to_the_limit_is_accepted() -> None:
    depth = MAX_NESTING - 3
    tree = file(
        f"let a = {'f(' * (depth // 2)}x{')' * (depth // 2)}\nlet b = {'(' * 90}x{')' * 90}\nlet c = x{'+x' * depth}"
    )
    assert tree == file(tree.span.text)
    assert len(repr(tree)) > 1000
    assert hash(tree) == hash(file(tree.span.text))


# --- files ------------------------------------------------------------------------------------------------------------


def test_read_source(tmp_path: Path) -> None:
    path = tmp_path / "a.arch"
    path.write_bytes(b"\xef\xbb\xbflet a = 1\r\n")
    source = read_source(path, "shown.arch")
    assert (source.name, source.text) == ("shown.arch", "let a = 1\r\n")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no file `a.arch`"),
        (b"let a = 1\nlet b = \xff", "`a.arch` is not UTF-8: line 2 holds the byte 0xff"),
        (b"#" * (MAX_FILE_BYTES + 1), "`a.arch` is larger than 512 KiB"),
    ],
)
def test_unreadable_files(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "a.arch"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ArchError) as raised:
        read_source(path, "a.arch")
    (found,) = raised.value.diagnostics
    assert (found.code, found.message) == ("E0108", said)


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ArchError, match="is a directory"):
        read_source(tmp_path, "folder")
    with pytest.raises(ArchError, match="cannot be read"):
        read_source("a\0b", "a")


EQUALITY = "equality is tested by `==`"
SLIPS = {
    # What stands in a body: what is said, and the help.
    "assert time = 3": ("expected a slot, a statement, `,` or `}`, found `=`", EQUALITY),
    "y = if n = 3 then x else 2 * x": ("expected `then`, found `=`", EQUALITY),
    "if n = 3 { x = -x }": ("expected `{`, found `=`", EQUALITY),
    "y = x[time = 3]": ("expected `,` or `]`, found `=`", EQUALITY),
    "assert n + 1 = 3": ("expected a slot, a statement, `,` or `}`, found `=`", EQUALITY),
    "y == x": (
        "a statement is never a bare expression",
        "a slot is given by `y: …`, a tensor is bound by `y = …`",
    ),
    'y = einsum("b t d -> b" "x", x)': ("expected `)` or `,`, found a string", "separate the entries by `,`"),
    "y = relu(lambda a: a)": (
        "expected `)` or `,`, found the name `a`",
        "a function of one's own is a block: `block name(x: [..., width]) { … }`",
    ),
    "y = x -> [1]": (
        "a stage of a pipeline must be a block: a name, a call or an element of a list",
        "arithmetic stands outside: `0.5 * (x -> f)`",
    ),
    "y = x -> 2 * x": (
        "a stage of a pipeline must be a block: a name, a call or an element of a list",
        "arithmetic stands outside: `0.5 * (x -> f)`",
    ),
}


@pytest.mark.parametrize("line", SLIPS)
def test_a_slip_is_told_with_its_cure(line: str) -> None:
    said = archdsl.check(text=f"model m(n = 3)(x: [batch, time, 8]) {{\n  {line}\n  return x\n}}")
    assert [(d.code[:3], d.message, d.help) for d in said] == [("E01", *SLIPS[line])]


HEADERS = {
    'model m "a" { return x }': ("E0101", "expected `(`, `->` or `{`, found a string"),
    "block f(x: [8], 3) { return x }": ("E0101", "expected a name or `)`, found the number `3`"),
    "model m(x: [batch, \ud800]) { return x }": ("E0108", "line 1 holds half a character, U+D800"),
    "let a = 3\nlet b = '\udfff'": ("E0108", "line 2 holds half a character, U+DFFF"),
    f"model {'a' * (MAX_NAME + 1)} {{ vocab: 3 }}": ("E0105", f"this name is longer than {MAX_NAME} characters"),
    " " * (MAX_FILE_BYTES + 1): ("E0108", "larger than"),
}


@pytest.mark.parametrize("text", HEADERS, ids=range(len(HEADERS)))
def test_a_text_that_cannot_be_read_is_refused(text: str) -> None:
    code, words = HEADERS[text]
    (said,) = archdsl.check(text=text)
    assert said.code == code
    assert words in said.message


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nodez=3", "there is no limit `nodez`: there are "),
        ("nodes=0", "the limit `nodes` is a whole number above 0, not `0`"),
        ("nodes=3, steps", "the limit `steps` is a whole number above 0, not ``"),
        (" nodes = 3_0 ,, ", ""),
    ],
)
def test_a_limit_that_is_none_is_said(text: str, problem: str) -> None:
    found, said = limits._given(text)
    assert said.startswith(problem)
    assert bool(said) == bool(problem)
    assert said or found == {"nodes": 30}
